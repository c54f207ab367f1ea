//! Messages of templates, compared with those of the rendered JSON.

use super::*;
use crate::grpc::json::of_bytes;
use crate::grpc::schema::Schema;
use crate::grpc::schema::tests::schema;

const TYPES: &str = "syntax = \"proto3\"; package a;
    import \"google/protobuf/timestamp.proto\"; import \"google/protobuf/wrappers.proto\";
    enum Color { NONE = 0; RED = 1; }
    message Inner { int32 x = 1; string text = 2; Inner inner = 3; }
    message All {
      string name = 1; Inner inner = 2; repeated Inner list = 3; map<string, Inner> map = 4;
      Color color = 5; bytes data = 6; bool flag = 7; double d = 8; float f = 9; sint32 s = 10; sint64 l = 11;
      fixed32 a = 12; sfixed32 b = 13; fixed64 c = 14; sfixed64 e = 15; uint32 u = 16; uint64 v = 17;
      int64 i = 18; repeated int32 numbers = 19; repeated string tags = 20; map<int32, int64> counts = 21;
      google.protobuf.Timestamp at = 22; google.protobuf.Int64Value maybe = 23;
      oneof choice { string one = 24; int32 other = 25; }
    }
    service S { rpc Get(All) returns (All); }";

fn method(schema: &Schema) -> Method {
    schema.method("/a.S/Get").unwrap()
}

fn render(template: &mut MessageTemplate, seq: u64, captures: &[&[u8]]) -> Result<Vec<u8>, String> {
    let captures: Vec<_> = captures.iter().map(|bytes| Some((*bytes).into())).collect();
    let values = Values {
        seq,
        user: 5,
        pass: 6,
        now_ms: 7,
        random: 8 ^ seq,
        feeds: &[],
        rows: &[],
        captures: &captures,
        item: b"9",
        stamp: Publication::new(0, 0, 0),
        group: (0, 0),
        to: 0,
    };
    let mut out = b"before".to_vec();
    let rendered = template.render(&values, &mut out).map_err(|why| why.to_string());
    assert!(out.starts_with(b"before"));
    let framed = out.split_off(6);
    rendered.map(|()| {
        let (prefix, message) = framed.split_at(PREFIX_BYTES);
        assert_eq!(prefix[0], 0);
        assert_eq!(prefix[1..], (message.len() as u32).to_be_bytes());
        message.to_vec()
    })
}

