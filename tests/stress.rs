//! `standfast stress`: each flag of go-stress-testing in both dialects. The commands of the manuals are
//! in `stress_reference.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::chat::Chat;
use crate::harness::executable::{self, Finished, Running, standfast};
use crate::harness::recorder::{RecordedRequest, Recorder};
use crate::harness::server::Server;
use crate::harness::tls::Authority;
use crate::harness::web::Web;
use crate::harness::{Scratch, eventually};

/// Runs `stress` with flags as typed; no value contains spaces.
fn stress(flags: &str) -> Finished {
    let words: Vec<&str> = std::iter::once("stress").chain(flags.split_whitespace()).collect();
    executable::run(&words)
}

fn well(flags: &str) -> Finished {
    let finished = stress(flags);
    assert_eq!(finished.code, Some(0), "{flags}: {finished:?}");
    finished
}

fn result(flags: &str, code: i32) -> Value {
    let finished = stress(&format!("{flags} --json -"));
    assert_eq!(finished.code, Some(code), "{flags}: {finished:?}");
    finished.json()
}

fn connections(asked: &[RecordedRequest]) -> usize {
    asked.iter().map(|asked| asked.connection).collect::<BTreeSet<_>>().len()
}

#[test]
fn users_send_their_requests_on_new_or_kept_connections() {
    let server = Recorder::hello();
    let finished = well(&format!("-c 3 -n 4 -u {}/a?b", server.address));
    let asked = server.asked();
    assert_eq!((asked.len(), connections(&asked)), (12, 12), "a connection each: {asked:?}");
    assert!(asked.iter().all(|asked| asked.method == "GET" && asked.target == "/a?b"), "{asked:?}");
    let text = &finished.stdout;
    for part in [
        " qps │",
        "measured/s",
        "200:12",
        "successNum: 12 failureNum: 0",
        "tp90:",
        "tp95:",
        "tp99:",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let kept = Recorder::hello();
    well(&format!("-c 3 -n 4 -k -u {}", kept.address));
    assert_eq!((kept.asked().len(), connections(&kept.asked())), (12, 3));
    let fork = Recorder::hello();
    well(&format!("-c 3 -n 4 --dialect fork -u {}", fork.address));
    assert_eq!(connections(&fork.asked()), 3, "the fork keeps them");
}

#[test]
fn json_has_both_rates_and_the_run() {
    let server = Recorder::hello();
    let result = result(&format!("-c 2 -n 5 -k -u {}", server.address), 0);
    let stress = &result["stress"];
    assert_eq!(
        (&stress["ok"], &stress["failed"], &result["requests"]["ok"]),
        (&10.into(), &0.into(), &10.into())
    );
    assert!(stress["measured_per_second"].as_f64() > Some(0.0), "{result}");
    assert!(stress["qps"].as_f64() > Some(0.0), "{result}");
    assert!(stress["tp99_ms"].as_f64() >= stress["tp90_ms"].as_f64(), "{result}");
    let file = Scratch::new("stress.json", "");
    well(&format!("-u {} --json {}", server.address, file.path()));
    assert!(fs::read_to_string(file.path()).unwrap().contains("\"qps\""));
}

/// Failed requests take the time they took, in each of go-stress-testing's figures.
#[test]
fn times_of_failed_requests_are_in_the_figures_of_go_stress_testing() {
    let asked = AtomicU64::new(0);
    // Of five requests four are answered at once, and one never.
    let server = Web::start(move |_| {
        if asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(5) {
            std::thread::sleep(Duration::from_secs(3600));
        }
        (200, Vec::new(), "ok".to_owned())
    });
    let result = result(&format!("-c 5 -n 5 -t 1 -u http://{}/", server.address), 1);
    let stress = &result["stress"];
    let of = |name: &str| stress[name].as_f64().unwrap();
    assert_eq!((of("ok"), of("failed")), (20.0, 5.0), "{result}");
    // Five seconds and a little, over 5 users.
    assert!(of("qps") <= 20.0 * 5.0 / 5.0, "{result}");
    assert!(of("average_ms") >= 5_000.0 / 20.0, "{result}");
    for name in ["tp90_ms", "tp95_ms", "tp99_ms", "longest_ms"] {
        assert!(of(name) >= 999.0, "{name}: {result}");
    }
    // Ours beside them.
    assert!(result["latency"]["p99_ms"].as_f64() < Some(900.0), "answers only: {result}");
    assert!((of("mean_ms") - of("average_ms") * 20.0 / 25.0).abs() < 0.01, "{result}");
    assert_eq!(of("measured_per_second"), of("ok_per_second"), "{result}");
}

/// Over ws a message that is given up takes the time until then.
#[test]
fn times_of_messages_without_an_answer_are_in_the_figures_too() {
    let chat = Chat::start(0);
    let flags = format!("-n 1 -t 1 --pause 1ms -u ws://{}/alone", chat.address);
    let stress = &result(&flags, 1)["stress"];
    assert_eq!(stress["codes"].to_string(), r#"{"509":1}"#, "{stress}");
    assert!(stress["tp90_ms"].as_f64() >= Some(999.0), "{stress}");
    assert_eq!((&stress["qps"], &stress["average_ms"]), (&0.0.into(), &Value::Null), "{stress}");
}

#[test]
fn headers_and_bodies_are_sent() {
    let server = Recorder::hello();
    let url = format!("http://{}/", server.address);
    let headers = ["-H", "X-A: 1", "-H", "x-a: 2", "-H", "Host: example.com", "-data", "x=-1"];
    let finished = executable::run(&[&["stress", "-u", &url], &headers[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let asked = &server.asked()[0];
    assert_eq!((asked.method.as_str(), asked.body.as_slice()), ("POST", &b"x=-1"[..]));
    assert_eq!((asked.header("x-a"), asked.header("host")), (Some("1; 2"), Some("example.com")));
    let form = "application/x-www-form-urlencoded; charset=utf-8";
    assert_eq!(asked.header("content-type"), Some(form));
    let own = executable::run(&["stress", "-u", &url, "-H", "content-type: text/x", "-data", "a"]);
    assert_eq!(own.code, Some(0), "{own:?}");
    let types = server.asked()[1].headers.iter().filter(|(name, _)| name == "content-type").count();
    assert_eq!((types, server.asked()[1].header("content-type")), (1, Some("text/x")));
}

#[test]
fn verifiers_decide_success_and_code() {
    let server = Recorder::start(|asked| match asked.target.as_str() {
        "/made" => (201, Vec::new(), String::new()),
        "/json" => (200, Vec::new(), r#"{"code":7,"msg":"","data":null}"#.to_owned()),
        _ => (500, Vec::new(), "oh".to_owned()),
    });
    let url = server.address;
    for (flags, code, codes) in [
        ("/made -code 201", 0, r#"{"201":2}"#),
        ("/made", 1, r#"{"201":2}"#),
        ("/made -v statusCode -code 201", 0, r#"{"201":2}"#),
        ("/json -v json -code 7", 0, r#"{"200":2}"#),
        ("/json -v json", 1, r#"{"7":2}"#),
        ("/json", 0, r#"{"200":2}"#),
        ("/x", 1, r#"{"500":2}"#),
        ("/made -v json -code 7", 1, r#"{"201":2}"#),
    ] {
        let result = result(&format!("-n 2 -u {url}{flags}"), code);
        assert_eq!(result["stress"]["codes"].to_string(), codes, "{flags}: {result}");
        assert_eq!(result["stress"]["failed"], 2 * code, "{flags}: {result}");
    }
    let unknown = stress(&format!("-u {url} -v regex"));
    assert!(unknown.code == Some(2) && unknown.stderr.contains("statusCode"), "{unknown:?}");
}

#[test]
fn debug_prints_answers_and_redirects_are_followed() {
    let server = Recorder::start(|asked| match asked.target.as_str() {
        "/from" => (302, vec![("Location", "/to".to_owned())], String::new()),
        _ => (200, Vec::new(), "you are there".to_owned()),
    });
    let url = server.address;
    let shown = well(&format!("-d true -u {url}/from"));
    assert!(shown.stderr.contains("200 you are there"), "{}", shown.stderr);
    assert!(!well(&format!("-d false -u {url}/to")).stderr.contains("you are there"));
    let left = result(&format!("-redirect=false -u {url}/from"), 1);
    assert_eq!(left["stress"]["codes"].to_string(), r#"{"302":1}"#, "{left}");
    let targets: Vec<String> = server.asked().into_iter().map(|asked| asked.target).collect();
    assert_eq!(targets, ["/from", "/to", "/to", "/from"]);
}

#[test]
fn curl_files_are_sent() {
    let server = Recorder::hello();
    let url = server.address;
    let text = format!(
        "curl 'http://{url}/one' -X PUT -H 'A: b' -b 'c=d' --data-raw '{{\"x\":1}}' --compressed --frob\n\
         curl -u me:word -G -d q=1 http://{url}/two\n"
    );
    let file = Scratch::new("stress-curl.txt", &text);
    let finished = well(&format!("-n 3 -k -p {} -data ignored", file.path()));
    assert!(finished.stderr.contains("line 1: unknown option --frob"), "{}", finished.stderr);
    let asked = server.asked();
    let lines: Vec<String> =
        asked.iter().map(|asked| format!("{} {}", asked.method, asked.target)).collect();
    assert_eq!(lines, ["PUT /one", "GET /two?q=1", "PUT /one"], "in turn");
    assert_eq!((asked[0].header("a"), asked[0].header("cookie")), (Some("b"), Some("c=d")));
    assert_eq!(asked[0].body, br#"{"x":1}"#);
    assert_eq!(asked[1].header("authorization"), Some("Basic bWU6d29yZA=="));
    well(&format!("-p {} -u http://{url}/other", file.path()));
    assert_eq!(server.asked()[3].target, "/other", "-u goes before the file's URL");
}

#[test]
fn timeouts_end_requests_and_runs() {
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = deaf.local_addr().unwrap();
    let given_up = result(&format!("-t 1 -c 2 -u {url}"), 1);
    assert_eq!(given_up["stress"]["codes"].to_string(), r#"{"509":2}"#, "{given_up}");
    assert_eq!(given_up["errors"]["timeout"], 2, "{given_up}");
    let given_up = result(&format!("-timeout 1 -c 2 --dialect fork -u {url}"), 1);
    assert_eq!(given_up["errors"]["timeout"], 2, "{given_up}");
    let server = Recorder::start(|_| {
        std::thread::sleep(Duration::from_millis(50));
        (200, Vec::new(), String::new())
    });
    for limit in ["-timeout 1", "-apptimeout 1 --dialect fork"] {
        let cut = result(&format!("-n 1000000 -k {limit} -u {}", server.address), 0);
        let ok = cut["stress"]["ok"].as_u64().unwrap();
        assert!((1..1_000).contains(&ok), "{limit}: {cut}");
    }
    // An interrupted run over time has made more requests than -n.
    let longer =
        result(&format!("-n 2 -t 1 -apptimeout 1 --dialect fork -u {}", server.address), 0);
    assert!(longer["stress"]["ok"].as_u64() > Some(2), "{longer}");
}

#[test]
fn unanswered_requests_are_counted_with_their_cause() {
    // Nobody listens there any more.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (scheme, more, why) in [
        ("http", "", "failed by: connect_refused 6"),
        ("ws", " --pause 1ms", "connects failed by: connect_refused 2"),
    ] {
        let flags = format!("-c 2 -n 3 -u {scheme}://{dead}/{more}");
        let finished = stress(&flags);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let text = &finished.stdout;
        for part in ["successNum: 0 failureNum: 6", "measured: 0.00 answers/s", "509:6", why] {
            assert!(text.contains(part), "{scheme}: no {part}:\n{text}");
        }
        // Half a minute is what a connect may take, not what this one took.
        let row = text.lines().rfind(|line| line.contains("509:6")).unwrap();
        let cells: Vec<&str> = row.split('│').map(str::trim).collect();
        let is_short = |ms: &&str| *ms == "-" || ms.parse::<f64>().unwrap() < 1_000.0;
        assert!(cells[5..8].iter().all(is_short), "{row}");
        assert_eq!(result(&flags, 1)["stress"]["measured_per_second"], 0.0);
    }
    let looping = Web::start(|_| (302, vec![("Location", "/again".into())], String::new()));
    let finished = stress(&format!("-c 1 -n 2 -u http://{}/", looping.address));
    assert!(finished.stdout.contains("failed by: too_many_redirects 2"), "{}", finished.stdout);
}

#[test]
fn run_timeout_limits_the_whole_run() {
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    let finished = stress(&format!("-timeout 1 -c 2 -u http://{}/", deaf.local_addr().unwrap()));
    assert!(began.elapsed() < Duration::from_millis(2_500), "the grace of 2 s is not for it");
    assert_eq!(finished.code, Some(1), "nothing was answered: {finished:?}");
    let text = &finished.stdout;
    assert!(text.contains("2 requests without an answer when the run ended"), "{text}");
    assert!(text.contains("failureNum: 0"), "interrupted requests are not failures: {text}");
}

#[test]
fn rate_is_measured_over_elapsed_time() {
    // The first request of a connection is answered, and no other.
    let web = Web::start(|got| {
        if got.number > 0 {
            std::thread::sleep(Duration::from_secs(3600));
        }
        (200, Vec::new(), "ok".to_owned())
    });
    let result = result(&format!("-c 2 -n 2 -t 1 -k -u http://{}/", web.address), 1);
    let stress = &result["stress"];
    assert_eq!((&stress["ok"], &stress["failed"]), (&2.into(), &2.into()), "{result}");
    assert!(stress["seconds"].as_f64() >= Some(1.0), "{result}");
    assert!(
        stress["measured_per_second"].as_f64() <= Some(2.0),
        "what was not answered is no answer"
    );
}

#[test]
fn cpu_number_limits_the_cores() {
    let server = Recorder::hello();
    let flags = ["-n", "100000000", "-k", "-u", &server.address.to_string()].map(str::to_owned);
    for (more, cores) in [(&["-cpuNumber", "1"][..], 1), (&["-cpuNumber=64"], usize::MAX)] {
        let words: Vec<&str> =
            flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let mut load = standfast(&[&["stress"], &words[..]].concat());
        let load = Running(load.spawn().unwrap());
        let before = server.asked().len();
        eventually("it asks", || server.asked().len() > before);
        let of = |pid: u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).unwrap();
            let bits = line.trim().split(',').map(|word| u32::from_str_radix(word, 16).unwrap());
            bits.map(u32::count_ones).sum::<u32>() as usize
        };
        let own = of(std::process::id());
        assert_eq!(of(load.0.id()), cores.min(own), "{more:?}");
    }
}

#[test]
fn steps_start_users_in_turn() {
    let server = Recorder::hello();
    well(&format!("-c 4 -n 1 -s 2 -i 1 --dialect fork -u {}", server.address));
    let asked = server.asked();
    assert_eq!(asked.len(), 4);
    let gap = asked[2].at.duration_since(asked[1].at);
    assert!(gap > Duration::from_millis(700), "two, and two a second later: {gap:?}");
    let all = Recorder::hello();
    well(&format!("-c 4 -n 1 --dialect fork -u {}", all.address));
    let gap = all.asked()[3].at.duration_since(all.asked()[0].at);
    assert!(gap < Duration::from_millis(700), "all at once: {gap:?}");
}

#[test]
fn flags_and_schemes_that_do_not_fit_are_refused_by_name() {
    for (flags, named) in [
        ("-u ftp://127.0.0.1/", "unknown scheme ftp://"),
        ("-u http://127.0.0.1:1 --proto a.proto", "--proto has no effect over http"),
        ("-u ws://127.0.0.1:1 -data x", "--message"),
        ("-p /no/such/file", "/no/such/file"),
        ("-u http://127.0.0.1:1 -clients 1", "--dialect fork"),
        ("-u http://127.0.0.1:1 -cpunumber 1", "cpuNumber"),
        ("-u http://127.0.0.1:1 --hold 1s", "--hold has no effect over http"),
        ("-u http://127.0.0.1:1 --message hi", "--message has no effect over http"),
    ] {
        let finished = stress(flags);
        assert_eq!(finished.code, Some(2), "{flags}: {finished:?}");
        assert!(finished.stderr.contains(named), "{flags}: {}", finished.stderr);
    }
    let server = Recorder::hello();
    let idle = well(&format!("-m 5 -u {}", server.address));
    assert!(idle.stderr.contains("-m has no effect"), "{}", idle.stderr);
    let usage = stress("");
    assert!(usage.code == Some(2) && usage.stderr.contains("standfast help stress"), "{usage:?}");
}

#[test]
fn certificates_are_not_checked_over_tls() {
    let authority = Authority::new();
    authority.sign("server", &["nobody.example"]);
    let [cert, key] = [authority.path("server.pem"), authority.path("server.key")];
    let server = Server::start(&["--tls-cert", &cert, "--tls-key", &key]);
    let url = server.listen;
    let https = well(&format!("-c 2 -n 3 -u https://{url}/health"));
    assert!(
        https.stdout.contains("successNum: 6") && https.stderr.contains("not checked"),
        "{https:?}"
    );
    well(&format!("-c 2 -n 3 --pause 10ms -v any --message hi -u wss://{url}/echo"));
}

#[test]
fn websocket_pings_are_sent_and_checked() {
    let server = Recorder::hello();
    let url = format!("ws://{}/acc", server.address);
    let finished = executable::run(&[
        "stress", "-c", "3", "-n", "2", "--pause", "20ms", "-H", "X-A: b", "-u", &url,
    ]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("successNum: 6 failureNum: 0"), "{}", finished.stdout);
    assert_eq!((server.pings(), server.asked()[0].header("x-a")), (6, Some("b")));
    let bad = r#"{"seq":"$SEQ","cmd":"x","data":{"bad":true}}"#;
    let words =
        ["stress", "-n", "2", "--pause", "1ms", "--message", bad, "-u", &url, "--json", "-"];
    let finished = executable::run(&words);
    let result = finished.json();
    assert_eq!(
        (finished.code, result["stress"]["codes"].to_string().as_str()),
        (Some(1), r#"{"403":2}"#)
    );
    let shown = well(&format!("-d true --pause 1ms -u {url}"));
    assert!(shown.stderr.contains("200 {"), "{}", shown.stderr);
    // An echo says what was sent, which is no answer of gowebsocket's.
    let echo = Server::start(&[]);
    let flags = format!("--pause 1ms -u ws://{}/echo", echo.listen);
    assert_eq!(result_codes(&flags, 1), r#"{"510":1}"#);
    assert_eq!(result_codes(&format!("{flags} -v any"), 0), r#"{"200":1}"#);
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(result_codes(&format!("-c 2 --pause 1ms -u ws://{dead}/"), 1), r#"{"509":2}"#);
}

#[test]
fn unsent_messages_count_as_failed() {
    let chat = Chat::start(0);
    let (masked, echo) =
        (format!("ws://{}/masked?held", chat.address), format!("ws://{}/echo", chat.address));
    assert_eq!(result_codes(&format!("-c 3 -n 4 --pause 1ms -u {masked}"), 1), r#"{"509":12}"#);
    assert_eq!(
        result_codes(&format!("-c 3 -n 4 --pause 1ms -v any -u {echo}"), 0),
        r#"{"200":12}"#
    );
}

fn result_codes(flags: &str, code: i32) -> String {
    result(flags, code)["stress"]["codes"].to_string()
}

#[test]
fn websocket_hold_and_connect_flags_are_applied() {
    let server = Recorder::hello();
    let mut load = standfast(&["stress", "--pause", "1ms", "--hold", "10m", "-u"]);
    let mut load = Running(load.arg(format!("ws://{}/", server.address)).spawn().unwrap());
    eventually("it has pinged", || server.pings() == 1);
    let pid = Pid::from_raw(load.0.id().try_into().unwrap()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(load.0.try_wait().unwrap().is_none(), "it holds on");
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(load.wait().code(), Some(130));
    // Nobody is answered before two have asked: one after another that never happens.
    for (mode, code) in [(2, 0), (1, 1)] {
        let server = Recorder::gathering(2, |_| (200, Vec::new(), String::new()));
        let flags = format!("-c 2 --pause 1ms -timeout 2 -connectionmode {mode} --dialect fork");
        result(&format!("{flags} -u ws://{}/", server.address), code);
    }
}

#[test]
fn fork_roles_within_one_group_are_applied() {
    let server = Recorder::hello();
    let url = format!("ws://{}/", server.address);
    for (flags, publishers) in [
        ("-clients 2 -issenders true -iscollectmsg true", 4),
        ("-clients 1 -issenders false -iscollectmsg true", 1),
        ("-toclients true -issenders true", 4),
    ] {
        let result = result(&format!("-c 4 -n 3 --pause 1ms {flags} --dialect fork -u {url}"), 0);
        let broadcast = &result["broadcast"];
        assert_eq!(broadcast["publishers"], publishers, "{flags}: {result}");
        assert_eq!(broadcast["received"], publishers * 3 * 4, "{flags}: {result}");
        assert_eq!(broadcast["lost"], 0, "{flags}: {result}");
    }
    let private = stress(&format!("-c 2 --pause 1ms -clients 2 --dialect fork -u {url}"));
    assert!(private.stderr.contains("private chats"), "{}", private.stderr);
    let tokens = Scratch::new("tokens.csv", "one\r\ntwo\r\n");
    let flags = format!("-c 3 --pause 1ms -variable {},a,b,c --dialect fork", tokens.path());
    well(&format!("{flags} -u {url}?t={{sendtoken}}&to={{recvid}}"));
    let targets: Vec<String> =
        server.asked().iter().rev().take(3).map(|asked| asked.target.clone()).collect();
    assert_eq!(targets, ["/?t=one&to=c", "/?t=two&to=c", "/?t=one&to=c"], "rows in turn");
    let few = well(&format!("-variable json --pause 1ms --dialect fork -u {url}"));
    assert!(few.stderr.contains("four values"), "{}", few.stderr);
}

const SAY: &str = r#"{"to":{{to}},"by":"{sendid}","for":"{recvid}","text":"{{stamp}}"}"#;

/// A chat with the fork's flags, what it did, and the run's JSON.
fn chat(path: &str, flags: &str, say: &str, code: i32) -> (Chat, Value) {
    let chat = Chat::start(0);
    let url = format!("ws://{}{path}", chat.address);
    let fixed = ["stress", "--dialect", "fork", "--pause", "1ms", "--json", "-", "-u", &url];
    let words: Vec<&str> = fixed.into_iter().chain(flags.split_whitespace()).collect();
    let finished = executable::run(&[&words[..], &["--message", say]].concat());
    assert_eq!(finished.code, Some(code), "{flags}: {finished:?}");
    (chat, finished.json())
}

#[test]
fn fork_chats_are_checked_per_pair() {
    // Who is there, how it is grouped, and what is owed to whom.
    for (path, flags, groups, users, expected) in [
        ("/private?id={{user}}", "-c 3 -n 4 -clients 2 -issenders true", 3, 6, 12),
        ("/room/x", "-c 3 -n 4 -clients 2", 1, 4, 12),
        ("/private?id={{user}}", "-c 3 -n 4 -clients 1 -issenders true", 1, 4, 12),
        ("/private?id={{user}}", "-c 3 -n 4 -clients 1", 1, 2, 4),
        ("/private?id={{user}}", "-c 3 -n 4 -toclients true -issenders true", 1, 3, 24),
        ("/private?id={{user}}", "-c 3 -n 4 -toclients true", 1, 3, 8),
        ("/room/x", "-c 3 -n 4 -iscollectmsg true -issenders true", 1, 3, 24),
        ("/room/x", "-c 3 -n 4 -iscollectmsg true", 1, 3, 8),
    ] {
        // In a room nobody is named.
        let say =
            if path == "/room/x" { SAY.replace("\"to\":{{to}},", "") } else { SAY.to_owned() };
        let (chat, result) = chat(path, flags, &say, 0);
        let of = |name: &str| result["groups"][name].as_u64().unwrap();
        let said = ["groups", "expected", "received", "lost", "foreign"].map(of);
        assert_eq!(said, [groups, expected, expected, 0, 0], "{flags}: {result}");
        let book = chat.book();
        assert_eq!((book.handshakes.len() as u64, book.due), (users, expected), "{flags}");
    }
}

#[test]
fn fork_variables_are_filled_in_for_senders_and_receivers() {
    let column = |name: &str| Scratch::new(name, "one\r\ntwo\r\nthree\r\n");
    let [tokens, ids] = ["st.csv", "rid.csv"].map(column);
    let flags = format!(
        "-c 3 -n 2 -clients 2 -issenders true -H X-A:b -variable {},me,rt,{}",
        tokens.path(),
        ids.path()
    );
    let (chat, result) = chat("/room/{sendid}{sendtoken}?id={{group}}", &flags, SAY, 1);
    assert_eq!(result["groups"]["lost"], 6, "senders and receivers are in rooms of their own");
    let handshakes = chat.book().handshakes;
    let mut targets: Vec<&str> = handshakes.iter().map(|asked| asked.target.as_str()).collect();
    targets.sort_unstable();
    let expected = [
        "/room/meone?id=0",
        "/room/methree?id=2",
        "/room/metwo?id=1",
        "/room/onert?id=0",
        "/room/threert?id=2",
        "/room/twort?id=1",
    ];
    assert_eq!(targets, expected);
    assert!(handshakes.iter().all(|asked| asked.header("x-a") == Some("b")), "{handshakes:?}");
    let said = chat.said();
    for line in [r#""by":"me","for":"one""#, r#""by":"me","for":"three""#] {
        assert_eq!(said.iter().filter(|said| said.contains(line)).count(), 2, "{line}: {said:?}");
    }
}

#[test]
fn fork_users_connect_in_steps_and_in_turn() {
    let apart = |flags: &str| -> Vec<Duration> {
        let flags = format!("{flags} -n 1 -clients 2 -issenders true");
        let (chat, _) = chat("/private?id={{user}}", &flags, SAY, 0);
        let mut came: Vec<_> = chat.book().handshakes.iter().map(|asked| asked.at).collect();
        came.sort_unstable();
        came.iter().map(|at| at.duration_since(came[0])).collect()
    };
    // Of eight users four begin at a time, a second after those before them.
    let steps = apart("-c 4 -s 4 -i 1");
    assert!(steps[4] - steps[0] >= Duration::from_millis(700), "{steps:?}");
    let modes = apart("-c 10 -connectionmode 2");
    assert!(modes[19] >= Duration::from_millis(300), "20 ms each: {modes:?}");
    let once = stress("-c 2 -clients 1 --dialect fork --message hi -u ws://127.0.0.1:1/");
    assert!(once.code == Some(2) && once.stderr.contains("{{stamp}}"), "{once:?}");
    let limit = "-c 1 -clients 1 -t 5 -apptimeout 1";
    let (_, result) = chat("/private?id={{user}}", limit, SAY, 0);
    assert!(result["groups"]["received"].as_u64() > Some(1), "it went on for a second: {result}");
    assert_eq!(result["groups"]["lost"], 0, "{result}");
    let began = Instant::now();
    let (_, result) = chat("/silent", "-c 1 -clients 1 -timeout 1", SAY, 1);
    assert_eq!(result["errors"]["timeout"], 2, "nobody was let in: {result}");
    assert!(began.elapsed() < Duration::from_secs(30), "a second, not the fork's sixty");
    // Where nobody listens, nobody waits for anybody.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!(
        "-c 1 -clients 1 -timeout 1 --message {{{{stamp}}}} --dialect fork -u ws://{dead}/"
    );
    let finished = stress(&nobody);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stdout.contains("1 groups were never complete"), "{}", finished.stdout);
}
