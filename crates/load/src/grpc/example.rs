//! An example of a message as JSON, to start from: every field once, one of each `oneof`, messages within
//! messages to a bounded depth.

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

use super::limits::{EXAMPLE_DEPTH, EXAMPLE_FIELDS};

/// An example of a message of this type, which `json::to_bytes` takes; empty for a type that has none.
pub(crate) fn example(kind: &MessageDescriptor) -> String {
    let mut example = Example { within: Vec::new(), fields: 0 };
    example.message(kind).unwrap_or_default()
}

struct Example {
    /// The messages that the current one is within.
    within: Vec<String>,
    /// Fields so far.
    fields: usize,
}

impl Example {
    /// `None` if it would be too deep, too large or within itself.
    fn message(&mut self, kind: &MessageDescriptor) -> Option<String> {
        let name = kind.full_name();
        if let Some(json) = well_known(name) {
            return json.map(str::to_owned);
        }
        if self.within.len() >= EXAMPLE_DEPTH || self.within.iter().any(|outer| outer == name) {
            return None;
        }
        self.within.push(name.to_owned());
        let mut members = Vec::new();
        for field in kind.fields() {
            if self.fields >= EXAMPLE_FIELDS || !is_first_of_oneof(&field) {
                continue;
            }
            self.fields += 1;
            if let Some(json) = self.field(&field) {
                members.push(format!("\"{}\":{json}", field.json_name()));
            }
        }
        self.within.pop();
        Some(format!("{{{}}}", members.join(",")))
    }

    fn field(&mut self, field: &FieldDescriptor) -> Option<String> {
        match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                let json = self.value(&entry.map_entry_value_field().kind())?;
                let key = match entry.map_entry_key_field().kind() {
                    Kind::String => "key",
                    Kind::Bool => "true",
                    _ => "1",
                };
                Some(format!("{{\"{key}\":{json}}}"))
            }
            kind if field.is_list() => Some(format!("[{}]", self.value(&kind)?)),
            kind => self.value(&kind),
        }
    }

    fn value(&mut self, kind: &Kind) -> Option<String> {
        let json = match kind {
            Kind::String => "\"text\"",
            Kind::Bytes => "\"Ynl0ZXM=\"",
            Kind::Bool => "true",
            Kind::Float | Kind::Double => "1.5",
            Kind::Enum(kind) => return of_enum(kind),
            Kind::Message(kind) => return self.message(kind),
            // Of 64 bits, too: strings are what answers have, but numbers are valid.
            _ => "1",
        };
        Some(json.to_owned())
    }
}

/// A field outside of every `oneof`, or the first of one. What `optional` generates is none.
fn is_first_of_oneof(field: &FieldDescriptor) -> bool {
    let Some(oneof) = field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) else {
        return true;
    };
    let first = oneof.fields().next();
    first.is_some_and(|first| first.number() == field.number())
}

/// The first value that is not 0, the one for "unspecified".
fn of_enum(kind: &EnumDescriptor) -> Option<String> {
    let name = kind.full_name();
    if name == "google.protobuf.NullValue" {
        return None;
    }
    let value = kind.values().find(|value| value.number() != 0).or_else(|| kind.values().next());
    value.map(|value| format!("\"{}\"", value.name()))
}

