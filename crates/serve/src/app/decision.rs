//! [`Decision`]: what the application has answered to a call of `--auth-url`, and [`Decisions`], those that
//! may be used again. Neither knows sockets or a clock.
//!
//! An answer that is not understood is no permission: each field has one type and bounds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use aws_lc_rs::digest;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::path::check_topic;

/// Longest identity, in bytes.
const IDENTITY_BYTES_MAX: usize = 4096;
/// Patterns of topics in an answer.
const TOPICS_MAX: usize = 100;
/// Longest reason, in bytes; the rest is cut off.
const REASON_BYTES_MAX: usize = 512;
/// Longest time for which a decision is used again, in seconds.
const TTL_MAX_S: u64 = 3600;
/// Longest time after which a connection ends, in seconds: ten years.
const EXPIRES_MAX_S: u64 = 315_360_000;
/// Memory of a decision that is kept, beyond its texts.
const DECISION_BYTES: usize = 256;

/// Whether a client may publish to its topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Publishing {
    #[default]
    Forbidden,
    Allowed,
    /// The application is asked about each message.
    Asked,
}

/// An answer of the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed(Permission),
    /// With the status of the response.
    Denied(u16),
}

/// What is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Permission {
    /// The identifiers of the connection.
    pub(crate) identity: Option<Box<str>>,
    pub(crate) publishing: Publishing,
    /// After how many seconds the connection ends.
    pub(crate) expires_in_s: Option<u64>,
}

/// A verdict, for which topics it is and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) verdict: Verdict,
    /// For the client, where its protocol has a place for it.
    pub(crate) reason: Box<str>,
    /// Names, or prefixes that end with `*`. Empty: the topic that was asked about.
    topics: Box<[Box<str>]>,
    /// For how many seconds it may be used again.
    pub(crate) ttl_s: u64,
}

#[derive(Deserialize)]
struct Answer<'a> {
    allow: bool,
    status: Option<u16>,
    reason: Option<String>,
    #[serde(borrow)]
    identity: Option<&'a RawValue>,
    topics: Option<Vec<Box<str>>>,
    #[serde(default, deserialize_with = "publishing")]
    publish: Publishing,
    expires_in: Option<u64>,
    ttl: Option<u64>,
}

fn publishing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Publishing, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Flag(bool),
        Word(String),
    }
    match Option::<Form>::deserialize(deserializer)? {
        None | Some(Form::Flag(false)) => Ok(Publishing::Forbidden),
        Some(Form::Flag(true)) => Ok(Publishing::Allowed),
        Some(Form::Word(word)) if word == "ask" => Ok(Publishing::Asked),
        Some(Form::Word(_)) => {
            Err(serde::de::Error::custom("publish: expected true, false or \"ask\""))
        }
    }
}

impl Decision {
    /// Reads an answer.
    pub(crate) fn from_json(body: &[u8]) -> Result<Decision, String> {
        // An array would be read as the fields in order.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err("expected an object".to_owned());
        }
        let answer: Answer<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let verdict = match answer.allow {
            true => Verdict::Allowed(Permission {
                identity: answer.identity.map(identity).transpose()?,
                publishing: answer.publish,
                expires_in_s: match answer.expires_in {
                    Some(0) => return Err("expires_in: expected at least 1".to_owned()),
                    seconds => seconds.map(|seconds| seconds.min(EXPIRES_MAX_S)),
                },
            }),
            false => match answer.status.unwrap_or(403) {
                status @ 400..=499 => Verdict::Denied(status),
                _ => return Err("status: expected 400 to 499".to_owned()),
            },
        };
        let topics = answer.topics.unwrap_or_default();
        if topics.len() > TOPICS_MAX {
            return Err(format!("topics: expected at most {TOPICS_MAX}"));
        }
        if let Some(why) = topics.iter().find_map(|topic| check_topic(topic).err()) {
            return Err(format!("topics: {why}"));
        }
        let mut reason = answer.reason.unwrap_or_default();
        let too_long = |(at, sign): &(usize, char)| at + sign.len_utf8() > REASON_BYTES_MAX;
        if let Some((at, _)) = reason.char_indices().find(too_long) {
            reason.truncate(at);
        }
        Ok(Decision {
            verdict,
            reason: reason.into(),
            topics: topics.into(),
            ttl_s: answer.ttl.unwrap_or(0).min(TTL_MAX_S),
        })
    }

    /// An answer with a status that denies, without JSON.
    pub(crate) fn denied(status: u16) -> Decision {
        let verdict = Verdict::Denied(status);
        Decision { verdict, reason: "".into(), topics: Box::default(), ttl_s: 0 }
    }

    /// Whether it is about this topic, if it names topics.
    pub(crate) fn covers(&self, topic: &str) -> bool {
        let matches = |pattern: &str| match pattern.strip_suffix('*') {
            Some(prefix) => topic.starts_with(prefix),
            None => topic == pattern,
        };
        self.topics.is_empty() || self.topics.iter().any(|pattern| matches(pattern))
    }

    /// Whether it is about a single topic, that which was asked about.
    fn is_single(&self) -> bool {
        self.topics.is_empty()
    }

    /// Its memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let topics = self.topics.iter().map(|topic| 16 + topic.len()).sum::<usize>();
        let identity = match &self.verdict {
            Verdict::Allowed(permission) => permission.identity.as_ref().map_or(0, |own| own.len()),
            Verdict::Denied(_) => 0,
        };
        DECISION_BYTES + self.reason.len() + topics + identity
    }
}

