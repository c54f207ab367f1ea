//! Stress over WebSockets: JSON pings that are answered one by one, or, in the fork's dialect with
//! receivers, messages that every connection receives.

use std::collections::HashSet;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::{
    AnswerVerdict, Config, Connect, ConnectOptions, Echo, Endpoint, Fanout, Outcome, Publish, Row,
    Validator,
};

use super::flags::{Args, is_true};
use super::live_stats::{LiveStats, NO_ANSWER, WorkerStats};
use super::verify::Check;
use crate::output;

/// The message that go-stress-testing sends.
const PING: &str = r#"{"seq":"$SEQ","cmd":"ping","data":{}}"#;
/// Connections per second with -connectionmode 2: the fork waits 20 ms after each.
const CONCURRENT_PER_SECOND: u64 = 50;
/// The fork's variables, in the order of `-variable`.
pub(super) const VARIABLES: [&str; 4] = ["sendtoken", "sendid", "recvtoken", "recvid"];
/// Message rate: the fork waits 1 ms between messages to receivers.
const MESSAGES_PER_SECOND: u64 = 1_000;

/// The run, and notes on how the flags were interpreted.
pub(super) struct Plan {
    pub(super) config: Config,
    /// Whether every connection receives all messages.
    pub(super) to_all: bool,
    pub(super) notes: Vec<String>,
}

/// Plans the run.
///
/// # Errors
/// Invalid or unsupported flags.
pub(super) fn plan(args: &Args, url: &str, stats: &LiveStats) -> Result<Plan> {
    let mut notes = Vec::new();
    let urls = with_variables(args, url, &mut notes)?;
    let ways = ConnectOptions::direct();
    let endpoints: Result<Vec<Endpoint>, String> =
        urls.iter().map(|url| ways.websocket(url)).collect();
    let mut endpoints = endpoints.map_err(anyhow::Error::msg)?;
    crate::commands::load::warn_unresolved(&endpoints, "connections");
    super::skip_certificate_checks(&mut endpoints, &mut notes)?;
    let mut config = Config::new(endpoints, args.users);
    config.headers = super::headers(args);
    config.connect_timeout = args.request_timeout();
    config.hold = args.pause;
    config.linger = args.hold;
    config.connect = match (args.connectionmode, args.step) {
        (2, 0) => Connect::Paced(CONCURRENT_PER_SECOND),
        (_, 0) => Connect::OneByOne,
        (_, step) => {
            let rate = step.div_ceil(args.interval.max(1));
            notes.push(format!(
                "-s {step} -i {}: WebSockets are opened evenly, {rate} per second",
                args.interval
            ));
            Connect::Paced(rate)
        }
    };
    let to_all = args.clients > 0 || is_true(&args.toclients);
    if to_all {
        config.fanout = Some(fanout(args, &mut notes)?);
    } else {
        config.echo = Some(echo(args, stats)?);
    }
    if args.users > 1 && !to_all && !is_true(&args.issenders) && args.fork() {
        notes.push(
            "every user sends and is answered: -issenders false has an effect only with -clients 1 \
             or 2"
                .to_owned(),
        );
    }
    Ok(Plan { config, to_all, notes })
}

fn echo(args: &Args, stats: &LiveStats) -> Result<Echo> {
    let messages = u32::try_from(args.each).context("invalid -n: too many messages")?;
    let validator = Pings {
        template: args.message.clone().unwrap_or_else(|| PING.to_owned()),
        verify: Check::of_messages(args.verify.as_deref())?,
        stats: stats.worker(),
        answered: Mutex::default(),
        debug: is_true(&args.debug),
    };
    Ok(Echo {
        size: Echo::SIZE_MIN,
        rate: None,
        messages: args.duration().is_none().then_some(messages),
        duration: args.duration(),
        turnover: false,
        content: None,
        validator: Some(Arc::new(validator)),
        think: Some((args.pause, args.pause)),
        timeout: args.request_timeout(),
    })
}