/// Types whose JSON is not an object with their fields. `Some(None)` has no example.
fn well_known(name: &str) -> Option<Option<&'static str>> {
    let json = match name.strip_prefix("google.protobuf.")? {
        "Timestamp" => "\"2026-01-31T18:05:00Z\"",
        "Duration" => "\"1.5s\"",
        "FieldMask" => "\"name\"",
        "Struct" => "{\"key\":\"value\"}",
        "ListValue" => "[\"text\"]",
        "Value" | "StringValue" => "\"text\"",
        "BytesValue" => "\"Ynl0ZXM=\"",
        "BoolValue" => "true",
        "FloatValue" | "DoubleValue" => "1.5",
        "Int32Value" | "UInt32Value" | "Int64Value" | "UInt64Value" => "1",
        // Which message it may be is not known.
        "Any" => return Some(None),
        _ => return None,
    };
    Some(Some(json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::json;
    use crate::grpc::schema::{Schema, tests::schema, well_known_file};

    fn of(schema: &Schema, name: &str) -> String {
        let kind = schema.pool().get_message_by_name(name).unwrap();
        let text = example(&kind);
        let bytes = json::to_bytes(&kind, &text).unwrap_or_else(|why| panic!("{text}: {why}"));
        assert!(text.is_empty() || json::of_bytes(&kind, &bytes).is_ok(), "{text}");
        text
    }

    #[test]
    fn an_example_has_every_kind_of_field() {
        let schema = schema(
            "syntax = \"proto3\"; package a;
            import \"google/protobuf/timestamp.proto\"; import \"google/protobuf/any.proto\";
            import \"google/protobuf/struct.proto\"; import \"google/protobuf/wrappers.proto\";
            enum Color { NONE = 0; RED = 1; }
            enum Only { ZERO = 0; }
            message Inner { int32 x = 1; }
            message Hello {
              string user_name = 1; Inner inner = 2; repeated Inner list = 3; map<int32, Inner> map = 4;
              Color color = 5; Only only = 6; bytes data = 7; optional bool flag = 8; double ratio = 9;
              oneof choice { string text = 10; int32 number = 11; }
              google.protobuf.Timestamp at = 12; google.protobuf.Any any = 13;
              google.protobuf.Struct object = 14; google.protobuf.Int64Value maybe = 15;
              google.protobuf.NullValue nothing = 16; repeated string tags = 17; uint64 id = 18;
            }",
        );
        let expected = concat!(
            r#"{"userName":"text","inner":{"x":1},"list":[{"x":1}],"map":{"1":{"x":1}},"color":"RED","#,
            r#""only":"ZERO","data":"Ynl0ZXM=","flag":true,"ratio":1.5,"text":"text","#,
            r#""at":"2026-01-31T18:05:00Z","object":{"key":"value"},"maybe":1,"tags":["text"],"id":1}"#
        );
        assert_eq!(of(&schema, "a.Hello"), expected);
    }

    #[test]
    fn recursion_and_size_are_bounded() {
        let fields: String = (1..200).map(|n| format!("string f{n} = {n};")).collect();
        let wide: String = (1..20).map(|n| format!("D{} a{n} = {n};", 2)).collect();
        let schema = schema(&format!(
            "syntax = \"proto3\"; package a;
            message Node {{ string name = 1; Node next = 2; repeated Node all = 3; map<string, Node> map = 4; }}
            message Tick {{ Tock tock = 1; }} message Tock {{ Tick tick = 1; int32 n = 2; }}
            message Large {{ {fields} }}
            message D1 {{ {wide} }} message D2 {{ {} }} message D3 {{ {} }} message D4 {{ D5 a = 1; }}
            message D5 {{ string a = 1; }}",
            wide.replace("D2", "D3"),
            wide.replace("D2", "D4"),
        ));
        assert_eq!(of(&schema, "a.Node"), r#"{"name":"text"}"#);
        assert_eq!(of(&schema, "a.Tick"), r#"{"tock":{"n":1}}"#);
        assert_eq!(of(&schema, "a.Large").matches("text").count(), EXAMPLE_FIELDS);
        assert!(of(&schema, "a.D1").len() < 2_000);
    }

    /// Descriptors themselves are proto2, recursive and large.
    #[test]
    fn examples_of_googles_own_types_are_valid() {
        let mut number = 0;
        for file in
            ["descriptor", "api", "type", "struct", "wrappers", "any", "empty", "field_mask"]
        {
            let file = well_known_file(&format!("google/protobuf/{file}.proto")).unwrap();
            let schema = Schema::of_files(vec![file], Vec::new()).unwrap();
            for kind in schema.pool().all_messages().filter(|kind| !kind.is_map_entry()) {
                of(&schema, kind.full_name());
                number += 1;
            }
        }
        assert!(number > 50, "{number}");
    }
}
