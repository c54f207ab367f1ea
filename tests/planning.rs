//! `standfast plan` and `standfast load compare`: their output and exit codes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::server::Server;

#[test]
fn plan_prints_the_example_of_its_docs_page() {
    let finished = executable::run(&["plan", "--views", "30M", "--per-machine", "69"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let page = include_str!("../docs/load/plan.md");
    assert!(page.contains(&finished.stdout), "the docs page shows the output: {}", finished.stdout);
    let json = ["plan", "--views", "30M", "--per-machine", "69", "--json", "-"];
    let plan = json_of(&executable::run(&json));
    assert_eq!((&plan["requests"]["per_second"], &plan["machines"]), (&1389.into(), &21.into()));
    let nothing = executable::run(&["plan"]);
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
    assert!(nothing.stderr.contains("--views 30M --per-machine 69"), "{}", nothing.stderr);
}

#[test]
fn one_user_of_a_slow_server_is_not_its_capacity() {
    let listen = slow_server();
    let run = Scratch::new("plan-one-user.json", "");
    let load = format!("http://{listen}/");
    let one = ["--connections", "1", "--requests", "50", "--json", run.path()];
    let finished = executable::run(&[&["load", &load], &one[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let target = ["plan", "--requests", "10k", "--from", run.path()];
    let plan = json_of(&executable::run(&[&target[..], &["--json", "-"]].concat()));
    assert_eq!((&plan["requests"]["bound"], &plan["machines"]), (&"at_least".into(), &Value::Null));
    let text = executable::run(&target).stdout;
    assert!(text.contains("at least") && text.contains("answer        at most"), "{text}");
}

/// Answers one connection after the other, each after 5 ms. Its thread ends with the process.
fn slow_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 1024];
            if stream.read(&mut head).is_ok_and(|length| length > 0) {
                thread::sleep(Duration::from_millis(5));
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _ = stream.write_all(answer);
            }
        }
    });
    listen
}

