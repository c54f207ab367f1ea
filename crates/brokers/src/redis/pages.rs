//! What Redis keeps of topics, fetched in pages of bounded length, so that no script runs for long.

use redis::Value;

use super::kept::{invalid, number};
use super::{rejected, unreadable};
use crate::kept::{Kept, Position};
use crate::limits::{FETCH_BYTES, FETCH_PAGE_BYTES_MIN};
use crate::transport::{Channel, Fault, Fetched, Rejected};

/// What one command asks for.
pub(super) struct Page<'c> {
    pub(super) channel: &'c str,
    pub(super) after: Option<Position>,
    /// The id of the entry that follows the page, or `+` for the newest ones.
    pub(super) before: String,
    pub(super) bytes: usize,
    /// The number of the channel.
    at: usize,
}

/// Fetches all pages of channels. Each has at least one entry, and is older than the one before.
pub(super) async fn fetch_pages(
    channels: &[(Channel, Option<Position>)],
    send: impl AsyncFn(&[Page<'_>]) -> Result<Vec<Value>, Fault>,
) -> Result<Vec<Result<Fetched, Rejected>>, Fault> {
    let bytes = (FETCH_BYTES / channels.len().max(1)).max(FETCH_PAGE_BYTES_MIN);
    let mut all: Vec<Option<Result<Fetched, Rejected>>> = channels.iter().map(|_| None).collect();
    let mut pages: Vec<Page<'_>> = channels
        .iter()
        .enumerate()
        .map(|(at, (channel, after))| Page {
            channel,
            after: *after,
            before: "+".to_owned(),
            bytes,
            at,
        })
        .collect();
    while !pages.is_empty() {
        let answers = send(&pages).await?;
        if answers.len() != pages.len() {
            return Err(invalid("EVALSHA"));
        }
        let mut next = Vec::new();
        for (page, answer) in pages.into_iter().zip(answers) {
            let Some(place) = all.get_mut(page.at) else { continue };
            let (part, before) = match fetched(answer, page.channel)? {
                Ok(part) => part,
                Err(why) => {
                    *place = Some(Err(why));
                    continue;
                }
            };
            let is_more = match place {
                Some(Ok(newer)) => add_older(newer, part),
                Some(Err(_)) => false,
                None => {
                    *place = Some(Ok(part));
                    true
                }
            };
            if is_more && !before.is_empty() {
                next.push(Page { before, ..page });
            }
        }
        pages = next;
    }
    all.into_iter().map(|one| one.ok_or_else(|| invalid("EVALSHA"))).collect()
}

/// Adds an older page. Returns false if there is none, as what was older is not kept any more.
fn add_older(newer: &mut Fetched, mut older: Fetched) -> bool {
    if older.epoch != newer.epoch || older.messages.is_empty() {
        return false;
    }
    older.messages.append(&mut newer.messages);
    (newer.floor, newer.floor_ms, newer.messages) = (older.floor, older.floor_ms, older.messages);
    true
}

/// A page, and the id of the entry before which there may be more.
type Part = (Fetched, String);

fn fetched(answer: Value, channel: &str) -> Result<Result<Part, Rejected>, Fault> {
    match answer.extract_error() {
        Ok(Value::Array(parts)) => Ok(past(parts).ok_or_else(|| unreadable(channel))),
        Ok(_) => Err(invalid("EVALSHA")),
        Err(error) => rejected(channel, error).map(Err),
    }
}

fn past(mut parts: Vec<Value>) -> Option<Part> {
    let (Value::Array(entries), Value::BulkString(before)) = (parts.pop()?, parts.pop()?) else {
        return None;
    };
    let epoch = u32::try_from(number(parts.first())?).ok()?;
    let (floor, floor_ms) = (number(parts.get(1))?, number(parts.get(2))?);
    let last = number(parts.get(3))?;
    let message = |entry: Value| message(epoch, entry);
    let messages = entries.into_iter().rev().map(message).collect::<Option<_>>()?;
    let before = String::from_utf8(before).ok()?;
    Some((Fetched { epoch, floor, floor_ms, last, messages }, before))
}

/// An entry of a stream: its id and its only field.
fn message(epoch: u32, entry: Value) -> Option<(Kept, Vec<u8>)> {
    let Value::Array(parts) = entry else { return None };
    let mut parts = parts.into_iter();
    let (Value::BulkString(id), Value::Array(fields)) = (parts.next()?, parts.next()?) else {
        return None;
    };
    let (time_ms, offset) = std::str::from_utf8(&id).ok()?.split_once('-')?;
    let position = Position { epoch, offset: offset.parse().ok()? };
    let kept = Kept { position, time_ms: time_ms.parse().ok()? };
    match fields.into_iter().nth(1)? {
        Value::BulkString(body) => Some((kept, body)),
        _ => None,
    }
}
