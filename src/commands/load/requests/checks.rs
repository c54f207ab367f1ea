//! `--check`: conditions on answers, written as the checks of scenarios are named.

use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use load::grpc::ReplyType;
use load::requests::{
    Accepted, AnswerChecks, Calls, Checked, Driver, Fixed, GrpcWeb, GrpcWebStream, Http1, Http2,
    Http2Grpc, Part, drive_requests,
};
use load::scenario::{Bound, Check, Expected, Rule, Source};
use load::{Outcome, Row};

use super::config::Plan;
use super::grpc;
use crate::commands::load::flags::Args;
use crate::commands::load::scenario;
use crate::units;

/// The kinds of rules.
const EXPECTED: &str = "expected json PATH, header NAME, contains TEXT, regex PATTERN, size BOUND or latency BOUND, \
                        as in 'json $.ok is true'";

/// Parses a rule.
///
/// # Errors
/// What is expected.
pub(super) fn check(text: &str) -> Result<Check, String> {
    let text = text.trim();
    // As in a threshold, no space is needed before a bound.
    let end = text.find(|sign: char| !sign.is_ascii_alphabetic()).unwrap_or(text.len());
    let (kind, rest) = text.split_at(end);
    let rest = rest.trim();
    let rule = match kind {
        "status" => return Err("statuses are those of --accept".to_owned()),
        _ if rest.is_empty() => return Err(format!("invalid check {text:?}: {EXPECTED}")),
        "json" => value(rest, Source::json)?,
        "header" => value(rest, |name| match name.contains(char::is_whitespace) {
            true => Err(format!("invalid header name {name:?}")),
            false => Ok(Source::Header(name.to_owned())),
        })?,
        "contains" => Rule::Value(Source::regex(&regex::escape(rest))?, Expected::Found),
        "regex" => Rule::Value(Source::regex(rest)?, Expected::Found),
        "size" => Rule::Size(bound(rest, units::size)?),
        "latency" => {
            Rule::Latency(bound(rest, |text| Ok(units::duration(text)?.as_nanos() as u64))?)
        }
        _ => return Err(format!("invalid check {text:?}: {EXPECTED}")),
    };
    Ok(Check { name: text.to_owned(), rule })
}

/// `WHERE`, `WHERE is VALUE` or `WHERE matches PATTERN`; a path may have such words in quotes.
fn value(text: &str, source: impl Fn(&str) -> Result<Source, String>) -> Result<Rule, String> {
    let whole = source(text);
    if let Ok(source) = whole {
        return Ok(Rule::Value(source, Expected::Found));
    }
    let mut splits: Vec<(usize, &str)> =
        [" is ", " matches "].iter().flat_map(|word| text.match_indices(word)).collect();
    splits.sort_unstable();
    for (at, word) in splits {
        let (place, rest) = text.split_at(at);
        let Ok(source) = source(place.trim()) else { continue };
        let wanted = rest.get(word.len()..).unwrap_or_default().trim();
        let expected = match word.trim() {
            "is" => Expected::Is(wanted.as_bytes().to_vec()),
            _ => Expected::matches(wanted)?,
        };
        return Ok(Rule::Value(source, expected));
    }
    whole.map(|source| Rule::Value(source, Expected::Found))
}

fn bound(text: &str, parse: impl Fn(&str) -> Result<u64, String>) -> Result<Bound, String> {
    let wrong = || format!("invalid bound {text:?}: expected <, > or = and a number");
    let sign = text.chars().next().ok_or_else(wrong)?;
    let number = text.get(sign.len_utf8()..).unwrap_or_default();
    Bound::new(sign, 0).ok_or_else(wrong)?;
    Bound::new(sign, parse(number.trim())?).ok_or_else(wrong)
}

/// What is checked of a run: nothing unless flags say so.
///
/// # Errors
/// Statuses of another protocol.
pub(super) fn checks(args: &Args, call: Option<&grpc::Call>) -> Result<Option<Arc<AnswerChecks>>> {
    let flags = &args.requests;
    let statuses: Vec<u16> = flags.accept.iter().cloned().flatten().collect();
    let is_of_call = |status: &u16| load::grpc::code_of(*status).is_some();
    match call {
        None if statuses.iter().any(is_of_call) => bail!(
            "--accept: expected statuses of HTTP such as 2xx,404; names such as NOT_FOUND are for grpc://"
        ),
        Some(_) if !statuses.iter().all(is_of_call) => bail!(
            "--accept: expected statuses of gRPC such as OK,NOT_FOUND; those of HTTP are for http://"
        ),
        _ => {}
    }
    let accepted = if call.is_some() { statuses } else { Vec::new() };
    // The driver of gRPC-Web leaves statuses to the script.
    let is_web = call.is_some_and(|call| call.variant.is_web());
    if flags.check.is_empty() && accepted.is_empty() && !is_web {
        return Ok(None);
    }
    let method = call.map(|call| call.method.clone());
    let name = method.as_ref().map_or("requests".to_owned(), |method| method.path());
    let name = name.trim_start_matches('/').to_owned();
    let checks = AnswerChecks::new(name, flags.check.clone(), method, accepted);
    let selectors = args.threshold.iter().filter_map(|threshold| threshold.selector.clone());
    let checks =
        checks.selecting(selectors.collect()).map_err(|why| anyhow!("threshold: {why}"))?;
    let is_published = args.metrics.is_some();
    Ok(Some(Arc::new(if is_published { checks.published() } else { checks })))
}

