//! 12 kinds of fault × the workloads of `load`, over TLS: what `load` reports is what the log of the
//! server says, to the unit; and so it is when the run is interrupted at any moment.

mod requests;
mod workloads;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use crate::harness::Scratch;
use crate::harness::chat::{Book, Chat};
use crate::harness::eventually;
use crate::harness::executable::{self, Running};
use crate::harness::faults::{Fault, Plan};
use crate::harness::tls_front::Front;
use crate::interrupted;

use self::workloads::{
    CHURN, ECHO, FANOUT, GROUPS, HELD, LIVES, Report, Workload, counts, echo_agrees, made,
};

/// A running workload, its server and the files that it reads.
struct Setup {
    chat: Chat,
    words: Vec<String>,
    _scenario: Option<Scratch>,
}

impl Setup {
    fn start(&self) -> Running {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        interrupted::start(&words)
    }
}

impl Workload {
    fn setup(&self, fault: Fault, length: &str) -> Setup {
        let faults = vec![(2, fault)];
        self.setup_with(Plan { every: self.every, faults, ends: 3, delay: self.delay }, length)
    }

    fn setup_with(&self, plan: Plan, length: &str) -> Setup {
        let chat = Chat::with(plan);
        let host = Front::of(chat.address).address.to_string();
        let mut words = vec!["load".to_owned()];
        let scenario = self.scenario.map(|text| {
            let name = format!("{}-{}.toml", self.name, chat.address.port());
            Scratch::new(&name, &text.replace("HOST", &host).replace("LENGTH", length))
        });
        words.extend(scenario.iter().map(|file| file.path().to_owned()));
        let flags = match &scenario {
            Some(_) => String::new(),
            None => format!("{} {length} --insecure", self.words.replace("HOST", &host)),
        };
        words.extend(flags.split_whitespace().map(str::to_owned));
        Setup { chat, words, _scenario: scenario }
    }

    /// Runs it to its end with each kind of fault.
    fn agrees_with_each_fault(self) {
        thread::scope(|scope| {
            for fault in Fault::ALL {
                scope.spawn(move || {
                    at_most_twice(|| {
                        let setup = self.setup(fault, self.lengths[0]);
                        let finished = executable::finish(setup.start());
                        let book = log_of(&setup.chat);
                        let report = Report { document: finished.json(), is_interrupted: false };
                        println!("{}, {fault:?}: {}\n{book:?}", self.name, report.document);
                        assert!(made(&book, fault) > 0, "{}, {fault:?}: {book:?}", self.name);
                        (self.agrees)(&report, &book, fault);
                        let code = i32::from(!self.tolerates.contains(&fault));
                        assert_eq!(
                            finished.code,
                            Some(code),
                            "{}, {fault:?}: {finished:?}",
                            self.name
                        );
                    });
                });
            }
        });
    }

    /// Interrupts it at 20 moments.
    fn agrees_when_interrupted(self) {
        thread::scope(|scope| {
            for (moment, fault) in moments().into_iter().zip(Fault::ALL.into_iter().cycle()) {
                scope.spawn(move || {
                    at_most_twice(|| {
                        let setup = self.setup(fault, self.lengths[1]);
                        let running = setup.start();
                        eventually("the run has begun", || setup.chat.has_clients());
                        thread::sleep(moment);
                        let (document, _) = interrupted::interrupt(running);
                        let book = log_of(&setup.chat);
                        println!("{}, {fault:?}, {moment:?}: {document}\n{book:?}", self.name);
                        assert_eq!(document["interrupted"], true, "{document}");
                        assert_eq!(document["held"], false, "{document}");
                        let report = Report { document, is_interrupted: true };
                        (self.agrees)(&report, &book, fault);
                    });
                });
            }
        });
    }
}

/// Runs a cell of the matrix, once more if it fails: the log says nothing of how long a busy machine let an
/// answer wait, and a wrong count comes again.
fn at_most_twice(run: impl Fn()) {
    if catch_unwind(AssertUnwindSafe(&run)).is_err() {
        println!("failed; again:");
        run();
    }
}

/// The log once all is over; without the heads of handshakes, which make it unreadable.
fn log_of(chat: &Chat) -> Book {
    Book { handshakes: Vec::new(), said: Vec::new(), ..chat.book() }
}

/// Random moments after the first connect.
fn moments() -> [Duration; 20] {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut random = now.as_nanos() as u64 | 1;
    [(); 20].map(|()| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        Duration::from_millis(random % 1_200)
    })
}

