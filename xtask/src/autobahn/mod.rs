//! `cargo xtask autobahn`: the Autobahn TestSuite against our server, directly and through our proxy,
//! or as the server of our client.
//!
//! The suite is a peer that shares nothing with us: it breaks the protocol in 517 ways and judges
//! what it gets back. What it should say is kept in `conformance/autobahn`, case by case; a run must
//! say the same. Not here: what a MUST is; that is RFC 6455 and the tests of `wire` and `engine`.

mod page;
mod python;
mod run;
mod testsuite;
mod verdict;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};

use crate::step;
use testsuite::TestSuite;
use verdict::{Expected, selects};

/// What every run of the whole test suite of this repository goes through; the rest of the suite
/// takes minutes.
const QUICK: [&str; 21] = [
    "1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*", "12.1.1", "12.1.3", "12.2.1",
    "12.3.1", "12.4.1", "12.5.1", "13.1.1", "13.2.1", "13.3.1", "13.4.1", "13.5.1", "13.6.1",
];
/// The same over TLS, which only carries the bytes: frames of each kind, a large message in many
/// records, one refused in its middle, a close, and a compressed one.
const QUICK_TLS: [&str; 8] = ["1.1.1", "1.2.6", "2.1", "5.3", "6.4.1", "7.1.1", "9.1.1", "12.1.1"];
/// Every case.
const ALL: &str = "*";

/// What to do.
#[derive(Args)]
pub(crate) struct AutobahnArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Our server against the suite's fuzzing client.
    Server(RunArgs),
    /// The same through our proxy, which is to change nothing of it.
    Proxy(RunArgs),
    /// Our client against the suite's fuzzing server.
    Client(RunArgs),
    /// Installs the suite, where it is not there yet.
    Install,
    /// Writes docs/protocol/conformance.md from the results that are kept.
    Page,
}

/// Which cases, and what becomes of the results.
#[derive(Args)]
struct RunArgs {
    /// Every case, not only those that are quick.
    #[arg(long, conflicts_with = "cases")]
    all: bool,
    /// Cases to run: '1.*' a group, 1.1.8 a case. May be given several times.
    #[arg(long, value_name = "PATTERN")]
    cases: Vec<String>,
    /// Keep what the suite says as what it should say, in conformance/autobahn.
    #[arg(long)]
    keep: bool,
    /// Over wss://, with a certificate made for this run.
    #[arg(long)]
    tls: bool,
    /// With our client as tests are built, where overflow and invariants are checked.
    #[arg(long)]
    debug: bool,
}

impl RunArgs {
    fn patterns(&self) -> Vec<String> {
        if self.all {
            return vec![ALL.to_owned()];
        }
        if !self.cases.is_empty() {
            return self.cases.clone();
        }
        let quick = if self.tls { &QUICK_TLS[..] } else { &QUICK };
        quick.iter().map(ToString::to_string).collect()
    }
}

/// Which of our programs is tested.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Server,
    /// The server, with the proxy before it.
    Proxy,
    Client,
}

/// What is tested: a program, and what carries its bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tested {
    role: Role,
    tls: bool,
}

impl Tested {
    /// Everything that results are kept of, in the order of the page.
    const ALL: [Tested; 5] = [
        Tested { role: Role::Server, tls: false },
        Tested { role: Role::Server, tls: true },
        Tested { role: Role::Proxy, tls: false },
        Tested { role: Role::Client, tls: false },
        Tested { role: Role::Client, tls: true },
    ];

    /// The name of its results.
    fn name(self) -> &'static str {
        match (self.role, self.tls) {
            (Role::Server, false) => "server",
            (Role::Server, true) => "server-tls",
            (Role::Proxy, _) => "proxy",
            (Role::Client, false) => "client",
            (Role::Client, true) => "client-tls",
        }
    }

    /// The same for people.
    fn title(self) -> String {
        let role = match self.role {
            Role::Server => "server",
            Role::Proxy => "server behind the proxy",
            Role::Client => "client",
        };
        format!("{role}, {}://", self.scheme())
    }

    fn scheme(self) -> &'static str {
        if self.tls { "wss" } else { "ws" }
    }
}

/// Whether everything went as expected.
pub(crate) fn run(args: &AutobahnArgs) -> Result<bool> {
    match &args.what {
        What::Server(args) => judge(Role::Server, args),
        What::Proxy(args) => {
            ensure!(!args.tls, "through the proxy the suite speaks ws:// only");
            judge(Role::Proxy, args)
        }
        What::Client(args) => judge(Role::Client, args),
        What::Install => ready().map(|_| true),
        What::Page => page::write().map(|()| true),
    }
}

/// The suite; where it cannot be had, nothing, which is told, or with CI set an error.
fn ready() -> Result<Option<TestSuite>> {
    match TestSuite::ready() {
        Ok(suite) => Ok(Some(suite)),
        Err(error) if step::is_ci() => Err(error),
        Err(error) => {
            println!("skipped, because the suite is not here: {error:#}");
            println!("(with CI set this is a failure)");
            println!("test result: ok. 0 passed; 0 failed; 1 ignored");
            Ok(None)
        }
    }
}

fn judge(role: Role, args: &RunArgs) -> Result<bool> {
    let tested = Tested { role, tls: args.tls };
    let Some(suite) = ready()? else { return Ok(true) };
    let patterns = args.patterns();
    let mut expected = Expected::read(tested)?;
    println!("our {} and {}, cases {}", tested.title(), testsuite::VERSION, patterns.join(" "));
    let results = run::results(&suite, tested, &patterns, args.debug)?;
    if args.keep {
        ensure!(!results.is_empty(), "the suite ran no case, so there is nothing to keep");
        expected.replace(&patterns, &results);
        expected.write(tested)?;
        page::write()?;
    }
    let wrong = expected.differences(&patterns, &results);
    for line in &wrong {
        println!("{line}");
    }
    let planned = expected.cases.keys().filter(|case| selects(&patterns, case)).count();
    let verdict = if wrong.is_empty() { "ok" } else { "FAILED" };
    println!(
        "test result: {verdict}. {} passed; {} failed",
        planned.saturating_sub(wrong.len()),
        wrong.len()
    );
    Ok(wrong.is_empty())
}
