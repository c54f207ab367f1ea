//! The messages of a fleet: a line of JSON, and bytes after it for pieces of files and results.

use std::net::SocketAddr;

use load::control::{Command, Event};
use load::{SharedRow, Usage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::fixtures::Captures;

/// The most characters of a text of another machine that are shown: of several lines, of a label or target, and of
/// the name of a host or a version.
pub(super) const TEXT_CHARS_MAX: usize = 8 * 1024;
pub(super) const WORD_CHARS_MAX: usize = 256;
pub(super) const HOST_CHARS_MAX: usize = 64;

/// What agents and leaders must have in common: the release, its schema of results, and the number of this list
/// of messages.
pub(super) fn version() -> String {
    format!("{}+{}.4", env!("CARGO_PKG_VERSION"), load::OUTCOME_VERSION)
}

/// From a leader.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToAgent {
    /// Say who you are. Agents of all versions understand it, and answer with [`Says::Here`].
    Call {
        leader: String,
    },
    /// Say what this machine lacks for a share of a run.
    Check {
        leader: String,
        /// Connections of the agent.
        connections: u64,
        /// Connections of other agents on its machine; 0 if one of those is asked.
        beside: u64,
        /// Addresses and ports that it connects to, and all agents of its machine; `None`: on loopback.
        destinations: Option<[u64; 2]>,
    },
    Plan(Plan),
    /// Run a server of a proof. It is repeated until [`Says::Serving`].
    Serve(ServerOrder),
    /// Say anew how many connections the server has, and its memory. It is repeated until it was done.
    Look {
        run: String,
        number: u64,
    },
    /// Publish the next message of a proof, by number from 0. It is repeated until it was done.
    Publish {
        run: String,
        sequence: u32,
    },
    /// A piece of a file follows.
    Piece {
        run: String,
        file: usize,
        offset: usize,
    },
    Ping {
        leader: String,
        sent_ns: u64,
    },
    /// Make the setup; or another agent has made it and captured this.
    SetUp {
        run: String,
        captured: Option<Captures>,
    },
    /// Make the teardown.
    TearDown {
        run: String,
    },
    /// Begin at this time of the agent's clock.
    Begin {
        run: String,
        at_ns: u64,
    },
    /// The leader lives.
    Beat {
        run: String,
        stop: bool,
    },
    /// A command of a controlled run, by number from 1. It is repeated until it is taken.
    Command {
        run: String,
        number: u64,
        command: Command,
    },
    /// Send the result from there.
    Fetch {
        run: String,
        offset: usize,
    },
    /// The result has arrived, or is not wanted.
    Release {
        run: String,
    },
    /// Execute the file anew that you were started from, if it is of another release.
    Upgrade {
        leader: String,
    },
}

/// A share of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) run: String,
    pub(super) leader: String,
    pub(super) version: String,
    pub(super) nth: u32,
    pub(super) of: u32,
    pub(super) seed: u64,
    /// The command line after `load`.
    pub(super) words: Vec<String>,
    pub(super) files: Vec<FileEntry>,
}

/// A server of a proof.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ServerOrder {
    pub(super) run: String,
    pub(super) leader: String,
    pub(super) version: String,
    /// That it will hold.
    pub(super) connections: u64,
    /// Of `standfast serve`, of [`SERVER_FLAGS`].
    pub(super) flags: Vec<String>,
}

/// The flags that a leader may give to servers: they open no files, listen nowhere else, and connect to nothing.
const SERVER_FLAGS: [&str; 20] = [
    "backlog",
    "compress-above",
    "compression",
    "connect-rate",
    "handshake-timeout",
    "history",
    "history-bytes",
    "history-limit",
    "history-topic-bytes",
    "history-ttl",
    "idle-timeout",
    "max-handshakes",
    "max-message",
    "memory-limit",
    "ping-interval",
    "pings",
    "pong-timeout",
    "public-streams",
    "send-queue",
    "workers",
];

