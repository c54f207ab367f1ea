//! Test tokens of other implementations: HMAC by Python's `hmac`, the others by OpenSSL's command line.
//! All claims are `{"ext":"{\"user_id\":\"15\"}","exp":2000000000}`; the secret is `ruby-to-go`. The
//! private keys were thrown away.

/// Signed by HS256.
pub(super) const HS256: &str = "\
    eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsImV4cCI\
    6MjAwMDAwMDAwMH0.fotCvvVf8g7dpk1Wx-yi3DU7whcxUhufDsLtfsFFFnU";
/// Signed by HS384.
pub(super) const HS384: &str = "\
    eyJhbGciOiJIUzM4NCIsInR5cCI6IkpXVCJ9.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsImV4cCI\
    6MjAwMDAwMDAwMH0.EXdZLcVWQBxLA-RC7YGsF0cyBPIIWDtmZ_PC0mr83IjFt07U452pHL6FZHI9jMbJ";
/// Signed by HS512.
pub(super) const HS512: &str = "\
    eyJhbGciOiJIUzUxMiIsInR5cCI6IkpXVCJ9.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsImV4cCI\
    6MjAwMDAwMDAwMH0.E-Bmlsh9yfmIqmO8T8ZV9icyQQOCyTSTyxPkq0A8XBQFxJcY8kqeDmNRTcJZMWjdzrb\
    zjlCGFZvyAH4eQgniQA";
/// Signed by RS256, with the name of its key.
pub(super) const RS256: &str = "\
    eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYS0xIn0.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsImV4\
    cCI6MjAwMDAwMDAwMH0.IVkHMY7AJ_pepO0zulMpUPYhjrrZbU0xs7hxsjox8J1Weh3RtD9mL7JNwjLTpbBx\
    Aw5hMr8WFd20B76BP0GNYrqqjy0jcpZ43FYaCpdPht-lwUWi48JG1lMFbshBscHrNsz_bZLz-wryaGsTJFkf\
    zsmrxLqnKuSbv2eW8B3Wx3bXkQP2L2QhiF3kn6nH0a2TxRyUPq1NR-KMp8lqMNUY_tnf5jV8p9-wBQHHuXK9\
    lEOYjrhhxh134Rvmvf1-STQyKoOHN37ll1rQo00A7UETRkqh067Q9tD_YzG6dmlBCmIdspFlCVem484jWVxO\
    c1kK4CHCTz6yST0xKL-GkVgrkw";
/// Signed by RS512, with the name of its key.
pub(super) const RS512: &str = "\
    eyJhbGciOiJSUzUxMiIsImtpZCI6InJzYS0xIn0.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsImV4\
    cCI6MjAwMDAwMDAwMH0.J70kgSl96lOfPIKDKKWr4gVhffS7QQn-Xs9eSKBSUtWCnMmaGJ0v-D68W9oZDlo8\
    bxScGsEMnriJCP5tm-aInXICLLEX5NMzP_kY9zYykmGAszzyeaf8oRXDhnbOZeoJ2MaD1fnhhCW0WBhjbqv4\
    fvSbIHB347Xgo4P_JDeLyIy3VdTmhHeHOujijyW-_gqJqXY4TsT8twukEWv2WrUufqxBy9QNg8dG0rvziWWT\
    e_kS-naIRHt1vt_1GcjVFnS63aH31OhKCULkfKs8NeVIsrTj_l8fJkBVizSJVagY_VQY0hrd7xAaSQpk_JAY\
    nIX0sl8knaRJQHzp6Kau0o_Uzw";
/// Signed by ES256, with the name of its key.
pub(super) const ES256: &str = "\
    eyJhbGciOiJFUzI1NiIsImtpZCI6ImVzMjU2LTEifQ.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsI\
    mV4cCI6MjAwMDAwMDAwMH0.kBy8WWT2xiDsJJFUI2o_m_p6FeuifJhifH0wTpS3TDHMBNb_uCewvtGaXne2W\
    QMH8MtkVOeCLil3LTHmzKoCtQ";
/// Signed by ES384, with the name of its key.
pub(super) const ES384: &str = "\
    eyJhbGciOiJFUzM4NCIsImtpZCI6ImVzMzg0LTEifQ.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsI\
    mV4cCI6MjAwMDAwMDAwMH0.HemxCvu0R4PXhsMeydrRhh3aFaeFshSezfKAZClKEKkSNxr98awl4DSIR87cl\
    sHvoGPq_0-HC6wEG0_ClJEE5AFv9m35fWihEAbXbvGlo9Ucsi8bkn1uBYN7Sa5-yd92";
