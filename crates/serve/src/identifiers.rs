//! [`Identifiers`]: the Action Cable identifiers of this worker's subscriptions. Each text is kept once,
//! and all its subscribers get the same encoded bytes.

use std::collections::HashMap;
use std::sync::Arc;

use engine::invariant;

/// The properties that subscribers of a topic must share to get the same bytes: a group of
/// [`topics::Topics`], which knows it by a number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The [encoding](engine::Core::encoding) of their connections.
    pub(crate) encoding: u32,
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
}

/// The index of an identifier.
pub(crate) type Index = u32;

const ENCODING_BITS: u32 = 4;

impl Group {
    pub(crate) fn number(self) -> u32 {
        let form = match self.form {
            Form::Plain => 0,
            Form::Event => 1,
            Form::Cable(index) => index + 2,
        };
        form << ENCODING_BITS | self.encoding & ((1 << ENCODING_BITS) - 1)
    }

    pub(crate) fn of(number: u32) -> Self {
        let form = match number >> ENCODING_BITS {
            0 => Form::Plain,
            1 => Form::Event,
            index => Form::Cable(index - 2),
        };
        Group { encoding: number & ((1 << ENCODING_BITS) - 1), form }
    }
}

/// An identifier with at least one subscription.
pub(crate) struct Identifier {
    text: Arc<str>,
    /// The topic that it names.
    pub(crate) topic: Arc<str>,
    /// Whether its subscribers may whisper to each other.
    pub(crate) whispers: bool,
    /// The prefix of each message in frames for it.
    pub(crate) prefix: Box<[u8]>,
    subscriptions: u32,
}

/// The identifiers of one worker.
#[derive(Default)]
pub(crate) struct Identifiers {
    by_text: HashMap<Arc<str>, Index>,
    all: Vec<Option<Identifier>>,
    free: Vec<Index>,
}

impl Identifiers {
    /// Finds an identifier by its text, if it has a subscription.
    pub(crate) fn find(&self, text: &str) -> Option<(Index, &Identifier)> {
        let index = *self.by_text.get(text)?;
        Some((index, self.get(index)?))
    }

    pub(crate) fn get(&self, index: Index) -> Option<&Identifier> {
        self.all.get(index as usize)?.as_ref()
    }

    /// Counts a subscription and returns the identifier's index. [`Identifiers::end`] must follow once.
    pub(crate) fn begin(&mut self, text: &str, topic: &str, whispers: bool) -> Index {
        let index = match self.by_text.get(text) {
            Some(index) => *index,
            None => self.insert(text, topic, whispers),
        };
        match self.all.get_mut(index as usize) {
            Some(Some(identifier)) => identifier.subscriptions += 1,
            _ => invariant::broken("an identifier that was found or inserted is in the list"),
        }
        index
    }

    /// Ends a subscription; an identifier without subscriptions is removed.
    pub(crate) fn end(&mut self, index: Index) {
        let Some(entry) = self.all.get_mut(index as usize) else {
            return invariant::broken("an index of an identifier is in the list");
        };
        let Some(identifier) = entry else {
            return invariant::broken("an identifier ends as often as it begins");
        };
        identifier.subscriptions -= 1;
        if identifier.subscriptions == 0 {
            self.by_text.remove(&identifier.text);
            *entry = None;
            self.free.push(index);
        }
    }

    fn insert(&mut self, text: &str, topic: &str, whispers: bool) -> Index {
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
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.all.push(None);
                (self.all.len() - 1) as Index
            }
        };
        match self.all.get_mut(index as usize) {
            Some(entry) => *entry = Some(identifier),
            None => invariant::broken("a free index is in the list"),
        }
        self.by_text.insert(shared, index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_recovered_from_its_number() {
        for form in [Form::Plain, Form::Event, Form::Cable(0), Form::Cable(1_000_000)] {
            for encoding in [0, 9, 15] {
                let group = Group { encoding, form };
                assert_eq!(Group::of(group.number()), group);
            }
        }
    }

    #[test]
    fn an_identifier_is_removed_with_its_last_subscription() {
        let mut identifiers = Identifiers::default();
        let a = identifiers.begin("a", "news", false);
        assert_eq!(identifiers.begin("a", "news", false), a);
        let b = identifiers.begin("b", "news", true);
        assert_ne!(a, b);
        identifiers.end(a);
        let (found, identifier) = identifiers.find("a").unwrap();
        assert_eq!((found, &*identifier.topic, identifier.whispers), (a, "news", false));
        assert_eq!(&*identifier.prefix, br#"{"identifier":"a","message":"#);
        identifiers.end(a);
        assert!(identifiers.find("a").is_none() && identifiers.find("b").is_some());
        assert_eq!(identifiers.begin("c", "x", false), a, "its index is reused");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "an identifier ends as often as it begins")]
    fn ending_a_subscription_twice_is_a_broken_invariant() {
        let mut identifiers = Identifiers::default();
        let index = identifiers.begin("a", "news", false);
        identifiers.end(index);
        identifiers.end(index);
    }
}
