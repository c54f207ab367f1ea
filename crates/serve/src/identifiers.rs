//! [`Identifiers`]: the Action Cable identifiers of this worker's subscriptions. Each text is kept once,
//! and all its subscribers get the same encoded bytes.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use action_cable::Encoding;
use engine::invariant;
use topics::Slots;

use crate::auth::Whispers;

/// The properties that subscribers of a topic must share to get the same bytes: a group of
/// [`topics::Topics`], which knows it by a number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The [encoding](engine::Core::encoding) of their connections.
    pub(crate) encoding: u32,
    /// How messages of Action Cable are written; JSON for other forms.
    pub(crate) messages: Encoding,
    pub(crate) form: Form,
}

/// The form in which a publication is sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Unchanged.
    Plain,
    /// As a server-sent event.
    Event,
    /// As Action Cable's data for this identifier.
    Cable(Index),
    /// The same with the position, for the extended protocol.
    CablePositions(Index),
}

/// The index of an identifier.
pub(crate) type Index = u32;

const ENCODING_BITS: u32 = 4;
const MESSAGES_BITS: u32 = 2;
/// The bits of a number before those of its form.
const LOW_BITS: u32 = ENCODING_BITS + MESSAGES_BITS;

impl Group {
    pub(crate) fn number(self) -> u32 {
        let form = match self.form {
            Form::Plain => 0,
            Form::Event => 1,
            Form::Cable(index) => 2 * index + 2,
            Form::CablePositions(index) => 2 * index + 3,
        };
        let encoding = self.encoding & ((1 << ENCODING_BITS) - 1);
        form << LOW_BITS | (self.messages as u32) << ENCODING_BITS | encoding
    }

    pub(crate) fn of(number: u32) -> Self {
        let form = match number >> LOW_BITS {
            0 => Form::Plain,
            1 => Form::Event,
            number if number % 2 == 0 => Form::Cable(number / 2 - 1),
            number => Form::CablePositions(number / 2 - 1),
        };
        let messages = number >> ENCODING_BITS & ((1 << MESSAGES_BITS) - 1);
        let messages = Encoding::ALL.get(messages as usize).copied().unwrap_or_default();
        Group { encoding: number & ((1 << ENCODING_BITS) - 1), messages, form }
    }
}

/// An identifier with at least one subscription.
pub(crate) struct Identifier {
    text: Arc<str>,
    /// The topic that it names; empty if the application chooses the streams of each subscription.
    pub(crate) topic: Arc<str>,
    /// When its subscribers may whisper to each other.
    pub(crate) whispers: Whispers,
    /// The prefix of each message in frames for it.
    pub(crate) prefix: Box<[u8]>,
    subscriptions: u32,
}

/// Memory of a subscription that shares nothing with others, beyond its texts, in bytes: entries of
/// the identifier, of the group and of the topic, with the spare room of tables. Measured.
const SUBSCRIPTION_BYTES: usize = 640;

/// Memory of a subscription that shares nothing with others, in bytes. It counts for the limit of
/// a connection even if others have the same: they may leave.
pub(crate) fn subscription_bytes(identifier: &str, topic: &str) -> u32 {
    // As text and in the prefix, where quotes are escaped.
    let quotes = identifier.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    let bytes = SUBSCRIPTION_BYTES + 2 * identifier.len() + quotes + 2 * topic.len();
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Memory of a topic with one subscriber, beyond its name, in bytes: the entries of the group and of
/// the topic, with the spare room of tables.
const TOPIC_BYTES: usize = 400;

/// Memory of one subscription's entries in the lists of its connection and its group, in bytes, with
/// the spare room of these lists.
pub(crate) const MEMBERSHIP_BYTES: usize = 32;

/// The share of a topic's memory that each of the members of a group without an identifier accounts
/// for, in bytes.
pub(crate) fn topic_share(topic: &str, members: usize) -> usize {
    (TOPIC_BYTES + topic.len()) / members.max(1)
}

impl Identifier {
    /// Its text.
    pub(crate) fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// The share of its memory that each of its subscriptions accounts for, in bytes.
    pub(crate) fn share(&self) -> usize {
        let bytes = subscription_bytes(&self.text, &self.topic) as usize;
        bytes / (self.subscriptions as usize).max(1)
    }

    /// The memory of a subscription by it, in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        subscription_bytes(&self.text, &self.topic)
    }
}

