//! `docs/protocol/conformance.md`, generated from the expected results and from the text here: where
//! the RFC leaves a choice, what we chose and why.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::verdict::{CaseId, Expected};
use super::{Tested, testsuite};
use crate::step;

const GROUPS: [(u16, &str); 11] = [
    (1, "Messages of every length"),
    (2, "Ping and pong"),
    (3, "Reserved bits"),
    (4, "Reserved opcodes"),
    (5, "Fragments"),
    (6, "UTF-8, rejected at the first invalid byte"),
    (7, "The closing handshake"),
    (9, "Large messages, many fragments, many messages"),
    (10, "Writing in small pieces"),
    (12, "permessage-deflate: lengths and contents"),
    (13, "permessage-deflate: parameters"),
];

const HEAD: &str = "# Conformance

How closely standfast follows RFC 6455, and the evidence. `cargo xtask autobahn page` generates this page from
[`conformance/autobahn`](../../conformance/autobahn); a test fails when it is out of date. The response to each
protocol violation: [websocket.md](websocket.md).

";

const CHOICES: &str = "## Where the RFC leaves a choice

| question | what we do | why |
|---|---|---|
| When is text that is not UTF-8 rejected (6455 8.1)? | at the first invalid byte, also in the middle of a frame | invalid data is not buffered, and the peer is notified as early as possible |
| A close code of 1000–2999 that the RFC does not define (7.4.2) | 1012, 1013 and 1014, which IANA has registered since, are accepted; 1004, 1005, 1006, 1015, 1016–2999 are answered with 1002 | a code that must not be sent is a violation like any other |
| A close code of 5000 or more | answered with 1002 | it is in no range of 7.4.2 |
| Which code answers a close frame (5.5.1) | the received code without its reason; an empty close frame gets an empty one | most implementations do this and tests expect it |
| Data after our close frame (5.5.1) | discarded, including messages begun before | the connection has ended; only the peer's close frame matters |
| Data after the peer's close frame (1.4) | discarded unread | it must not be sent |
| Which side closes the TCP connection (7.1.1) | the server, immediately; our client waits for it, at most `close_timeout` (5 s) | so TIME_WAIT is on the server, and a server that does not close cannot block a client |
| Pongs when a peer sends pings but does not read (5.5.3) | only the latest | a peer cannot make the queue grow |
| How many fragments a message may have | as many as fit `--max-message` | they are joined as they arrive, so a fragment costs nothing |
| A length in more bytes than needed (5.2) | rejected, 1002 | the shortest form is a MUST |
| Offers of unknown extensions (9.1) | ignored | this is how the RFC declines an extension |
| A response with an extension or subprotocol we did not offer (4.1) | our client ends the connection | a MUST |
| A rejected handshake | `Connection: close`; what follows is discarded | bytes that were sent for a WebSocket are not parsed as requests (RFC 9931) |
";

/// Writes the page.
pub(super) fn write() -> Result<()> {
    let path = path();
    fs::write(&path, text()?).with_context(|| format!("cannot write {}", path.display()))
}

fn path() -> PathBuf {
    step::root().join("docs/protocol/conformance.md")
}

fn text() -> Result<String> {
    let columns: Result<Vec<Column>> = Tested::ALL.into_iter().map(Column::read).collect();
    let columns = columns?;
    let suite = testsuite::VERSION;
    let titles = cells(&columns, |column| column.title.clone());
    let rules = "---|".repeat(columns.len());
    let mut page = HEAD.to_owned();
    writeln!(
        page,
        "## The Autobahn TestSuite\n\n{suite}: `cargo xtask autobahn server --all`, `proxy` for the same server behind `standfast proxy`,\n`node` for a server of [packages/node](../../packages/node/README.md),\n`client` for the client of `standfast load`, `--tls` for `wss://`. With the defaults and `--max-message 32MiB`.\nThe table has the cases that are OK, of those that were run; the others are explained below.\n"
    )?;
    writeln!(page, "| group | |{titles}\n|---|---|{rules}")?;
    for (group, title) in GROUPS {
        let shares =
            cells(&columns, |column| share(&column.expected, |case| case.group() == group));
        writeln!(page, "| {group} | {title} |{shares}")?;
    }
    let shares = cells(&columns, |column| share(&column.expected, |_| true));
    writeln!(page, "| | all |{shares}\n")?;
    writeln!(
        page,
        "No case is FAILED, NON-STRICT or UNIMPLEMENTED: such a result cannot be saved. Cases that are not OK:\n"
    )?;
    writeln!(page, "| case |{titles} why |\n|---|{rules}---|")?;
    let mut cases: Vec<(&CaseId, &str)> = columns.iter().flat_map(Column::reasons).collect();
    cases.sort();
    cases.dedup_by_key(|(case, _)| *case);
    for (case, why) in cases {
        let verdicts = cells(&columns, |column| column.verdict(case));
        writeln!(page, "| {case} |{verdicts} {why} |")?;
    }
    writeln!(page, "\n{CHOICES}").map(|()| page.truncate(page.trim_end().len()))?;
    page.push('\n');
    Ok(page)
}

/// The expected results of one program.
struct Column {
    title: String,
    expected: Expected,
}

impl Column {
    fn read(tested: Tested) -> Result<Column> {
        Ok(Column { title: tested.title(), expected: Expected::read(tested)? })
    }

    fn reasons(&self) -> impl Iterator<Item = (&CaseId, &str)> {
        self.expected.reasons.iter().map(|(case, why)| (case, why.as_str()))
    }

    fn verdict(&self, case: &CaseId) -> String {
        match self.expected.cases.get(case) {
            Some(verdict) if !verdict.is_ok() => verdict.behaviour.clone(),
            Some(_) => "OK".to_owned(),
            None => "not run".to_owned(),
        }
    }
}

/// A cell of each column, for the end of a row.
fn cells(columns: &[Column], cell: impl Fn(&Column) -> String) -> String {
    columns.iter().map(|column| format!(" {} |", cell(column))).collect()
}

/// How many cases are OK, and how many were run.
fn share(expected: &Expected, belongs: impl Fn(&CaseId) -> bool) -> String {
    let mine = || expected.cases.iter().filter(|(case, _)| belongs(case));
    match mine().count() {
        0 => "not run".to_owned(),
        all => format!("{} of {all}", mine().filter(|(_, verdict)| verdict.is_ok()).count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_current_and_names_every_group() {
        let page = fs::read_to_string(path()).unwrap();
        assert!(page == text().unwrap(), "run `cargo xtask autobahn page` and commit the page");
        for tested in Tested::ALL {
            for case in Expected::read(tested).unwrap().cases.keys() {
                assert!(GROUPS.iter().any(|(group, _)| *group == case.group()), "{case}");
            }
        }
    }
}
