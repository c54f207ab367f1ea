//! [`Template`]: text with `{{…}}` placeholders, compiled once and rendered into a reused buffer.
//! The result depends on [`Values`] alone, so that rendering twice gives the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;

use crate::delivery::publication;
use crate::delivery::publication::Publication;
use crate::workload::scenario::condition::Items;
use crate::workload::scenario::feed::Feed;
use crate::workload::scenario::list;

/// Text with placeholders.
#[derive(Clone, Debug)]
pub struct Template {
    context: TemplateContext,
    parts: Vec<Part>,
    /// The number of the first part: random values depend on it.
    first: usize,
}

/// Where the text is used, which decides how values are escaped.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum TemplateContext {
    /// A request's path and query: invalid characters are percent-encoded.
    Target,
    /// A header value: control characters become spaces.
    Header,
    /// A body or a message: unchanged.
    Body,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Literal(Box<[u8]>),
    Value(Value, Escape),
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Value {
    Uuid,
    Seq,
    User,
    Pass,
    NowMs,
    Boundary,
    RandomInt {
        least: i64,
        most: i64,
    },
    Column {
        feed: usize,
        column: usize,
    },
    Capture(usize),
    /// A value of a captured list.
    Item {
        slot: usize,
        at: usize,
    },
    RandomItem(usize),
    Count(usize),
    Stamp,
    Group,
    Member,
    LoopItem,
    To,
    /// A column of the receiver's row.
    ToColumn {
        feed: usize,
        column: usize,
    },
}

/// An explicit escape of a value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Escape {
    None,
    /// `{{url NAME}}`: as one component of a URL.
    Url,
    /// `{{json NAME}}`: inside a JSON string.
    Json,
}

/// The names that a template may use.
#[derive(Clone, Default, Debug)]
pub struct Names {
    /// Fixed values.
    pub variables: BTreeMap<String, String>,
    /// Feeds, whose columns are `NAME.COLUMN`.
    pub feeds: Vec<Arc<Feed>>,
    /// Captures of earlier steps, by slot.
    pub captures: Vec<String>,
    /// Names of captures that are lists.
    pub lists: BTreeSet<String>,
}

/// The functions and what they return.
pub const FUNCTIONS: [(&str, &str); 19] = [
    ("uuid", "a random UUID, version 4"),
    ("seq", "a number unique to each request of the run, from 0"),
    ("user", "the user's number, from 0"),
    ("pass", "passes that this user began before this one, from 0"),
    ("now_ms", "milliseconds since 1970"),
    ("random_int LEAST MOST", "a random integer, both bounds included"),
    ("boundary", "a random boundary for a multipart body, the same within a request"),
    ("stamp", "sender, number and time of a message, checked by its receivers"),
    ("group", "the number of the user's group, from 0"),
    ("member", "the user's position in its group, from 0"),
    ("to", "the number of the receiving user; with `each`, every receiver in turn"),
    ("to NAME.COLUMN", "a column of that user's row: its number modulo the rows"),
    ("NAME[N]", "the Nth value of a captured list, from 0"),
    ("random NAME", "a value of a captured list at random, the same within a request"),
    ("count NAME", "how many values a captured list has"),
    ("item", "the current item of the step's `for_each`"),
    ("env NAME", "an environment variable, read when the run begins"),
    ("url NAME", "percent-encodes a value as a URL component"),
    ("json NAME", "escapes a value for the inside of a JSON string"),
];

/// Separates the random numbers of boundaries from others.
const BOUNDARY: u64 = 0x6d75_6c74_6970_6172;
/// Separates those that choose a value of a list.
const ITEM: u64 = 0x6974_656d_206f_6620;

/// Why a template does not compile.
#[derive(PartialEq, Eq, Debug)]
pub enum BadTemplate {
    /// What is wrong.
    Invalid(String),
    /// An unknown name.
    Unknown {
        /// The name.
        name: String,
        /// The known names.
        known: Vec<String>,
    },
}

/// The values of one request.
#[derive(Copy, Clone, Debug)]
pub struct Values<'a> {
    /// Unique to each request of the run.
    pub seq: u64,
    /// The user's number.
    pub user: u64,
    /// Passes that this user has completed.
    pub pass: u64,
    /// Wall clock.
    pub now_ms: u64,
    /// Random, for this request.
    pub random: u64,
    /// The feeds.
    pub feeds: &'a [Arc<Feed>],
    /// This user's row of each feed.
    pub rows: &'a [u32],
    /// This user's captures by slot.
    pub captures: &'a [Option<Arc<[u8]>>],
    /// The current item of `for_each`.
    pub item: &'a [u8],
    /// The stamp of the message.
    pub stamp: Publication,
    /// The user's group, and its position there.
    pub group: (u32, u32),
    /// The number of the receiving user.
    pub to: u64,
}

