//! Action Cable clients against a server that mistreats some of them and counts how many: they behave
//! like real clients, and the counts of the run are exact.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

mod cable_server;

use std::cell::Cell;
use std::time::Duration;

use engine::sys::process;
use load::{
    Cable, CableSummary, Churn, Config, Connect, Content, Echo, Endpoint, Fanout, Growth,
    HttpPublish, Outcome, Publish, Retry, Row,
};

use cable_server::Server;

const CLIENTS: u64 = 40;
const MISTREATED: u64 = 7;
const NEWS: &str = r#"{"channel":"$pubsub","stream_name":"news"}"#;

fn config(server: &Server, path: &str) -> Config {
    let endpoint = Endpoint::parse(&format!("ws://127.0.0.1:{}{path}", server.port)).unwrap();
    Config {
        cable: Some(Cable::new(vec![NEWS.to_owned()])),
        protocols: vec![action_cable::V1.to_owned(), action_cable::UNSUPPORTED.to_owned()],
        retry: Retry {
            attempts: 20,
            base: Duration::from_millis(50),
            most: Duration::ZERO,
            growth: Growth::Cable,
            reconnect: true,
        },
        ..Config::new(vec![endpoint], CLIENTS)
    }
}

fn drive(config: &Config) -> (Outcome, CableSummary) {
    let wait = |time| {
        std::thread::sleep(time);
        false
    };
    let summary = load::drive(config, |_| {}, wait).unwrap();
    let cable = summary.cable.clone().unwrap();
    println!("{summary}");
    (summary, cable)
}

#[test]
fn every_connect_mode_subscribes_all() {
    for connect in [Connect::Windowed, Connect::Storm, Connect::OneByOne, Connect::Paced(1_000)] {
        let server = Server::start(0);
        let config =
            Config { connect, hold: Duration::from_millis(300), ..config(&server, "/cable") };
        let (summary, cable) = drive(&config);
        assert!(summary.held, "{connect:?}: {:?}", summary.reasons);
        assert_eq!((cable.subscribed, cable.rejected, cable.waiting), (CLIENTS, 0, 0));
        let asked = server.observed.lock().unwrap().subscribes.get(NEWS).copied();
        assert_eq!(asked, Some(cable.subscribes), "{connect:?}");
        assert!(cable.pings >= CLIENTS, "{cable:?}");
        for series in [&cable.to_welcome, &cable.to_confirm, &cable.to_subscribed] {
            assert_eq!(series.as_ref().map(|series| series.count), Some(CLIENTS));
        }
        let (part, whole) = (cable.to_welcome.unwrap(), cable.to_subscribed.unwrap());
        assert!(
            part.p50_ms <= whole.p50_ms
                && whole.max_ms <= summary.connections.seconds.unwrap() * 1e3 + 1.0
        );
    }
}

/// The next client begins when the one before is subscribed, not when it is open.
#[test]
fn one_by_one_waits_for_the_subscription() {
    let server = Server::start(0);
    let cable = Cable { repeat: Duration::from_millis(1), ..Cable::new(vec![NEWS.to_owned()]) };
    let connect = Connect::OneByOne;
    let slow = Config { connections: 3, cable: Some(cable), connect, ..config(&server, "/late") };
    let (summary, cable) = drive(&slow);
    assert!(summary.held, "{:?}", summary.reasons);
    let each = cable.to_subscribed.unwrap();
    assert!(summary.connections.seconds.unwrap() * 1e3 >= each.p50_ms * 2.0, "{each:?}");
    assert_eq!(cable.repeated, 6, "two are left unanswered of each");
}

