//! Our codec beside two others, tungstenite and fastwebsockets: random streams of frames, valid and
//! invalid, mean the same to all three; what one encodes the others decode; each accepts the
//! others' handshakes. Where we are stricter, [`others::lax`] gives the reason. Header compression is in
//! [`headers`]; [`http2`] is our HTTP/2 against the crate h2.

mod handshake;
mod headers;
mod http2;
mod others;
mod streams;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use wire::websocket::{OpCode, encode, encode_close, encode_masked};
use wire::{Limits, Role};

use others::{End, Fast, Other, Tungstenite};
use streams::{Seen, broken, good, read_ours};

/// Longest message of these streams, in bytes.
const MESSAGE_BYTES: u32 = 1000;

fn limits() -> Limits {
    Limits { message_bytes: MESSAGE_BYTES, ..Limits::default() }
}

fn config() -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(6455);
    // Fewer for generated mutants.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    let cases = cases.unwrap_or(600);
    ProptestConfig { cases, failure_persistence: None, rng_seed, ..Default::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn valid_streams_decode_the_same_everywhere(stream in good(Role::Server)) {
        let (ours, violation) = read_ours(Role::Server, &limits(), &stream);
        prop_assert_eq!(violation, None);
        prop_assert!(!ours.is_empty());
        for theirs in [Tungstenite.read(Role::Server, &stream), Fast.read(Role::Server, &stream)] {
            prop_assert_eq!(&theirs.0, &ours);
            prop_assert_ne!(theirs.1, End::Refused);
        }
    }

    #[test]
    fn valid_server_streams_decode_the_same_everywhere(stream in good(Role::Client)) {
        let (ours, violation) = read_ours(Role::Client, &limits(), &stream);
        prop_assert_eq!(violation, None);
        for theirs in [Tungstenite.read(Role::Client, &stream), Fast.read(Role::Client, &stream)] {
            prop_assert_eq!(&theirs.0, &ours);
            prop_assert_ne!(theirs.1, End::Refused);
        }
    }

    #[test]
    fn we_accept_only_what_the_others_accept(
        to_server in broken(Role::Server),
        to_client in broken(Role::Client),
    ) {
        for (role, stream) in [(Role::Server, to_server), (Role::Client, to_client)] {
            compare(&Tungstenite, role, &stream)?;
            compare(&Fast, role, &stream)?;
        }
    }

    #[test]
    fn each_reads_what_the_others_write(
        messages in proptest::collection::vec(streams::message(MESSAGE_BYTES as usize), 1..12),
        mask in any::<[u8; 4]>(),
    ) {
        for (writer, reader) in [(Role::Server, Role::Client), (Role::Client, Role::Server)] {
            let ours = write_ours(writer, &messages, mask);
            prop_assert_eq!(&Tungstenite.read(reader, &ours).0, &messages);
            prop_assert_eq!(&Fast.read(reader, &ours).0, &messages);
            for theirs in [Tungstenite.write(writer, &messages), Fast.write(writer, &messages)] {
                prop_assert_eq!(read_ours(reader, &limits(), &theirs), (messages.clone(), None));
            }
        }
    }
}

/// Same events as far as both read; which one refuses, and where, as in [`others::lax`].
fn compare(other: &impl Other, role: Role, stream: &[u8]) -> Result<(), TestCaseError> {
    let (ours, violation) = read_ours(role, &limits(), stream);
    let (theirs, end) = other.read(role, stream);
    let name = other.name();
    match violation {
        None => {
            prop_assert_eq!(&theirs, &ours, "{}", name);
            prop_assert_ne!(end, End::Refused, "{}", name);
        }
        Some(violation) if other.is_lax(violation) => {
            prop_assert!(theirs.starts_with(&ours), "{} {:?}: {:?}", name, violation, theirs);
        }
        Some(violation) => {
            prop_assert_eq!(&theirs, &ours, "{} {:?}", name, violation);
            prop_assert_eq!(end, End::Refused, "{} {:?}", name, violation);
        }
    }
    Ok(())
}

fn write_ours(writer: Role, messages: &[Seen], mask: [u8; 4]) -> Vec<u8> {
    let mask = (writer == Role::Client).then_some(mask);
    let mut out = Vec::new();
    let mut put = |opcode, data: &[u8]| match mask {
        Some(mask) => encode_masked(&mut out, opcode, data, mask),
        None => encode(&mut out, opcode, data),
    };
    for message in messages {
        match message {
            Seen::Text(text) => put(OpCode::Text, text.as_bytes()),
            Seen::Binary(data) => put(OpCode::Binary, data),
            Seen::Ping(data) => put(OpCode::Ping, data),
            Seen::Pong(data) => put(OpCode::Pong, data),
            Seen::Close(_) => {}
        }
    }
    encode_close(&mut out, None, "", mask);
    out.truncate(out.len() - if mask.is_some() { 6 } else { 2 });
    out
}

#[test]
fn each_leniency_of_the_others_has_an_example_and_a_reason() {
    for lax in others::lax() {
        let (who, violation) = (lax.who, lax.violation);
        assert!(!lax.why.is_empty());
        let (_, refused) = read_ours(lax.role, &limits(), &lax.example);
        assert_eq!(refused, Some(violation), "{who}");
        let (_, end) = match who {
            "tungstenite" => Tungstenite.read(lax.role, &lax.example),
            _ => Fast.read(lax.role, &lax.example),
        };
        assert_ne!(end, End::Refused, "{who} has become as strict: {violation:?}");
    }
}

#[test]
fn close_frames_decode_the_same_everywhere() {
    use wire::websocket::CloseCode;

    for code in [1000, 1001, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 3000, 4999] {
        for (writer, reader) in [(Role::Server, Role::Client), (Role::Client, Role::Server)] {
            let mut ours = Vec::new();
            let mask = (writer == Role::Client).then_some([1, 2, 3, 4]);
            encode_close(&mut ours, Some(CloseCode(code)), "bye ✓", mask);
            let seen = vec![Seen::Close(Some((code, "bye ✓".to_owned())))];
            assert_eq!(Tungstenite.read(reader, &ours).0, seen, "{code}");
            assert_eq!(Fast.read(reader, &ours).0, seen, "{code}");
            assert_eq!(read_ours(reader, &limits(), &ours), (seen, None));
        }
    }
}
