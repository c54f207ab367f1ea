//! The commands in the manuals of go-stress-testing and its fork, unchanged but for the address of a
//! local server; over TLS for https and wss.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::eventually;
use crate::harness::executable::{self, Running, limited, standfast};
use crate::harness::recorder::Recorder;
use crate::harness::server::Server;
use crate::harness::tls_front::Front;

/// What stands in both manuals after the name of the program, with `HOST` for the servers.
const UPSTREAM: [&str; 7] = [
    "-c 1 -n 100 -u https://HOST/",
    "-c 1 -n 1 -d true -u https://HOST/",
    "-c 1 -n 1 -p curl/baidu.curl.txt",
    "-c 10 -n 10 -u ws://HOST/acc",
    "-c 100 -n 10000 -u http://HOST/",
    "-c 10 -n 10 -u HOST",
    "-c 1 -n 1 -d true -u 'https://HOST/delivery/plan/list' \
     -H 'authority: page.aliyun.com' -H 'accept: application/json, text/plain, */*' \
     -H 'content-type: application/x-www-form-urlencoded' -H 'origin: https://cn.aliyun.com' \
     -H 'sec-fetch-site: same-site' -H 'sec-fetch-mode: cors' -H 'sec-fetch-dest: empty' \
     -H 'referer: https://cn.aliyun.com/' -H 'accept-language: zh-CN,zh;q=0.9' \
     -H 'cookie: choice=CN; JSESSIONID=J8866281-KJ3J5V9K; console0=1AbLByOMHeZe%2BEryA%3D%3D; isg=BFNT_C' \
     -data 'adPlanQueryParam=%7B%22adZone%22%3A%7B%22positionList%22%3A%5B%5D%7D%7D'",
];

/// The same in the fork's alone, with a hundred users where it has ten thousand (`-sender`).
const FORK: [&str; 8] = [
    "-c 100 -n 1 -sender 1 -clients 0 -v json -u wss://HOST?t=2UubEiP4RiqY3GFqSWwT4vlD1lX",
    "-c 100 -n 1 -issenders false -clients 0 -v -variable json -u wss://HOST/?t=2V6v2toRktC4",
    "-c 100 -n 1 -issenders false -clients 1 -iscollectmsg true -v json -u wss://HOST/?t=2V6v2toRktC4",
    "-c 100 -n 1 -issenders true -clients 1 -iscollectmsg true -v json -u wss://HOST/?t=2V6v2toRktC4",
    "-c 100 -n 1 -issenders false -clients 0 -t 2 -v json -u wss://HOST/?t=2V6v2toRktC4",
    "-c 100 -n 1 -issenders true -clients 2 -v json -u wss://HOST/?t=2V6v2toRktC4",
    "-c 100 -n 1 -issender true -clients 2 -iscollectmsg true -v json -u wss://HOST/?t=2V6v2toRktC4",
    "-c 100 -n 1 -issenders true -clients 2 -iscollectmsg true -toclients true \
     -variable sendtoken.csv,sendtoken.csv,recvtoken.csv,groupId.csv -v json -u wss://HOST/?t=2V6v2toRktC4",
];

/// As a shell would cut it.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    parts
        .flat_map(|(number, part)| match number % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        })
        .collect()
}

/// A running command with its server.
struct Begun {
    line: String,
    running: Running,
    server: Recorder,
    folder: PathBuf,
}

