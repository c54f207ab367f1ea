//! Encoded messages decode to the same value, here and by serde_json; no input makes the decoders
//! panic.

use std::borrow::Cow;

use action_cable::{
    Command, DisconnectReason, History, Message, Position, Presence, PresenceEvent, channel,
    data_prefix, data_suffix,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::Value;

fn text() -> impl Strategy<Value = Cow<'static, str>> {
    prop_oneof![".{0,12}", "[\"\\\\/\u{0}-\u{1f}a-f{}:,]{0,12}"].prop_map(Cow::Owned)
}

/// JSON values, spaces included. Never `null`, which means absent for optional keys.
fn json() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&[r#"{"a":[1, 2.5e300, null]}"#, "[]", "\"\\ud800\"", "-0", "true"][..])
}

fn position() -> impl Strategy<Value = Position<'static>> {
    (text(), text(), any::<u64>()).prop_map(|(stream_id, epoch, offset)| Position {
        stream_id,
        epoch,
        offset,
    })
}

fn history() -> impl Strategy<Value = History<'static>> {
    (option::of(any::<i64>()), vec(position(), 0..4)).prop_map(|(since, mut streams)| {
        streams.sort_by(|one, other| one.stream_id.cmp(&other.stream_id));
        streams.dedup_by(|one, other| one.stream_id == other.stream_id);
        History { since, streams }
    })
}

fn presence() -> impl Strategy<Value = Presence<'static>> {
    (text(), option::of(json())).prop_map(|(id, info)| Presence { id, info })
}

fn command() -> impl Strategy<Value = Command<'static>> {
    prop_oneof![
        (text(), option::of(history()), option::of(presence())).prop_map(
            |(identifier, history, presence)| Command::Subscribe { identifier, history, presence }
        ),
        text().prop_map(|identifier| Command::Unsubscribe { identifier }),
        (text(), text()).prop_map(|(identifier, data)| Command::Message { identifier, data }),
        (text(), history())
            .prop_map(|(identifier, history)| Command::History { identifier, history }),
        (text(), json()).prop_map(|(identifier, data)| Command::Whisper { identifier, data }),
        (text(), presence())
            .prop_map(|(identifier, presence)| Command::Join { identifier, presence }),
        (text(), option::of(text())).prop_map(|(identifier, id)| Command::Leave { identifier, id }),
        (text(), any::<bool>())
            .prop_map(|(identifier, records)| Command::Presence { identifier, records }),
        Just(Command::Ping),
        Just(Command::Pong),
    ]
}

fn event() -> impl Strategy<Value = PresenceEvent<'static>> {
    prop_oneof![
        presence().prop_map(PresenceEvent::Join),
        text().prop_map(|id| PresenceEvent::Leave { id }),
        (any::<u64>(), vec(presence(), 0..4))
            .prop_map(|(total, records)| PresenceEvent::Info { total, records }),
        any::<u64>().prop_map(|total| PresenceEvent::Changed { total }),
        Just(PresenceEvent::Error),
    ]
}

fn message() -> impl Strategy<Value = Message<'static>> {
    prop_oneof![
        (option::of(text()), option::of(vec(text(), 0..4)))
            .prop_map(|(sid, restored)| Message::Welcome { sid, restored }),
        any::<u64>().prop_map(|message| Message::Ping { message }),
        Just(Message::Pong),
        text().prop_map(|identifier| Message::Confirm { identifier }),
        text().prop_map(|identifier| Message::Reject { identifier }),
        text().prop_map(|identifier| Message::ConfirmHistory { identifier }),
        text().prop_map(|identifier| Message::RejectHistory { identifier }),
        (text(), any::<bool>()).prop_map(|(reason, reconnect)| Message::Disconnect {
            reason: DisconnectReason::from(reason),
            reconnect
        }),
        (text(), json(), option::of(position())).prop_map(|(identifier, message, position)| {
            Message::Data { identifier, message, position }
        }),
        (text(), event()).prop_map(|(identifier, event)| Message::Presence { identifier, event }),
    ]
}

/// Whether another parser reads one object.
fn is_one_object(text: &str) -> bool {
    // serde_json refuses a lone surrogate in a payload; the codec does not decode payloads.
    let lone = text.contains("\\ud800");
    lone || serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
}

proptest! {
    #[test]
    fn commands_round_trip(command in command()) {
        let mut out = Vec::new();
        command.encode(&mut out);
        let written = String::from_utf8(out).unwrap();
        prop_assert!(is_one_object(&written), "{written}");
        prop_assert_eq!(Command::decode(&written), Ok(command));
        // Truncated, it is malformed.
        for (end, _) in written.char_indices() {
            prop_assert!(Command::decode(&written[..end]).is_err());
        }
    }

    #[test]
    fn messages_round_trip(message in message()) {
        let mut out = b"before".to_vec();
        message.encode(&mut out);
        let written = String::from_utf8(out.split_off(b"before".len())).unwrap();
        prop_assert!(is_one_object(&written), "{written}");
        prop_assert_eq!(Message::decode(&written), Ok(message));
    }

    #[test]
    fn prefix_message_and_suffix_make_an_encoded_message(
        identifier in text(), message in json(), position in option::of(position())
    ) {
        let (mut apart, mut whole) = (Vec::new(), Vec::new());
        data_prefix(&identifier, &mut apart);
        apart.extend_from_slice(message.as_bytes());
        data_suffix(position.as_ref(), &mut apart);
        Message::Data { identifier, message, position }.encode(&mut whole);
        prop_assert_eq!(apart, whole);
    }

    #[test]
    fn any_name_is_a_valid_channel(name in text(), value in text()) {
        let identifier = serde_json::json!({ "channel": name, "stream_name": value }).to_string();
        prop_assert!(channel(&identifier).is_ok());
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in r#"[{}\[\]":,\\a-z0-9 ]{0,60}|\PC{0,60}"#) {
        let _ = (Command::decode(&text), Message::decode(&text), channel(&text));
    }

    /// Valid messages with one changed byte reach deeper into the decoder.
    #[test]
    fn nearly_valid_text_does_not_panic(message in message(), command in command(), at: prop::sample::Index, byte: u8) {
        let mut out = Vec::new();
        command.encode(&mut out);
        message.encode(&mut out);
        let at = at.index(out.len());
        out[at] = byte;
        if let Ok(text) = std::str::from_utf8(&out) {
            let half = text.find("}{").map_or(0, |at| at + 1);
            let _ = (Command::decode(&text[..half]), Message::decode(&text[half..]));
        }
    }
}