/// The identifiers in an answer: a string, or an object byte for byte.
fn identity(json: &RawValue) -> Result<Box<str>, String> {
    let text = json.get();
    let identity: Box<str> = match text.as_bytes().first() {
        Some(b'{') => text.into(),
        Some(b'"') => serde_json::from_str(text).map_err(|error| format!("identity: {error}"))?,
        _ => return Err("identity: expected a string or an object".to_owned()),
    };
    match identity.len() {
        1..=IDENTITY_BYTES_MAX => Ok(identity),
        _ => Err(format!("identity: expected 1 to {IDENTITY_BYTES_MAX} bytes")),
    }
}

/// The credentials of a client, as a digest: neither cookies nor tokens are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Credentials([u8; 32]);

impl Credentials {
    /// Of these parts, in order.
    pub(crate) fn of<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut own = [0; 32];
        own.copy_from_slice(context.finish().as_ref().get(..32).unwrap_or(&[0; 32]));
        Credentials(own)
    }

    /// The same for a single topic.
    fn with(self, topic: &str) -> Self {
        Credentials::of([self.0.as_slice(), topic.as_bytes()])
    }
}

/// Decisions that may be used again.
#[derive(Debug)]
pub(crate) struct Decisions {
    bytes_max: usize,
    bytes: usize,
    kept: HashMap<Credentials, (Arc<Decision>, u64, u64)>,
    /// The kept ones in the order in which they came, with those that were replaced since.
    order: VecDeque<(Credentials, u64)>,
    next: u64,
}