#[test]
fn faults_in_echoes_agree_with_the_log() {
    ECHO.agrees_with_each_fault();
}

#[test]
fn faults_in_lives_agree_with_the_log() {
    LIVES.agrees_with_each_fault();
}

#[test]
fn faults_in_fan_outs_agree_with_the_log() {
    FANOUT.agrees_with_each_fault();
}

#[test]
fn faults_in_groups_agree_with_the_log() {
    GROUPS.agrees_with_each_fault();
}

#[test]
fn faults_on_held_sockets_agree_with_the_log() {
    HELD.agrees_with_each_fault();
}

#[test]
fn faults_in_churns_agree_with_the_log() {
    CHURN.agrees_with_each_fault();
}

/// What a server does although it refused a publication, or sends twice, stands for nothing that it lost.
#[test]
fn refused_and_repeated_publications_hide_no_loss() {
    thread::scope(|scope| {
        for workload in [FANOUT, CHURN] {
            scope.spawn(move || {
                at_most_twice(|| {
                    let faults = vec![(2, Fault::Drop), (3, Fault::Refuse), (5, Fault::Double)];
                    let plan = Plan { every: 13, faults, ends: 0, delay: Duration::ZERO };
                    let setup = workload.setup_with(plan, workload.lengths[0]);
                    let finished = executable::finish(setup.start());
                    let book = log_of(&setup.chat);
                    println!("{}: {finished:?}\n{book:?}", workload.name);
                    assert!(book.dropped > 3 && book.refused > 3 && book.doubled > 3);
                    let report = Report { document: finished.json(), is_interrupted: false };
                    // As without the loss of one kind only, which of a churn has bounds.
                    (workload.agrees)(&report, &book, Fault::Delay);
                });
            });
        }
    });
}

#[test]
fn publications_that_nobody_is_left_to_receive_are_unsent() {
    let plan = Plan { every: 9, faults: vec![(2, Fault::Close)], ends: 8, delay: Duration::ZERO };
    let setup = FANOUT.setup_with(plan, "--messages 500");
    let finished = executable::finish(setup.start());
    let book = log_of(&setup.chat);
    let document = finished.json();
    assert_eq!((book.ended, &document["connections"]["open"]), (8, &0.into()), "{document}");
    let broadcast = &document["broadcast"];
    let names = ["published", "publish_rejected", "publish_unknown", "publish_unsent"];
    let [published, rejected, unknown, unsent] = counts(broadcast, names);
    assert_eq!(published + rejected + unknown + unsent, 500, "{broadcast}");
    assert!(unsent > 400 && published + unknown >= book.published, "{broadcast}\n{book:?}");
    let text = document["reasons"].to_string();
    assert!(text.contains(&format!("{unsent} publications were due and not sent")), "{text}");
}

/// A socket that was opened again is no receiver: what it receives is neither expected nor foreign.
#[test]
fn sockets_that_were_opened_again_are_no_receivers() {
    let words = format!("{} --retry 3 --backoff 1ms..2ms", FANOUT.words.replace("--retry 0", ""));
    let workload = Workload { words: words.leak(), ..FANOUT };
    let setup = workload.setup(Fault::Close, FANOUT.lengths[0]);
    let finished = executable::finish(setup.start());
    let (book, document) = (log_of(&setup.chat), finished.json());
    let broadcast = &document["broadcast"];
    let [received, lost, foreign] = counts(broadcast, ["received", "lost", "foreign"]);
    assert_eq!((book.ended, foreign, received + lost), (3, 0, 400), "{broadcast}\n{book:?}");
    assert_eq!(document["connections"]["reconnects"], 3, "{document}");
    assert!(received < book.sent, "the server sends to them too: {broadcast}\n{book:?}");
}

/// Also when the connection is closed at once, and another opened instead.
#[test]
fn answers_behind_the_last_one_of_a_connection_are_counted() {
    let words = "wss://HOST/echo --connections 4 --messages-per-connection 1 --timeout 20s";
    for fault in [Fault::Double, Fault::Foreign] {
        let setup = Workload { words, every: 3, ..LIVES }.setup(fault, "--duration 1s");
        let finished = executable::finish(setup.start());
        let (book, report) =
            (log_of(&setup.chat), Report { document: finished.json(), is_interrupted: false });
        assert!(made(&book, fault) > 1, "{book:?}");
        echo_agrees(&report, &book, fault);
    }
}

#[test]
fn interrupted_workloads_agree_with_the_log() {
    for workload in [ECHO, LIVES, FANOUT, GROUPS, HELD, CHURN] {
        workload.agrees_when_interrupted();
    }
}
