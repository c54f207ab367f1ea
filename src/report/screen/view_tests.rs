//! The live screen at sizes from 20×6 to 200×60: what it shows, and that no figure is ever cut.

use std::time::Duration;

use load::{Counts, Latency, Progress, Recorder, Row, Sample, SampleLatency, Series, Usage};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::model::Model;
use super::view::draw;
use super::{About, AgentRow, Left, Step};

const SIZES: [(u16, u16); 4] = [(80, 24), (100, 30), (120, 40), (200, 60)];

/// A proof of a million sockets after an hour.
fn proof() -> Model {
    proof_with_kernel(7_560_000_000)
}

/// The same where the kernel's memory grew by this much.
fn proof_with_kernel(kernel_bytes: u64) -> Model {
    let usage = |rss_bytes, cpu_seconds| Some(Usage { rss_bytes, cpu_seconds });
    let before = Sample { server: usage(0, 0.0), kernel_bytes: Some(0), ..Sample::default() };
    let phases = vec!["connect", "hold", "broadcast"];
    let title = "standfast prove million".to_owned();
    let mut model = Model::new(About { title, phases, sockets: 1_000_000, ends_here: 2, before });
    for second in 0..3_700_u32 {
        let sample = Sample {
            elapsed_seconds: f64::from(second),
            phase: if second < 30 { "connect" } else { "hold" }.into(),
            open: (u64::from(second) * 30_000).min(900_000),
            failed: 3,
            closed: 2,
            sent: u64::from(second) * 34_567,
            received: u64::from(second) * 34_567,
            latency: Some(SampleLatency { p50_ms: 1.25, p99_ms: 88.0, max_ms: 120.0 }),
            server: usage(63_000_000, f64::from(second) * 1.5),
            client: usage(70_000_000, f64::from(second) * 0.5),
            kernel_bytes: Some(kernel_bytes),
            errors: vec![("connect_timeout".to_owned(), 3), ("reset".to_owned(), 2)],
        };
        let left = Some(Left { seconds: 61.2, at_least: true });
        let step =
            Step { done: 0.42, left, last_second: timed(1.25, 88.0, 120.0), ..Step::default() };
        model.take(&sample, &Step { so_far: timed(1.5, 90.0, 250.0), ..step });
    }
    model.note("connected: 900,000 open");
    model
}

fn timed(p50_ms: f64, p99_ms: f64, max_ms: f64) -> Option<Latency> {
    let (p90_ms, p95_ms, p999_ms) = (p50_ms * 2.0, p50_ms * 3.0, max_ms);
    let timed = Latency { count: 9, p50_ms, p90_ms, p95_ms, p99_ms, ..Latency::default() };
    Some(Latency { p999_ms, max_ms, ..timed })
}

/// A run of requests of which some have failed.
fn requests() -> Model {
    let phases = vec!["warm-up", "requests"];
    let title = "standfast load http://127.0.0.1:18080/api/items".to_owned();
    let before = Sample::default();
    let mut model = Model::new(About { title, phases, sockets: 20, ends_here: 2, before });
    let mut recorder = Recorder::default();
    for second in 1..=90_u64 {
        (0..300).for_each(|nth| recorder.record(Series::Latency, (1 + nth) * 123_456));
        let mut counts = load::requests::RequestSnapshot::default();
        (counts.sent, counts.answered) = (second * 300 + 7, second * 300);
        for (status, count) in [(200, 280), (404, 15), (503, 5)] {
            counts.status[status] = second * count;
        }
        let failed = second * 20;
        counts.failed[0] = failed;
        let row = Row {
            elapsed: Duration::from_secs(second),
            phase: "requests",
            open: 17,
            latency: recorder.latency(Series::Latency),
            progress: Progress {
                counts: Counts::Requests(Box::new(counts)),
                timed: recorder.clone().into(),
                ..Progress::default()
            },
            ..Row::default()
        };
        let latency = row.latency.map(|Latency { p50_ms, p99_ms, max_ms, .. }| SampleLatency {
            p50_ms,
            p99_ms,
            max_ms,
        });
        let sample = Sample {
            elapsed_seconds: second as f64,
            phase: "requests".into(),
            open: 17,
            sent: second * 300 + 7,
            received: second * 300,
            latency,
            client: Some(Usage { rss_bytes: 39_000_000, cpu_seconds: second as f64 * 0.25 }),
            errors: vec![("status".to_owned(), failed), ("timeout".to_owned(), second)],
            ..Sample::default()
        };
        let left = Some(Left { seconds: 30.4, at_least: false });
        model.take(&sample, &Step { done: 0.75, left, detail: Some(&row), ..Step::default() });
    }
    model
}

