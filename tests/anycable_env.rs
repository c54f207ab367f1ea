//! `serve` in place of AnyCable's server: its environment variables, secrets that are not shown, and
//! the effects of a secret.

use rustix::process::Signal;

use crate::harness::executable::{Finished, run_command, standfast};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::{Scratch, eventually, http};

/// Whether a message of this size is accepted.
fn accepts(server: &Server, bytes: usize) -> bool {
    let mut socket = Socket::open(server.listen, "/echo");
    socket.send_frame(TEXT, &vec![b'x'; bytes]);
    socket.frame().is_some_and(|frame| frame.first == TEXT)
}

/// A start that fails, with `env` in its environment.
fn refused(args: &[&str], env: &[(&str, &str)]) -> Finished {
    let mut command =
        standfast(&[&["serve", "--listen", "127.0.0.1:0", "--admin", "off"], args].concat());
    command.envs(env.iter().copied());
    let finished = run_command(command);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    finished
}

#[test]
fn anycable_variables_configure_the_server() {
    let server = Server::start_where_told(&[
        ("ANYCABLE_HOST", "127.0.0.1"),
        ("ANYCABLE_PORT", "0"),
        ("ANYCABLE_MAX_MESSAGE_SIZE", "1024"),
        ("ANYCABLE_ALLOWED_ORIGINS", "app.example"),
    ]);
    assert_ne!(server.listen.port(), 8080, "any free port");
    assert!(accepts(&server, 1024) && !accepts(&server, 1025));
    let mut socket = Socket::connect(server.listen);
    socket.send(upgrade("/echo", &[("Origin", "https://app.example")]).as_bytes());
    assert_eq!(socket.response().status, 101);
}

#[test]
fn own_variables_override_anycable_variables_and_these_the_file() {
    let file = Scratch::new("anycable.toml", "[serve]\nmax_message = \"4KiB\"\n");
    let anycable = ("ANYCABLE_MAX_MESSAGE_SIZE", "1024");
    let server = Server::start_with(&["--config", file.path()], &[anycable]);
    assert!(accepts(&server, 1024) && !accepts(&server, 1025));
    let own = ("STANDFAST_SERVE_MAX_MESSAGE", "2KiB");
    let server = Server::start_with(&[], &[anycable, own]);
    assert!(accepts(&server, 2048) && !accepts(&server, 2049));
}

#[test]
fn ignored_variables_are_logged_once_without_values() {
    let server = Server::start_with(
        &[],
        &[
            ("ANYCABLE_REDIS_SENTINELS", "user:hush-hush@elsewhere"),
            ("ANYCABLE_RPC_MAX_CALL_SEND_SIZE", "28"),
            ("ANYCABLE_TURBO_STREAMS", "true"),
        ],
    );
    server.signal(Signal::HUP);
    eventually("the configuration is reloaded", || server.log().contains("configuration reloaded"));
    let log = server.log();
    let expected = "environment variables ignored: ANYCABLE_REDIS_SENTINELS, ANYCABLE_RPC_MAX_CALL_SEND_SIZE\n";
    assert_eq!(log.matches(expected).count(), 1, "{log}");
    assert!(!log.contains("hush-hush"), "{log}");
}

#[test]
fn an_invalid_variable_prevents_the_start() {
    let finished = refused(&[], &[("ANYCABLE_SHUTDOWN_TIMEOUT", "soon")]);
    assert!(finished.stderr.contains("ANYCABLE_SHUTDOWN_TIMEOUT"), "{finished:?}");
    let finished = refused(&[], &[("ANYCABLE_LOG_LEVEL", "loud")]);
    assert!(finished.stderr.contains("ANYCABLE_"), "{finished:?}");
}

#[test]
fn a_secret_ends_public_access_on_loopback() {
    let status = |server: &Server| {
        let mut socket = Socket::connect(server.listen);
        socket.send(upgrade("/topics/x", &[]).as_bytes());
        socket.response().status
    };
    assert_eq!(status(&Server::start(&[])), 101, "on loopback");
    let secret = ("ANYCABLE_SECRET", "hush-hush");
    assert_eq!(status(&Server::start_with(&[], &[secret])), 403);
    assert_eq!(status(&Server::start_with(&["--public"], &[secret])), 101);
}

#[test]
fn adding_the_first_secret_needs_a_restart() {
    let file = Scratch::new("secret.toml", "[serve]\n");
    let server = Server::start(&["--config", file.path()]);
    file.write("[serve]\nsecret = \"hush-hush\"\n");
    server.signal(Signal::HUP);
    eventually("the reload is refused", || server.log().contains("needs a restart"));
    assert!(!server.log().contains("hush"), "{}", server.log());
    let mut socket = Socket::connect(server.listen);
    socket.send(upgrade("/topics/x", &[]).as_bytes());
    assert_eq!(socket.response().status, 101, "still public");
}

#[test]
fn no_secret_is_logged_or_served() {
    let secret = ("STANDFAST_SERVE_SECRET", "hush-hush");
    let server = Server::start_with(&["--broadcast-key", "hush-key"], &[secret]);
    eventually("the admin listener is logged", || server.log().contains("admin on"));
    let texts = [
        server.log(),
        http::get(server.admin, "/api/stats").body,
        http::get(server.admin, "/metrics").body,
    ];
    for text in texts {
        assert!(!text.contains("hush"), "{text}");
    }
    for args in [["--broadcast-key", "hush hush"], ["--jwt-secret", "file:"]] {
        let finished = refused(&args, &[secret]);
        assert!(!finished.stderr.contains("hush"), "{finished:?}");
    }
}

#[test]
fn unreadable_secret_and_key_files_are_named() {
    let missing = refused(&["--secret", "file:/nowhere/secret"], &[]);
    assert!(missing.stderr.contains("--secret") && missing.stderr.contains("/nowhere/secret"));
    let empty = Scratch::new("empty.secret", "\n");
    let finished = refused(&["--secret", &format!("file:{}", empty.path())], &[]);
    assert!(finished.stderr.contains("is empty"), "{finished:?}");
    let keys = Scratch::new("keys.json", r#"{"keys":[]}"#);
    let finished = refused(&["--jwt-keys", keys.path()], &[]);
    assert!(finished.stderr.contains("no key that checks signatures"), "{finished:?}");
    let finished = refused(&["--enforce-jwt"], &[]);
    assert!(finished.stderr.contains("--jwt-keys"), "it names a flag that helps: {finished:?}");
}
