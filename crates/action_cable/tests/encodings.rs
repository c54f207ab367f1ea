//! What is translated to MessagePack and back means the same; no bytes make a decoder panic or write what
//! is not JSON.

use action_cable::{Command, Encoding, Malformed};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Numbers that are neither beyond 64 bits nor floats without a fraction, which become integers.
fn number() -> impl Strategy<Value = Value> {
    let fraction = (any::<i32>(), 1..8).prop_map(|(n, d)| f64::from(n) + f64::from(d) / 8.0);
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        fraction.prop_map(Value::from),
        prop::sample::select(&[1e300, 1e-7, 1.5][..]).prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number(),
        "\\PC{0,40}".prop_map(Value::from),
        "[\"\\\\\u{0}-\u{1f}/é😀{}]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 40, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..40).prop_map(Value::from),
            btree_map(".{0,6}", inner, 0..40)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn packed(json: &str) -> Vec<u8> {
    let mut out = b"before".to_vec();
    Encoding::Msgpack.encode(true, json, &mut out).expect("JSON is encoded");
    out.split_off(b"before".len())
}

fn decoded(encoding: Encoding, data: &[u8]) -> Result<String, Malformed> {
    let mut out = Vec::new();
    encoding.decode(data, &mut out)?;
    Ok(String::from_utf8(out).expect("text is decoded"))
}

/// Bytes that begin like a message, so that more of the reader is reached.
fn nearly_msgpack() -> impl Strategy<Value = Vec<u8>> {
    let header = prop::sample::select(
        &[0x81, 0x92, 0xa1, 0xc4, 0xc7, 0xca, 0xd4, 0xd6, 0xd9, 0xdc, 0xdd, 0xde, 0xdf, 0xff][..],
    );
    vec(prop_oneof![header, any::<u8>()], 0..24)
}

proptest! {
    #[test]
    fn a_value_survives_messagepack(value in value(), pretty: bool) {
        let json = match pretty {
            true => serde_json::to_string_pretty(&value).unwrap(),
            false => value.to_string(),
        };
        let bytes = packed(&json);
        prop_assert!(bytes.len() <= json.len().max(9) * 5, "{} of {}", bytes.len(), json.len());
        let back = decoded(Encoding::Msgpack, &bytes).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&back).unwrap(), value);
        // Truncated, it is malformed.
        for end in 0..bytes.len().min(200) {
            prop_assert!(decoded(Encoding::Msgpack, &bytes[..end]).is_err());
        }
    }

    #[test]
    fn a_command_survives_messagepack(identifier in ".{0,20}", data in value(), since: i64) {
        for command in [
            json!({"command": "message", "identifier": identifier, "data": data.to_string()}),
            json!({"command": "history", "identifier": identifier, "history": {"since": since}}),
        ] {
            let json = command.to_string();
            let back = decoded(Encoding::Msgpack, &packed(&json)).unwrap();
            prop_assert_eq!(Command::decode(&back).unwrap(), Command::decode(&json).unwrap());
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(data in prop_oneof![nearly_msgpack(), any::<Vec<u8>>()]) {
        for encoding in [Encoding::Msgpack, Encoding::Protobuf] {
            if let Ok(json) = decoded(encoding, &data) {
                prop_assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");
                prop_assert!(json.len() <= 7 * data.len() + 64);
            }
        }
    }

    #[test]
    fn arbitrary_text_is_encoded_or_refused(json in r#"[{}\[\]":,\\a-z0-9 ]{0,60}|\PC{0,60}"#) {
        for (encoding, extended) in
            [(Encoding::Msgpack, true), (Encoding::Protobuf, false), (Encoding::Protobuf, true)]
        {
            let mut out = Vec::new();
            let refused = encoding.encode(extended, &json, &mut out).is_err();
            prop_assert!(!refused || out.is_empty());
        }
    }
}
