//! `standfast stress` over HTTP/2, gRPC and RADIUS: against servers that log, to the unit.

use serde_json::{Value, json};

use crate::harness::executable::{self, Finished, standfast};
use crate::harness::http2::{Call, Conduct as Calls, Http2Server};
use crate::harness::nginx::Nginx;
use crate::harness::peer::{self, Program};
use crate::harness::radius::{Conduct, FreeRadius, RadiusServer};
use crate::harness::recorder::Recorder;
use crate::harness::tls::Authority;
use crate::harness::{Scratch, eventually};

fn stress(flags: &str) -> Finished {
    let words: Vec<&str> = std::iter::once("stress").chain(flags.split_whitespace()).collect();
    executable::run(&words)
}

fn result(flags: &str, code: i32) -> Value {
    let finished = stress(&format!("{flags} --json -"));
    assert_eq!(finished.code, Some(code), "{flags}: {finished:?}");
    finished.json()
}

/// Each request on a new connection, or all of a user on one; certificates are checked, as in the original.
#[test]
fn http2_is_negotiated_in_tls_with_certificates_checked() {
    let authority = Authority::new();
    authority.sign("server", &["localhost", "127.0.0.1"]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|file| authority.path(file));
    let files = format!("ssl_certificate {cert}; ssl_certificate_key {key};");
    let server = format!(
        "{files} access_log log of; gzip on; gzip_min_length 1; gzip_types application/json;\n\
         location /old {{ return 302 /; }}\n\
         location / {{ default_type application/json; return 200 '{{\"code\":7}}'; }}"
    );
    let format = "log_format of '$server_protocol $connection $request_method';";
    let run = |nginx: &Nginx, flags: &str| {
        let url = format!("https://{}", nginx.listen);
        let line = format!("stress -http2 {flags} --json -").replace("URL", &url);
        let mut command = standfast(&line.split_whitespace().collect::<Vec<_>>());
        command.env("SSL_CERT_FILE", &ca);
        executable::run_command(command)
    };
    for (flags, connections, lines) in [
        ("-c 3 -n 4 -u URL/", 12, 12),
        ("-c 3 -n 4 -k -u URL/", 3, 12),
        ("-c 3 -n 4 -k -v json -code 7 -u URL/", 3, 12),
        ("-c 3 -n 4 -k -data x -u URL/", 3, 12),
        ("-c 3 -n 4 -k -u URL/old", 3, 24),
    ] {
        let nginx = Nginx::listening("ssl http2", format, &server).expect("nginx is installed");
        let finished = run(&nginx, flags);
        assert_eq!(finished.code, Some(0), "{flags}: {finished:?}");
        let said = finished.json();
        assert_eq!(said["stress"]["codes"], json!({"200": 12}), "{flags}: {said}");
        assert_eq!(said["connections"]["opened"], connections, "{flags}: {said}");
        eventually("nginx has logged all", || nginx.file("log").lines().count() == lines);
        let log = nginx.file("log");
        assert!(log.lines().all(|line| line.starts_with("HTTP/2.0 ")), "{log}");
        let of = |line: &str| line.split(' ').nth(1).unwrap().to_owned();
        let seen: std::collections::BTreeSet<String> = log.lines().map(of).collect();
        assert_eq!(seen.len(), connections, "{flags}: {log}");
        let posts = log.lines().filter(|line| line.ends_with("POST")).count();
        assert_eq!(posts, if flags.contains("-data") { 12 } else { 0 }, "{flags}: {log}");
    }
    let nginx = Nginx::listening("ssl http2", format, &server).expect("nginx is installed");
    let untrusted = stress(&format!("-http2 -c 2 -n 2 -u https://{}/ --json -", nginx.listen));
    assert_eq!(untrusted.code, Some(1), "{untrusted:?}");
    assert_eq!(untrusted.json()["stress"]["codes"], json!({"509": 4}), "{untrusted:?}");
    let any = Scratch::new("http2.curl", &format!("curl -k https://{}/", nginx.listen));
    let finished = stress(&format!("-http2 -c 2 -n 2 -p {}", any.path()));
    assert!(finished.stdout.contains("200:4"), "-k of a command accepts any: {finished:?}");
    let old = Nginx::listening("ssl", format, &server).expect("nginx is installed");
    let finished = run(&old, "-c 1 -n 1 -u URL/");
    assert_eq!(finished.code, Some(1), "no HTTP/2 there: {finished:?}");
}

