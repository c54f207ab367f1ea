//! `cargo xtask autobahn`: the Autobahn TestSuite against `serve`, directly and through `proxy`, against the
//! client of `load`, and against the package of Node.js.
//!
//! The suite is a peer that shares no code with us: it has 517 cases of correct and incorrect protocol
//! use and judges the responses. The expected verdict of each case is in `conformance/autobahn`; a run
//! must give the same. Not here: the requirements themselves; those are RFC 6455 and the tests of `wire`
//! and `engine`.

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

/// The cases that `cargo xtask test` runs; the others take minutes.
const QUICK: [&str; 21] = [
    "1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*", "12.1.1", "12.1.3", "12.2.1",
    "12.3.1", "12.4.1", "12.5.1", "13.1.1", "13.2.1", "13.3.1", "13.4.1", "13.5.1", "13.6.1",
];
/// The same over TLS, which only carries the bytes: frames of each kind, a large message in many
/// records, one that is refused in the middle, a close, and a compressed message.
const QUICK_TLS: [&str; 8] = ["1.1.1", "1.2.6", "2.1", "5.3", "6.4.1", "7.1.1", "9.1.1", "12.1.1"];
/// Every case.
const ALL: &str = "*";

/// The subcommand.
#[derive(Args)]
pub(crate) struct AutobahnArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Test the server against the suite's fuzzing client
    Server(RunArgs),
    /// Test the server through the proxy; the results must be the same
    Proxy(RunArgs),
    /// Test a server of the package of Node.js, packages/node; the results must be those of the server
    Node(RunArgs),
    /// Test the client of load against the suite's fuzzing server
    Client(RunArgs),
    /// Install the suite into target/autobahn, unless it is installed
    Install,
    /// Write docs/protocol/conformance.md from the expected results
    Page,
}

/// Which cases to run, and what to do with the results.
#[derive(Args)]
struct RunArgs {
    /// Run every case, not only the quick ones
    #[arg(long, conflicts_with = "cases")]
    all: bool,
    /// Cases to run, such as '1.*' or 1.1.8 (repeatable)
    #[arg(long, value_name = "PATTERN")]
    cases: Vec<String>,
    /// Save the results as the expected ones in conformance/autobahn
    #[arg(long)]
    keep: bool,
    /// Use wss:// with a certificate made for this run
    #[arg(long)]
    tls: bool,
    /// Use the debug build of the client, which checks overflow and invariants
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

/// The program under test.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Server,
    /// The server behind the proxy.
    Proxy,
    /// A server of the package of Node.js.
    Node,
    Client,
}

/// A program under test and its transport.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tested {
    role: Role,
    tls: bool,
}

impl Tested {
    /// All with expected results, in the order of the page.
    const ALL: [Tested; 6] = [
        Tested { role: Role::Server, tls: false },
        Tested { role: Role::Server, tls: true },
        Tested { role: Role::Proxy, tls: false },
        Tested { role: Role::Node, tls: false },
        Tested { role: Role::Client, tls: false },
        Tested { role: Role::Client, tls: true },
    ];

    /// The name of the file with its expected results.
    fn name(self) -> &'static str {
        match (self.role, self.tls) {
            (Role::Server, false) => "server",
            (Role::Server, true) => "server-tls",
            (Role::Proxy, _) => "proxy",
            (Role::Node, _) => "node",
            (Role::Client, false) => "client",
            (Role::Client, true) => "client-tls",
        }
    }

    /// The name for people.
    fn title(self) -> String {
        let role = match self.role {
            Role::Server => "server",
            Role::Proxy => "server behind the proxy",
            Role::Node => "package of Node.js",
            Role::Client => "client",
        };
        format!("{role}, {}://", self.scheme())
    }

    fn scheme(self) -> &'static str {
        if self.tls { "wss" } else { "ws" }
    }
}

/// Whether every result was the expected one.
pub(crate) fn run(args: &AutobahnArgs) -> Result<bool> {
    match &args.what {
        What::Server(args) => judge(Role::Server, args),
        What::Proxy(args) => {
            ensure!(!args.tls, "--tls: through the proxy the suite can use ws:// only");
            judge(Role::Proxy, args)
        }
        What::Node(args) => {
            ensure!(!args.tls, "--tls: the package of Node.js is tested over ws:// only");
            judge(Role::Node, args)
        }
        What::Client(args) => judge(Role::Client, args),
        What::Install => ready().map(|_| true),
        What::Page => page::write().map(|()| true),
    }
}

/// Whether nothing has to be installed before a run.
pub(crate) fn is_installed() -> bool {
    TestSuite::installed().is_some()
}

/// Installs the suite if needed. Where that fails, prints the reason and returns nothing; with `CI` set it
/// is an error.
fn ready() -> Result<Option<TestSuite>> {
    match TestSuite::ready() {
        Ok(suite) => Ok(Some(suite)),
        Err(error) if step::is_ci() => Err(error),
        Err(error) => {
            println!("skipped: the suite cannot be installed: {error:#}");
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
        ensure!(!results.is_empty(), "the suite ran no case: there is nothing to save");
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