/// Both forms of a template are the same message.
#[test]
fn pieces_are_the_message_that_the_json_is() {
    let schema = schema(TYPES);
    for (text, in_pieces) in [
        (r#"{"name":"{{seq}}"}"#, true),
        (r#"{"name":"user {{user}} of {{seq}} ✓","i":{{seq}},"color":"RED"}"#, true),
        (
            r#"{"inner":{"x":1,"text":"{{seq}}","inner":{"x":{{seq}}}},"list":[{"x":2},{"x":"{{seq}}"},{}]}"#,
            true,
        ),
        (
            r#"{"d":{{seq}},"f":"{{seq}}","s":{{seq}},"l":{{seq}},"a":{{seq}},"b":{{seq}},"c":{{seq}}}"#,
            true,
        ),
        (
            r#"{"e":{{seq}},"u":{{seq}},"v":{{seq}},"numbers":[1,{{seq}},"3"],"tags":["a","b{{seq}}"]}"#,
            true,
        ),
        (
            r#"{"map":{"a":{"x":{{seq}}},"b":{}},"counts":{"7":{{seq}},"8":1},"one":"{{seq}}"}"#,
            true,
        ),
        (r#"{"name":"\"{{seq}}\\\n\u00e4","other":{{seq}},"flag":true}"#, true),
        (r#"{"map":{"k{{seq}}":{"x":1}},"counts":{"{{seq}}":2}}"#, true),
        (r#"{"maybe":{{seq}},"name":"{{seq}}"}"#, false),
        (r#"{"at":"2026-01-01T00:00:{{random_int 10 59}}Z","name":"x"}"#, false),
        (r#"{"data":"AA{{random_int 10 99}}"}"#, false),
    ] {
        let names = Names::default();
        let method = method(&schema);
        let mut template = MessageTemplate::compile(&method, text, &names).unwrap();
        assert_eq!(matches!(template.form, Form::Pieces(_)), in_pieces, "{text}");
        assert_eq!(template.constant(), None);
        let whole = Template::compile(text, TemplateContext::Body, &names).unwrap();
        let mut json = MessageTemplate::of(Form::Json { kind: method.request(), text: whole });
        for seq in [0, 1, 127, 128, 300, 1 << 20] {
            let shown = |bytes: &[u8]| -> Value {
                // Entries of maps have no order.
                serde_json::from_str(&of_bytes(&method.request(), bytes).unwrap()).unwrap()
            };
            let (one, other) = (render(&mut template, seq, &[]), render(&mut json, seq, &[]));
            assert_eq!(shown(&one.unwrap()), shown(&other.unwrap()), "{text} {seq}");
        }
    }
}

#[test]
fn lengths_of_any_size_are_inserted() {
    let schema = schema(TYPES);
    let names = Names { captures: vec!["c".to_owned()], ..Names::default() };
    let text = r#"{"inner":{"inner":{"text":"{{c}}"},"x":1},"tags":["{{json c}}","z"]}"#;
    let mut template = MessageTemplate::compile(&method(&schema), text, &names).unwrap();
    for size in [0, 1, 120, 124, 125, 126, 127, 128, 16_380, 16_384, 100_000] {
        let value = "\"".repeat(size);
        let bytes = render(&mut template, 0, &[value.as_bytes()]).unwrap();
        let json: Value =
            serde_json::from_str(&of_bytes(&method(&schema).request(), &bytes).unwrap()).unwrap();
        assert_eq!(json["inner"]["inner"]["text"].as_str().unwrap_or_default(), value);
        assert_eq!(json["tags"], json!([value, "z"]));
    }
}

#[test]
fn messages_without_placeholders_are_constant() {
    let schema = schema(TYPES);
    for (text, bytes) in [("", &b""[..]), ("{}", b""), (r#"{"name":"a"}"#, b"\x0a\x01a")] {
        let template = MessageTemplate::compile(&method(&schema), text, &Names::default()).unwrap();
        assert_eq!(template.constant(), Some(bytes));
    }
}

#[test]
fn random_values_of_a_message_differ() {
    let schema = schema(TYPES);
    let text = r#"{"name":"{{uuid}}","one":"{{uuid}}"}"#;
    let mut template = MessageTemplate::compile(&method(&schema), text, &Names::default()).unwrap();
    let bytes = render(&mut template, 0, &[]).unwrap();
    let json: Value =
        serde_json::from_str(&of_bytes(&method(&schema).request(), &bytes).unwrap()).unwrap();
    assert_ne!(json["name"], json["one"]);
    assert_eq!(bytes, render(&mut template, 0, &[]).unwrap(), "but not if it is rendered again");
}

#[test]
fn mistakes_are_found_before_the_run_where_that_is_possible() {
    let schema = schema(TYPES);
    let error =
        |text: &str| match MessageTemplate::compile(&method(&schema), text, &Names::default()) {
            Err(MessageTemplateError::Json(why)) => why.to_string(),
            other => panic!("{other:?}"),
        };
    assert!(error(r#"{"nam":"{{seq}}"}"#).starts_with("nam: no such field"));
    assert!(
        error(r#"{"flag":"{{seq}}"}"#).starts_with("flag: expected true or false, found \"1\"")
    );
    assert!(
        error(r#"{"name":{{seq}}}"#).starts_with("name: expected a string, found the number 1")
    );
    assert!(error(r#"{"one":"{{seq}}","other":1}"#).contains("oneof"));
    let unknown =
        MessageTemplate::compile(&method(&schema), r#"{"name":"{{sequence}}"}"#, &Names::default());
    assert!(matches!(unknown, Err(MessageTemplateError::Template(BadTemplate::Unknown { .. }))));
    // What an earlier answer has is known later.
    let names = Names { captures: vec!["c".to_owned()], ..Names::default() };
    let text = r#"{"flag":"{{c}}","name":"{{c}}","inner":{"x":"{{c}}"}}"#;
    let mut template = MessageTemplate::compile(&method(&schema), text, &names).unwrap();
    let error = render(&mut template, 0, &[b"yes"]).unwrap_err();
    assert_eq!(error, "flag: expected true or false, found \"yes\"");
    let text = r#"{"inner":{"x":"{{c}}"},"name":"{{c}}"}"#;
    let mut template = MessageTemplate::compile(&method(&schema), text, &names).unwrap();
    let error = render(&mut template, 0, &[b"99999999999"]).unwrap_err();
    assert!(error.starts_with("inner.x: expected an integer of -2147483648"), "{error}");
    let text = r#"{"name":"{{c}}"}"#;
    let mut template = MessageTemplate::compile(&method(&schema), text, &names).unwrap();
    assert_eq!(
        render(&mut template, 0, &[b"\xff"]).unwrap_err(),
        "name: expected a string, found bytes"
    );
}
