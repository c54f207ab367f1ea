//! The rows of `load --csv`: what is counted in which phase.

use crate::harness::Scratch;
use crate::harness::executable;
use crate::harness::server::Server;

/// Elapsed seconds, phase and rate of each row.
fn rows(url: &str, name: &str, flags: &str) -> Vec<(f64, String, f64)> {
    let csv = Scratch::new(name, "");
    let flags: Vec<&str> = flags.split(' ').collect();
    let finished = executable::run(&[&["load", url, "--csv", csv.path()][..], &flags].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let text = std::fs::read_to_string(csv.path()).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        (fields[0].parse().unwrap(), fields[1].to_owned(), fields[7].parse().unwrap())
    });
    rows.collect()
}

#[test]
fn rate_of_rows_has_no_pongs_while_messages_are_sent() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let flags = "--connections 100 --heartbeat 100ms --rate 50 --duration 2500ms";
    let rows = rows(&url, "rows-pongs.csv", flags);
    let rates: Vec<f64> =
        rows.iter().filter(|row| row.1 == "echo").map(|(.., rate)| *rate).collect();
    assert!(!rates.is_empty() && rates.iter().all(|rate| *rate < 200.0), "{rows:?}");
    // 1,000 pongs per second, while nothing else is sent.
    let held = "--connections 100 --heartbeat 100ms --hold 2500ms";
    let rows = self::rows(&url, "rows-hold.csv", held);
    assert!(rows.iter().any(|row| row.1 == "hold" && row.2 > 500.0), "{rows:?}");
}

#[test]
fn warm_up_ends_with_a_row_of_its_own() {
    let server = Server::start(&[]);
    let echo = format!("ws://{}/echo", server.listen);
    let http = format!("http://{}/health", server.listen);
    let flags = "--connections 5 --rate 200 --warm-up 1500ms --duration 1500ms";
    for (url, name, phase) in
        [(&echo, "rows-echo.csv", "echo"), (&http, "rows-http.csv", "requests")]
    {
        let rows = rows(url, name, flags);
        let last = rows.iter().rfind(|row| row.1 == "warm-up").unwrap();
        // Its time is rounded down, and taken when the warm-up has ended by another clock.
        assert!(last.0 >= 1.49, "the row at 1.5 s: {rows:?}");
        assert!(rows.iter().any(|row| row.1 == phase && row.0 > last.0), "{rows:?}");
    }
}
