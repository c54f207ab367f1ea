//! Rails' own Action Cable as the oracle of `/cable`: one transcript is played to both, and their
//! messages may differ only as listed in `conformance/cable/differences.toml`, each with its reason.
//!
//! Pings are ignored except in one step; their time and session ids are replaced. The oracle is Rails
//! 6.1 of Debian 12.

mod player;
mod transcript;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, thread};

use rustix::process::Signal;
use serde::Deserialize;
use serde_json::json;

use self::player::{Oracle, play};
use crate::harness::rails::Rails;
use crate::harness::server::Server;

/// The lines that both send in one step: Rails' first.
type Both = (Vec<String>, Vec<String>);

#[derive(Deserialize)]
struct Listed {
    difference: Vec<Difference>,
}

#[derive(Deserialize)]
struct Difference {
    step: String,
    rails: Vec<String>,
    here: Vec<String>,
    reason: String,
}

#[test]
fn responses_match_rails_except_for_listed_differences() {
    let Some(rails) = Rails::start() else { return };
    let server = Server::start(&[
        "--workers=1",
        "--drain=200ms",
        "--allow-origin=https://friend.example",
        "--jwt-secret=s3Krit",
        "--public-streams",
    ]);
    let theirs = thread::spawn(move || play(&rails, transcript::steps()));
    let ours = play(&server, transcript::steps());
    let theirs = theirs.join().expect("the transcript is played to Rails");
    assert_eq!(theirs.len(), ours.len());
    let found: BTreeMap<String, Both> = theirs
        .into_iter()
        .zip(ours)
        .filter(|((_, theirs), (_, ours))| theirs != ours)
        .map(|((step, theirs), (_, ours))| (step.to_owned(), (theirs, ours)))
        .collect();
    let listed = listed();
    assert!(found == listed, "{}", mismatch(&found, &listed));
}

fn listed() -> BTreeMap<String, Both> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/cable/differences.toml");
    let text = fs::read_to_string(path).expect("the differences are listed");
    let listed: Listed = toml::from_str(&text).expect("each has a step, rails, here and reason");
    let count = listed.difference.len();
    let by_step: BTreeMap<String, Both> = listed
        .difference
        .into_iter()
        .inspect(|one| assert!(one.reason.len() > 20, "{}: the reason is missing", one.step))
        .map(|one| (one.step, (one.rails, one.here)))
        .collect();
    assert_eq!(by_step.len(), count, "each step is listed once");
    by_step
}

/// The unlisted differences, in the format of the list.
fn mismatch(found: &BTreeMap<String, Both>, listed: &BTreeMap<String, Both>) -> String {
    let mut text =
        "the differences are not those in conformance/cable/differences.toml\n".to_owned();
    for step in listed.keys().filter(|step| !found.contains_key(*step)) {
        let _ = writeln!(text, "\n{step:?}: no difference any more, or no such step");
    }
    let lines = |lines: &[String]| -> String {
        lines.iter().map(|line| format!("    '{line}',\n")).collect()
    };
    let unlisted = found.iter().filter(|(step, both)| listed.get(*step) != Some(both));
    for (step, (rails, here)) in unlisted {
        let (rails, here) = (lines(rails), lines(here));
        let _ = writeln!(
            text,
            "\n[[difference]]\nstep = \"{step}\"\nreason = \"\"\nrails = [\n{rails}]\nhere = [\n{here}]"
        );
    }
    text
}

impl Oracle for Rails {
    fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    fn channel(&self) -> &'static str {
        "NewsChannel"
    }

    fn publish(&self, stream: &str, data: &str) {
        Rails::publish(self, stream, data);
    }

    fn restart(&self) {
        Rails::restart(self);
    }
}

impl Oracle for Server {
    fn address(&self) -> std::net::SocketAddr {
        self.listen
    }

    fn channel(&self) -> &'static str {
        "$pubsub"
    }

    fn publish(&self, stream: &str, data: &str) {
        let answer = Server::publish(self, &json!({"topic": stream, "data": data}));
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    fn restart(&self) {
        self.signal(Signal::TERM);
    }
}