#[test]
fn plan_uses_the_memory_and_cpu_of_a_measured_run() {
    let server = Server::start(&[]);
    let run = Scratch::new("plan-run.json", "");
    // Long enough for its CPU time to be measured.
    let (url, pid) = (format!("ws://{}/echo", server.listen), server.pid().to_string());
    let numbers = ["--connections", "20", "--messages", "1000", "--json", run.path()];
    let finished =
        executable::run(&[&["load", &url], &numbers[..], &["--watch-pid", &pid]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    forget_generator(&run);
    let goal = ["--connections", "1M", "--messages", "50k", "--memory", "16GiB", "--cores", "4"];
    let plan =
        executable::run(&[&["plan"], &goal[..], &["--from", run.path(), "--json", "-"]].concat());
    let plan = json_of(&plan);
    let run = read(&run);
    let each = run["watched"]["rss_bytes_per_connection"].as_f64().unwrap();
    let memory = &plan["memory"];
    assert_eq!(memory["bytes_per_connection"].as_f64(), Some(each), "{plan}");
    assert_eq!(memory["bytes"].as_u64(), Some((each * 1e6) as u64), "{plan}");
    let cpu = run["watched"]["cpu_ms_per_1000_messages"].as_f64().unwrap();
    let cores = plan["cpu"]["cores"].as_f64().unwrap();
    assert!((cores - cpu * 0.05).abs() < 1e-5, "50,000 a second: {plan}");
}

#[test]
fn runs_before_and_after_are_compared() {
    let server = Server::start(&[]);
    let files = ["a1", "a2", "b1", "b2", "held"];
    let files = files.map(|name| Scratch::new(&format!("compare-{name}.json"), ""));
    let [a1, a2, b1, b2, held] = &files;
    [a1, a2, b1, b2].into_iter().for_each(|file| echo(&server, file, &[]));
    let compare = |more: &[&str]| executable::run(&[&["load", "compare"], more].concat());
    let one = compare(&[a1.path(), b1.path()]);
    assert!(one.code == Some(2) && one.stderr.contains("one run each"), "{one:?}");
    assert!(one.stdout.contains("One run has no interval"), "{one:?}");
    let named = compare(&[a1.path(), a1.path(), "--max-regression", "p99=0%", "--json", "-"]);
    assert_eq!(named.code, Some(0), "{named:?}");
    let value = json_of(&named);
    assert_eq!(
        (&value["regressed"], &value["of"]),
        (&false.into(), &"messages that come back".into())
    );
    let both = |one: &Scratch, other: &Scratch| format!("{},{}", one.path(), other.path());
    let (before, after) = (both(a1, a2), both(b1, b2));
    let same = compare(&[&before, &before, "--json", "-"]);
    assert_eq!(same.code, Some(0), "{same:?}");
    assert_eq!(json_of(&same)["runs"], serde_json::json!([2, 2]));
    // An increased latency is found.
    for file in [b1, b2] {
        let mut value = read(file);
        for key in ["p50_ms", "p90_ms", "p99_ms", "p999_ms"] {
            value["latency"][key] = 1e6.into();
        }
        file.write(&value.to_string());
    }
    for (before, after) in [(a1.path(), b1.path()), (&before, &after)] {
        let worse = compare(&[before, after, "--max-regression", "p99=50%"]);
        assert_eq!(worse.code, Some(1), "{worse:?}");
        assert!(worse.stdout.contains("WORSE") && worse.stdout.contains("p99"), "{worse:?}");
    }
    // Ten of a million, of one run each, are not.
    for (file, lost) in [(a1, 0), (b1, 10)] {
        let mut value = read(a2);
        (value["echo"]["sent"], value["echo"]["lost"]) = (1_000_000.into(), lost.into());
        file.write(&value.to_string());
    }
    let rare = compare(&[a1.path(), b1.path(), "--max-regression", "p99=50%"]);
    assert_eq!(rare.code, Some(0), "{rare:?}");
    let url = format!("ws://{}/echo", server.listen);
    let numbers = ["--connections", "3", "--hold", "1s", "--json", held.path()];
    assert_eq!(executable::run(&[&["load", &url], &numbers[..]].concat()).code, Some(0));
    let unlike = compare(&[a2.path(), held.path()]);
    assert_eq!(unlike.code, Some(2), "{unlike:?}");
    assert!(unlike.stderr.contains("cannot compare"), "{}", unlike.stderr);
    let missing = compare(&[a2.path(), "/no/such/file"]);
    assert!(missing.code == Some(2) && missing.stderr.contains("/no/such/file"), "{missing:?}");
}

#[test]
fn runs_of_requests_can_be_compared_and_planned_from() {
    let server = Server::start(&[]);
    let [one, fewer] = ["one", "fewer"].map(|name| Scratch::new(&format!("http-{name}.json"), ""));
    let url = format!("http://{}/health", server.listen);
    for (file, connections) in [(&one, "4"), (&fewer, "2")] {
        let numbers = ["--requests", "200", "--connections", connections, "--json", file.path()];
        let finished = executable::run(&[&["load", &url], &numbers[..]].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        forget_generator(file);
    }
    let judged = ["--max-regression", "p50=0%", "--json", "-"];
    let same =
        executable::run(&[&["load", "compare", one.path(), one.path()], &judged[..]].concat());
    assert_eq!((same.code, &json_of(&same)["of"]), (Some(0), &"requests".into()));
    let unlike = |named: &str| {
        let unlike = executable::run(&["load", "compare", one.path(), fewer.path()]);
        assert!(unlike.code == Some(2) && unlike.stderr.contains(named), "{unlike:?}");
    };
    unlike("connections: 4 and 2");
    for (flags, named) in [
        (&["--new-connections"][..], "keep alive: yes and no"),
        (&["--pipeline", "4"], "pipeline: 1 and 4"),
        (&["--method", "HEAD"], "method: GET and HEAD"),
        (&["--data", "body", "--accept", "2xx,4xx"], "message bytes: 0 and 4"),
        (&["--warm-up", "100ms"], "warm up: no and yes"),
        (&["--rate", "2000"], "closed loop and 2000 per second"),
    ] {
        let numbers = ["--requests", "200", "--connections", "4", "--json", fewer.path()];
        let finished = executable::run(&[&["load", &url], &numbers[..], flags].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        forget_generator(&fewer);
        unlike(named);
    }
    let run = read(&one);
    let target = ["plan", "--requests", "900M", "--from", one.path()];
    let plan = json_of(&executable::run(&[&target[..], &["--json", "-"]].concat()));
    let served = 200.0 / run["seconds"].as_f64().unwrap();
    let each = plan["requests"]["per_machine"].as_f64().unwrap();
    assert!((each - served).abs() < served * 1e-6, "{plan}: {run}");
    // Four users in a closed loop do not show what the server can serve.
    assert_eq!((&plan["requests"]["bound"], &plan["machines"]), (&"at_least".into(), &Value::Null));
    let text = executable::run(&target).stdout;
    assert!(text.contains("at least") && text.contains("unknown whether the generator"), "{text}");
}

/// Runs an echo test that writes its JSON to `file`.
fn echo(server: &Server, file: &Scratch, more: &[&str]) {
    let url = format!("ws://{}/echo", server.listen);
    let numbers = ["--connections", "20", "--messages", "50", "--json", file.path()];
    let finished = executable::run(&[&["load", &url], &numbers[..], more].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    forget_generator(file);
}

/// On a busy machine the generator may have been saturated, and such a run is not compared.
fn forget_generator(file: &Scratch) {
    let mut run = read(file);
    run["generator"] = Value::Null;
    file.write(&run.to_string());
}

fn read(file: &Scratch) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file.path()).unwrap()).unwrap()
}

fn json_of(finished: &Finished) -> Value {
    let text = &finished.stdout;
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}
