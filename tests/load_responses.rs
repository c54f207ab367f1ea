//! Responses in `load`, scenarios and `stress`: redirects, bodies with a content coding, hostile
//! bodies; and the report of a scenario.

use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::forward::answers;
use crate::harness::server::Server;
use crate::harness::tls::Authority;
use crate::harness::web::{Answer, Web};

fn load(url: &str, more: &[&str]) -> (Finished, Value) {
    let flags = ["load", url, "--connections", "2", "--requests", "20", "--json", "-"];
    executable::run(&[&flags[..], more].concat()).with_json()
}

fn to(location: String) -> Answer {
    (302, vec![("Location", location), ("Set-Cookie", "s=1".to_owned())], String::new())
}

fn hello() -> Web {
    Web::start(|_| (200, Vec::new(), "hello".to_owned()))
}

#[test]
fn redirects_to_other_hosts_carry_no_credentials() {
    let there = hello();
    let location = format!("http://localhost:{}/there?x=1", there.address.port());
    let here = Web::start(move |_| to(location.clone()));
    let url = format!("http://{}/here", here.address);
    let secrets = ["-H", "Authorization: Bearer x", "-H", "Cookie: a=b", "-H", "X-A: b"];
    let (finished, document) = load(&url, &[&["--redirects", "2"][..], &secrets].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((here.got().len(), there.got().len()), (20, 20), "{document}");
    assert_eq!(document["requests"]["redirects"], 20, "{document}");
    let host = format!("localhost:{}", there.address.port());
    for got in there.got() {
        assert_eq!((got.target.as_str(), got.header("host")), ("/there?x=1", Some(&*host)));
        assert_eq!((got.header("authorization"), got.header("cookie")), (None, None), "{got:?}");
        assert_eq!(got.header("x-a"), Some("b"));
    }
    assert!(here.got().iter().all(|got| got.header("cookie") == Some("a=b")));
    // Users of a scenario with cookie jars.
    let text = format!(
        "version = 1\npasses = 5\ntarget = '{url}'\n[[flows]]\n[[flows.steps]]\nurl = '/'\n\
         bearer = 'x'\n[[flows.steps.checks]]\nregex = '^hello$'\n"
    );
    let file = Scratch::new("elsewhere.toml", &text);
    let finished = executable::run(&["load", file.path()]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let (last, got) = (there.got().split_off(20), here.got().split_off(20));
    assert_eq!((last.len(), got.len()), (5, 5));
    assert!(last.iter().all(|got| got.header("authorization").is_none()), "{last:?}");
    assert!(last.iter().all(|got| got.header("cookie").is_none()), "{last:?}");
    assert_eq!(got[1].header("cookie"), Some("s=1"), "but its own");
    let finished = executable::run(&["stress", "-n", "3", "-u", &url]);
    assert!(finished.stdout.contains("successNum: 3"), "{finished:?}");
    assert_eq!(there.got().len(), 28);
}

#[test]
fn redirects_to_https_are_followed() {
    let authority = Authority::new();
    authority.sign("server", &["localhost"]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|file| authority.path(file));
    let server = Server::start(&["--tls-cert", &cert, "--tls-key", &key]);
    let location = format!("https://localhost:{}/health", server.listen.port());
    let here = Web::start(move |_| to(location.clone()));
    let url = format!("http://{}/", here.address);
    let (finished, document) = load(&url, &["--redirects", "1", "--ca", &ca]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(document["status"], json!({"200": 20}), "{document}");
    assert_eq!(server.metrics()["standfast_requests_total"], 20.0);
    let other = Authority::new();
    let (_, document) = load(&url, &["--redirects", "1", "--ca", &other.path("ca.pem")]);
    assert_eq!(document["errors"], json!({"tls": 20}), "{document}");
}

#[test]
fn failed_redirects_are_counted_by_kind() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (location, kind) in [
        ("http://nowhere.invalid/".to_owned(), "dns"),
        (format!("http://localhost:{free}/"), "connect_refused"),
        ("gopher://127.0.0.1/".to_owned(), "redirect_elsewhere"),
        ("http://a@b/".to_owned(), "redirect_elsewhere"),
    ] {
        let here = Web::start(move |_| to(location.clone()));
        let (_, document) = load(&format!("http://{}/", here.address), &["--redirects", "3"]);
        assert_eq!(document["errors"], json!({kind: 20}), "{document}");
    }
    // Two hosts that redirect to each other.
    let ports = crate::harness::two_ports_in_a_row();
    let webs = [0, 1].map(|at: usize| {
        let other = ports[1 - at];
        Web::at(ports[at], move |_| to(format!("http://localhost:{other}/")))
    });
    let (_, document) = load(&format!("http://127.0.0.1:{}/", ports[0]), &["--redirects", "4"]);
    assert_eq!(document["errors"], json!({"too_many_redirects": 20}), "{document}");
    assert_eq!(webs.iter().map(|web| web.got().len()).sum::<usize>(), 100, "{document}");
    // A new host for each request: at most 32 are followed.
    let next = AtomicUsize::new(1);
    let here = Web::start(move |_| {
        to(format!("http://127.0.1.{}:{free}/", next.fetch_add(1, Ordering::Relaxed)))
    });
    let flags = ["--redirects", "1", "--requests", "40"];
    let url = format!("http://{}/", here.address);
    let line = ["load", &url, "--connections", "2", "--json", "-"];
    let (_, document) = executable::run(&[&line[..], &flags].concat()).with_json();
    let expected = json!({"connect_refused": 32, "redirect_elsewhere": 8});
    assert_eq!(document["errors"], expected, "{document}");
}

fn encoded(coding: &str, body: &[u8]) -> Vec<u8> {
    let level = Compression::default();
    match coding {
        "gzip" => {
            let mut to = GzEncoder::new(Vec::new(), level);
            to.write_all(body).unwrap();
            to.finish().unwrap()
        }
        "deflate" => {
            let mut to = ZlibEncoder::new(Vec::new(), level);
            to.write_all(body).unwrap();
            to.finish().unwrap()
        }
        // As many servers have it, without the header.
        _ => {
            let mut to = DeflateEncoder::new(Vec::new(), level);
            to.write_all(body).unwrap();
            to.finish().unwrap()
        }
    }
}

fn answer(coding: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[test]
fn bodies_are_decoded_if_they_are_checked() {
    let body = format!(r#"{{"code":200,"token":"t-1","more":"{}"}}"#, "x".repeat(5_000));
    for (named, coding) in [("gzip", "gzip"), ("deflate", "deflate"), ("deflate", "raw")] {
        let coded = encoded(coding, body.as_bytes());
        let address = answers(answer(named, &coded));
        let url = format!("http://{address}/");
        let stress = ["stress", "-k", "-n", "4", "-v", "json", "-u", &url, "--json", "-"];
        let (finished, document) = executable::run(&stress).with_json();
        assert_eq!(finished.code, Some(0), "{coding}: {finished:?}");
        let bytes = |name: &str| document[name].as_u64().unwrap() as usize;
        assert_eq!(
            (bytes("body_bytes"), bytes("decoded_bytes")),
            (4 * coded.len(), 4 * body.len()),
            "on the wire, and decoded: {document}"
        );
        let text = format!(
            "version = 1\npasses = 3\ntarget = '{url}'\n[[flows]]\n[[flows.steps]]\nurl = '/'\n\
             capture = {{ token = {{ json = '$.token' }} }}\n[[flows.steps.checks]]\n\
             regex = 'x{{1000}}'\n[[flows.steps]]\nurl = '/{{{{token}}}}'\n"
        );
        let file = Scratch::new("coded.toml", &text);
        let finished = executable::run(&["load", file.path()]);
        assert_eq!(finished.code, Some(0), "{coding}: {finished:?}");
        // Bodies are not decoded if they are not checked.
        let (finished, document) = load(&url, &[]);
        assert_eq!(finished.code, Some(0), "{coding}: {finished:?}");
        assert_eq!(document["decoded_bytes"], 0, "{document}");
    }
}

#[test]
fn decompression_bombs_and_unknown_codings_are_counted_by_kind() {
    let bomb = encoded("gzip", &vec![b' '; 64 << 20]);
    assert!(bomb.len() < 1 << 17, "{}", bomb.len());
    let whole = encoded("gzip", b"{\"code\":200}");
    for (said, kind) in [
        (answer("gzip", &bomb), "too_large"),
        (answer("gzip", &vec![b'x'; 3 << 20]), "too_large"),
        (answer("br", b"\x0b\x02\x80hel"), "content_coding"),
        (answer("compress", b"{\"code\":200}"), "content_coding"),
        (answer("gzip, gzip", &whole), "content_coding"),
        (answer("gzip", &whole[..whole.len() - 9]), "content_coding"),
        (answer("deflate", b"{\"code\":200}"), "content_coding"),
    ] {
        let url = format!("http://{}/", answers(said));
        let stress = ["stress", "-k", "-n", "3", "-v", "json", "-u", &url, "--json", "-"];
        let (finished, document) = executable::run(&stress).with_json();
        assert_eq!(finished.code, Some(1), "{kind}: {finished:?}");
        assert_eq!(document["errors"], json!({kind: 3}), "{document}");
        assert_eq!(document["status"], json!({"200": 3}), "it was an answer: {document}");
    }
    // Accept-Encoding of a browser is sent as it is: all its codings can be decoded.
    let web = Web::start(|_| (200, Vec::new(), r#"{"code":200}"#.to_owned()));
    let url = format!("http://{}/", web.address);
    let file = Scratch::new(
        "browser.curl",
        &format!("curl '{url}' -H 'Accept-Encoding: gzip, deflate, br, zstd' --compressed"),
    );
    let json = executable::run(&["stress", "-p", file.path(), "-v", "json"]);
    assert_eq!(json.code, Some(0), "{json:?}");
    let plain = executable::run(&["stress", "-p", file.path()]);
    assert_eq!(plain.code, Some(0), "{plain:?}");
    let got = web.got();
    assert_eq!(got.len(), 2);
    for request in got {
        assert_eq!(request.header("accept-encoding"), Some("gzip, deflate, br, zstd"));
    }
}

#[test]
fn scenario_warms_up_and_writes_a_report() {
    let web = hello();
    let text = format!(
        "version = 1\nabout = 'a page of it'\nusers = 2\npasses = 4\nwarm_up = '1h'\nthink = '5ms'\n\
         target = 'http://{}'\n[[flows]]\nname = 'browse'\n[[flows.steps]]\nname = 'look'\nurl = '/'\n\
         [[flows.steps.checks]]\nname = 'greets'\nregex = 'hello'\n[[rounds]]\n[[rounds]]\nusers = 3\n\
         beside = 1234\n",
        web.address
    );
    let file = Scratch::new("page.toml", &text);
    let html = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("standfast-scenario-{}.html", std::process::id()));
    let html = html.to_str().unwrap();
    let flags = ["load", file.path(), "--warm-up", "200ms", "--html", html, "--json", "-"];
    let (finished, document) = executable::run(&flags).with_json();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let rounds = document["rounds"].as_array().unwrap();
    let mut sent = 0;
    for (round, users) in rounds.iter().zip([2, 3]) {
        let of = &round["requests"];
        assert_eq!((&of["ok"], &of["failed"]), (&json!(users * 4), &json!(0)), "{round}");
        assert!(of["warm_up"].as_u64() > Some(0), "{round}");
        let flow = &round["flows"][0];
        assert_eq!((&flow["begun"], &flow["completed"]), (&json!(users * 4), &json!(users * 4)));
        assert_eq!(flow["steps"][0]["checks"][0]["passed"], users * 4, "{round}");
        sent += of["sent"].as_u64().unwrap() + of["warm_up"].as_u64().unwrap();
    }
    assert_eq!(web.got().len() as u64, sent);
    let page = std::fs::read_to_string(html).unwrap();
    for part in ["ALL ANSWERED", "a page of it", "browse: look", "look: greets", "Rounds", "1,234"]
    {
        assert!(page.contains(part), "no {part:?} in the page");
    }
    assert!(page.contains("Figures of round 2 of 2, the last") && page.contains("p99 by round"));
    assert!(page.contains("20 of 20 requests answered") && page.contains("<dt>warm-up</dt>"));
    std::fs::remove_file(html).unwrap();
}
