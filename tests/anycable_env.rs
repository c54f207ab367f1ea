//! `serve` in place of AnyCable's server: its environment variables, secrets that are not shown, and
//! the effects of a secret.

use rustix::process::Signal;

use crate::harness::executable::{Finished, run_command, standfast};
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::{Scratch, eventually, http};

/// Whether a message of so many bytes is taken.
fn takes(server: &Server, bytes: usize) -> bool {
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
fn what_anycable_is_told_holds_here() {
    let server = Server::start_where_told(&[
        ("ANYCABLE_HOST", "127.0.0.1"),
        ("ANYCABLE_PORT", "0"),
        ("ANYCABLE_MAX_MESSAGE_SIZE", "1024"),
        ("ANYCABLE_ALLOWED_ORIGINS", "app.example"),
    ]);
    assert_ne!(server.listen.port(), 8080, "any free port");
    assert!(takes(&server, 1024) && !takes(&server, 1025));
    let mut socket = Socket::connect(server.listen);
    socket.send(upgrade("/echo", &[("Origin", "https://app.example")]).as_bytes());
    assert_eq!(socket.response().status, 101);
}

#[test]
fn our_own_environment_stands_above_it_and_a_file_below() {
    let file = Scratch::new("anycable.toml", "[serve]\nmax_message = \"4KiB\"\n");
    let anycable = ("ANYCABLE_MAX_MESSAGE_SIZE", "1024");
    let server = Server::start_with(&["--config", file.path()], &[anycable]);
    assert!(takes(&server, 1024) && !takes(&server, 1025));
    let own = ("STANDFAST_SERVE_MAX_MESSAGE", "2KiB");
    let server = Server::start_with(&[], &[anycable, own]);
    assert!(takes(&server, 2048) && !takes(&server, 2049));
}

#[test]
fn what_has_no_effect_is_named_once_and_never_quoted() {
    let server = Server::start_with(
        &[],
        &[
            ("ANYCABLE_REDIS_URL", "redis://user:hush-hush@elsewhere"),
            ("ANYCABLE_RPC_CONCURRENCY", "28"),
            ("ANYCABLE_TURBO_STREAMS", "true"),
        ],
    );
    server.signal(Signal::HUP);
    eventually("it has read all again", || server.log().contains("read again"));
    let log = server.log();
    let named = "no effect here: ANYCABLE_REDIS_URL, ANYCABLE_RPC_CONCURRENCY\n";
    assert_eq!(log.matches(named).count(), 1, "{log}");
    assert!(!log.contains("hush-hush"), "{log}");
}

#[test]
fn a_variable_that_cannot_be_meant_ends_the_start() {
    let finished = refused(&[], &[("ANYCABLE_SHUTDOWN_TIMEOUT", "soon")]);
    assert!(finished.stderr.contains("ANYCABLE_SHUTDOWN_TIMEOUT"), "{finished:?}");
    let finished = refused(&[], &[("ANYCABLE_LOG_LEVEL", "loud")]);
    assert!(finished.stderr.contains("ANYCABLE_"), "{finished:?}");
}

#[test]
fn with_a_secret_nothing_is_public_unless_it_is_said() {
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
fn the_first_secret_waits_for_a_restart() {
    let file = Scratch::new("secret.toml", "[serve]\n");
    let server = Server::start(&["--config", file.path()]);
    file.write("[serve]\nsecret = \"hush-hush\"\n");
    server.signal(Signal::HUP);
    eventually("it is refused", || server.log().contains("with a restart only"));
    assert!(!server.log().contains("hush"), "{}", server.log());
    let mut socket = Socket::connect(server.listen);
    socket.send(upgrade("/topics/x", &[]).as_bytes());
    assert_eq!(socket.response().status, 101, "as before");
}

#[test]
fn no_secret_is_shown() {
    let secret = ("STANDFAST_SERVE_SECRET", "hush-hush");
    let server = Server::start_with(&["--broadcast-key", "hush-key"], &[secret]);
    eventually("it has said where it is", || server.log().contains("admin on"));
    let told = [
        server.log(),
        http::get(server.admin, "/api/stats").body,
        http::get(server.admin, "/metrics").body,
    ];
    for text in told {
        assert!(!text.contains("hush"), "{text}");
    }
    for args in [["--broadcast-key", "hush hush"], ["--jwt-secret", "file:"]] {
        let finished = refused(&args, &[secret]);
        assert!(!finished.stderr.contains("hush"), "{finished:?}");
    }
}

#[test]
fn secrets_and_keys_come_from_files_that_can_be_read() {
    let missing = refused(&["--secret", "file:/nowhere/secret"], &[]);
    assert!(missing.stderr.contains("--secret") && missing.stderr.contains("/nowhere/secret"));
    let empty = Scratch::new("empty.secret", "\n");
    let finished = refused(&["--secret", &format!("file:{}", empty.path())], &[]);
    assert!(finished.stderr.contains("is empty"), "{finished:?}");
    let keys = Scratch::new("keys.json", r#"{"keys":[]}"#);
    let finished = refused(&["--jwt-keys", keys.path()], &[]);
    assert!(finished.stderr.contains("no key in it"), "{finished:?}");
    let finished = refused(&["--enforce-jwt"], &[]);
    assert!(finished.stderr.contains("--jwt-keys"), "what would do: {finished:?}");
}