/// The rows without the quotes that the backend puts around them.
fn drawn(model: &Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model)).unwrap();
    let screen = terminal.backend().to_string();
    screen.lines().map(|row| row.trim_matches('"').to_owned()).collect()
}

fn shows(model: &Model, (width, height): (u16, u16), texts: &[&str]) {
    let screen = drawn(model, width, height).join("\n");
    for text in texts {
        assert!(screen.contains(text), "{width}x{height}: no {text:?} in\n{screen}");
    }
}

#[test]
fn a_proof_is_shown_whole() {
    for size in SIZES {
        shows(
            &proof(),
            size,
            &[
                "standfast prove million",
                "1:01:39 elapsed",
                "✓ connect  ▶ hold  · broadcast  ━━━",
                " 42%  ≥ 1:02 left",
                "sockets             last second       so far   process  memory  a socket   CPU",
                "open, of 1,000,000          0/s      900,000   server    63 MB      70 B  150%",
                "sent                   34,567/s  127,863,333   client    70 MB         –   50%",
                "received               34,567/s  127,863,333   kernel   7.6 GB    4.2 KB",
                "failed to open              0/s            3",
                "latency           p50       p90       p95       p99     p99.9       max",
                "last second   1.25 ms   2.50 ms   3.75 ms   88.0 ms    120 ms    120 ms",
                "so far        1.50 ms   3.00 ms   4.50 ms   90.0 ms    250 ms    250 ms",
                "connect timeout",
                "received/s",
                "latency",
                "━ p50  ━ p99",
                "0:00",
                "1:01:39",
                "connected: 900,000 open",
                "Ctrl-C ends the run",
            ],
        );
    }
}

#[test]
fn kernel_memory_that_is_not_of_the_sockets_is_marked() {
    // 100 and 100,000 bytes for each end of a socket.
    for (bytes, shown) in [(180_000_000, "180 MB"), (180_000_000_000, "180 GB")] {
        for size in SIZES {
            let screen = drawn(&proof_with_kernel(bytes), size.0, size.1).join("\n");
            let row = screen.lines().find(|line| line.contains("kernel")).unwrap();
            assert!(row.contains(shown) && row.contains("implausible"), "{size:?}: {screen}");
        }
    }
    assert!(!drawn(&proof(), 120, 40).join("\n").contains("implausible"));
}

#[test]
fn requests_are_shown_with_statuses_and_percentiles() {
    for size in SIZES {
        shows(
            &requests(),
            size,
            &[
                "standfast load http://127.0.0.1:18080/api/items",
                "1:30 elapsed",
                " 75%  0:31 left",
                "requests            last second       so far   answers",
                "sent                      300/s       27,007   200       25,200   93.0%",
                "answered                  300/s       27,000   404        1,350    5.0%",
                "failed                     21/s        1,800   503          450    1.7%",
                "connections, of 20          0/s           17   timeout       90    0.3%",
                "latency           p50       p90       p95       p99     p99.9       max",
                "last second   18.5 ms   33.3 ms   35.2 ms   36.7 ms   37.1 ms   37.1 ms",
                "so far        18.5 ms   33.3 ms   35.2 ms   36.7 ms   37.1 ms   37.1 ms",
                "client",
                "━ answered  ━ failed",
                "200┤",
                "20 ms┤",
            ],
        );
    }
    // Bars of the distribution where there is space.
    shows(&requests(), (120, 40), &["latency so far, 27,000 timed", "20–50 ms ████", "46.0%"]);
}

#[test]
fn charts_fill_the_space() {
    for (width, height) in [(80, 24), (80, 40), (120, 30), (120, 40), (200, 60)] {
        for model in [proof(), requests()] {
            let screen = drawn(&model, width, height);
            let empty = screen.windows(2).filter(|two| two.iter().all(|row| row.trim().is_empty()));
            assert_eq!(empty.count(), 0, "{width}x{height}:\n{}", screen.join("\n"));
            // The time axis ends with the present.
            let end = super::view::clock(model.now.elapsed_seconds);
            let axes = screen.iter().filter(|row| row.contains("0:00 ") && row.contains(&end));
            assert!(axes.count() >= 1, "{width}x{height}:\n{}", screen.join("\n"));
        }
    }
}