/// Maps the fork's roles to one group.
fn fanout(args: &Args, notes: &mut Vec<String>) -> Result<Fanout> {
    let most = u64::from(Fanout::PUBLISHERS_MAX);
    let senders = if is_true(&args.issenders) { args.users.min(most) } else { 1 };
    if is_true(&args.issenders) && args.users > most {
        notes.push(format!("-issenders: {most} of the {} users send, all receive", args.users));
    }
    notes.push(
        "-clients: all connections are one group in which each receives every message, as in a topic \
         of `standfast serve --public`; every receipt is checked"
            .to_owned(),
    );
    if args.clients == 1 || is_true(&args.toclients) || !is_true(&args.iscollectmsg) {
        notes.push(
            "private chats and separate recipients need a message that the server can address: give \
             --message with {{stamp}} in it"
                .to_owned(),
        );
    }
    let messages = u32::try_from(args.each.saturating_mul(senders));
    Ok(Fanout {
        rate: MESSAGES_PER_SECOND,
        publishers: u32::try_from(senders).unwrap_or(1),
        messages: if args.duration().is_some() {
            None
        } else {
            Some(messages.context("invalid -n: too many messages")?)
        },
        duration: args.duration(),
        size: 0,
        late_after: args.request_timeout(),
        publish: Publish::Socket,
    })
}

/// Returns the URLs with the fork's four variables filled in, such as `{sendtoken}`. A file has one
/// value per line; connections use them in turn.
fn with_variables(args: &Args, url: &str, notes: &mut Vec<String>) -> Result<Vec<String>> {
    let is_used = VARIABLES.iter().any(|name| url.contains(&format!("{{{name}}}")));
    if !is_used && args.variable.as_deref().is_some_and(is_complete) {
        notes.push(
            "-variable has no effect: the URL has none of {sendtoken}, {sendid}, {recvtoken}, {recvid}".to_owned(),
        );
        return Ok(vec![url.to_owned()]);
    }
    let Some(columns) = columns(args, notes)? else { return Ok(vec![url.to_owned()]) };
    let rows = columns.iter().map(Vec::len).max().unwrap_or(1).min(args.users.max(1) as usize);
    if rows > load::ENDPOINTS_MAX {
        bail!(
            "-variable: {rows} different URLs, expected at most {}: for more use a scenario of \
             `standfast load`",
            load::ENDPOINTS_MAX
        );
    }
    let row = |at: usize| {
        VARIABLES.iter().zip(&columns).fold(url.to_owned(), |url, (name, column)| {
            let value = column.get(at % column.len().max(1)).map_or("", String::as_str);
            url.replace(&format!("{{{name}}}"), value)
        })
    };
    Ok((0..rows).map(row).collect())
}

/// Returns the values of `-variable`, a column for each of [`VARIABLES`]; any other number of them is
/// ignored with a note.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn columns(args: &Args, notes: &mut Vec<String>) -> Result<Option<Vec<Vec<String>>>> {
    let Some(variable) = &args.variable else { return Ok(None) };
    if !is_complete(variable) {
        notes.push(format!(
            "-variable {variable} ignored: expected four values, {}",
            VARIABLES.join(",")
        ));
        return Ok(None);
    }
    variable.split(',').map(column).collect::<Result<_>>().map(Some)
}

fn is_complete(variable: &str) -> bool {
    variable.split(',').count() == VARIABLES.len()
}

/// Returns a single value, or the lines of a file in the current folder or in `csv`.
fn column(value: &str) -> Result<Vec<String>> {
    if !value.ends_with(".csv") {
        return Ok(vec![value.to_owned()]);
    }
    let beside = format!("csv/{value}");
    let path = if fs::metadata(value).is_ok() { value } else { &beside };
    let text = fs::read_to_string(path)
        .with_context(|| format!("-variable: cannot read {value} or csv/{value}"))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned);
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        bail!("-variable: {value} is empty");
    }
    Ok(lines)
}