impl Template {
    /// Compiles `text`.
    ///
    /// # Errors
    /// An unknown or malformed placeholder, or a literal that is not allowed in this context.
    pub fn compile(
        text: &str,
        context: TemplateContext,
        names: &Names,
    ) -> Result<Template, BadTemplate> {
        let mut template = Template { context, parts: Vec::new(), first: 0 };
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            template.literal(before)?;
            let unclosed = || BadTemplate::Invalid(format!("{text:?}: {{{{ is not closed by }}}}"));
            let (inside, after) = after.split_once("}}").ok_or_else(unclosed)?;
            template.value(inside, names)?;
            rest = after;
        }
        template.literal(rest)?;
        Ok(template)
    }

    /// A body of these bytes, without placeholders.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Template {
        let parts = vec![Part::Literal(bytes.into())];
        Template { context: TemplateContext::Body, parts, first: 0 }
    }

    /// The concatenation of bodies.
    #[must_use]
    pub fn joined(templates: impl IntoIterator<Item = Template>) -> Template {
        let parts = templates.into_iter().flat_map(|template| template.parts).collect();
        Template { context: TemplateContext::Body, parts, first: 0 }
    }

    /// The same as a part of something with this many parts before.
    pub(crate) fn numbered_from(mut self, first: usize) -> Template {
        self.first = first;
        self
    }

    /// How many parts it has.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The slots and numbers of values of lists that it uses.
    pub fn items(&self) -> impl Iterator<Item = (usize, usize)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Value(Value::Item { slot, at }, _) => Some((*slot, *at)),
            _ => None,
        })
    }

    /// Its text if it has no placeholders.
    #[must_use]
    pub fn constant(&self) -> Option<&[u8]> {
        match self.parts.as_slice() {
            [] => Some(&[]),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether it has no placeholders.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Literal(_)))
    }

    /// Whether it contains a stamp.
    #[must_use]
    pub fn is_stamped(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Value(Value::Stamp, _)))
    }

    /// Appends the text with these values.
    pub fn render(&self, out: &mut Vec<u8>, values: &Values<'_>) {
        for (at, part) in (self.first..).zip(&self.parts) {
            match part {
                Part::Literal(bytes) => out.extend_from_slice(bytes),
                Part::Value(value, escape) => self.render_value(out, *value, *escape, values, at),
            }
        }
    }

    fn literal(&mut self, text: &str) -> Result<(), BadTemplate> {
        let fits = |byte: u8| match self.context {
            TemplateContext::Target => is_of_target(byte),
            TemplateContext::Header => !byte.is_ascii_control() || byte == b'\t',
            TemplateContext::Body => true,
        };
        if let Some(wrong) = text.chars().find(|char| char.is_ascii() && !fits(*char as u8)) {
            return Err(BadTemplate::Invalid(format!("{text:?}: {wrong:?} is not allowed here")));
        }
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Literal(before)) => *before = [&before[..], text.as_bytes()].concat().into(),
            _ => self.parts.push(Part::Literal(text.as_bytes().into())),
        }
        Ok(())
    }

    fn value(&mut self, inside: &str, names: &Names) -> Result<(), BadTemplate> {
        let words: Vec<&str> = inside.split_whitespace().collect();
        let (escape, words) = match words.as_slice() {
            ["url", rest @ ..] if !rest.is_empty() => (Escape::Url, rest),
            ["json", rest @ ..] if !rest.is_empty() => (Escape::Json, rest),
            words => (Escape::None, words),
        };
        let value = match *words {
            ["uuid"] => Value::Uuid,
            ["seq"] => Value::Seq,
            ["user"] => Value::User,
            ["pass"] => Value::Pass,
            ["now_ms"] => Value::NowMs,
            ["boundary"] => Value::Boundary,
            ["stamp"] => Value::Stamp,
            ["group"] => Value::Group,
            ["member"] => Value::Member,
            ["to"] => Value::To,
            ["to", name] => match names.find(name) {
                Some(Value::Column { feed, column }) => Value::ToColumn { feed, column },
                _ => return Err(names.unknown(name)),
            },
            ["random", name] => Value::RandomItem(names.list(name)?),
            ["count", name] => Value::Count(names.list(name)?),
            ["random_int", least, most] => random_int(least, most)?,
            ["env", name] => {
                let unset =
                    |_| BadTemplate::Invalid(format!("environment variable {name} is not set"));
                crate::files::note_variable(name);
                return self.fixed(&std::env::var(name).map_err(unset)?, escape);
            }
            [name] if let Some((name, at)) = indexed(name) => {
                Value::Item { slot: names.list(name)?, at }
            }
            [name] => match (names.variables.get(name), names.find(name)) {
                (_, Some(Value::Capture(_))) if names.lists.contains(name) => {
                    return Err(BadTemplate::Invalid(format!(
                        "{name} is a list: use {{{{{name}[0]}}}}, {{{{random {name}}}}} or {{{{count {name}}}}}"
                    )));
                }
                (_, Some(value)) => value,
                (Some(text), None) => return self.fixed(text, escape),
                // A capture, a column or a variable of this name comes first.
                (None, None) if name == "item" => Value::LoopItem,
                (None, None) => return Err(names.unknown(name)),
            },
            _ => return Err(names.unknown(inside.trim())),
        };
        self.parts.push(Part::Value(value, escape));
        Ok(())
    }

    /// Inserts a value that is known at compile time.
    fn fixed(&mut self, text: &str, escape: Escape) -> Result<(), BadTemplate> {
        let mut bytes = Vec::new();
        insert(&mut bytes, text.as_bytes(), self.context, escape);
        let text = String::from_utf8(bytes);
        self.literal(&text.map_err(|_| BadTemplate::Invalid("not UTF-8".to_owned()))?)
    }

    fn render_value(
        &self,
        out: &mut Vec<u8>,
        value: Value,
        escape: Escape,
        values: &Values<'_>,
        at: usize,
    ) {
        let random = |turn: u64| mixed(values.random ^ mixed(at as u64 ^ turn << 32));
        // Writing to a `Vec` cannot fail.
        let _ = match value {
            Value::Uuid => uuid(out, random(0), random(1)),
            Value::Seq => write!(out, "{}", values.seq),
            Value::User => write!(out, "{}", values.user),
            Value::Pass => write!(out, "{}", values.pass),
            Value::NowMs => write!(out, "{}", values.now_ms),
            // Not of `random`, so that header and body have the same.
            Value::Boundary => {
                let (high, low) = (mixed(values.random ^ BOUNDARY), mixed(!values.random));
                write!(out, "standfast-{high:016x}{low:016x}")
            }
            Value::Stamp => write!(out, "{}", publication::encode(&values.stamp, 0)),
            Value::Group => write!(out, "{}", values.group.0),
            Value::Member => write!(out, "{}", values.group.1),
            Value::To => write!(out, "{}", values.to),
            Value::ToColumn { feed, column } => {
                let feed = values.feeds.get(feed);
                let row = feed.map(|feed| (values.to % u64::from(feed.rows().max(1))) as u32);
                let cell = feed.zip(row).map(|(feed, row)| feed.cell(row, column));
                insert(out, cell.unwrap_or_default(), self.context, escape);
                Ok(())
            }
            Value::RandomInt { least, most } => {
                let span = (i128::from(most) - i128::from(least) + 1) as u128;
                let above = (u128::from(random(0)) * span) >> 64;
                write!(out, "{}", i128::from(least) + above as i128)
            }
            Value::Column { feed, column } => {
                let row = values.rows.get(feed).copied().unwrap_or_default();
                let cell = values.feeds.get(feed).map(|feed| feed.cell(row, column));
                insert(out, cell.unwrap_or_default(), self.context, escape);
                Ok(())
            }
            Value::Item { .. } | Value::RandomItem(_) => {
                let (Value::Item { slot, .. } | Value::RandomItem(slot)) = value else { return };
                let captured = values.captures.get(slot).and_then(Option::as_deref);
                let list = captured.unwrap_or_default();
                let at = match value {
                    Value::Item { at, .. } => at,
                    // Not of `random`, so that all parts of a request have the same.
                    _ => below(mixed(values.random ^ mixed(ITEM ^ slot as u64)), list::count(list)),
                };
                insert(out, list::nth(list, at).unwrap_or_default(), self.context, escape);
                Ok(())
            }
            Value::Count(slot) => {
                let list = values.captures.get(slot).and_then(Option::as_deref);
                write!(out, "{}", list::count(list.unwrap_or_default()))
            }
            Value::LoopItem => {
                insert(out, values.item, self.context, escape);
                Ok(())
            }
            Value::Capture(slot) => {
                let captured = values.captures.get(slot).and_then(Option::as_deref);
                insert(out, captured.unwrap_or_default(), self.context, escape);
                Ok(())
            }
        };
    }
}