/// The identifiers of one worker.
#[derive(Default)]
pub(crate) struct Identifiers {
    by_text: HashMap<Arc<str>, Index>,
    all: Slots<Identifier>,
    /// Messages that had no place in the encoding of a group, since [`Identifiers::take_unencodable`].
    unencodable: Cell<u64>,
}

impl Identifiers {
    /// Finds an identifier by its text, if it has a subscription.
    pub(crate) fn find(&self, text: &str) -> Option<(Index, &Identifier)> {
        let index = *self.by_text.get(text)?;
        Some((index, self.get(index)?))
    }

    /// Counts a message that the encoding of a group has no place for.
    pub(crate) fn count_unencodable(&self) {
        self.unencodable.set(self.unencodable.get() + 1);
    }

    pub(crate) fn take_unencodable(&self) -> u64 {
        self.unencodable.take()
    }

    pub(crate) fn get(&self, index: Index) -> Option<&Identifier> {
        self.all.get(index)
    }

    /// Counts a subscription and returns the identifier's index. [`Identifiers::end`] must follow once.
    pub(crate) fn begin(&mut self, text: &str, topic: &str, whispers: Whispers) -> Index {
        let index = match self.by_text.get(text) {
            Some(index) => *index,
            None => self.insert(text, topic, whispers),
        };
        match self.all.get_mut(index) {
            Some(identifier) => identifier.subscriptions += 1,
            None => invariant::broken("an identifier that was found or inserted is in the list"),
        }
        index
    }

    /// Ends a subscription; an identifier without subscriptions is removed.
    pub(crate) fn end(&mut self, index: Index) {
        let Some(identifier) = self.all.get_mut(index) else {
            return invariant::broken("an identifier ends as often as it begins");
        };
        identifier.subscriptions -= 1;
        if identifier.subscriptions > 0 {
            return;
        }
        if let Some(identifier) = self.all.remove(index) {
            self.by_text.remove(&identifier.text);
        }
        if self.by_text.capacity() > 64 && self.by_text.len() < self.by_text.capacity() / 8 {
            self.by_text.shrink_to(2 * self.by_text.len());
        }
    }

    fn insert(&mut self, text: &str, topic: &str, whispers: Whispers) -> Index {
        let shared: Arc<str> = text.into();
        let mut prefix = Vec::new();
        action_cable::data_prefix(text, &mut prefix);
        let identifier = Identifier {
            text: Arc::clone(&shared),
            topic: topic.into(),
            whispers,
            prefix: prefix.into(),
            subscriptions: 0,
        };
        let index = self.all.insert(identifier);
        self.by_text.insert(shared, index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_recovered_from_its_number() {
        let [first, last] =
            [0, 1_000_000].map(|index| [Form::Cable(index), Form::CablePositions(index)]);
        for form in [Form::Plain, Form::Event].into_iter().chain(first).chain(last) {
            for encoding in [0, 9, 15] {
                for messages in Encoding::ALL {
                    let group = Group { encoding, messages, form };
                    assert_eq!(Group::of(group.number()), group);
                }
            }
        }
    }

    #[test]
    fn a_topic_counts_for_its_subscribers_with_a_share() {
        let name = "n".repeat(250);
        assert_eq!(topic_share(&name, 1), TOPIC_BYTES + 250);
        assert_eq!(topic_share(&name, 65), 10);
        assert_eq!(topic_share(&name, 0), TOPIC_BYTES + 250);
    }

    #[test]
    fn an_identifier_is_removed_with_its_last_subscription() {
        let mut identifiers = Identifiers::default();
        let a = identifiers.begin("a", "news", Whispers::Never);
        assert_eq!(identifiers.begin("a", "news", Whispers::Never), a);
        let b = identifiers.begin("b", "news", Whispers::Signed);
        assert_ne!(a, b);
        identifiers.end(a);
        let (found, identifier) = identifiers.find("a").unwrap();
        assert_eq!((found, &*identifier.topic, identifier.whispers), (a, "news", Whispers::Never));
        assert_eq!(&*identifier.prefix, br#"{"identifier":"a","message":"#);
        identifiers.end(a);
        assert!(identifiers.find("a").is_none() && identifiers.find("b").is_some());
        assert_eq!(identifiers.begin("c", "x", Whispers::Never), a, "its index is reused");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "an identifier ends as often as it begins")]
    fn ending_a_subscription_twice_is_a_broken_invariant() {
        let mut identifiers = Identifiers::default();
        let index = identifiers.begin("a", "news", Whispers::Never);
        identifiers.end(index);
        identifiers.end(index);
    }
}
