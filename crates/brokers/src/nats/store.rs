//! Values that nodes leave for each other, in NATS: one message of a stream for each key. Who takes a value puts an
//! empty one in its place, which succeeds once for each value that was read.
//!
//! A value begins with the time for which it is kept, as NATS before 2.11 has one age for a whole stream. What is
//! added expects that there is nothing, or the message of a value that was taken or is too old.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::bucket::{Bucket, NotPut, Put};
use super::connection::Connection;
use super::jetstream::now_ms;
use super::protocol;
use super::stored::Stored;
use crate::store::{NewValue, StoreAction, StoreAnswer, StoreCommand};
use crate::transport::Fault;

/// Bytes of the time before a value.
const TIME_BYTES: usize = 8;
/// Attempts to take or add a value that others put at the same time.
const ATTEMPTS: usize = 10;
/// The end of a subject whose last message has the time of the server. Keys begin with the prefix and a colon.
const CLOCK: &str = "clock";

/// The values of a prefix.
pub(super) struct Store {
    bucket: Bucket,
    subjects: String,
}

impl Store {
    /// With values that are kept for at most this time.
    pub(super) async fn open(
        connection: &Connection,
        prefix: &str,
        longest: Duration,
    ) -> Result<Self, Fault> {
        let subjects = format!("{}:sessions.", protocol::subject(prefix));
        let all = [format!("{subjects}*")];
        let bucket = Bucket::open(connection, (prefix, "sessions"), &all, longest, None).await?;
        Ok(Store { bucket, subjects })
    }

    pub(super) async fn check(&self, connection: &Connection) -> Result<(), Fault> {
        self.bucket.check(connection).await
    }

    fn subject(&self, key: &str) -> String {
        format!("{}{}", self.subjects, protocol::subject(key))
    }

    /// As [`crate::Link::store`].
    pub(super) async fn perform(
        &self,
        connection: &Connection,
        commands: &[StoreCommand],
    ) -> Result<Vec<StoreAnswer>, Fault> {
        let mut answers = vec![StoreAnswer::Unknown; commands.len()];
        let mut from = 0;
        while from < commands.len() {
            // Commands with different keys need no order.
            let mut keys: HashSet<&Arc<str>, RandomState> = HashSet::default();
            let rest = commands.get(from..).unwrap_or_default();
            let many = rest.iter().take_while(|command| keys.insert(&command.key)).count();
            let part = commands.iter().zip(&mut answers).skip(from).take(many);
            self.perform_all(connection, part.collect()).await?;
            from += many;
        }
        Ok(answers)
    }

    async fn perform_all(
        &self,
        connection: &Connection,
        all: Vec<(&StoreCommand, &mut StoreAnswer)>,
    ) -> Result<(), Fault> {
        let (mut puts, mut stored, mut takes) = (Vec::new(), Vec::new(), Vec::new());
        for (StoreCommand { key, what }, answer) in all {
            match what {
                StoreAction::Put(value, time) => {
                    puts.push(Put {
                        subject: self.subject(key),
                        after: None,
                        body: encoded(value, *time),
                    });
                    stored.push(answer);
                }
                StoreAction::Take => takes.push((self.subject(key), answer)),
            }
        }
        let put = self.bucket.put(connection, &puts).await?;
        for (answer, put) in stored.into_iter().zip(put) {
            *answer = match put {
                Ok(_) => StoreAnswer::Stored,
                Err(why) => refused(why),
            };
        }
        for _ in 0..ATTEMPTS {
            if takes.is_empty() {
                return Ok(());
            }
            takes = self.take(connection, takes).await?;
        }
        takes.into_iter().for_each(|(_, answer)| *answer = refused(NotPut::Conflict));
        Ok(())
    }