#[test]
fn http2_has_no_effect_without_tls_and_files_do_not_mix() {
    let server = Recorder::hello();
    let finished = stress(&format!("-http2 -c 2 -n 2 -u http://{}/", server.address));
    assert!(finished.stdout.contains("200:4"), "{finished:?}");
    assert!(finished.stderr.contains("no effect over http://"), "{finished:?}");
    let both = Scratch::new("both.curl", "curl https://127.0.0.1:1/\ncurl http://127.0.0.1:1/\n");
    let finished = stress(&format!("-http2 -p {}", both.path()));
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("-http2: expected all URLs"), "{finished:?}");
}

#[test]
fn the_example_over_grpc_is_called_in_both_dialects() {
    let Some(server) = Program::start(&peer::GRPC, "grpc_api.js", &[]) else { return };
    let url = format!("127.0.0.1:{}", server.first_line());
    for (flags, path, name, code, codes) in [
        (format!("-u grpc://{url} -data ann"), "/ApiServer/HelloWorld", "ann", 0, "200"),
        (format!("-u rpc://{url}/ -data ben"), "/ApiServer/HelloWorld", "ben", 0, "200"),
        (format!("-u grpc://{url} -data bad"), "/ApiServer/HelloWorld", "bad", 1, "500"),
        (
            format!("--dialect fork -u grpc://{url} -data cid"),
            "/protobuf.ApiServer/HelloWorld",
            "cid",
            0,
            "200",
        ),
        (
            format!("-v statusCode -u grpc://{url} -data bad"),
            "/ApiServer/HelloWorld",
            "bad",
            0,
            "200",
        ),
    ] {
        let said = result(&format!("-c 3 -n 4 {flags}"), code);
        assert_eq!(said["stress"]["codes"], json!({codes: 12}), "{flags}: {said}");
        assert_eq!(said["connections"]["opened"], 3, "a connection each: {said}");
        let line = format!("{path} {name}");
        let logged = || server.lines().iter().filter(|one| **one == line).count();
        let calls = if flags.contains("statusCode") { 24 } else { 12 };
        eventually("all calls are logged", || logged() == calls);
    }
    let shown = stress(&format!("-d true -u grpc://{url} -data ann"));
    assert!(shown.stderr.contains(r#"200 {"code":200,"msg":"success""#), "{shown:?}");
}

#[test]
fn methods_of_reflection_and_of_files_are_called_with_json() {
    let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    let url = format!("grpc://127.0.0.1:{}/shop.v1.Orders", server.first_line());
    let said = result(&format!(r#"-c 2 -n 5 -u {url}/Place -data {{"customerName":"ann"}}"#), 0);
    assert_eq!(said["stress"]["codes"], json!({"200": 10}), "{said}");
    let said = result(&format!("-c 2 -n 5 -v json -u {url}/Place"), 1);
    assert_eq!(said["stress"]["codes"], json!({"0": 10}), "a message without a code: {said}");
    let missing = r#"-data {"customerName":"UNIMPLEMENTED"}"#;
    let said = result(&format!("-c 2 -n 5 -u {url}/Place {missing}"), 1);
    assert_eq!(said["stress"]["codes"], json!({"12": 10}), "the number of UNIMPLEMENTED: {said}");
    for (flags, part) in [
        (format!("-u {url}/Nothing"), "no method Nothing"),
        (format!(r#"-u {url}/Place -data {{"x":1}}"#), "-data"),
        (format!("-u {url}/Place -v regex"), "statusCode or json over grpc"),
        (format!("-u {url}/Place -p x.curl"), "x.curl"),
        (format!("-u {url}/Place --message x"), "--message has no effect over grpc"),
    ] {
        let finished = stress(&flags);
        assert_eq!(finished.code, Some(2), "{flags}: {finished:?}");
        assert!(finished.stderr.contains(part), "{part}: {finished:?}");
    }
}

#[test]
fn calls_without_a_right_answer_are_counted_by_what_they_are() {
    let file = Scratch::new(
        "stress.proto",
        "syntax = \"proto3\"; package a; message Text { string text = 1; }\n\
         service B { rpc One(Text) returns (Text); }",
    );
    for (how, code, errors) in [
        (Call::Right, "200", json!({})),
        (Call::Status("5"), "5", json!({"grpc_not_found": 2})),
        (Call::Status("99"), "510", json!({"grpc_other_status": 2})),
        (Call::NoTrailers, "510", json!({"grpc_no_status": 2})),
        (Call::Text, "510", json!({"grpc_content_type": 2})),
        (Call::Cut, "510", json!({"grpc_message": 2})),
    ] {
        let server = Http2Server::start(Calls::Calls(how));
        let proto = file.path();
        let flags = format!("-c 4 -n 5 -u grpc://{}/a.B/One --proto {proto}", server.address);
        let said = result(&flags, i32::from(how != Call::Right));
        let codes = match how {
            Call::Right => json!({"200": 20}),
            _ => json!({"200": 18, code: 2}),
        };
        assert_eq!(
            (&said["stress"]["codes"], &said["errors"]),
            (&codes, &errors),
            "{how:?} {said}"
        );
        assert_eq!(server.log.lock().unwrap().requests, 20, "{how:?}");
    }
}

#[test]
fn grpcs_is_spoken_with_any_certificate() {
    let authority = Authority::new();
    authority.sign("server", &["nobody.example"]);
    let (cert, key) = (authority.path("server.pem"), authority.path("server.key"));
    let Some(server) = Program::start(&peer::GRPC, "grpc_api.js", &[&cert, &key]) else { return };
    let finished = stress(&format!("-c 2 -n 3 -u grpcs://127.0.0.1:{}", server.first_line()));
    assert!(finished.stdout.contains("successNum: 6 failureNum: 0"), "{finished:?}");
    assert!(finished.stderr.contains("not checked"), "{finished:?}");
}

#[test]
fn freeradius_accepts_rejects_and_has_logged_each_request() {
    let Some(server) = FreeRadius::start() else { return };
    let at = server.address;
    let said = result(&format!("-c 20 -n 10 -u radius://{at}@example.org"), 0);
    assert_eq!(said["stress"]["codes"], json!({"2": 200}), "{said}");
    assert_eq!(
        (&said["radius"]["accepted"], &said["radius"]["unverified"]),
        (&200.into(), &0.into())
    );
    eventually("all are logged", || server.logged("Login OK: [tim@example.org]") == 200);
    let said = result(&format!("-c 5 -n 4 --user ann --password wrong -u radius://{at}"), 1);
    assert_eq!(said["stress"]["codes"], json!({"3": 20}), "{said}");
    eventually("all are logged", || server.logged("Login incorrect") == 20);
    assert_eq!(server.logged("[ann]"), 20);
    // With another secret its Message-Authenticator is wrong, and the server says nothing.
    let finished = stress(&format!("-t 1 --secret other -u radius://{at}"));
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stdout.contains("--secret"), "{finished:?}");
}

/// 200 requests of 20 users to a server of this conduct.
fn radius(conduct: Conduct, more: &str, code: i32) -> (Value, RadiusServer) {
    let server = RadiusServer::start(conduct);
    let said = result(&format!("-c 20 -n 10 -u radius://{} {more}", server.address), code);
    let log = server.log.lock().unwrap();
    assert_eq!(said["radius"]["requests"], log.requests, "{conduct:?} {said}");
    assert_eq!(said["radius"]["datagrams_sent"], log.datagrams, "{conduct:?} {said}");
    drop(log);
    (said, server)
}

#[test]
fn access_requests_are_counted_as_the_server_counts_them() {
    let (said, server) = radius(Conduct::Accepts, "", 0);
    assert_eq!(said["stress"]["codes"], json!({"2": 200}), "{said}");
    let log = server.log.lock().unwrap();
    assert_eq!((log.requests, log.datagrams, log.ports.len()), (200, 200, 1), "{log:?}");
    assert!(log.users.iter().all(|user| user == "tim"), "{log:?}");
    assert!(log.passwords.iter().all(|password| password == "12345678"), "{log:?}");
    drop(log);
    for (code, kind) in [(3, "rejected"), (11, "challenged"), (99, "other_codes")] {
        let (said, _) = radius(Conduct::Says(code), "", 1);
        assert_eq!(said["stress"]["codes"], json!({"2": 180, code.to_string(): 20}), "{said}");
        assert_eq!(said["radius"][kind], 20, "{said}");
    }
    let (said, _) = radius(Conduct::OtherSecret, "-t 1", 1);
    assert_eq!(said["stress"]["codes"], json!({"2": 180, "509": 20}), "{said}");
    let counts = &said["radius"];
    assert_eq!((&counts["timeouts"], &counts["unverified"]), (&20.into(), &20.into()), "{said}");
    let (said, _) = radius(Conduct::Garbage, "", 0);
    assert_eq!((&said["radius"]["malformed"], &said["stress"]["ok"]), (&40.into(), &200.into()));
}

#[test]
fn lost_datagrams_are_sent_again_and_late_ones_discarded() {
    let (said, server) = radius(Conduct::Loses, "", 0);
    let counts = &said["radius"];
    assert_eq!(
        (&counts["accepted"], &counts["retransmissions"]),
        (&200.into(), &20.into()),
        "{said}"
    );
    assert_eq!(server.log.lock().unwrap().datagrams, 220);
    // The second answer to a user's last request may come after the end.
    let (said, _) = radius(Conduct::Twice, "", 0);
    let (accepted, unexpected) = (&said["radius"]["accepted"], &said["radius"]["unexpected"]);
    assert_eq!(accepted, 200, "{said}");
    let unexpected = unexpected.as_u64().unwrap();
    assert!((180..=200).contains(&unexpected), "{said}");
}

#[test]
fn silent_and_absent_servers_end_the_run_with_a_reason() {
    let server = RadiusServer::start(Conduct::Silent);
    let finished = stress(&format!("-c 2 -n 1 -t 2 -u radius://{} --json -", server.address));
    let said = finished.json();
    assert_eq!((finished.code, &said["radius"]["timeouts"]), (Some(1), &2.into()), "{finished:?}");
    // After a second; that after two seconds is given up.
    assert_eq!(said["radius"]["retransmissions"], 2, "{said}");
    assert!(finished.stderr.contains("nothing was answered"), "{finished:?}");
    let absent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let finished = stress(&format!("-c 2 -n 1000 -u radius://{absent} --json -"));
    let said = finished.json();
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("fell short: connection refused"), "{finished:?}");
    let counts = &said["radius"];
    assert_eq!(
        counts["refused"].as_u64().unwrap() + counts["unfinished"].as_u64().unwrap(),
        counts["requests"].as_u64().unwrap(),
        "{said}"
    );
    for (flags, part) in [
        ("-u radius://", "radius://HOST:PORT"),
        ("-u radius://127.0.0.1 -H a:b", ""),
        ("-u radius://127.0.0.1 --message x", "--message has no effect over radius"),
        ("-u radius://127.0.0.1 -c 200000", "the limit is 100000"),
        ("-u http://127.0.0.1:1/ --secret x", "--secret has no effect over http"),
    ] {
        let finished = stress(&format!("{flags} -timeout 1"));
        let code = if part.is_empty() { Some(1) } else { Some(2) };
        assert_eq!(finished.code, code, "{flags}: {finished:?}");
        assert!(finished.stderr.contains(part), "{part}: {finished:?}");
    }
}