impl Names {
    fn find(&self, name: &str) -> Option<Value> {
        if let Some(slot) = self.captures.iter().position(|captured| captured == name) {
            return Some(Value::Capture(slot));
        }
        let (feed_name, column) = name.split_once('.')?;
        let feed = self.feeds.iter().position(|feed| feed.name() == feed_name)?;
        let column = self.feeds.get(feed)?.column(column)?;
        Some(Value::Column { feed, column })
    }

    /// The slot of a captured list.
    fn list(&self, name: &str) -> Result<usize, BadTemplate> {
        let slot = self.captures.iter().position(|captured| captured == name);
        let slot = slot.ok_or_else(|| self.unknown(name))?;
        if self.lists.contains(name) {
            return Ok(slot);
        }
        Err(BadTemplate::Invalid(format!("{name} is not a list: capture it with take = \"all\"")))
    }

    /// Whether a capture, a column or a variable has this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some() || self.variables.contains_key(name)
    }

    /// The list of this name: a column or a capture.
    #[must_use]
    pub fn loop_items(&self, name: &str) -> Option<Items> {
        match self.find(name)? {
            Value::Column { feed, column } => Some(Items::Column(feed, column)),
            Value::Capture(slot) if self.lists.contains(name) => Some(Items::List(slot)),
            Value::Capture(slot) => Some(Items::Capture(slot)),
            _ => None,
        }
    }

    /// The error for an unknown name.
    #[must_use]
    pub fn unknown(&self, name: &str) -> BadTemplate {
        let columns = self.feeds.iter().flat_map(|feed| {
            feed.columns().iter().map(move |column| format!("{}.{column}", feed.name()))
        });
        let functions = FUNCTIONS.iter().map(|(function, _)| (*function).to_owned());
        let named = self.variables.keys().chain(&self.captures).cloned();
        let known = named.chain(columns).chain(functions).collect();
        BadTemplate::Unknown { name: name.to_owned(), known }
    }
}