    /// As [`crate::Link::read`].
    pub(super) async fn read(
        &self,
        connection: &Connection,
        keys: &[Arc<str>],
    ) -> Result<Vec<StoreAnswer>, Fault> {
        let subjects: Vec<String> = keys.iter().map(|key| self.subject(key)).collect();
        let found = self.last(connection, &subjects).await?;
        let answer = |last| match last {
            Last::Value(value) => StoreAnswer::Found(value),
            Last::Nothing(_) => StoreAnswer::Missing,
        };
        Ok(found.into_iter().map(answer).collect())
    }

    /// As [`crate::Link::add`].
    pub(super) async fn add(
        &self,
        connection: &Connection,
        values: &[NewValue],
    ) -> Result<Vec<StoreAnswer>, Fault> {
        let mut answers = vec![StoreAnswer::Unknown; values.len()];
        let mut adds: Vec<_> = values.iter().zip(&mut answers).collect();
        for _ in 0..ATTEMPTS {
            if adds.is_empty() {
                break;
            }
            adds = self.try_add(connection, adds).await?;
        }
        adds.into_iter().for_each(|(_, answer)| *answer = refused(NotPut::Conflict));
        Ok(answers)
    }

    /// Adds values. Returns those whose keys have changed meanwhile.
    async fn try_add<'a>(
        &self,
        connection: &Connection,
        adds: Vec<(&'a NewValue, &'a mut StoreAnswer)>,
    ) -> Result<Vec<(&'a NewValue, &'a mut StoreAnswer)>, Fault> {
        let subjects: Vec<String> = adds.iter().map(|(new, _)| self.subject(&new.key)).collect();
        let found = self.last(connection, &subjects).await?;
        let (mut puts, mut sent) = (Vec::new(), Vec::new());
        for (((new, answer), subject), last) in adds.into_iter().zip(subjects).zip(found) {
            match last {
                Last::Value(_) => *answer = StoreAnswer::Exists,
                Last::Nothing(sequence) => {
                    let body = encoded(&new.value, new.ttl);
                    puts.push(Put { subject, after: Some(sequence), body });
                    sent.push((new, answer));
                }
            }
        }
        let put = self.bucket.put(connection, &puts).await?;
        let mut again = Vec::new();
        for ((new, answer), put) in sent.into_iter().zip(put) {
            match put {
                Ok(_) => *answer = StoreAnswer::Stored,
                Err(NotPut::Conflict) => again.push((new, answer)),
                Err(why) => *answer = refused(why),
            }
        }
        Ok(again)
    }

    /// What subjects have. As in [`Store::expire`] both times are of the server.
    async fn last(&self, connection: &Connection, subjects: &[String]) -> Result<Vec<Last>, Fault> {
        let found = self.bucket.get(connection, subjects).await?;
        let own_ms = now_ms();
        let mut server_ms = 0;
        if found.iter().flatten().any(|one| !one.body.is_empty() && until_ms(one) < own_ms) {
            server_ms = self.server_ms(connection).await?.unwrap_or(own_ms);
        }
        let last = |one: Option<Stored>| match one {
            None => Last::Nothing(0),
            Some(one) => match one.body.get(TIME_BYTES..) {
                Some(value) if until_ms(&one) >= server_ms => Last::Value(value.to_vec()),
                _ => Last::Nothing(one.sequence),
            },
        };
        Ok(found.into_iter().map(last).collect())
    }

    /// The time of the server, by a message that is put for it; `None` if it has no room.
    async fn server_ms(&self, connection: &Connection) -> Result<Option<u64>, Fault> {
        let subject = format!("{}{CLOCK}", self.subjects);
        let put = Put { subject: subject.clone(), after: None, body: Vec::new() };
        if self.bucket.put(connection, &[put]).await?.iter().any(Result::is_err) {
            return Ok(None);
        }
        let last = self.bucket.get(connection, &[subject]).await?;
        Ok(last.into_iter().flatten().next().map(|last| last.time_ms))
    }

    /// Takes values. Returns those that have changed meanwhile.
    async fn take<'a>(
        &self,
        connection: &Connection,
        takes: Vec<(String, &'a mut StoreAnswer)>,
    ) -> Result<Vec<(String, &'a mut StoreAnswer)>, Fault> {
        let subjects: Vec<String> = takes.iter().map(|(subject, _)| subject.clone()).collect();
        let values = self.bucket.get(connection, &subjects).await?;
        let (mut puts, mut found) = (Vec::new(), Vec::new());
        for ((subject, answer), value) in takes.into_iter().zip(values) {
            match value.filter(|value| value.body.len() >= TIME_BYTES) {
                None => *answer = StoreAnswer::Missing,
                Some(value) => {
                    let after = Some(value.sequence);
                    puts.push(Put { subject: subject.clone(), after, body: Vec::new() });
                    found.push((subject, answer, value));
                }
            }
        }
        let mut taken = self.bucket.put(connection, &puts).await?;
        self.expire(connection, &found, &mut taken).await?;
        let mut again = Vec::new();
        for ((subject, answer, value), taken) in found.into_iter().zip(taken) {
            match taken {
                Ok(EXPIRED) => *answer = StoreAnswer::Missing,
                Ok(_) => {
                    let value = value.body.get(TIME_BYTES..).unwrap_or_default();
                    *answer = StoreAnswer::Taken(value.to_vec());
                }
                Err(NotPut::Conflict) => again.push((subject, answer)),
                Err(why) => *answer = refused(why),
            }
        }
        Ok(again)
    }

    /// Finds out which values were too old when they were taken. Both times are of the server: the clock of this
    /// node only says where it is worth asking.
    async fn expire(
        &self,
        connection: &Connection,
        found: &[(String, &mut StoreAnswer, Stored)],
        taken: &mut [Result<u64, NotPut>],
    ) -> Result<(), Fault> {
        let now_ms = now_ms();
        let (mut sequences, mut places) = (Vec::new(), Vec::new());
        for ((_, _, value), taken) in found.iter().zip(taken) {
            if let Ok(sequence) = taken
                && until_ms(value) < now_ms
            {
                sequences.push(*sequence);
                places.push((taken, value));
            }
        }
        let times = self.bucket.times(connection, &sequences).await?;
        for ((taken, value), time_ms) in places.into_iter().zip(times) {
            if time_ms.is_some_and(|time_ms| time_ms > until_ms(value)) {
                *taken = Ok(EXPIRED);
            }
        }
        Ok(())
    }
}