#[test]
fn identifiers_are_taken_in_turn() {
    let server = Server::start(0);
    let names = ["a", "b", "c"].map(|name| format!(r#"{{"channel":"Chat","room":"{name}"}}"#));
    let cable = Some(Cable::new(names.to_vec()));
    let (summary, _) = drive(&Config { connections: 30, cable, ..config(&server, "/cable") });
    assert!(summary.held, "{:?}", summary.reasons);
    let asked = server.observed.lock().unwrap().subscribes.clone();
    assert!(names.iter().all(|name| asked.get(name).is_some_and(|&n| n >= 10)), "{asked:?}");
    assert_eq!(asked.len(), 3);
}

#[test]
fn rejected_subscriptions_stay_open_and_fail_the_run() {
    let server = Server::start(MISTREATED);
    let (summary, cable) = drive(&config(&server, "/rejects"));
    assert_eq!((cable.subscribed, cable.rejected), (CLIENTS - MISTREATED, MISTREATED));
    assert_eq!(summary.connections.open.unwrap(), CLIENTS);
    assert!(!summary.held && summary.reasons == ["7 subscriptions were rejected"]);
}

#[test]
fn connection_without_pings_is_replaced() {
    let server = Server::start(MISTREATED);
    let cable = Cable { stale_after: Duration::from_secs(2), ..Cable::new(vec![NEWS.to_owned()]) };
    let hold = Duration::from_secs(4);
    let (summary, cable) = drive(&Config { cable: Some(cable), hold, ..config(&server, "/mute") });
    assert_eq!((cable.stale, cable.subscribed), (MISTREATED, CLIENTS), "{cable:?}");
    assert_eq!(summary.connections.reconnects.unwrap(), MISTREATED);
    assert_eq!(summary.closed.values().sum::<u64>(), MISTREATED);
    assert!(!summary.held, "a client that was cut off is a shortfall");
}

#[test]
fn clients_reconnect_after_a_restart_and_not_after_unauthorized() {
    let server = Server::start(MISTREATED);
    let hold = Duration::from_secs(1);
    let (summary, cable) = drive(&Config { hold, ..config(&server, "/restarts") });
    assert_eq!(cable.disconnects, [("server_restart".to_owned(), MISTREATED)].into());
    assert_eq!((cable.subscribed, summary.connections.reconnects.unwrap()), (CLIENTS, MISTREATED));
    let server = Server::start(MISTREATED);
    let (summary, cable) = drive(&config(&server, "/forbids"));
    assert_eq!(cable.disconnects, [("unauthorized".to_owned(), MISTREATED)].into());
    assert_eq!(cable.subscribed, CLIENTS - MISTREATED);
    assert_eq!(
        (summary.connections.open.unwrap(), summary.connections.reconnects.unwrap()),
        (CLIENTS - MISTREATED, 0)
    );
}

/// The run continues although all clients are disconnected for a moment: they all reconnect.
#[test]
fn all_clients_reconnect_after_a_restart() {
    let server = Server::start(0);
    let config = Config { hold: Duration::from_secs(3), ..config(&server, "/cable") };
    // A row of the hold says that all were subscribed.
    let held = Cell::new(None);
    let row = |row: &Row| {
        if row.phase == "hold" && held.get().is_none() {
            held.set(Some(row.elapsed));
            server.restart();
        }
    };
    let wait = |time| {
        std::thread::sleep(time);
        false
    };
    let began_ns = process::now_ns();
    let summary = load::drive(&config, row, wait).unwrap();
    assert!(process::now_ns() - began_ns >= 3_000_000_000, "the whole hold: {summary}");
    let cable = summary.cable.unwrap();
    assert_eq!(cable.disconnects, [("server_restart".to_owned(), CLIENTS)].into());
    assert_eq!((cable.subscribed, cable.to_subscribed.unwrap().count), (CLIENTS, 2 * CLIENTS));
    let connecting = Duration::from_secs_f64(summary.connections.seconds.unwrap());
    assert!(connecting < held.get().unwrap(), "what opens again is no part of {connecting:?}");
}

#[test]
fn server_without_the_subprotocol_fails_the_run() {
    let server = Server::start(0);
    let mut config = config(&server, "/cable");
    config.protocols = vec!["mqtt".to_owned()];
    config.retry = Retry::NONE;
    let (summary, cable) = drive(&config);
    assert_eq!((summary.connections.failed, cable.subscribed), (CLIENTS, 0));
}

/// Answers of a channel are counted; pings in between are not.
#[test]
fn performed_actions_are_answered_each_by_one_message() {
    let server = Server::start(0);
    let (mut data, action) = (Vec::new(), r#"{"action":"echo"}"#);
    action_cable::Command::Message { identifier: NEWS.into(), data: action.into() }
        .encode(&mut data);
    let echo = Echo {
        size: 0,
        rate: Some(1_000),
        messages: Some(25),
        duration: None,
        turnover: false,
        content: Some(Content { data, binary: false, any_answer: true }),
        validator: None,
        think: None,
        timeout: Duration::from_secs(60),
    };
    let (summary, cable) = drive(&Config { echo: Some(echo), ..config(&server, "/cable") });
    assert!(summary.held, "{:?}", summary.reasons);
    let echo = summary.echo.unwrap();
    assert_eq!((echo.sent, echo.received), (CLIENTS * 25, CLIENTS * 25));
    assert_eq!(server.observed.lock().unwrap().performed, CLIENTS * 25);
    assert!(cable.pings > 0);
}

/// Whispers reach all but their sender; faults of the server are counted exactly.
#[test]
fn whispers_reach_all_others_and_faults_are_counted() {
    let whispers = 64;
    // Two publishers receive each other and are no receivers; with one it is known which client a
    // fault affects.
    for (path, publishers, lost, doubled, misnamed) in
        [("/cable", 2, 0, 0, 0), ("/loses", 1, 16, 8, 8)]
    {
        let server = Server::start(0);
        let fanout = Fanout {
            rate: 200,
            publishers,
            messages: Some(whispers),
            duration: None,
            size: 100,
            late_after: Duration::from_secs(2),
            publish: Publish::Socket,
        };
        let (summary, cable) = drive(&Config { fanout: Some(fanout), ..config(&server, path) });
        let said = summary.broadcast.unwrap();
        assert_eq!(server.observed.lock().unwrap().whispers, u64::from(whispers));
        let receivers = CLIENTS - u64::from(publishers);
        assert_eq!((said.receivers, said.published), (receivers, u64::from(whispers)));
        assert_eq!((said.lost, said.duplicated), (lost, doubled), "{path}: {said:?}");
        assert_eq!((said.corrupted, said.foreign, said.late), (0, 0, 0), "{path}: {said:?}");
        assert_eq!(cable.unexpected, misnamed, "{path}");
        assert_eq!(summary.held, lost == 0, "{:?}", summary.reasons);
    }
}

/// Publications of a warm-up are received, and are in no figure of the fan-out behind it.
#[test]
fn publications_of_a_warm_up_are_in_no_figure() {
    let server = Server::start(0);
    let fanout = Fanout {
        rate: 200,
        publishers: 2,
        messages: Some(20),
        duration: None,
        size: 100,
        late_after: Duration::from_secs(2),
        publish: Publish::Socket,
    };
    let warm_up = Duration::from_millis(300);
    let config = Config { fanout: Some(fanout), warm_up, ..config(&server, "/cable") };
    let (outcome, _) = drive(&config);
    assert!(outcome.held, "{outcome}");
    let (warm, said) = (outcome.warm_up_messages.unwrap(), outcome.broadcast.unwrap());
    let whispers = server.observed.lock().unwrap().whispers;
    assert!(warm > 0 && whispers == 20 + warm, "{warm} and 20 of {whispers}");
    let receivers = CLIENTS - 2;
    assert_eq!((said.published, said.received, said.lost), (20, 20 * receivers, 0), "{said:?}");
    assert_eq!((said.duplicated, said.foreign, said.corrupted), (0, 0, 0), "{said:?}");
    assert_eq!(said.latency.unwrap().count, said.received, "{said:?}");
    assert_eq!(said.times.first_to_last.map(|times| times.count), Some(20), "{said:?}");
}

/// Subscriptions begin and end during publishing: a correct server has no errors, and faults are found.
#[test]
fn churn_finds_dropped_duplicated_and_misdelivered_messages() {
    std::thread::scope(|all| {
        for path in ["/cable", "/drops", "/doubles", "/strays"] {
            all.spawn(move || churn_at(path));
        }
    });
}

fn churn_at(path: &str) {
    let server = Server::start(0);
    let url = format!("http://127.0.0.1:{}/publish", server.port);
    let streams: Vec<String> = (0..8).map(|n| format!("s{n}")).collect();
    let identifier = |stream| format!(r#"{{"channel":"$pubsub","stream_name":"{stream}"}}"#);
    let publish = Publish::Http(HttpPublish {
        endpoint: Endpoint::parse_web(&url).unwrap(),
        headers: Vec::new(),
        body: HttpPublish::BROADCAST_BODY_FOR_ALL.to_owned(),
        in_flight: HttpPublish::IN_FLIGHT,
    });
    let fanout = Fanout {
        rate: 200,
        publishers: 2,
        messages: None,
        duration: Some(Duration::from_secs(3)),
        size: 0,
        late_after: Duration::from_secs(1),
        publish,
    };
    let config = Config {
        cable: Some(Cable::new(streams.iter().map(identifier).collect())),
        churn: Some(Churn { rate: 200, streams }),
        fanout: Some(fanout),
        ..config(&server, path)
    };
    let (summary, _) = drive(&config);
    let churn = summary.churn.clone().unwrap();
    let (published, faults) = {
        let said = server.observed.lock().unwrap();
        (said.published, said.faults)
    };
    assert_eq!((churn.published, churn.streams), (published, 8));
    assert!(published > 200 && churn.begun > 100 && churn.judged > CLIENTS, "{churn:?}");
    assert!(churn.received >= churn.owed.saturating_sub(churn.lost) && churn.owed > 500);
    let counted = [churn.lost, churn.duplicated, churn.unexpected];
    match path {
        "/cable" => {
            assert_eq!(counted, [0; 3]);
            // On a busy machine it may send less than was asked for, and says so.
            let of_rate = |reason: &String| reason.ends_with("publications were due and not sent");
            assert!(summary.reasons.iter().all(of_rate), "{:?}", summary.reasons);
            assert_eq!(summary.held, summary.reasons.is_empty());
        }
        // What was dropped while a subscription began or ended was not expected.
        "/drops" => assert!(
            counted[0] > faults / 4 && counted[0] <= faults && counted[1..] == [0, 0],
            "{counted:?} of {faults}"
        ),
        "/doubles" => assert_eq!((counted, churn.reordered), ([0, faults, 0], 0)),
        // Only just after its end a subscription may still receive something.
        _ => assert!(
            counted[2] > faults / 4 && counted[2] <= faults && counted[0] == 0,
            "{counted:?} of {faults}"
        ),
    }
    assert_eq!(churn.unconfirmed, 0);
    assert_eq!(summary.held, path == "/cable", "{:?}", summary.reasons);
}
