//! Progress output of a run: rows of text, and on a terminal the live screen, which restores the
//! terminal at the end.

use crate::harness::executable;
use crate::harness::terminal::Terminal;
#[cfg(feature = "screen")]
use crate::harness::{executable::Running, server::Server};

/// Sequences of xterm: to the alternate screen and back.
const TO_OTHER_SCREEN: &str = "\x1b[?1049h";
#[cfg(feature = "screen")]
const BACK: &str = "\x1b[?1049l";
#[cfg(feature = "screen")]
const CTRL_C: &[u8] = b"\x03";

const LONG: [&str; 5] = ["--connections", "300", "--hold", "1h", "--heartbeat=2s"];
const SHORT: [&str; 5] = ["--connections", "300", "--hold", "1s", "--heartbeat=1s"];

/// Sends Ctrl-C as a key and returns the text on the normal screen after it.
#[cfg(feature = "screen")]
fn interrupted(terminal: &Terminal, mut running: Running) -> String {
    terminal.press(CTRL_C);
    assert_eq!(running.wait().code(), Some(130), "{}", terminal.seen());
    terminal.shows(0, &[BACK]);
    let seen = terminal.seen();
    assert_eq!(seen.matches(TO_OTHER_SCREEN).count(), 1, "{seen}");
    seen.rsplit_once(BACK).expect("it was shown").1.to_owned()
}

#[cfg(feature = "screen")]
#[test]
fn prove_draws_its_phases_and_restores_the_terminal() {
    let terminal = Terminal::open(80, 24);
    let before = terminal.modes();
    let running = terminal.run(&[&["prove"], &LONG[..]].concat(), &[]);
    terminal.shows(0, &[TO_OTHER_SCREEN, "▶ connect", "· broadcast", "sockets", "server"]);
    assert_ne!(terminal.modes(), before, "keys are not echoed");
    // After a resize the screen is redrawn completely.
    let drawn = terminal.seen().len();
    terminal.resize(100, 40);
    terminal.shows(drawn, &["✓ connect", "▶ hold", "open, of 300", "errors", "none", "p99"]);
    let after = interrupted(&terminal, running);
    for word in ["connected: 300 open", "of 300 WebSockets open", "heartbeats"] {
        assert!(after.contains(word), "no {word:?} in {after}");
    }
    assert_eq!(terminal.modes(), before);
}

#[cfg(feature = "screen")]
#[test]
fn verdict_is_printed_on_the_normal_screen() {
    let terminal = Terminal::open(80, 24);
    let mut running = terminal.run(&[&["prove"], &SHORT[..]].concat(), &[]);
    assert_eq!(running.wait().code(), Some(0), "{}", terminal.seen());
    terminal.shows(0, &["▶ close", BACK, "HELD: 300 of 300 WebSockets open"]);
    let seen = terminal.seen();
    assert!(seen.rsplit_once(BACK).unwrap().1.contains("HELD: 300 of 300"), "{seen}");
}

#[cfg(feature = "screen")]
#[test]
fn load_draws_failures_by_cause() {
    let (stays, goes) = (Server::start(&[]), Server::start(&[]));
    let urls = [&stays, &goes].map(|server| format!("ws://{}/echo", server.listen));
    let terminal = Terminal::open(80, 24);
    let before = terminal.modes();
    let command = ["load", urls[0].as_str(), urls[1].as_str()];
    let running = terminal.run(&[&command, &LONG[..]].concat(), &[]);
    terminal.shows(0, &["▶ hold", "open, of 300"]);
    drop(goes);
    let drawn = terminal.seen().len();
    terminal.resize(100, 30);
    // The sockets ended by RST or by FIN.
    terminal.shows(drawn, &["open, of 300", "150", "errors"]);
    let seen = terminal.seen();
    assert!(["gone ", "reset "].iter().any(|cause| seen.contains(cause)), "{seen}");
    let after = interrupted(&terminal, running);
    assert!(after.contains("150 open of 300"), "{after}");
    assert_eq!(terminal.modes(), before);
}

#[test]
fn plain_text_rows_are_printed_on_request() {
    for (flag, env) in [
        ("--plain", ("LANG", "C.UTF-8")),
        ("--force", ("TERM", "dumb")),
        ("--force", ("NO_COLOR", "1")),
    ] {
        let terminal = Terminal::open(80, 24);
        let mut running = terminal.run(&[&["prove", flag], &SHORT[..]].concat(), &[env]);
        assert_eq!(running.wait().code(), Some(0), "{}", terminal.seen());
        terminal.shows(0, &["holding", "HELD: 300 of 300 WebSockets open"]);
        let seen = terminal.seen();
        assert!(!seen.contains('\x1b'), "{flag} {env:?}: {seen}");
    }
}

#[test]
fn plain_text_rows_are_printed_without_a_terminal() {
    let finished = executable::run(&[&["prove"], &SHORT[..]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stderr.contains("holding"), "{}", finished.stderr);
    let escapes = [TO_OTHER_SCREEN, "\x1b[", "\r"].map(|escape| finished.stderr.contains(escape));
    assert_eq!(escapes, [false; 3], "{}", finished.stderr);
    assert!(finished.stdout.contains("HELD: 300 of 300"), "{}", finished.stdout);
}
