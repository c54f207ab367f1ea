//! Generated streams, in any reads.

use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use super::*;

/// What a peer sends: messages in fragments, with control frames between them.
#[derive(Clone, Debug)]
enum Sent {
    Message { opcode: OpCode, data: Vec<u8>, pieces: Vec<usize>, ping_between: bool },
    Ping(Vec<u8>),
    Pong(Vec<u8>),
}

fn any_sent() -> impl Strategy<Value = Sent> {
    let data = prop_oneof![
        ".{0,60}".prop_map(String::into_bytes),
        vec_of(32u8..127, 0..300),
        vec_of(32u8..127, 65_400..65_540),
    ];
    let pieces = prop_oneof![Just(vec![]), vec_of(0usize..40, 0..5)];
    let opcode = prop_oneof![Just(OpCode::Text), Just(OpCode::Binary)];
    let message =
        (opcode, data, pieces, any::<bool>()).prop_map(|(opcode, data, pieces, ping_between)| {
            Sent::Message { opcode, data, pieces, ping_between }
        });
    prop_oneof![
        6 => message,
        1 => vec_of(any::<u8>(), 0..=125).prop_map(Sent::Ping),
        1 => vec_of(any::<u8>(), 0..=125).prop_map(Sent::Pong),
    ]
}

fn encode_all(sent: &[Sent], mask: Option<[u8; 4]>) -> (Vec<u8>, Vec<Decoded>) {
    let (mut stream, mut decoded) = (vec![], vec![]);
    for sent in sent {
        match sent {
            Sent::Ping(data) => {
                stream.extend(frame(OpCode::Ping, true, data, mask));
                decoded.push(Decoded::Ping(data.clone()));
            }
            Sent::Pong(data) => {
                stream.extend(frame(OpCode::Pong, true, data, mask));
                decoded.push(Decoded::Pong(data.clone()));
            }
            Sent::Message { opcode, data, pieces, ping_between } => {
                let (mut next, mut rest) = (*opcode, &data[..]);
                for size in pieces {
                    let (piece, later) = rest.split_at((*size).min(rest.len()));
                    stream.extend(frame(next, false, piece, mask));
                    (next, rest) = (OpCode::Continuation, later);
                    if *ping_between {
                        stream.extend(frame(OpCode::Ping, true, b"between", mask));
                        decoded.push(Decoded::Ping(b"between".into()));
                    }
                }
                stream.extend(frame(next, true, rest, mask));
                decoded.push(Decoded::Message(*opcode, data.clone()));
            }
        }
    }
    (stream, decoded)
}

fn reads() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![vec_of(0usize..20, 0..60), vec_of(1usize..3000, 0..60), Just(vec![1; 4000])]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(200), failure_persistence: None, ..Default::default() })]

    #[test]
    fn frames_decode_the_same_for_any_reads(
        sent in vec_of(any_sent(), 0..6), reads in reads(), mask in any::<Option<[u8; 4]>>(),
    ) {
        let role = if mask.is_some() { Role::Server } else { Role::Client };
        let (stream, decoded) = encode_all(&sent, mask);
        let limits = Limits { message_bytes: 70_000, ..Limits::default() };
        prop_assert_eq!(read(role, &limits, &stream, reads), (decoded, None));
    }

    #[test]
    fn any_stream_decodes_the_same_for_any_reads(
        sent in vec_of(any_sent(), 1..5), reads in reads(), flips in vec_of((any::<u16>(), 0u8..8), 0..4),
        garbage in vec_of(any::<u8>(), 0..40), mask in any::<Option<[u8; 4]>>(),
    ) {
        let role = if mask.is_some() { Role::Server } else { Role::Client };
        let (mut stream, _) = encode_all(&sent, mask);
        stream.extend(garbage);
        for (at, bit) in flips {
            let len = stream.len().max(1);
            if let Some(byte) = stream.get_mut(usize::from(at) % len.min(100)) {
                *byte ^= 1 << bit;
            }
        }
        let limits = Limits { message_bytes: 1000, ..Limits::default() };
        let whole = read(role, &limits, &stream, []);
        prop_assert_eq!(read(role, &limits, &stream, reads), whole, "{}", format!("{stream:02x?}"));
    }

    #[test]
    fn encoded_frames_decode(
        data in vec_of(any::<u8>(), 0..70_000), mask: [u8; 4], reason in ".{0,80}", code in 3000u16..5000,
    ) {
        let limits = Limits { message_bytes: 70_000, ..Limits::default() };
        let (mut server, mut client) = (vec![], vec![]);
        encode(&mut server, OpCode::Binary, &data);
        encode_close(&mut server, Some(CloseCode(code)), &reason, None);
        encode_masked(&mut client, OpCode::Binary, &data, mask);
        encode_close(&mut client, Some(CloseCode(code)), &reason, Some(mask));
        let from_server = read(Role::Client, &limits, &server, []);
        prop_assert_eq!(&from_server, &read(Role::Server, &limits, &client, []));
        prop_assert_eq!(from_server.1, None);
        prop_assert_eq!(&from_server.0[0], &Decoded::Message(OpCode::Binary, data));
        let truncated = matches!(&from_server.0[1], Decoded::Close(Some(sent), text)
            if *sent == code && reason.starts_with(text.as_str()) && text.len() > reason.len().min(123) - 4.min(reason.len()));
        prop_assert!(truncated || reason.is_empty());
    }
}