/// Each command has its own server, so that messages of one do not reach another.
fn begin(line: &str, more: &[&str]) -> Begun {
    let server = Recorder::hello();
    let is_plain = [" ws:", " http:", "-u HOST"].iter().any(|plain| line.contains(plain));
    let address = if is_plain { server.address } else { Front::of(server.address).address };
    let folder = format!("stress-reference-{}", address.port());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    if line.contains("-p ") {
        fs::create_dir_all(folder.join("curl")).unwrap();
        let copied = format!(
            "curl 'https://{address}/sugrec?prod=pc_his' \\\n  -H 'Connection: keep-alive' \\\n  \
             -H 'Accept-Encoding: gzip, deflate, br' \\\n  --compressed"
        );
        fs::write(folder.join("curl/baidu.curl.txt"), copied).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    let line = line.replace("HOST", &address.to_string());
    let mut command = standfast(&["stress"]);
    command.args(words(&line)).args(more).current_dir(&folder);
    Begun { running: Running(command.spawn().unwrap()), line, server, folder }
}

/// Waits for a successful end. Commands that take two minutes or a million requests are interrupted
/// once they make progress.
fn end(begun: Begun) -> Recorder {
    let Begun { line, running, server, folder } = begun;
    let goes_on: Option<Box<dyn Fn() -> bool>> = match &line {
        line if line.contains("-t 2") => Some(Box::new(|| server.pings() >= 250)),
        line if line.contains("-n 10000") => Some(Box::new(|| server.count() >= 1_000)),
        _ => None,
    };
    let code = match &goes_on {
        Some(enough) => {
            eventually("it goes on", enough);
            let pid = Pid::from_raw(running.0.id().try_into().unwrap()).unwrap();
            kill_process(pid, Signal::INT).unwrap();
            130
        }
        None => 0,
    };
    let finished = executable::finish(running);
    assert_eq!(finished.code, Some(code), "{line}: {finished:?}");
    let over_tls = ["https:", "wss:", "-p "].iter().any(|tls| line.contains(tls));
    assert_eq!(finished.stderr.contains("not checked"), over_tls, "{line}: {finished:?}");
    drop(goes_on);
    fs::remove_dir_all(folder).unwrap();
    server
}

#[test]
fn commands_of_the_upstream_manual_run() {
    run_upstreams(&[]);
}

#[test]
fn commands_of_the_upstream_manual_run_in_the_fork_dialect() {
    run_upstreams(&["--dialect", "fork"]);
}

fn run_upstreams(more: &[&str]) {
    let [hundred, shown, pasted, pings, many, bare, posted] =
        UPSTREAM.map(|line| begin(line, more)).map(end);
    assert_eq!((hundred.count(), shown.count(), bare.count()), (100, 1, 100));
    assert_eq!(pasted.asked()[0].target, "/sugrec?prod=pc_his");
    assert_eq!((pings.pings(), pings.asked()[0].target.as_str()), (100, "/acc"));
    assert!(many.count() >= 1_000);
    let asked = &posted.asked()[0];
    assert_eq!((asked.method.as_str(), asked.target.as_str()), ("POST", "/delivery/plan/list"));
    assert!(asked.body.starts_with(b"adPlanQueryParam=%7B%22"), "{asked:?}");
    for (name, value) in [
        ("authority", "page.aliyun.com"),
        ("accept", "application/json, text/plain, */*"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("sec-fetch-dest", "empty"),
        ("accept-language", "zh-CN,zh;q=0.9"),
    ] {
        assert_eq!(asked.header(name), Some(value), "{asked:?}");
    }
    let cookie = asked.header("cookie").unwrap();
    assert!(cookie.starts_with("choice=CN; JSESSIONID=") && cookie.ends_with("isg=BFNT_C"));
}

#[test]
fn commands_of_the_fork_manual_run() {
    let servers = FORK.map(|line| begin(line, &["--dialect", "fork"])).map(end);
    for (server, line) in servers.iter().zip(FORK) {
        let asked = server.asked();
        assert_eq!(asked.len(), 100, "{line}");
        assert!(asked.iter().all(|asked| asked.target.starts_with("/?t=2")), "{line}: {asked:?}");
    }
}

/// A tenth of `-c 62500 -n 1 -u ws://…`, where a process, or a table of a worker of its own, may have
/// a tenth of the usual descriptors: more than three times as many sockets as that, all open at once.
/// The whole is in bench/README.md.
#[test]
fn more_sockets_than_the_descriptor_limit_are_held() {
    const MESSAGE: &str = r#"{"seq":"$SEQ","cmd":"ping","data":{},"response":{"code":200}}"#;
    let server = Server::start_limited(2_000, &[]);
    let url = format!("ws://{}/echo", server.listen);
    let flags = ["stress", "-c", "6250", "-n", "1", "-u", &url, "--message", MESSAGE];
    let load = Running(limited(2_000, &flags).spawn().unwrap());
    // They send a second after the last of them is open.
    eventually("all are open at once", || server.metrics()["standfast_websockets"] == 6_250.0);
    let finished = executable::finish(load);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("successNum: 6250 failureNum: 0"), "{}", finished.stdout);
}