impl Decisions {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Decisions { bytes_max, bytes: 0, kept: HashMap::new(), order: VecDeque::new(), next: 0 }
    }

    /// The decision about a client and a topic, if one still holds.
    pub(crate) fn find(
        &self,
        now_ns: u64,
        credentials: Credentials,
        topic: &str,
    ) -> Option<Arc<Decision>> {
        let holds = |key| {
            let (decision, until_ns, _) = self.kept.get(&key)?;
            (now_ns < *until_ns && decision.covers(topic)).then(|| Arc::clone(decision))
        };
        holds(credentials).or_else(|| holds(credentials.with(topic)))
    }

    /// Keeps a decision for as long as it says.
    pub(crate) fn keep(
        &mut self,
        now_ns: u64,
        credentials: Credentials,
        topic: &str,
        decision: &Arc<Decision>,
    ) {
        if decision.ttl_s == 0 || decision.bytes() > self.bytes_max {
            return;
        }
        let key = if decision.is_single() { credentials.with(topic) } else { credentials };
        let until_ns = now_ns.saturating_add(decision.ttl_s.saturating_mul(1_000_000_000));
        let number = self.next;
        self.next += 1;
        self.bytes += decision.bytes();
        self.order.push_back((key, number));
        if let Some((before, ..)) = self.kept.insert(key, (Arc::clone(decision), until_ns, number))
        {
            self.bytes -= before.bytes();
        }
        while self.bytes > self.bytes_max && self.drop_first() {}
        // What was replaced takes no more than what is kept.
        if self.order.len() > 2 * self.kept.len() + 16 {
            let kept = &self.kept;
            let holds = |(key, number): &(Credentials, u64)| {
                kept.get(key).is_some_and(|(_, _, own)| own == number)
            };
            self.order.retain(holds);
        }
    }

    /// Drops those that do not hold any more, from the oldest on.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while let Some((key, number)) = self.order.front() {
            let kept = self.kept.get(key).filter(|(_, _, own)| own == number);
            if kept.is_some_and(|(_, until_ns, _)| now_ns < *until_ns) {
                break;
            }
            self.drop_first();
        }
        if self.kept.is_empty() {
            (self.kept, self.order) = Default::default();
        }
    }

    /// Their memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn drop_first(&mut self) -> bool {
        let Some((key, number)) = self.order.pop_front() else { return false };
        if self.kept.get(&key).is_some_and(|(_, _, own)| *own == number)
            && let Some((decision, ..)) = self.kept.remove(&key)
        {
            self.bytes -= decision.bytes();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Decision {
        Decision::from_json(text.as_bytes()).unwrap()
    }

    #[test]
    fn answers_are_read() {
        let decision = read(
            r#"{"allow":true,"identity":{"user": 7},"topics":["chat/*","news"],"publish":"ask",
                "expires_in":60,"ttl":99999,"reason":null,"status":null,"unknown":[1]}"#,
        );
        let permission = Permission {
            identity: Some(r#"{"user": 7}"#.into()),
            publishing: Publishing::Asked,
            expires_in_s: Some(60),
        };
        assert_eq!(decision.verdict, Verdict::Allowed(permission));
        assert_eq!(decision.ttl_s, TTL_MAX_S);
        for (topic, covered) in
            [("chat/", true), ("chat/1", true), ("news", true), ("news2", false), ("chat", false)]
        {
            assert_eq!(decision.covers(topic), covered, "{topic}");
        }
        let least = read(r#"{"allow":true,"topics":null,"publish":null}"#);
        assert_eq!(least.verdict, Verdict::Allowed(Permission::default()));
        assert!(least.covers("anything") && least.ttl_s == 0);
        assert_eq!(read(r#"{"allow":false}"#), Decision::denied(403));
        let denied = read(r#"{"allow":false,"status":404,"reason":"no such room"}"#);
        assert_eq!((denied.verdict, &*denied.reason), (Verdict::Denied(404), "no such room"));
    }

    #[test]
    fn what_is_not_understood_is_no_permission() {
        let long = format!(r#"{{"allow":true,"identity":"{}"}}"#, "x".repeat(4097));
        let topics = vec!["\"a\""; 101].join(",");
        let many = format!(r#"{{"allow":true,"topics":[{topics}]}}"#);
        for wrong in [
            "",
            "{",
            "[]",
            "true",
            "null",
            "[true]",
            "{}",
            r#"{"allow":1}"#,
            r#"{"allow":"true"}"#,
            r#"{"allow":null}"#,
            r#"{"allow":true}x"#,
            r#"{"allow":true,"publish":"yes"}"#,
            r#"{"allow":true,"publish":1}"#,
            r#"{"allow":true,"identity":7}"#,
            r#"{"allow":true,"identity":""}"#,
            r#"{"allow":true,"topics":"a"}"#,
            r#"{"allow":true,"topics":[""]}"#,
            r#"{"allow":true,"topics":[7]}"#,
            r#"{"allow":true,"expires_in":0}"#,
            r#"{"allow":true,"expires_in":-1}"#,
            r#"{"allow":true,"expires_in":1.5}"#,
            r#"{"allow":true,"ttl":"1"}"#,
            r#"{"allow":false,"status":200}"#,
            r#"{"allow":false,"status":503}"#,
            r#"{"allow":true,"allow":false}"#,
            &long,
            &many,
        ] {
            assert!(Decision::from_json(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    fn credentials(text: &str) -> Credentials {
        Credentials::of([text.as_bytes()])
    }

    #[test]
    fn decisions_are_used_again_for_as_long_as_they_say() {
        let mut decisions = Decisions::new(10_000);
        let (ann, bob) = (credentials("ann"), credentials("bob"));
        let one = Arc::new(read(r#"{"allow":true,"ttl":2}"#));
        let many = Arc::new(read(r#"{"allow":false,"ttl":2,"topics":["chat/*"]}"#));
        decisions.keep(0, ann, "a", &one);
        decisions.keep(0, bob, "chat/1", &many);
        decisions.keep(0, bob, "b", &Arc::new(read(r#"{"allow":true}"#)));
        let found = |now_ns, who, topic| decisions.find(now_ns, who, topic).is_some();
        assert!(found(0, ann, "a") && !found(0, ann, "b"), "only what was asked about");
        assert!(found(0, bob, "chat/2") && !found(0, bob, "a") && !found(0, bob, "b"));
        assert!(!found(0, credentials("eve"), "a"));
        assert!(found(1_999_999_999, ann, "a") && !found(2_000_000_000, ann, "a"));
        decisions.expire(1_999_999_999);
        assert_eq!(decisions.kept.len(), 2);
        decisions.expire(2_000_000_000);
        assert_eq!((decisions.kept.len(), decisions.bytes(), decisions.order.len()), (0, 0, 0));
    }

    #[test]
    fn parts_of_credentials_are_not_confused() {
        let of = |parts: &[&str]| Credentials::of(parts.iter().map(|part| part.as_bytes()));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a", ""]), of(&["", "a"]));
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
    }

    proptest! {
        /// Whatever is answered: it is a decision within its bounds, or an error.
        #[test]
        fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Decision::from_json(&body);
        }

        #[test]
        fn any_object_is_read_or_refused(
            fields in prop::collection::vec((0usize..9, "[ -~é]{0,12}"), 0..9),
        ) {
            const NAMES: [&str; 9] = [
                "allow", "status", "reason", "identity", "topics", "publish", "expires_in", "ttl", "x",
            ];
            const VALUES: [&str; 9] = [
                "true", "false", "null", "403", "-1", "\"ask\"", "[\"a*\"]", "{\"user\":1}", "1e99",
            ];
            let field = |(name, value): &(usize, String)| {
                let of = value.len() % (VALUES.len() + 1);
                let value = VALUES.get(of).map(|value| (*value).to_owned());
                let value = value.unwrap_or_else(|| serde_json::to_string(&"é").unwrap());
                format!("\"{}\":{value}", NAMES[*name])
            };
            let text = format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(","));
            if let Ok(decision) = Decision::from_json(text.as_bytes()) {
                prop_assert!(decision.ttl_s <= TTL_MAX_S);
                prop_assert!(text.contains("\"allow\":true") || text.contains("\"allow\":false"));
                let allowed = matches!(decision.verdict, Verdict::Allowed(_));
                prop_assert_eq!(allowed, text.contains("\"allow\":true"));
            }
        }

        /// Memory is what is kept, and bounded.
        #[test]
        fn kept_decisions_are_bounded(
            steps in prop::collection::vec((0u8..20, 0u64..3, any::<bool>()), 0..300),
        ) {
            let mut decisions = Decisions::new(3000);
            for (now_s, (who, ttl, many)) in steps.into_iter().enumerate() {
                let topics = if many { r#","topics":["a*"]"# } else { "" };
                let decision = read(&format!(r#"{{"allow":true,"ttl":{ttl}{topics}}}"#));
                let now_ns = now_s as u64 * 500_000_000;
                decisions.keep(now_ns, credentials(&who.to_string()), "a", &Arc::new(decision));
                prop_assert!(decisions.bytes() <= 3000);
                prop_assert!(decisions.order.len() <= 2 * decisions.kept.len() + 16);
                let sum: usize = decisions.kept.values().map(|(kept, ..)| kept.bytes()).sum();
                prop_assert_eq!(decisions.bytes(), sum);
                if who == 0 {
                    decisions.expire(now_ns);
                }
            }
        }
    }
}
