//! `standfast token`: what it makes is accepted by the server, and it says why something is refused.

use std::process::Command;

use serde_json::json;

use crate::harness::Scratch;
use crate::harness::cable::Cable;
use crate::harness::executable::{self, Finished, standfast};
use crate::harness::http;
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, Signer, hs256, identifiers, now_unix_s, signed, token};

/// Runs a command with the secret in the environment.
fn with_secret(args: &[&str]) -> Finished {
    let mut command = standfast(&[&["token"], args].concat());
    command.env("STANDFAST_SERVE_SECRET", SECRET);
    executable::run_command(command)
}

fn run_token(args: &[&str]) -> Finished {
    executable::run(&[&["token"], args].concat())
}

/// The one line that a command prints.
fn line(finished: &Finished) -> &str {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let line = finished.stdout.strip_suffix('\n').expect("a line");
    assert!(!line.contains('\n'), "{finished:?}");
    line
}

fn is_refused(finished: &Finished, why: &str) {
    assert_eq!(finished.code, Some(1), "{why}: {finished:?}");
    assert!(finished.stdout.starts_with("refused: "), "{finished:?}");
    assert!(finished.stdout.contains(why), "{why}: {finished:?}");
}

#[test]
fn servers_accept_tokens_signed_names_and_keys() {
    let flags = ["--enforce-jwt", "--jwt-secret", "another"];
    let server = Server::start_with(&flags, &[("STANDFAST_SERVE_SECRET", SECRET)]);
    let created = with_secret(&["create", &identifiers(7), "--jwt-secret", "another"]);
    let mut client = Cable::join(server.listen, Some(line(&created))).welcomed();
    let name = with_secret(&["sign-stream", "chat/1", "--expires", "1h"]);
    let pubsub = json!({"channel": "$pubsub", "signed_stream_name": line(&name)});
    assert_eq!(client.subscribe(&pubsub), "confirm_subscription");
    for (key, path) in [("publish", "/api/publish"), ("broadcast", "/_broadcast")] {
        let key = with_secret(&["key", key]);
        let body = match path {
            "/_broadcast" => json!({"stream": "chat/1", "data": "1"}),
            _ => json!({"topic": "chat/1", "data": "1"}),
        };
        let (body, key) = (body.to_string(), line(&key));
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = http::ask(server.admin, &request);
        assert!([200, 201].contains(&answer.status), "{answer:?}");
        assert_eq!(client.hear()["message"], json!(1), "{path}");
    }
}

#[test]
fn valid_tokens_and_names_are_described() {
    let checked = with_secret(&["check", &token(7)]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stdout.starts_with("valid token\n"), "{checked:?}");
    assert!(checked.stdout.contains(r#"  identifiers  {"user_id":7}"#), "{checked:?}");
    assert!(checked.stdout.contains("  expires      in "), "{checked:?}");
    let forever = with_secret(&["create", "{}", "--expires", "never"]);
    let checked = with_secret(&["check", line(&forever)]);
    assert!(checked.stdout.contains("expires      never"), "{checked:?}");
    let checked = with_secret(&["check", &signed(SECRET, "chat/1"), "--turbo-secret", "another"]);
    let expected =
        "valid signed name\n  stream    chat/1\n  channels  $pubsub, CableReady::Stream\n";
    assert_eq!(checked.stdout, expected);
    let turbo = run_token(&["sign-stream", "chat/1", "--turbo-secret", "demo"]);
    assert_eq!(line(&turbo), signed("demo", "chat/1"), "the only secret is Turbo's");
    let signer = Signer::new("main");
    let keys = Scratch::new("token-keys.json", &json!({"keys": [signer.public()]}).to_string());
    let checked = run_token(&["check", &signer.token(7), "--jwt-keys", keys.path()]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn refusals_say_what_is_wrong() {
    let claims = |claims: serde_json::Value| hs256(SECRET, &claims);
    let (now, ext) = (now_unix_s(), identifiers(1));
    let old = claims(json!({"ext": ext, "exp": now - 7_300}));
    is_refused(&with_secret(&["check", &old]), "expired 2h 1m ago, at 20");
    let early = with_secret(&["create", &ext, "--begins", "10m"]);
    is_refused(&with_secret(&["check", line(&early)]), "not valid yet: it begins in ");
    is_refused(&with_secret(&["check", &hs256("b", &json!({"ext": ext}))]), "wrong key: ");
    is_refused(&with_secret(&["check", &claims(json!({"sub": 1}))]), "claim ext is missing");
    is_refused(&with_secret(&["check", "a.b"]), "not a JWT: expected 3 parts");
    is_refused(&with_secret(&["check", &signed("b", "chat")]), "wrong key: ");
    is_refused(&with_secret(&["check", "chat"]), "not a signed name");
    is_refused(&run_token(&["check", &token(1)]), "set --secret, --jwt-secret or --jwt-keys");
    is_refused(&run_token(&["check", &signed("b", "chat")]), "set --secret or --streams-secret");
}

#[test]
fn secrets_are_read_as_the_server_reads_them() {
    let (file, config) = (Scratch::new("token.secret", "s3Krit\n"), Scratch::new("token.toml", ""));
    config.write(&format!("[serve]\nsecret = \"file:{}\"\necho = true\n", file.path()));
    let expected = signed(SECRET, "chat");
    let secret = format!("file:{}", file.path());
    for args in [["--secret", &secret], ["--config", config.path()]] {
        let name = run_token(&[&["sign-stream", "chat"], &args[..]].concat());
        assert_eq!(line(&name), expected, "{args:?}");
    }
    let mut command = standfast(&["token", "sign-stream", "chat"]);
    command.env("ANYCABLE_SECRET", SECRET);
    assert_eq!(line(&executable::run_command(command)), expected);
    // A token on standard input is in no process list, either.
    let mut shell = Command::new("sh");
    let script = "printf '%s\\n' \"$1\" | STANDFAST_SERVE_SECRET=s3Krit \"$0\" token check -";
    let output = shell.args(["-c", script]).arg(executable::path()).arg(token(1)).output();
    let output = output.expect("a shell starts");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("valid token"), "{output:?}");
}

#[test]
fn mistakes_are_named_and_secrets_are_not_shown() {
    for (args, named) in [
        (&["create", "{}"][..], "set --secret or --jwt-secret"),
        (&["create", "user", "--secret", "hush"], "JSON object such as"),
        (&["create", "{}", "--secret", "hush", "--expires", "1"], "such as 500ms, 30s"),
        (&["create", "{}", "--secret", "hush", "--expires", "10ms"], "at least 1s, or never"),
        (&["sign-stream", "chat"], "set --secret or --streams-secret"),
        (&["sign-stream", "chat", "--for", "turbo"], "set --secret or --turbo-secret"),
        (&["sign-stream", "", "--secret", "hush"], "1 to 256 bytes"),
        (&["key", "publish", "--turbo-secret", "hush"], "set --secret"),
        (&["check", "", "--secret", "hush"], "nothing to check"),
        (&["check", "a.b.c", "--secret", "file:/nowhere"], "cannot read /nowhere"),
        (&["check", "a.b.c", "--secret", "file:"], "file: needs a path"),
    ] {
        let finished = run_token(args);
        assert_eq!(finished.code, Some(2), "{args:?}: {finished:?}");
        assert!(finished.stderr.contains(named), "{args:?}: {finished:?}");
        assert!(!finished.stderr.contains("hush"), "{finished:?}");
    }
}