/// The first of these flags that a leader cannot give to a server.
pub(in crate::commands) fn not_for_servers(flags: &[String]) -> Option<&str> {
    let is_for_servers = |flag: &&String| {
        let name = flag.strip_prefix("--").and_then(|flag| flag.split_once('='));
        name.is_some_and(|(name, _)| SERVER_FLAGS.contains(&name))
    };
    flags.iter().find(|flag| !is_for_servers(flag)).map(String::as_str)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// From an agent, which is named by its id.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FromAgent {
    pub(super) agent: String,
    /// Empty outside runs.
    pub(super) run: String,
    pub(super) says: Says,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Says {
    Here {
        name: String,
        /// Of the machine; empty: unknown.
        #[serde(default)]
        host: String,
        labels: Vec<String>,
        version: String,
        cores: usize,
        busy: bool,
        /// What it may connect to beside loopback.
        #[serde(default)]
        targets: Vec<String>,
        /// Where it runs servers of proofs; `None`: it runs loads.
        #[serde(default)]
        serves: Option<SocketAddr>,
    },
    /// What it lacks, each with what helps; empty if nothing.
    Checked {
        problems: Vec<String>,
    },
    Want {
        file: usize,
        offset: usize,
    },
    Refused {
        why: String,
    },
    /// It waits for the setup.
    Prepared,
    /// It was told to make the setup, or what another agent's has captured.
    SettingUp,
    Ready {
        /// By the setup that it has made.
        captured: Option<Captures>,
    },
    /// It will begin at the time.
    Waiting,
    Pong {
        sent_ns: u64,
        at_ns: u64,
    },
    Row {
        number: u64,
        /// By how much the load began after the time for it.
        late_us: Option<u64>,
        row: Box<SharedRow>,
    },
    /// Of a controlled run: how many commands it has taken, and its latest event of each kind, with the number of
    /// commands that it had taken before.
    Controlled {
        /// The number of this message.
        number: u64,
        taken: u64,
        events: Vec<(u64, Event)>,
    },
    /// Its server of a proof is there.
    Serving(Serving),
    Failed {
        why: String,
    },
    Done {
        bytes: usize,
        sha256: String,
        late_us: Option<u64>,
        /// Messages that it has discarded.
        #[serde(default)]
        discarded: Option<usize>,
    },
    /// It has made the teardown, or failed to.
    TornDown {
        failed: Option<String>,
    },
    /// A piece of the result follows.
    Piece {
        offset: usize,
    },
    Upgrade(Upgrade),
}

/// How a server of a proof is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Serving {
    /// The number of this message.
    pub(super) number: u64,
    pub(super) address: SocketAddr,
    /// `None`: it could not be read.
    pub(super) usage: Option<Usage>,
    /// Its connections at the latest look; `None`: unknown.
    pub(super) open: Option<u64>,
    /// The number of the latest look.
    pub(super) looked: u64,
    /// The messages that it has published.
    pub(super) published: u32,
}

/// What an agent does about an upgrade, with releases as `--version` of its file says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Upgrade {
    /// It executes the file now, and comes back under another id.
    Now { from: String, to: String },
    /// It is busy, and will look at the file after its run.
    Later,
    /// The file is of this release, which runs already.
    Same { release: String },
    /// It cannot.
    Failed { why: String },
}

pub(super) fn encode(message: &impl Serialize, body: &[u8]) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    bytes.push(b'\n');
    bytes.extend_from_slice(body);
    bytes
}

/// A text of another machine that is shown within a line: at most so many characters, and its lines joined, as a
/// line break would let it write rows of its own.
pub(super) fn one_line(text: &str, chars_max: usize) -> String {
    let start: String = text.chars().take(chars_max).collect();
    let start = plain(&start);
    start.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A text of another machine that may have several lines: without other control characters, and not too long. Its
/// further lines are to be shown indented.
pub(super) fn printable(text: &str) -> String {
    plain(&text.chars().take(TEXT_CHARS_MAX).collect::<String>())
}

/// Lines without other control characters, which terminals would obey, and without marks that turn the direction of
/// what follows.
pub(in crate::commands) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => shown.push('\n'),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                shown.extend(character.escape_unicode());
            }
            _ if character.is_control() => shown.extend(character.escape_default()),
            _ => shown.push(character),
        }
    }
    shown
}

/// `None` for what is no such message.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, body) = bytes.split_at(end);
    Some((serde_json::from_slice(line).ok()?, body.get(1..)?))
}

pub(super) fn of_all(fleet: &str) -> String {
    format!("standfast.fleet.{fleet}.all")
}

pub(super) fn inbox(fleet: &str, id: &str) -> String {
    format!("standfast.fleet.{fleet}.to.{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_sent_and_others_are_none() {
        let bytes = encode(&ToAgent::Beat { run: "r".to_owned(), stop: true }, b"a\nb");
        let (message, body) = decode::<ToAgent>(&bytes).unwrap();
        assert!(matches!(message, ToAgent::Beat { run, stop: true } if run == "r"));
        assert_eq!(body, b"a\nb");
        for other in [&b""[..], b"\n", b"{}", b"{}\n", b"{\"other\":{}}\n", b"\xff\n"] {
            assert!(decode::<ToAgent>(other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn servers_take_no_flags_that_open_files_or_connect() {
        let first = |flags: &[&str]| {
            let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
            not_for_servers(&flags).map(str::to_owned)
        };
        assert_eq!(first(&["--idle-timeout=60s", "--workers=2", "--public-streams=true"]), None);
        for flag in
            ["--config=/etc/x", "--listen=0.0.0.0:1", "--webhook-url=http://x/", "--workers", "x"]
        {
            assert_eq!(first(&["--workers=2", flag]).as_deref(), Some(flag));
        }
    }

    #[test]
    fn texts_of_other_machines_leave_the_terminal_alone() {
        assert_eq!(printable("a\n\u{1b}[2Jä\u{9b}\r"), "a\n\\u{1b}[2Jä\\u{9b}\\r");
        assert_eq!(printable("a\u{202e}b\u{2069}\u{5d0}"), "a\\u{202e}b\\u{2069}\u{5d0}");
        assert_eq!(printable(&"x".repeat(1 << 20)).len(), TEXT_CHARS_MAX);
        let line = "a\nok   two\r\n\n  \u{1b}\u{2066}ä\n";
        assert_eq!(one_line(line, HOST_CHARS_MAX), "a ok   two\\r \\u{1b}\\u{2066}ä");
        assert_eq!(one_line(&"ä".repeat(1 << 10), HOST_CHARS_MAX), "ä".repeat(64));
    }
}