/// Parses `NAME[N]`.
fn indexed(text: &str) -> Option<(&str, usize)> {
    let (name, at) = text.strip_suffix(']')?.split_once('[')?;
    Some((name, at.parse().ok()?))
}

/// A number below `count`, or 0.
pub(crate) fn below(random: u64, count: usize) -> usize {
    ((u128::from(random) * count as u128) >> 64) as usize
}

fn random_int(least: &str, most: &str) -> Result<Value, BadTemplate> {
    let both = least.parse().ok().zip(most.parse().ok());
    match both.filter(|(least, most)| least <= most) {
        Some((least, most)) => Ok(Value::RandomInt { least, most }),
        None => Err(BadTemplate::Invalid(format!(
            "random_int {least} {most}: expected a minimum and a maximum, as in {{{{random_int 1 100}}}}"
        ))),
    }
}

/// Appends a value, escaped for its context.
fn insert(out: &mut Vec<u8>, value: &[u8], context: TemplateContext, escape: Escape) {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    match (escape, context) {
        (Escape::Url, _) => percent_encoded(out, value, unreserved),
        (Escape::Json, _) => json_escaped(out, value),
        (Escape::None, TemplateContext::Target) => percent_encoded(out, value, is_of_target),
        (Escape::None, TemplateContext::Header) => {
            out.extend(value.iter().map(|&byte| if byte.is_ascii_control() { b' ' } else { byte }));
        }
        (Escape::None, TemplateContext::Body) => out.extend_from_slice(value),
    }
}

fn percent_encoded(out: &mut Vec<u8>, value: &[u8], stays: impl Fn(u8) -> bool) {
    for &byte in value {
        if stays(byte) {
            out.push(byte);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

fn json_escaped(out: &mut Vec<u8>, value: &[u8]) {
    for &byte in value {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            0..=0x1f => {
                let _ = write!(out, "\\u{byte:04x}");
            }
            _ => out.push(byte),
        }
    }
}

/// Whether a byte is allowed in a request target (RFC 3986; a fragment is never sent).
fn is_of_target(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte)
}

fn uuid(out: &mut Vec<u8>, high: u64, low: u64) -> std::io::Result<()> {
    // RFC 9562 section 5.4: version 4, variant 10.
    let high = high & !0xf000 | 0x4000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    write!(out, "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff)
}

/// Mixes a counter into a pseudo-random number (SplitMix64).
pub(crate) fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
