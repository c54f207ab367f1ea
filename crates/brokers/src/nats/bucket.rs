//! [`Bucket`]: the last value of each of many keys, in a stream of JetStream that keeps one message of each subject.
//!
//! A value is put in place of one that was read: the server compares the sequence of the last message of the
//! subject. So of two nodes that change a value one has to read it again. Nothing is deleted by its sequence, as
//! NATS forgets that when it is killed: an empty value takes the place of the last one, until it is too old.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::{self, Width, nanos, new_stream, open_stream, stream_name};
use super::connection::Connection;
use super::protocol::{self, Delivery};
use super::stored::{ApiError, Stored, answer, invalid, stored};
use crate::limits::{BATCH_BYTES, BATCH_CHANNELS, DUPLICATE_WINDOW};
use crate::transport::Fault;

/// Shortest age that JetStream takes.
const AGE_MIN: Duration = Duration::from_millis(100);

/// A stream of last values.
pub(crate) struct Bucket {
    name: String,
    created: String,
    width: Width,
}

/// A value to be put.
pub(crate) struct Put {
    pub(crate) subject: String,
    /// The sequence of the value that it takes the place of, 0 if there is none; `None` for any.
    pub(crate) after: Option<u64>,
    pub(crate) body: Vec<u8>,
}

/// Why a value was not put.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum NotPut {
    /// There is another value than that which was read.
    Conflict,
    /// NATS has no room.
    NoRoom,
    /// It is longer than a message may be.
    TooLong,
}

impl Bucket {
    /// Creates the stream of a prefix with these subjects, or changes the one that is there. Values are kept for
    /// `age`. What is put to subjects such as the first of `republish` is passed on to the second.
    pub(crate) async fn open(
        connection: &Connection,
        (prefix, what): (&str, &str),
        subjects: &[String],
        age: Duration,
        republish: Option<(&str, &str)>,
    ) -> Result<Self, Fault> {
        let name = stream_name(prefix, what);
        let set = |config: &mut Value| {
            let age = nanos(age.max(AGE_MIN));
            config["subjects"] = json!(subjects);
            config["max_msgs_per_subject"] = 1.into();
            config["max_age"] = age.into();
            config["duplicate_window"] = age.min(nanos(DUPLICATE_WINDOW)).into();
            if let Some((from, to)) = republish {
                config["republish"] = json!({"src": from, "dest": to});
            }
        };
        let mut config = new_stream(&name);
        // Without room nothing is evicted for others.
        config["discard"] = "new".into();
        set(&mut config);
        let state = open_stream(connection, &name, &config, |state| {
            let mut config = state.config.clone();
            set(&mut config);
            (config != state.config).then_some(config)
        });
        let created = state.await?.created;
        Ok(Bucket { name, created, width: Width::default() })
    }

    /// Verifies that the stream is there and was not created anew.
    pub(crate) async fn check(&self, connection: &Connection) -> Result<(), Fault> {
        api::state(connection, &self.name, &self.created).await.map(drop)
    }

    /// The last messages of subjects, as many.
    pub(crate) async fn get(
        &self,
        connection: &Connection,
        subjects: &[String],
    ) -> Result<Vec<Option<Stored>>, Fault> {
        // Subjects need no escapes.
        let body = |subject: &String| format!(r#"{{"last_by_subj":"{subject}"}}"#);
        self.read(connection, subjects, body).await
    }

    /// The time of a message in milliseconds since 1970; `None` if another one has taken its place.
    pub(crate) async fn times(
        &self,
        connection: &Connection,
        sequences: &[u64],
    ) -> Result<Vec<Option<u64>>, Fault> {
        let body = |sequence: &u64| format!(r#"{{"seq":{sequence}}}"#);
        let all = self.read(connection, sequences, body).await?;
        Ok(all.into_iter().map(|one| one.map(|one| one.time_ms)).collect())
    }

    async fn read<K>(
        &self,
        connection: &Connection,
        keys: &[K],
        body: impl Fn(&K) -> String,
    ) -> Result<Vec<Option<Stored>>, Fault> {
        let api = api::subject("STREAM.MSG.GET", &self.name);
        let mut found = Vec::with_capacity(keys.len());
        while found.len() < keys.len() {
            let mut requests = connection.requests();
            let part = keys.iter().skip(found.len()).take(self.width.get());
            part.for_each(|key| api::request(&mut requests, &api, &body(key)));
            let answers = requests.send().await?;
            let bytes: usize = answers.iter().map(|answer| answer.body.len()).sum();
            self.width.adapt(bytes, answers.len());
            if answers.is_empty() {
                return Err(invalid("STREAM.MSG.GET"));
            }
            for delivery in &answers {
                found.push(match answer(delivery) {
                    Ok(answer) => Some(stored(&answer)?),
                    Err(ApiError::NoMessage) => None,
                    Err(error) => return Err(api::fault(&self.name, error)),
                });
            }
        }
        Ok(found)
    }

    /// Puts values, and returns their sequences.
    pub(crate) async fn put(
        &self,
        connection: &Connection,
        values: &[Put],
    ) -> Result<Vec<Result<u64, NotPut>>, Fault> {
        let mut done = Vec::with_capacity(values.len());
        let mut rest = values.iter();
        while done.len() < values.len() {
            let mut requests = connection.requests();
            let (first, mut sent) = (done.len(), Vec::new());
            while sent.len() < BATCH_CHANNELS && requests.bytes.len() < BATCH_BYTES {
                let Some(Put { subject, after, body }) = rest.next() else { break };
                let head = after.map_or_else(String::new, |after| {
                    format!("NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {after}\r\n\r\n")
                });
                if head.len() + body.len() > connection.payload_bytes_max() {
                    // The server would close the connection.
                    done.push(Err(NotPut::TooLong));
                    continue;
                }
                let reply = requests.reply();
                match head.is_empty() {
                    true => protocol::request(&mut requests.bytes, subject, &reply, body),
                    false => {
                        let bytes = &mut requests.bytes;
                        protocol::request_with_head(bytes, subject, &reply, &head, body);
                    }
                }
                sent.push(done.len());
                done.push(Ok(0));
            }
            if done.len() == first {
                return Err(invalid("a value"));
            }
            let answers = requests.send().await?;
            for (at, delivery) in sent.into_iter().zip(&answers) {
                if let Some(place) = done.get_mut(at) {
                    *place = self.answer(delivery)?;
                }
            }
        }
        Ok(done)
    }

    fn answer(&self, delivery: &Delivery) -> Result<Result<u64, NotPut>, Fault> {
        Ok(match answer(delivery) {
            Ok(answer) => Ok(answer["seq"].as_u64().ok_or_else(|| invalid("a value"))?),
            Err(ApiError::Conflict) => Err(NotPut::Conflict),
            Err(ApiError::NoRoom) => Err(NotPut::NoRoom),
            Err(ApiError::TooLong) => Err(NotPut::TooLong),
            Err(error) => return Err(api::fault(&self.name, error)),
        })
    }
}
