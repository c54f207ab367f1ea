//! [`ReplyType`]: whether the bytes of a message are of its type, as far as libraries of gRPC would refuse others: the
//! wire format at every depth, types of fields, text. Nothing is decoded into fields, and nothing allocated.

use std::collections::HashMap;
use std::sync::Arc;

use prost_reflect::{Kind, MessageDescriptor, Syntax};

use super::method::Method;

/// Messages within messages, as libraries allow them.
const DEPTH: u32 = 100;
/// Field numbers below this are looked up at once.
const DENSE: usize = 16;
/// Bytes of the longest varint.
const VARINT_BYTES: usize = 10;

/// The type of a message, and of those within it.
#[derive(Clone, Debug)]
pub struct ReplyType(Arc<[Shape]>);

/// The fields of a type.
#[derive(Clone, Debug)]
struct Shape {
    /// Those with small numbers, at their number.
    dense: [Wire; DENSE],
    /// The others, by number.
    more: Box<[(u32, Wire)]>,
}

/// What a field may be on the wire.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Wire {
    /// No field of the type: anything well-formed.
    Unknown,
    Varint,
    Fixed32,
    Fixed64,
    Bytes,
    Text,
    /// Numbers of this size each, one by one or packed; 0 for varints.
    List(u8),
    /// A message of this type.
    Message(u32),
    Group,
}

impl ReplyType {
    /// The type of the answers of a method.
    #[must_use]
    pub fn of(method: &Method) -> ReplyType {
        ReplyType::of_message(method.answer())
    }

    fn of_message(root: MessageDescriptor) -> ReplyType {
        let (mut types, mut places) = (vec![root.clone()], HashMap::new());
        places.insert(root.full_name().to_owned(), 0_u32);
        let mut shapes = Vec::new();
        while let Some(kind) = types.get(shapes.len()).cloned() {
            let mut shape = Shape { dense: [Wire::Unknown; DENSE], more: Box::default() };
            let mut more = Vec::new();
            for field in kind.fields() {
                let is_text = field.parent_file().syntax() != Syntax::Proto2;
                let wire = match field.kind() {
                    Kind::Message(_) if field.is_group() => Wire::Group,
                    Kind::Message(inner) => {
                        let next = types.len() as u32;
                        let place = *places.entry(inner.full_name().to_owned()).or_insert(next);
                        if place == next {
                            types.push(inner);
                        }
                        Wire::Message(place)
                    }
                    Kind::String if is_text => Wire::Text,
                    Kind::String | Kind::Bytes => Wire::Bytes,
                    Kind::Double | Kind::Fixed64 | Kind::Sfixed64 if field.is_list() => {
                        Wire::List(8)
                    }
                    Kind::Float | Kind::Fixed32 | Kind::Sfixed32 if field.is_list() => {
                        Wire::List(4)
                    }
                    Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => Wire::Fixed64,
                    Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => Wire::Fixed32,
                    _ if field.is_list() => Wire::List(0),
                    _ => Wire::Varint,
                };
                match shape.dense.get_mut(field.number() as usize) {
                    Some(place) => *place = wire,
                    None => more.push((field.number(), wire)),
                }
            }
            more.sort_unstable_by_key(|(number, _)| *number);
            shape.more = more.into();
            shapes.push(shape);
        }
        ReplyType(shapes.into())
    }

    /// Whether bytes are a message of this type.
    #[inline]
    pub(crate) fn accepts(&self, bytes: &[u8]) -> bool {
        self.0.first().is_some_and(|shape| self.fits(shape, bytes, DEPTH).is_some())
    }