/// Messages of go-stress-testing: JSON with a "seq", which the answer repeats.
#[derive(Debug)]
struct Pings {
    template: String,
    verify: Check,
    stats: WorkerStats,
    /// Connections with a result.
    answered: Mutex<HashSet<u64>>,
    debug: bool,
}

impl Pings {
    fn sequence(connection: u64, sequence: u32) -> String {
        format!("{connection:x}-{sequence}")
    }

    fn add(&self, connection: u64, (is_ok, code): (bool, u16), bytes: u64, took_ns: u64) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        self.stats.add(is_ok, code, bytes, took_ns, answered.insert(connection));
    }
}

impl Validator for Pings {
    fn write(&self, connection: u64, sequence: u32, into: &mut Vec<u8>) {
        let sequence = Pings::sequence(connection, sequence);
        into.extend(self.template.replace("$SEQ", &sequence).into_bytes());
    }

    fn judge(
        &self,
        connection: u64,
        sequence: u32,
        data: &[u8],
        nanoseconds: u64,
    ) -> AnswerVerdict {
        let sequence = Pings::sequence(connection, sequence);
        let sent = self.template.contains("$SEQ").then_some(sequence.as_str());
        let Some((is_ok, code)) = self.verify.message(sent, data) else {
            return AnswerVerdict::Foreign;
        };
        self.add(connection, (is_ok, code), data.len() as u64, nanoseconds);
        if self.debug {
            output::note(&format!("{code} {}", String::from_utf8_lossy(data)));
        }
        if is_ok { AnswerVerdict::Right } else { AnswerVerdict::Wrong }
    }

    fn missed(&self, connection: u64, nanoseconds: u64) {
        self.add(connection, (false, NO_ANSWER), 0, nanoseconds);
    }
}

/// Drives the run. Messages that were never sent are counted at the end.
///
/// # Errors
/// The run cannot start.
pub(super) fn drive(
    plan: &Plan,
    stats: &LiveStats,
    row: impl FnMut(&Row),
    wait: impl FnMut(Duration) -> bool,
) -> Result<Outcome> {
    let ended = load::drive(&plan.config, row, wait)?;
    let judged = stats.sum().all();
    stats.worker().unsent(unsent(&plan.config, &ended, judged));
    Ok(ended)
}

/// Returns the number of messages that were never sent. After a complete run with a number of messages
/// these are all planned ones that were not judged; otherwise one for each connection that did not open
/// or did not stay open.
fn unsent(config: &Config, ended: &Outcome, judged: u64) -> u64 {
    let asked = config.echo.as_ref().and_then(|echo| echo.messages).filter(|_| !ended.interrupted);
    if let Some(each) = asked {
        return config.connections.saturating_mul(u64::from(each)).saturating_sub(judged);
    }
    let ended_early = ended.closed.values().sum::<u64>();
    ended.connections.failed + ended_early
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_must_repeat_the_sequence_of_the_ping() {
        let stats = LiveStats::default();
        let pings = Pings {
            template: PING.to_owned(),
            verify: Check::Json(200),
            stats: stats.worker(),
            answered: Mutex::default(),
            debug: false,
        };
        let mut sent = Vec::new();
        pings.write(255, 3, &mut sent);
        assert_eq!(sent, br#"{"seq":"ff-3","cmd":"ping","data":{}}"#);
        let answer = br#"{"seq":"ff-3","cmd":"ping","response":{"code":200}}"#;
        assert_eq!(pings.judge(255, 3, answer, 1), AnswerVerdict::Right);
        assert_eq!(pings.judge(255, 4, answer, 1), AnswerVerdict::Foreign);
        assert_eq!(pings.judge(255, 4, b"x", 1), AnswerVerdict::Wrong);
        pings.missed(7, 2_000_000);
        let sum = stats.sum();
        assert_eq!((sum.ok, sum.failed, sum.users), (1, 2, 2));
        assert_eq!(sum.longest_ms(), Some(2.0), "a message without an answer took its time");
    }
}