#[test]
fn small_terminals_keep_the_figures() {
    for size in [(40, 24), (40, 16), (40, 12)] {
        shows(
            &proof(),
            size,
            &["▶ hold", "42%", "1:02 left", "127,863,333", "900,000", "34,567/s", "88.0 ms"],
        );
        shows(
            &requests(),
            size,
            &["load 127.0.0.1:18080/api/items", "1:30", "27,000", "p99", "36.7 ms", "200 25,200"],
        );
    }
    shows(&proof(), (80, 13), &["connect timeout 3 · reset 2", "Ctrl-C ends the run"]);
}

/// Figures that are shown at 200 columns are shown as they are, or not at all.
#[test]
fn no_figure_is_cut_at_any_width() {
    let numbers = |text: &str| -> Vec<String> {
        let is_part = |char: char| char.is_ascii_digit() || ".,:".contains(char);
        let split = text.split(|char| !is_part(char)).map(|one| one.trim_matches([',', '.', ':']));
        split.filter(|one| one.len() > 1).map(str::to_owned).collect()
    };
    for model in [proof(), requests()] {
        for width in 20..200 {
            // Without the charts, whose ticks depend on the size.
            // The title is cut between its words.
            let screen = drawn(&model, width, 12).split_off(1).join("\n");
            let whole = drawn(&model, 200, 12).join("\n") + &drawn(&model, 40, 12).join("\n");
            let known = numbers(&whole);
            for number in numbers(&screen) {
                assert!(known.contains(&number), "{width}: {number} in\n{screen}\n{whole}");
            }
        }
    }
}

#[test]
fn no_size_is_too_small() {
    for model in [proof(), requests()] {
        for width in 1..30 {
            for height in 1..14 {
                drawn(&model, width, height);
            }
        }
    }
}

#[test]
fn an_empty_run_draws_no_charts() {
    let about = About {
        title: "standfast load http://127.0.0.1/".to_owned(),
        phases: vec!["requests"],
        sockets: 1,
        ends_here: 1,
        before: Sample::default(),
    };
    let screen = drawn(&Model::new(about), 80, 24).join("\n");
    assert!(screen.contains("▶ requests") && !screen.contains("NaN"), "{screen}");
}

#[test]
fn each_agent_of_a_fleet_has_a_row_and_lost_ones_are_first() {
    let agent = |nth: u64| AgentRow {
        name: format!("agent-{nth:02}"),
        is_lost: nth == 3,
        open: Some(7),
        received: Some(nth * 1_000),
        errors: (nth != 2).then_some(0),
        ..AgentRow::default()
    };
    let (mut model, agents) = (requests(), (1..=20).map(agent).collect::<Vec<_>>());
    let step = Step { agents: &agents[..4], ..Step::default() };
    model.take(&model.now.clone(), &step);
    for (width, height) in SIZES {
        let rows = drawn(&model, width, height);
        let at = rows.iter().position(|row| row.trim_start().starts_with("agents")).unwrap();
        assert!(
            rows[at + 1].contains("agent-03 LOST") && rows[at + 1].contains("3,000"),
            "{rows:#?}"
        );
        let second = rows[at + 3].clone();
        assert!(second.contains("agent-02") && second.contains('–'), "{rows:#?}");
    }
    model.take(&model.now.clone(), &Step { agents: &agents, ..Step::default() });
    let rows = drawn(&model, 120, 40);
    assert!(rows.iter().any(|row| row.trim() == "… 3 more"), "{rows:#?}");
    // A small screen has fewer, and says so.
    for (width, height) in SIZES {
        let rows = drawn(&model, width, height);
        let shown = rows.iter().filter(|row| row.contains("agent-")).count();
        let more = rows.iter().find_map(|row| row.trim().strip_prefix("… ")?.strip_suffix(" more"));
        let more: usize = more.map_or(0, |more| more.parse().unwrap());
        assert!(shown >= 2 && shown + more == 20, "{width}×{height}: {rows:#?}");
    }
    // Long names leave room for figures, and their ends.
    let mut long = agents.clone();
    long.iter_mut().for_each(|agent| agent.name = format!("{}-{}", "x".repeat(50), agent.name));
    model.take(&model.now.clone(), &Step { agents: &long, ..Step::default() });
    let rows = drawn(&model, 80, 24);
    let lost = rows.iter().find(|row| row.contains("LOST")).unwrap();
    assert!(lost.contains("…xxx-agent-03 LOST") && lost.contains("3,000"), "{rows:#?}");
}