    fn fits(&self, shape: &Shape, bytes: &[u8], depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (number, wire_type) = tag(&mut rest)?;
            let wire = shape.wire(number);
            match (wire_type, wire) {
                (0, Wire::Varint | Wire::List(0) | Wire::Unknown) => {
                    varint(&mut rest)?;
                }
                (1, Wire::Fixed64 | Wire::List(8) | Wire::Unknown) => rest = rest.get(8..)?,
                (5, Wire::Fixed32 | Wire::List(4) | Wire::Unknown) => rest = rest.get(4..)?,
                (2, wire) => {
                    let length = usize::try_from(varint(&mut rest)?).ok()?;
                    let (value, after) = rest.split_at_checked(length)?;
                    rest = after;
                    match wire {
                        Wire::Bytes | Wire::Unknown => {}
                        Wire::Text => drop(std::str::from_utf8(value).ok()?),
                        Wire::Message(inner) => {
                            self.fits(self.0.get(inner as usize)?, value, depth)?;
                        }
                        Wire::List(0) => varints(value)?,
                        Wire::List(size) if value.len() % usize::from(size) == 0 => {}
                        _ => return None,
                    }
                }
                (3, Wire::Group | Wire::Unknown) => skip_group(&mut rest, number, depth)?,
                _ => return None,
            }
        }
        Some(())
    }
}

impl Shape {
    #[inline]
    fn wire(&self, number: u32) -> Wire {
        match self.dense.get(number as usize) {
            Some(wire) => *wire,
            None => {
                let at = self.more.binary_search_by_key(&number, |(number, _)| *number);
                at.ok().and_then(|at| self.more.get(at)).map_or(Wire::Unknown, |(_, wire)| *wire)
            }
        }
    }
}

/// Takes the number and the wire type of a field.
#[inline]
fn tag(rest: &mut &[u8]) -> Option<(u32, u32)> {
    let tag = u32::try_from(varint(rest)?).ok()?;
    let number = tag >> 3;
    (number > 0).then_some((number, tag & 7))
}

/// Takes a varint.
#[inline]
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let (&first, after) = rest.split_first()?;
    if first < 0x80 {
        *rest = after;
        return Some(u64::from(first));
    }
    let mut value = 0;
    for (at, byte) in rest.iter().take(VARINT_BYTES).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if *byte < 0x80 {
            // Of the last one a bit is left.
            let fits = at + 1 < VARINT_BYTES || *byte <= 1;
            *rest = rest.get(at + 1..)?;
            return fits.then_some(value);
        }
    }
    None
}

/// Whether bytes are varints.
fn varints(bytes: &[u8]) -> Option<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        varint(&mut rest)?;
    }
    Some(())
}

