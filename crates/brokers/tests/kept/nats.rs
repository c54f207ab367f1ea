//! What holds for NATS only, and the suites against it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use brokers::nats::NatsTransport;
use brokers::{Fault, FaultKind, Inbox, Link, Outgoing, Position, Settings, Taken, Transport};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::contract::{self, Stand};
use crate::servers::NatsServer;
use crate::support::{envelope, outgoing, settings, text};

const HOUR: Duration = Duration::from_secs(3600);

fn run<F: Future>(test: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

async fn connect_with(
    transport: &NatsTransport,
    settings: &Settings,
) -> Result<<NatsTransport as Transport>::Link, Fault> {
    let (inbox, _) = Inbox::new(1 << 20, Arc::new(AtomicU64::new(0)));
    transport.connect(inbox, settings).await
}

async fn connect(transport: NatsTransport) -> Result<<NatsTransport as Transport>::Link, Fault> {
    connect_with(&transport, &settings(100, HOUR)).await
}

fn refused(transport: NatsTransport) -> Fault {
    match run(connect(transport)) {
        Ok(_) => panic!("it was not refused"),
        Err(fault) => fault,
    }
}

fn position(taken: &[Taken]) -> Position {
    match taken {
        [Taken::Kept { position: Some(position), .. }, ..] => *position,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nats_keeps_the_contract_when_its_stream_is_deleted() {
    let Some(server) = NatsServer::start() else { return };
    let mut lose = || {
        let answer = server.ask("$JS.API.STREAM.DELETE.test_history", "");
        assert!(answer.contains("true"), "{answer}");
    };
    contract::all(&mut Stand { transport: server.transport(), lose: &mut lose, in_order: false });
}

#[test]
fn nats_keeps_the_contract_when_its_files_are_lost() {
    let Some(server) = NatsServer::start() else { return };
    let (transport, server) = (server.transport(), RefCell::new(server));
    let mut lose = || server.borrow_mut().empty();
    contract::all(&mut Stand { transport, lose: &mut lose, in_order: false });
}

#[test]
fn a_restart_loses_nothing() {
    let Some(mut server) = NatsServer::start() else { return };
    let (channel, again) = ("test:t:a", Outgoing { again: true, ..outgoing("test:t:a", 1, 2) });
    let publish = async |numbers: std::ops::RangeInclusive<u64>| {
        let link = connect(server.transport()).await.unwrap();
        let batch: Vec<Outgoing> = numbers.map(|number| outgoing(channel, 1, number)).collect();
        position(&link.publish(&batch).await.unwrap())
    };
    let first = run(publish(1..=3));
    server.restart();
    run(async {
        let link = connect(server.transport()).await.unwrap();
        let fetched = link.fetch(&[(channel.into(), Some(first))]).await.unwrap();
        let fetched = fetched[0].as_ref().unwrap();
        assert!(fetched.continues(first), "{fetched:?}");
        assert_eq!(fetched.messages.len(), 2);
        let taken = link.publish(&[again, outgoing(channel, 1, 4)]).await.unwrap();
        assert_eq!(position(&taken).offset, first.offset + 1, "it is kept once");
        assert_eq!(position(&taken[1..]).offset, first.offset + 3);
    });
}

#[test]
fn without_jetstream_it_is_refused_with_the_reason() {
    let Some(server) = NatsServer::start_with(&[], "") else { return };
    let fault = refused(server.transport());
    assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
    assert!(fault.why.contains("JetStream") && fault.why.contains("not enabled"), "{fault}");
    let accounts = r#"accounts { a { users [{user: u, password: p}] } }"#;
    let flags = ["--jetstream", "--store_dir", "."];
    let Some(server) = NatsServer::start_with(&flags, accounts) else { return };
    let fault = refused(server.transport_as("u:p@"));
    assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
    assert!(fault.why.contains("JetStream") && fault.why.contains("not enabled"), "{fault}");
}

#[test]
fn what_the_user_may_not_do_is_a_fault_with_its_name() {
    // As in docs/operate/scale.md.
    let config = r#"authorization { users [
        {user: kept, password: p, permissions { publish: ["*", "test:kept.*",
            "$JS.API.STREAM.*.test_history", "$JS.API.STREAM.MSG.GET.test_history"],
            subscribe: ["*", "_INBOX.>"] } }
        {user: pubsub, password: p, permissions { publish: "*", subscribe: "*" } }
        {user: noapi, password: p, permissions { publish: "*", subscribe: ["*", "_INBOX.>"] } }
    ] }"#;
    let flags = ["--jetstream", "--store_dir", "."];
    let Some(server) = NatsServer::start_with(&flags, config) else { return };
    for (user, expected) in [("pubsub:p@", "_INBOX"), ("noapi:p@", "$JS.API")] {
        let fault = refused(server.transport_as(user));
        assert_eq!(fault.kind, FaultKind::Refused, "{user} {fault}");
        assert!(fault.why.to_lowercase().contains("permissions"), "{fault}");
        assert!(fault.why.to_uppercase().contains(expected), "{fault}");
    }
    run(async {
        let link = connect(server.transport_as("kept:p@")).await.unwrap();
        let taken = link.publish(&[outgoing("test:t:a", 1, 1)]).await.unwrap();
        let at = position(&taken);
        let fetched = link.fetch(&[("test:t:a".into(), Some(at))]).await.unwrap();
        let fetched = fetched[0].as_ref().unwrap();
        assert!(fetched.continues(at) && fetched.messages.is_empty());
        link.check().await.unwrap();
    });
}

#[test]
fn a_stream_that_is_deleted_or_created_anew_is_a_fault() {
    let Some(server) = NatsServer::start() else { return };
    run(async {
        let link = connect(server.transport()).await.unwrap();
        link.publish(&[outgoing("test:t:a", 1, 1)]).await.unwrap();
        server.ask("$JS.API.STREAM.DELETE.test_history", "");
        let fault = link.check().await.unwrap_err();
        assert!(fault.why.contains("test_history") && fault.why.contains("gone"), "{fault}");
        assert!(link.publish(&[outgoing("test:t:a", 1, 2)]).await.is_err());
        assert!(link.fetch(&[("test:t:a".into(), None)]).await.is_err());
        let other = connect(server.transport()).await.unwrap();
        let fault = link.check().await.unwrap_err();
        assert!(fault.why.contains("created anew"), "{fault}");
        assert!(link.fetch(&[("test:t:a".into(), None)]).await.is_err());
        other.check().await.unwrap();
    });
}

#[test]
fn without_room_or_too_long_publications_are_refused_one_by_one() {
    let Some(server) =
        NatsServer::start_with(&["--jetstream", "--store_dir", "."], "max_payload: 4096")
    else {
        return;
    };
    run(async {
        let link = connect(server.transport()).await.unwrap();
        let long = |number: u64, bytes: usize, keep: bool| {
            let body = envelope(1, number, !keep, &vec![b'x'; bytes]);
            Outgoing { channel: "test:t:a".into(), body, keep, again: false }
        };
        let batch = [
            long(1, 4_090, true),
            long(2, 5_000, false),
            outgoing("test:t:a", 1, 3),
            long(4, 10, false),
        ];
        let taken = link.publish(&batch).await.unwrap();
        assert_eq!(taken[..2], [Taken::TooLong, Taken::TooLong]);
        assert_eq!(taken[3], Taken::To(None));
        assert!(position(&taken[2..]).offset > 0);
        // An operator gives the stream a limit of its own, and that it refuses what is beyond.
        let info = server.ask("$JS.API.STREAM.INFO.test_history", "");
        let mut config = info[info.find("\"config\":").unwrap() + 9..].to_owned();
        config.truncate(config.find("},\"created\"").unwrap() + 1);
        let config = config.replace("\"max_bytes\":-1", "\"max_bytes\":600");
        let config = config.replace("\"discard\":\"old\"", "\"discard\":\"new\"");
        let answer = server.ask("$JS.API.STREAM.UPDATE.test_history", &config);
        assert!(!answer.contains("error"), "{answer}");
        // It stays when another node connects.
        let link = connect(server.transport()).await.unwrap();
        let batch = [long(5, 1_000, true), long(6, 10, false), outgoing("test:t:a", 1, 7)];
        let taken = link.publish(&batch).await.unwrap();
        assert_eq!(taken[..2], [Taken::NoMemory, Taken::To(None)]);
        let fetched = link.fetch(&[("test:t:a".into(), None)]).await.unwrap();
        let fetched = fetched[0].as_ref().unwrap();
        let texts: Vec<String> = fetched.messages.iter().map(|(_, body)| text(body)).collect();
        assert_eq!(texts, ["3", "7"]);
    });
}

/// Topics share one stream: of each it is known what is missing while others are published to.
#[test]
fn topics_of_one_stream_are_told_apart() {
    let Some(server) = NatsServer::start() else { return };
    run(async {
        let few = settings(3, HOUR);
        let link = connect_with(&server.transport(), &few).await.unwrap();
        let fetch = async |channel: &str, after: Option<Position>| {
            link.fetch(&[(channel.into(), after)]).await.unwrap().pop().unwrap().unwrap()
        };
        let start = fetch("test:t:quiet", None).await;
        let start = Position { epoch: start.epoch, offset: start.last };
        let mut quiet = Vec::new();
        for round in 0..5_u64 {
            quiet.push(position(
                &link.publish(&[outgoing("test:t:quiet", 1, round + 1)]).await.unwrap(),
            ));
            let others: Vec<Outgoing> = (1..=40)
                .map(|number| {
                    outgoing(&format!("test:t:busy{}", number % 3), 1, 40 * round + number)
                })
                .collect();
            link.publish(&others).await.unwrap();
        }
        let empty = fetch("test:t:empty", None).await;
        assert!(empty.messages.is_empty() && empty.floor == empty.last, "{empty:?}");
        let begin = Position { epoch: empty.epoch, offset: empty.last };
        assert!(fetch("test:t:empty", Some(begin)).await.continues(begin));
        assert!(!fetch("test:t:quiet", Some(start)).await.continues(start));
        assert!(!fetch("test:t:quiet", Some(quiet[0])).await.continues(quiet[0]));
        for (at, position) in quiet.iter().enumerate().skip(1) {
            let fetched = fetch("test:t:quiet", Some(*position)).await;
            assert!(fetched.continues(*position), "{at} {fetched:?}");
            assert_eq!(fetched.messages.len(), 4 - at);
        }
        // More are kept from now on, and what was evicted before is not forgotten.
        let more = settings(10, HOUR);
        let link = connect_with(&server.transport(), &more).await.unwrap();
        let fetched = link.fetch(&[("test:t:quiet".into(), Some(start))]).await.unwrap();
        assert!(!fetched[0].as_ref().unwrap().continues(start), "{:?}", fetched[0]);
    });
}