/// What a subject has.
enum Last {
    Value(Vec<u8>),
    /// No value: the sequence of the message that says so, or whose value is too old; 0 without one.
    Nothing(u64),
}

/// In place of a sequence: the value was too old. No message has it.
const EXPIRED: u64 = 0;

fn encoded(value: &[u8], time: Duration) -> Vec<u8> {
    let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    [&time_ms.to_le_bytes()[..], value].concat()
}

/// The time for which a value is kept, in milliseconds.
fn time_of(body: &[u8]) -> u64 {
    body.first_chunk::<TIME_BYTES>().map_or(0, |time| u64::from_le_bytes(*time))
}

/// When a value is too old, by the time of the server.
fn until_ms(value: &Stored) -> u64 {
    value.time_ms.saturating_add(time_of(&value.body))
}

fn refused(why: NotPut) -> StoreAnswer {
    StoreAnswer::Refused(Box::from(match why {
        NotPut::Conflict => "others change the value all the time",
        NotPut::NoRoom => "JetStream has no room",
        NotPut::TooLong => "it is longer than max_payload of NATS",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_carry_their_time() {
        let body = encoded(b"abc", Duration::from_secs(2));
        assert_eq!((time_of(&body), &body[TIME_BYTES..]), (2_000, &b"abc"[..]));
        assert_eq!(time_of(&encoded(b"", Duration::ZERO)), 1, "no value is empty");
        assert_eq!(time_of(b"short"), 0);
    }
}
