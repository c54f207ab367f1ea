//! Mistakes of a first hour, typed on purpose: each error says what is wrong, where, and what to type
//! next, in at most three lines. Exit code 2: nothing was measured; 1: a run fell short.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use serde_json::Value;

use crate::harness::executable::{self, Finished};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};
use crate::harness::tls::Authority;
use crate::harness::{Scratch, eventually};

/// Command line, what its error names, and what it says to do.
type Mistake = (&'static str, &'static str, &'static str);

const URL: &str = "http://127.0.0.1:9/";

/// Flags of wrk, hey, oha, k6, ab, autocannon, vegeta, locust.
const OTHER_TOOLS: &[Mistake] = &[
    ("load URL -d 10s", "-d 10s", "--duration 10s"),
    ("load URL -d 10", "-d 10", "--duration 10s"),
    ("load URL -d30s", "-d 30s", "--duration 30s"),
    ("load URL -z 10s", "unknown option -z", "--duration"),
    ("load URL -n 200", "unknown option -n", "--requests N"),
    ("load URL -t 4", "unknown option -t", "a thread per core"),
    ("load URL -t4 -c100", "unknown option -t", "a thread per core"),
    ("load URL --threads 4", "unknown option --threads", "a thread per core"),
    ("load URL -u 10", "unknown option -u", "--connections N"),
    ("load URL --users 10", "unknown option --users", "--connections N"),
    ("load URL --vus 10", "unknown option --vus", "--connections N"),
    ("load URL --vus=10", "unknown option --vus", "--connections N"),
    ("load URL --iterations 10", "unknown option --iterations", "--requests N"),
    ("load URL --stage 10s:5", "unknown option --stage", "--stages"),
    ("load URL -q 100", "unknown option -q", "--rate N"),
    ("load URL -R 100", "unknown option -R", "--rate N"),
    ("load URL --rps 100", "unknown option --rps", "--rate N"),
    ("load URL -m POST", "unknown option -m", "-X METHOD"),
    ("load URL -b x", "unknown option -b", "--data TEXT"),
    ("load URL -p 10", "unknown option -p", "--pipeline N"),
    ("load URL -k", "unknown option -k", "--insecure"),
    ("load URL -a 100", "unknown option -a", "--requests N"),
    ("load URL -s script.lua", "unknown option -s", "standfast load init"),
    ("load URL --latency", "unknown option --latency", "always printed"),
    ("load URL --no-tui", "unknown option --no-tui", "--plain"),
    ("load URL -o out.json", "unknown option -o", "--json FILE"),
    ("load URL --disable-keepalive", "unknown option --disable-keepalive", "--new-connections"),
    ("load URL --duration 10", "--duration", "10s"),
    ("load URL --timeout 5", "--timeout", "5s"),
    ("load URL -c many", "--connections", "10k"),
    ("load URL -c 0", "--connections", "at least 1"),
    ("load URL --conections 5", "--conections", "did you mean --connections?"),
    ("load URL --fail p99<5", "p99<5", "ms"),
    ("load URL --hold 5s", "--hold is for", "ws://"),
    ("stress -c 1 -n 1 -d 10s -u URL", "-d", "true or false"),
    ("stress -c 1 -z 10s -u URL", "-z", "-timeout"),
];

const TARGETS: &[Mistake] = &[
    ("load", "URL missing", "standfast load http://"),
    ("load localhost", "\"localhost\"", "ws://localhost"),
    ("load htp://localhost", "htp://", "http://localhost"),
    ("load http://localhost:808080/", "808080", "65535"),
    ("load http://me:word@localhost/", "password", "Authorization"),
    ("load nosuch", "\"nosuch\"", "built in"),
    ("load nosuch.toml", "nosuch.toml", "No such file"),
];

const COMMANDS: &[Mistake] = &[
    ("laod URL", "laod", "standfast load"),
    ("URL", "http://127.0.0.1:9/", "standfast load http://127.0.0.1:9/"),
    ("bench URL", "bench", "standfast load URL"),
    ("server", "server", "standfast serve"),
    ("doctor 10k", "10k", "doctor --connections 10k"),
    ("prove 10k", "10k", "--connections 10k"),
    ("prove --users 10", "--users", "--connections N"),
    ("prove --duration 10s", "--duration", "--hold TIME"),
    ("prove --url http://a", "--url", "standfast load URL"),
    ("plan", "missing", "--views"),
    ("help load nosuch", "nosuch", "expected one of"),
];

const SERVERS: &[Mistake] = &[
    ("serve --port 8080", "--port", "--listen 127.0.0.1:8080"),
    ("serve -p 8080", "-p", "--listen 127.0.0.1:8080"),
    ("serve --listen 0.0.0.0", "0.0.0.0", "0.0.0.0:8080"),
    ("serve --listen http://127.0.0.1:8080", "--listen", "127.0.0.1:8080"),
    ("serve --listen shop.example:80", "shop.example:80", "0.0.0.0:8080"),
    ("serve --listen 192.0.2.1:0 --admin off", "192.0.2.1:0", "0.0.0.0:0"),
    ("serve --listen TAKEN --admin off", "TAKEN", "choose another port"),
    ("serve --listen 127.0.0.1:0 --admin TAKEN", "TAKEN", "choose another port"),
    ("serve --listen 127.0.0.1:0 --admin 0.0.0.0:0", "0.0.0.0:0", "--admin-key"),
    ("serve --allow-origin null", "null", "sandboxed"),
    ("serve --allow-origin example.com", "example.com", "https://example.com"),
    ("serve --cert a.pem", "--cert", "--tls-cert"),
    ("serve --tls-cert a.pem", "--tls-cert", "--tls-key"),
    ("serve --config nosuch.toml", "nosuch.toml", "No such file"),
    ("serve --config BROKEN", "line 2", "b = = 2"),
    ("proxy --config BROKEN", "line 2", "b = = 2"),
    ("load BROKEN", "line 2", "b = = 2"),
    ("prove BROKEN", "line 2", "b = = 2"),
    ("serve --verbose", "--verbose", "--log debug"),
    ("proxy", "upstream", "--upstream"),
    ("proxy --upstream 127.0.0.1", "127.0.0.1", "10.0.0.1:8080"),
    ("proxy --upstream http://127.0.0.1:8081", "http://127.0.0.1:8081", "10.0.0.1:8080"),
    ("proxy --backend 127.0.0.1:1", "--backend", "--upstream"),
    ("proxy --listen TAKEN --admin off --upstream 127.0.0.1:1", "TAKEN", "choose another port"),
];

/// Applications, history, presence, webhooks, tokens and results.
const APPLICATIONS: &[Mistake] = &[
    ("serve --rpc-host 3000", "'3000' for '--rpc-host", "HOST:PORT"),
    ("serve --rpc-host redis://a", "redis://a", "grpc://HOST:PORT"),
    ("serve --rpc_host localhost:1", "--rpc_host", "did you mean --rpc-host?"),
    ("serve --rpc-url http://a/", "--rpc-url", "--rpc-host http://HOST/PATH"),
    ("serve --norpc", "--norpc", "leave it out"),
    ("serve --noauth", "--noauth", "--enforce-jwt"),
    ("serve --rpc-timeout 5", "--rpc-timeout", "5s"),
    ("serve --auth http://a/", "unknown option --auth", "--auth-url URL"),
    ("serve --auth-url localhost:3000/auth", "localhost:3000/auth", "http://HOST/PATH"),
    ("serve --webhook-url localhost:3000", "localhost:3000", "http://HOST/PATH"),
    ("serve --webhooks-url http://a/", "--webhooks-url", "did you mean --webhook-url?"),
    ("serve --webhook-url http://a/ --webhook-events connects", "connects", "disconnect"),
    ("serve --history file", "file", "off, memory, redis, nats"),
    ("serve --history redis", "--history redis", "--pubsub redis"),
    ("serve --history nats --pubsub redis", "--history nats", "--pubsub nats"),
    (
        "serve --history nats --pubsub nats --broadcast-adapter nats",
        "--broadcast-adapter nats",
        "redisx or HTTP",
    ),
    ("serve --history", "--history", "off, memory, redis, nats"),
    ("serve --history-ttl 300", "--history-ttl", "300s"),
    ("serve --presence on", "'on' for '--presence", "off, memory"),
    ("serve --broker memory", "--broker", "--history memory"),
    ("serve --presets broker", "--presets", "--presence memory"),
    ("serve --path /cable", "--path", "--cable-path PATH"),
    ("serve --sse", "--sse", "leave it out"),
    ("serve --metrics_http /metrics", "--metrics_http", "--admin listener"),
    ("token create", "token create: IDENTIFIERS missing", "'{\"user_id\":1}' --secret"),
    ("token create user --secret s", "JSON object", "{\"user_id\":1}"),
    ("token create {} --secret s --expires 60", "--expires", "60s"),
    ("token create {\"user_id\":1}", "no secret", "--jwt-secret"),
    ("token key", "token key: USE missing", "token key publish"),
    ("token sign-stream", "STREAM missing", "sign-stream chat/1"),
    ("load K6", ".js is no scenario", "standfast load from-k6"),
    ("load HAR", ".har is no scenario", "standfast load from-har"),
    ("load from-k6", "load from-k6: FILE missing", "from-k6 script.js"),
    ("load from-k6 HAR", "no request to convert", "http.get("),
    ("load grpc-list", "HOST:PORT missing", "--proto FILE or --protoset FILE"),
    ("load grpc-list ws://a:1", "unsupported scheme", "grpcs://"),
    ("load grpc-list localhost", "invalid server", "expected HOST:PORT"),
    ("load grpc-list --proto BROKEN", "broken.toml:1:1", "expected"),
    ("load grpc-list --protoset BROKEN", "no descriptor set", "protoc --include_imports"),
    ("load grpc-list a:1 -H grpc-timeout:1S", "reserved", "grpc"),
    ("load merge", "load merge: A.json B.json missing", "merge a.json b.json"),
    ("load merge BROKEN", "expected at least 2 values, found 1", "merge a.json b.json"),
    ("load merge BROKEN BROKEN", "broken.toml", "written by --json FILE"),
    ("load compare BROKEN", "load compare", "compare before.json after.json"),
];

#[test]
fn sixty_mistakes_have_what_where_and_what_next() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let all = [OTHER_TOOLS, TARGETS, COMMANDS, SERVERS, APPLICATIONS].concat();
    assert!(all.len() >= 60, "{}", all.len());
    let broken = Scratch::new("broken.toml", "a = 1\nb = = 2\n");
    let k6 = "import http from 'k6/http';\nexport default function () { http.get('http://a/'); }\n";
    let (k6, har) = (Scratch::new("script.js", k6), Scratch::new("recording.har", "{}"));
    let mut wrong = Vec::new();
    for (line, what, next) in all {
        let line = [
            ("URL", URL),
            ("TAKEN", &taken),
            ("BROKEN", broken.path()),
            ("K6", k6.path()),
            ("HAR", har.path()),
        ]
        .iter()
        .fold(line.to_owned(), |line, (name, value)| line.replace(name, value));
        let what = what.replace("TAKEN", &taken);
        let words: Vec<&str> = line.split(' ').collect();
        let Finished { code, stdout, stderr } = executable::run(&words);
        let lines = stderr.lines().filter(|line| !line.contains(" WARN ")).count();
        let good = code == Some(2)
            && stdout.is_empty()
            && (1..=3).contains(&lines)
            && stderr.contains(&what)
            && stderr.contains(next)
            && stderr.contains("standfast");
        if !good {
            wrong.push(format!(
                "{line}\n  expected {what:?} and {next:?}, exit code {code:?}:\n{stderr}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} mistakes:\n{}", wrong.len(), wrong.join("\n"));
}

/// What is wrong, of the document of `--json`.
fn reason(finished: &Finished) -> String {
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let at = finished.stdout.find("\n{").map_or(0, |at| at + 1);
    let document: Value = serde_json::from_str(&finished.stdout[at..]).unwrap();
    document["reasons"][0].as_str().unwrap().to_owned()
}

/// The runs are of an hour: each ends because it never reached its target.
#[test]
fn a_target_that_was_never_reached_ends_every_kind_of_run() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let scenario = Scratch::new(
        "unreached.toml",
        &format!(
            "version = 1\ntarget = \"http://{address}\"\nusers = 2\nduration = \"1h\"\n\
             [[flows]]\nname = \"a\"\n[[flows.steps]]\nname = \"b\"\nurl = \"/\"\n"
        ),
    );
    let [http, ws, cable] = ["http", "ws", "cable"].map(|scheme| format!("{scheme}://{address}/"));
    let runs: &[&[&str]] = &[
        &["load", &http, "--duration", "1h"],
        &["load", &http, "--duration", "1h", "--rate", "10"],
        &["load", &ws, "--hold", "1h"],
        &["load", &ws, "--stages", "1h:1k"],
        &["load", &cable, "--hold", "1h"],
        &["load", scenario.path()],
        &["stress", "-c", "2", "-n", "1000000000", "-u", &http],
        &["stress", "-c", "2", "-n", "1000000000", "-u", &ws],
    ];
    for words in runs {
        let finished = executable::run(&[words, &["--json=-"][..]].concat());
        let expected = format!("connection refused by {address} (is the server running?)");
        assert_eq!(reason(&finished), expected, "{words:?}");
        let shown = format!("{}{}", finished.stdout, finished.stderr);
        assert!(shown.contains(&format!("fell short: {expected}")), "{words:?}: {shown}");
    }
}

#[test]
fn tls_mistaken_both_ways_and_unknown_authorities_are_explained() {
    let authority = Authority::new();
    authority.sign("server", &["localhost", "127.0.0.1"]);
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let secure = Server::start(&["--tls-cert", &certificate, "--tls-key", &key]);
    let plain = Server::start(&[]);
    for (url, expected) in [
        (format!("http://{}/", secure.listen), "use https:// instead of http://"),
        (format!("ws://{}/echo", secure.listen), "use wss:// instead of ws://"),
        (format!("cable://{}/cable", secure.listen), "use cables:// instead of cable://"),
        (format!("https://{}/", plain.listen), "use http:// instead of https://"),
        (format!("wss://{}/echo", plain.listen), "use ws:// instead of wss://"),
        (format!("https://{}/", secure.listen), "--ca FILE"),
        (format!("wss://{}/echo", secure.listen), "--insecure"),
    ] {
        let finished = executable::run(&["load", &url, "-c", "2", "--json=-"]);
        let reason = reason(&finished);
        assert!(reason.contains(expected), "{url}: {reason}");
    }
    // A target that is reached runs to its end.
    let url = format!("https://{}/health", secure.listen);
    let ca = authority.path("ca.pem");
    let finished = executable::run(&["load", &url, "--requests", "3", "-c", "1", "--ca", &ca]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
}

/// A server that closes each connection after what `answer` gives for its first byte.
fn silent_server(answer: fn(u8) -> &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            if stream.read(&mut head).is_ok_and(|count| count > 0) {
                let _ = stream.write_all(answer(head[0]));
            }
        }
    });
    address
}