impl Plan {
    /// Runs a plan whose answers are checked.
    ///
    /// # Errors
    /// An unsuitable machine, or the error of a worker.
    pub(super) fn drive_checked(
        &self,
        checks: &Arc<AnswerChecks>,
        row: impl FnMut(&Row),
        interrupted: impl FnMut(std::time::Duration) -> bool,
    ) -> Result<Outcome> {
        let mut outcome = match &self.call {
            Some(call) => {
                let (unary, most) = (call.has_one_answer(), call.message_bytes_max);
                if self.requests.messages.is_some() {
                    // Only gRPC-Web has both.
                    let driver = move || GrpcWebStream::new(most);
                    self.drive_checked_calls(driver, call, checks, row, interrupted)?
                } else if call.variant.is_web() {
                    let driver = move || GrpcWeb::new(unary, most);
                    self.drive_checked_calls(driver, call, checks, row, interrupted)?
                } else {
                    let reply = ReplyType::of(&call.method);
                    let driver = move || Http2Grpc::of_calls(unary, most).expecting(reply.clone());
                    self.drive_checked_calls(driver, call, checks, row, interrupted)?
                }
            }
            None if self.requests.streams.is_some() => {
                let (sent, accepted) = (self.sent.clone(), self.accepted.clone());
                self.drive_fixed(Http2::new, sent, accepted, checks, row, interrupted)?
            }
            None => {
                let (sent, accepted) = (self.sent.clone(), self.accepted.clone());
                self.drive_fixed(Http1::new, sent, accepted, checks, row, interrupted)?
            }
        };
        checks.add_to(&mut outcome);
        Ok(outcome)
    }

    /// Runs calls whose answers are checked.
    fn drive_checked_calls<D: Driver>(
        &self,
        driver: impl Fn() -> D + Send + Sync + 'static,
        call: &grpc::Call,
        checks: &Arc<AnswerChecks>,
        row: impl FnMut(&Row),
        interrupted: impl FnMut(std::time::Duration) -> bool,
    ) -> Result<Outcome> {
        let Some(message) = call.templates.first() else { bail!("a call has a message") };
        if let Some(framed) = message.framed() {
            let (sent, accepted) = (call.requests(&framed), Accepted::default());
            return self.drive_fixed(driver, sent, accepted, checks, row, interrupted);
        }
        let (heads, message) = (call.heads.clone(), message.clone());
        let (clock, checks) = (scenario::clock(), Arc::clone(checks));
        let seed = clock.now_ms;
        let script = move |part| {
            let calls = Calls::new(heads.clone(), message.clone(), part, seed, clock);
            Checked::new(calls, Arc::clone(&checks))
        };
        Ok(drive_requests(&self.requests, driver, script, row, interrupted)?)
    }

    fn drive_fixed<D: Driver>(
        &self,
        driver: impl Fn() -> D + Send + Sync + 'static,
        sent: Vec<load::requests::Request>,
        accepted: Accepted,
        checks: &Arc<AnswerChecks>,
        row: impl FnMut(&Row),
        interrupted: impl FnMut(std::time::Duration) -> bool,
    ) -> Result<Outcome> {
        let checks = Arc::clone(checks);
        let script = move |part: Part| {
            Checked::new(Fixed::new(sent.clone(), part, accepted.clone()), Arc::clone(&checks))
        };
        Ok(drive_requests(&self.requests, driver, script, row, interrupted)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_written_as_they_are_named() {
        for text in [
            "json $.ok",
            "json $.ok is true",
            "json $.a[?@.b == 'x is y'].c is x is y",
            "json $.a matches ^[0-9]+$",
            "header x-id",
            "header Content-Type matches json$",
            "contains a.b is c",
            "regex ^\\{.*\\}$",
            "size <64KiB",
            "latency < 250ms",
            "latency<250ms",
        ] {
            assert_eq!(check(text).unwrap_or_else(|why| panic!("{text}: {why}")).name, text);
        }
        let Rule::Value(Source::Json(path), Expected::Is(value)) =
            check("json $.a[?@.b == 'x is y'].c is x is y").unwrap().rule
        else {
            panic!("a value");
        };
        assert_eq!((path.to_string().contains("x is y"), &value[..]), (true, &b"x is y"[..]));
    }

    #[test]
    fn others_say_what_is_expected() {
        for (text, why) in [
            ("", "json PATH"),
            ("json", "json PATH"),
            ("jsn $.ok", "json PATH"),
            ("json ok", "JSONPath"),
            ("json ok is true", "JSONPath"),
            ("json $.a matches (", "regular expression"),
            ("regex (", "regular expression"),
            ("header a b", "header name"),
            ("size 5", "expected <, > or ="),
            ("size <x", "64KiB"),
            ("latency <5", "ms"),
            ("status 200", "--accept"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