/// Signed by RS384, with the name of its key.
pub(super) const RS384: &str = "\
    eyJhbGciOiJSUzM4NCIsImtpZCI6InJzYS0xIn0.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsImV4\
    cCI6MjAwMDAwMDAwMH0.A6leVtbl5oQwXng399NqCJavNfqPMauKpqkqnM9aOjCg_Du8bQXSm21ZvedibSU4\
    lH0HMSN8nrP0hmijOf0MMfzseEwx9W7dHyH_UxZ9Sy2pVp8dwWsPZ5nI8Cvu00WfHYqWv7y4CBtPv_j1FNTZ\
    HbeFuB0W_iO4JFgvd1aLm9LiWoO-dj0JZWiLSehcfb5WsBCtPESnXgkedHzGDAWBGcY-3MQEoGefEXq35nhx\
    F5klwnpuus982dIGeNRqAt0XU5VMIaYRva_G-e4DUDuRivpl9zRtS8Q_d4E8INDSFBsvYmOnDxKmsNBaCPUl\
    r5pPzQbV8EeR3fVjPguejewSgg";
/// Signed by PS256, with the name of its key.
pub(super) const PS256: &str = "\
    eyJhbGciOiJQUzI1NiIsImtpZCI6InJzYS0xIn0.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsImV4\
    cCI6MjAwMDAwMDAwMH0.JGY5iY6jaX7NcCGEtU3QxOYXXqjUiN6p2Z8FDWF4HktfxCPtvYgz5NLY5cH2hckg\
    fM4hP8-DTE5S4AyEIQf1M937cxRmPo3dM52-IGP2NxHZybCzlt_n2FqiNRKXgh6cOyMLYWKC5oy2uW0QdStv\
    2aCbrqpGxK-r_LZAgJOHbMEABlCTCgUNPqQT0xLuvf68GFaWfBn8dqpdOxEkInY4gE-oWE_tKEurcElKCx8B\
    __vmPEq8-DHMvPibuYYz7EBPqzCUsCAxKTqDCymzFCzluQ8nOfgEaHR0vFpSJ_upGuphZAxOn5gBLeMHdiV-\
    pn19fOYgzwv92ql-oWuuKvXjHw";
/// Signed by EdDSA (Ed25519), with the name of its key.
pub(super) const EDDSA: &str = "\
    eyJhbGciOiJFZERTQSIsImtpZCI6ImVkLTEifQ.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsImV4c\
    CI6MjAwMDAwMDAwMH0.42P3J5ma4k3icjmfTPZIbCmGVWmqDkR_ui80HwjLVQJOUwl4XP5UfDALtYtIqVKSV\
    vY8lo5bbqtvbtq3-9UuCQ";
/// Signed by HS256 with the PEM text of the public RSA key as its secret.
pub(super) const CONFUSED: &str = "\
    eyJhbGciOiJIUzI1NiIsImtpZCI6InJzYS0xIn0.eyJleHQiOiJ7XCJ1c2VyX2lkXCI6XCIxNVwifSIsImV4\
    cCI6MjAwMDAwMDAwMH0.VtelWTDEIiXrpTce8GXGUJyO1iabzIV3f9w-8QYrOas";
/// The public keys: four usable ones, one for encryption, one of an unsupported type.
pub(super) const KEYS: &str = r#"{"keys":[
    {"kty":"RSA","kid":"rsa-1","use":"sig","e":"AQAB",
     "n":"rdMjWkbPsmuhcrjm3qtiVqkb8HIMLLJ8SyuARMbq1rUPSkNZ8K9CBHsZRjjBsRJg4ul2Y0EvF67hLIeBfBytityOOhks1V9GKIS1U2YYhzNhEEtaviRh5C3NnBOIadk9unOBgY-XQJWEeDpZQUu03rgVqsbR6c-EMJQ4jdtbElZGQkxbOpz5NqTanCLpfeamZAww56gCNMI02e_e32rOu3OlB-atx9d5YaZoIDXP-8ibZf7y1OaoBWnEfgcdvuQ5KPmfreGKG-q-6PY2o1HHYYE-R6hr0ef_ru3go5BPwG0QnF2jl-9H7v0gEVF6ZforWlZvRIq5phCE-05EBovjiw"},
    {"kty":"EC","kid":"es256-1","crv":"P-256","alg":"ES256",
     "x":"rPRlxJkdvxMzzZMY0VSnUO-SRutKqAydZishZZe7gkQ",
     "y":"LKMMlpykNPB6CcwJd38CePcBlr1hLt2Nx1S6NmUDQ8Q"},
    {"kty":"EC","kid":"es384-1","crv":"P-384",
     "x":"5N-KAPlaW6hTj9j--mRSpNXxS0n2pJ3bHI5liCsPXum-tPIiKRAtfKpSopZD6EPT",
     "y":"G415PVbKcwhOL8opmQ_ssP8vIosBSrz9cq5Kt7e7Zr6krJr49uOp3I5XQAxoheko"},
    {"kty":"OKP","kid":"ed-1","crv":"Ed25519","x":"jJthl9MDV8KQsmE00PoXghP545o0VdZwnIa36ZZqFPc"},
    {"kty":"RSA","kid":"for-encryption","use":"enc","e":"AQAB","n":"AQAB"},
    {"kty":"AKP","kid":"of-a-later-type","alg":"ML-DSA-44","pub":"AQAB"}
]}"#;