#[test]
fn tls_mistaken_both_ways_is_explained_where_the_server_just_closes() {
    const HANDSHAKE: u8 = 0x16;
    let secure = silent_server(|first| match first {
        HANDSHAKE => b"\x15\x03\x03\x00\x02\x02\x28",
        _ => b"",
    });
    let plain = silent_server(|first| match first {
        HANDSHAKE => b"",
        _ => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    });
    for (url, expected) in [
        (format!("http://{secure}/"), "use https:// instead of http://"),
        (format!("ws://{secure}/"), "use wss:// instead of ws://"),
        (format!("https://{plain}/"), "use http:// instead of https://"),
        (format!("wss://{plain}/"), "use ws:// instead of wss://"),
    ] {
        let finished = executable::run(&["load", &url, "-c", "2", "--json=-"]);
        let reason = reason(&finished);
        assert!(reason.contains(expected), "{url}: {reason}");
    }
}

#[test]
fn the_example_scenario_is_never_overwritten() {
    let there = Scratch::new("example.toml", "mine");
    let next = there.path().replace("example.toml", "example-2.toml");
    let finished = executable::run(&["load", "init", there.path()]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains(&format!("standfast load init {next}")), "{finished:?}");
    assert_eq!(std::fs::read_to_string(there.path()).unwrap(), "mine");
    assert_eq!(executable::run(&["load", "init", &next]).code, Some(0));
    std::fs::remove_file(next).unwrap();
}

#[test]
fn refused_tokens_and_subscriptions_are_logged_with_their_cause() {
    let server = Server::start(&["--secret", "not-a-secret", "--enforce-jwt"]);
    let _ = Socket::open(server.listen, "/cable?jid=nonsense");
    eventually("the token is in the log", || server.log().contains("cause=\"token_malformed\""));
    let server = Server::start(&["--secret", "not-a-secret"]);
    let mut socket = Socket::open(server.listen, "/cable");
    for name in ["ChatChannel", "RoomChannel"] {
        let command = serde_json::json!({"command": "subscribe",
            "identifier": format!("{{\"channel\":\"{name}\"}}")});
        socket.send_frame(TEXT, command.to_string().as_bytes());
    }
    eventually("the subscription is in the log", || {
        server.log().contains("subscription rejected: a channel of the application")
    });
    assert!(server.log().contains("cause=\"channel\""), "{}", server.log());
    let lines = server.log().matches("subscription rejected").count();
    assert_eq!(lines, 1, "one line for one cause: {}", server.log());
}