/// Takes the fields of a group, up to its end.
fn skip_group(rest: &mut &[u8], group: u32, depth: u32) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    loop {
        match tag(rest)? {
            (_, 0) => drop(varint(rest)?),
            (_, 1) => *rest = rest.get(8..)?,
            (_, 5) => *rest = rest.get(4..)?,
            (_, 2) => {
                let length = usize::try_from(varint(rest)?).ok()?;
                *rest = rest.get(length..)?;
            }
            (number, 3) => skip_group(rest, number, depth)?,
            (number, 4) => return (number == group).then_some(()),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::DynamicMessage;

    use super::super::schema::tests::schema;
    use super::*;

    const FILE: &str = "syntax = \"proto3\"; package a;
        enum E { NONE = 0; ONE = 1; }
        message B { string text = 1; int64 count = 2; B inner = 3; repeated B many = 4; bytes raw = 5;
            repeated int32 numbers = 6; repeated fixed32 fixed = 7; double ratio = 8; E kind = 9;
            map<string, B> named = 20; fixed32 far = 2000; sint32 odd = 15; repeated double many_ratios = 16; }
        message C { string text = 1; int64 count = 2; C inner = 3; repeated C many = 4; bytes raw = 5;
            repeated int32 numbers = 6; repeated fixed32 fixed = 7; double ratio = 8; E kind = 9;
            fixed32 far = 2000; sint32 odd = 15; repeated double many_ratios = 16; }
        service S { rpc One(B) returns (B); rpc Two(C) returns (C); }";

    fn reply() -> ReplyType {
        ReplyType::of(&schema(FILE).method("/a.S/One").unwrap())
    }

    #[test]
    fn messages_of_the_type_are_accepted() {
        let reply = reply();
        let method = schema(FILE).method("/a.S/One").unwrap();
        let bytes = method
            .request_of_json(
                r#"{"text":"é","count":-1,"inner":{"text":"x"},"many":[{},{"inner":{}}],"raw":"/w==",
                "numbers":[1,-2,300],"fixed":[1,2],"ratio":1.5,"kind":"ONE","named":{"a":{"text":"b"}},
                "far":7,"odd":-5,"manyRatios":[1,2]}"#,
            )
            .unwrap();
        assert!(reply.accepts(&bytes));
        assert!(reply.accepts(b""));
        // Unknown fields of every wire type, and numbers of lists one by one.
        let unknown = b"\x50\x01\x59xxxxxxxx\x62\x01x\x6dxxxx\x73\x08\x01\x74\x30\x07\x3dxxxx";
        assert!(reply.accepts(unknown));
    }

    #[test]
    fn other_bytes_are_not_accepted() {
        let reply = reply();
        for wrong in [
            // Cut.
            &b"\x0a"[..],
            b"\x0a\x02x",
            b"\x10\x80",
            b"\x40xxx",
            b"\x1a\x02\x0a\x01",
            // Text that is none, here and in a message within, and in a map.
            b"\x0a\x01\xff",
            b"\x1a\x03\x0a\x01\xff",
            b"\xa2\x01\x03\x0a\x01\xff",
            // Other types of fields.
            b"\x08\x01",
            b"\x12\x01x",
            b"\x3a\x03xxx",
            b"\x32\x01\x80",
            b"\x85\x7d\x01",
            // No number, no wire type, the end of no group, a group without an end.
            b"\x00",
            b"\x56",
            b"\x54",
            b"\x53\x08\x01",
            b"\x53\x5c",
            // Varints that are too long.
            b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
            // Text of the web.
            b"<html>",
            b"hello, world",
        ] {
            assert!(!reply.accepts(wrong), "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn messages_within_messages_are_bounded() {
        let reply = reply();
        let nest = |depth: usize, field: u8| {
            let mut bytes = Vec::new();
            for _ in 0..depth {
                let mut outer = vec![field];
                let length = bytes.len();
                if length >= 128 {
                    outer.push((length & 0x7f | 0x80) as u8);
                }
                outer.push(if length >= 128 { (length >> 7) as u8 } else { length as u8 });
                outer.extend(bytes);
                bytes = outer;
            }
            bytes
        };
        assert!(reply.accepts(&nest(99, 0x1a)));
        assert!(!reply.accepts(&nest(101, 0x1a)));
        // Groups within groups.
        assert!(!reply.accepts(&[0x53; 100_000]));
    }

    /// What the library decodes is accepted, and nothing else; without maps, whose wire type it does not look at.
    #[test]
    fn the_library_agrees_on_random_changes() {
        let method = schema(FILE).method("/a.S/Two").unwrap();
        let (reply, kind) = (ReplyType::of(&method), method.answer());
        let text = r#"{"text":"ab","count":70000,"inner":{"text":"x","numbers":[1,300]},"many":[{},{"raw":"AAA="}],
            "fixed":[1,2],"ratio":1.5,"far":7,"odd":-5}"#;
        let bytes = method.request_of_json(text).unwrap();
        let (mut random, mut accepted) = (7_u64, 0);
        for _ in 0..50_000 {
            let mut next = || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random as usize
            };
            let mut changed = bytes.clone();
            for _ in 0..1 + next() % 2 {
                let at = next() % changed.len();
                changed[at] = next() as u8;
            }
            changed.truncate(changed.len() - next() % 3 / 2);
            let decoded = DynamicMessage::decode(kind.clone(), &changed[..]).is_ok();
            let is_accepted = reply.accepts(&changed);
            assert_eq!(decoded, is_accepted, "{}", changed.escape_ascii());
            accepted += u64::from(is_accepted);
        }
        assert!((1_000..49_000).contains(&accepted), "{accepted}");
    }
}
