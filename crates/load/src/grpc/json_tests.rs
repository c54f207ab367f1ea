//! Messages from and to JSON, and the places of errors.

use prost_reflect::MessageDescriptor;

use super::*;
use crate::grpc::schema::tests::schema;

const TYPES: &str = "syntax = \"proto3\"; package a;
    import \"google/protobuf/timestamp.proto\"; import \"google/protobuf/duration.proto\";
    import \"google/protobuf/wrappers.proto\"; import \"google/protobuf/struct.proto\";
    enum Color { NONE = 0; RED = 1; }
    message Inner { int32 x = 1; uint64 big_number = 2; }
    message Hello {
      string name = 1; Inner inner = 2; repeated Inner list = 3; map<string, int32> counts = 4;
      Color color = 5; bytes data = 6; bool flag = 7; double ratio = 8;
      oneof choice { string text = 9; int32 number = 10; }
      google.protobuf.Timestamp at = 11; google.protobuf.Duration took = 12;
      google.protobuf.Int32Value maybe = 13; google.protobuf.Struct any = 14;
      repeated string tags = 15; map<int32, Inner> inners = 16;
    }";

fn hello() -> MessageDescriptor {
    schema(TYPES).pool().get_message_by_name("a.Hello").unwrap()
}

#[test]
fn json_becomes_bytes_and_json_again() {
    for json in [
        r#"{}"#,
        r#"{"name":"x"}"#,
        r#"{"inner":{"x":-1,"bigNumber":"18446744073709551615"}}"#,
        r#"{"list":[{"x":1},{}],"counts":{"a":1}}"#,
        r#"{"color":"RED","data":"aGk=","flag":true,"ratio":0.5,"number":0}"#,
        r#"{"at":"2026-01-31T18:05:00Z","took":"1.500s","maybe":0,"any":{"a":[1.0,null]}}"#,
        r#"{"inners":{"7":{"x":1}}}"#,
    ] {
        let bytes = to_bytes(&hello(), json).unwrap();
        assert_eq!(of_bytes(&hello(), &bytes).unwrap(), json);
    }
    for (json, same) in [
        (
            r#"{"inner":{"big_number":5,"x":"7"},"color":1}"#,
            r#"{"inner":{"x":7,"bigNumber":"5"},"color":"RED"}"#,
        ),
        (r#"{"name":null}"#, "{}"),
        ("", "{}"),
        (" \n", "{}"),
    ] {
        let bytes = to_bytes(&hello(), json).unwrap();
        assert_eq!(of_bytes(&hello(), &bytes).unwrap(), same);
    }
    assert_eq!(to_bytes(&hello(), r#"{"name":"hi"}"#).unwrap(), [10, 2, b'h', b'i']);
}

#[test]
fn what_does_not_fit_is_told_with_field_and_place() {
    let inner = "message Inner has fields x (int32), bigNumber (uint64)";
    let mut wrong = Vec::new();
    for (json, text) in [
        (
            r#"{"name":5}"#,
            "name: expected a string, found the number 5, line 1 column 9; message Hello has fields name (string), inner (Inner), list (repeated Inner), counts (map<string, int32>), color (Color),",
        ),
        (
            "{\n \"inner\": {\"x\": \"y\"}}",
            &format!(
                "inner.x: expected an integer of -2147483648 to 2147483647, found \"y\", line 2 column 19; {inner}"
            ),
        ),
        (
            r#"{"list":[{"x":1},{"y":2}]}"#,
            &format!("list[1].y: no such field, line 1 column 21; {inner}"),
        ),
        (r#"{"nam":1}"#, "nam: no such field, line 1 column 6; message Hello has"),
        (
            r#"{"counts":{"a":true}}"#,
            "counts.a: expected an integer of -2147483648 to 2147483647, found true,",
        ),
        (
            r#"{"inners":{"1":{"z":1}}}"#,
            &format!("inners.1.z: no such field, line 1 column 19; {inner}"),
        ),
        (r#"{"inners":{"1":5}}"#, "inners.1: expected an object (Inner), found the number 5"),
        (r#"{"inner":[1]}"#, "inner: expected an object (Inner), found an array"),
        (r#"{"list":{"x":1}}"#, "list: expected an array, found an object"),
        (r#"{"counts":[]}"#, "counts: expected an object, found an array"),
        (r#"{"tags":["a",{}]}"#, "tags[1]: expected a string, found an object"),
        (
            r#"{"inner":{"x":99999999999}}"#,
            "inner.x: expected an integer of -2147483648 to 2147483647, found the number 99999999999",
        ),
        (
            r#"{"inner":{"bigNumber":-1}}"#,
            "inner.bigNumber: expected an integer of 0 to 18446744073709551615, found the number -1",
        ),
        (
            r#"{"inner":{"x":1.5}}"#,
            "inner.x: expected an integer of -2147483648 to 2147483647, found the number 1.5",
        ),
        (r#"{"color":"BLUE"}"#, "color: expected one of NONE, RED, found \"BLUE\""),
        (r#"{"data":"%"}"#, "data: expected Base64 in a string, found \"%\""),
        (r#"{"flag":"yes"}"#, "flag: expected true or false, found \"yes\""),
        (r#"{"ratio":"a"}"#, "ratio: expected a double, found \"a\""),
        (
            r#"{"at":"yesterday"}"#,
            "at: expected a time as \"2026-01-31T18:05:00Z\", found \"yesterday\"",
        ),
        (r#"{"took":5}"#, "took: expected a duration as \"1.5s\", found the number 5"),
        (r#"{"maybe":"x"}"#, "maybe: expected an integer, found \"x\""),
        (r#"{"any":1}"#, "any: expected an object, found the number 1"),
        ("[1]", "expected an object, found an array, line 1 column 1; message Hello"),
        ("5", "expected an object, found the number 5"),
        (
            r#"{"text":"a","number":1}"#,
            "multiple fields provided for oneof 'choice', line 1 column 23; message Hello has",
        ),
    ] {
        let error = to_bytes(&hello(), json).unwrap_err().to_string();
        if !error.starts_with(text) {
            wrong.push(format!("{json}\n got {error}\nwant {text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn invalid_json_is_told_with_line_and_column() {
    for (json, text) in [
        (r#"{"name":"a",}"#, "invalid JSON: trailing comma, line 1 column 13"),
        ("{\n\"name\" 5}", "invalid JSON: expected `:`, line 2 column 8"),
        (r#"{"name":"a"} x"#, "invalid JSON: trailing characters, line 1 column 14"),
        (r#"{"name":"a""#, "invalid JSON: EOF while parsing an object, line 1 column 11"),
        ("name=5", "invalid JSON: expected ident, line 1 column 2"),
    ] {
        assert_eq!(to_bytes(&hello(), json).unwrap_err().to_string(), text);
    }
}

#[test]
fn errors_show_the_beginning_of_long_values() {
    let json = format!(r#"{{"flag":"{}"}}"#, "\u{e4}".repeat(1_000));
    let error = to_bytes(&hello(), &json).unwrap_err().to_string();
    assert!(error.len() < 700 && error.contains('…'), "{error}");
}

#[test]
fn nested_json_and_bytes_are_bounded() {
    let types = schema("syntax = \"proto3\"; message Node { Node next = 1; }");
    let node = types.pool().get_message_by_name("Node").unwrap();
    let json = |depth| format!("{}{}", r#"{"next":"#.repeat(depth) + "{}", "}".repeat(depth));
    to_bytes(&node, &json(50)).unwrap();
    assert!(to_bytes(&node, &json(100_000)).is_err());
    let mut bytes = Vec::new();
    for _ in 0..200 {
        let mut outer = vec![10];
        prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
        outer.append(&mut bytes);
        bytes = outer;
    }
    assert!(of_bytes(&node, &bytes).is_err());
}

#[test]
fn other_bytes_are_no_message() {
    let error = of_bytes(&hello(), b"\xff\xff").unwrap_err().to_string();
    assert!(error.starts_with("2 bytes are no a.Hello: "), "{error}");
}
