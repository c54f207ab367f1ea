//! Passes over agents, and pieces of results that come early, late and too long.

use super::*;

#[test]
fn a_pass_writes_to_each_agent_once_and_to_few_at_a_time() {
    let (mut pass, every, part) = (Pass::default(), Duration::from_secs(1), PART_EVERY);
    let mut seen = [0; 1_200];
    for tick in 1..=200 {
        let now = nanoseconds(every) + tick * nanoseconds(part) / 2;
        let turn = pass.turn(now, every, seen.len());
        assert!(turn.len() <= PART);
        seen[turn].iter_mut().for_each(|count| *count += 1);
    }
    assert!(seen.iter().all(|count| *count == 1), "the second pass begins after a second");
    let again = pass.turn(nanoseconds(every) * 3, every, seen.len());
    assert_eq!(again, 0..PART);
}

struct Sent(Vec<String>);

impl Outbox for Sent {
    fn send(&mut self, _: &str, message: Vec<u8>) {
        self.0.push(String::from_utf8(message).unwrap());
    }

    fn note(&mut self, _: String) {}
}

fn says(agent: &str, says: Says, body: &[u8]) -> Vec<u8> {
    encode(&FromAgent { agent: agent.to_owned(), run: "run".to_owned(), says }, body)
}

fn done(agent: &str) -> Vec<u8> {
    let sha256 = String::new();
    says(agent, Says::Done { bytes: 30, sha256, late_us: None, discarded: None }, &[])
}

fn piece(agent: &str, offset: usize, bytes: usize) -> Vec<u8> {
    says(agent, Says::Piece { offset }, &vec![b'x'; bytes])
}

/// Of agents whose ids are numbers from 0.
fn coordinator(agents: usize) -> Coordinator {
    let agent = |at: usize| Agent::example(&at.to_string(), "one", &version(), 0);
    let flags = crate::commands::fleet::FleetFlags {
        nats: Vec::new(),
        nats_creds: None,
        nats_ca: None,
        fleet: "f".to_owned(),
    };
    let request = Request {
        who: "all",
        flags: &flags,
        words: Vec::new(),
        within: Duration::ZERO,
        files_max: 0,
        parts: super::super::leader::Parts::connections(1),
        seed: 0,
        fixtures: Fixtures::default(),
    };
    let ids = ["leader".to_owned(), "run".to_owned()];
    let agents = (0..agents).map(agent).collect();
    Coordinator::new(ids, 1 << 20, &request, Vec::new(), agents, 0).unwrap()
}

#[test]
fn pieces_are_taken_only_while_a_result_is_fetched_and_only_up_to_its_length() {
    let mut coordinator = coordinator(1);
    let mut out = Sent(Vec::new());
    let mut take = |message: Vec<u8>| {
        coordinator.take(1, &message, &mut out);
        coordinator.agents[0].result.len()
    };
    assert_eq!(take(piece("0", 0, 10)), 0, "it has no result");
    take(done("0"));
    assert_eq!(take(piece("0", 0, 31)), 0, "longer than the result");
    assert_eq!(take(piece("0", 0, 10)), 10);
    assert_eq!(take(piece("0", 10, 21)), 10, "longer than the rest");
    take(says("0", Says::Waiting, &[]));
    assert_eq!(take(piece("0", 10, 20)), 10, "it says that it has no result");
    coordinator.agents[0].lost = Some("it did not stop in time".to_owned());
    coordinator.take(2, &done("0"), &mut out);
    coordinator.take(2, &piece("0", 10, 20), &mut out);
    assert_eq!(coordinator.agents[0].result.len(), 10, "it is settled");
}

#[test]
fn a_piece_that_comes_late_is_taken_once() {
    let (last, second) = (FETCHES_MAX, nanoseconds(Duration::from_secs(1)));
    let mut coordinator = coordinator(FETCHES_MAX + 1);
    let mut out = Sent(Vec::new());
    let mut take = |now: u64, message: Vec<u8>| {
        coordinator.take(now, &message, &mut out);
        coordinator.agents[0].result.len()
    };
    take(1, done("0"));
    // Others have all places when its first piece comes.
    for at in 1..=last {
        take(2 * second, done(&at.to_string()));
    }
    assert_eq!(take(2 * second, piece("0", 0, 10)), 10);
    assert_eq!(take(2 * second, piece("0", 10, 10)), 10, "it was not requested");
    // They do not answer.
    take(5 * second, done("0"));
    assert_eq!(take(5 * second, piece("0", 10, 10)), 20);
}
