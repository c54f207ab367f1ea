//! Action Cable in MessagePack and Protobuf: bytes of a client become JSON or an error, and JSON for a
//! client becomes bytes that mean the same. The first byte chooses.
#![no_main]

use action_cable::{Command, Encoding};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    match choice % 4 {
        0 => from_client(Encoding::Msgpack, data),
        1 => from_client(Encoding::Protobuf, data),
        extended => to_client(extended == 3, data),
    }
});

fn from_client(encoding: Encoding, data: &[u8]) {
    let mut json = Vec::new();
    if encoding.decode(data, &mut json).is_err() {
        return;
    }
    let json = String::from_utf8(json).expect("JSON is UTF-8");
    assert!(json.len() <= 7 * data.len() + 64, "{} bytes of {}", json.len(), data.len());
    // What is well-formed in Protobuf is a command; MessagePack can be anything.
    if encoding == Encoding::Protobuf {
        assert!(Command::decode(&json).is_ok(), "{json}");
        return;
    }
    let packed = packed(&json).expect("it is JSON");
    assert_eq!(json_of(&packed).as_deref(), Some(&*json));
}

fn to_client(extended: bool, data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut out = Vec::new();
    let refused = Encoding::Protobuf.encode(extended, text, &mut out).is_err();
    assert!(!refused || out.is_empty());
    let Some(bytes) = packed(text) else { return };
    // Deeper than clients may nest, it is written but not read.
    let Some(json) = json_of(&bytes) else { return };
    let again = packed(&json).expect("it is JSON");
    assert_eq!(json_of(&again), Some(json));
}

fn packed(json: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    Encoding::Msgpack.encode(true, json, &mut out).ok().map(|()| out)
}

fn json_of(data: &[u8]) -> Option<String> {
    let mut out = Vec::new();
    Encoding::Msgpack.decode(data, &mut out).ok()?;
    Some(String::from_utf8(out).expect("JSON is UTF-8"))
}
