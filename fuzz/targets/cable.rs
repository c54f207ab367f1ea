//! Action Cable as text: what a client or a server sends, and what an identifier requests. What is
//! accepted is written as text that means the same.
#![no_main]

use action_cable::{Command, Message, channel, data_prefix, data_suffix, put_payload};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(command) = Command::decode(text) {
        let written = written(|out| command.encode(out));
        assert_eq!(Command::decode(&written), Ok(command), "{written}");
    }
    if let Ok(message) = Message::decode(text) {
        let written = written(|out| message.encode(out));
        assert_eq!(Message::decode(&written), Ok(message), "{written}");
    }
    let _ = channel(text);
    // As an identifier and as a publication: any text makes a message for exactly this identifier.
    let published = written(|out| put_payload(text, out));
    let written = written(|out| {
        data_prefix(text, out);
        out.extend_from_slice(published.as_bytes());
        data_suffix(None, out);
    });
    let Ok(Message::Data { identifier, message, position: None }) = Message::decode(&written)
    else {
        panic!("no message: {written}");
    };
    assert_eq!((&*identifier, message), (text, &*published));
});

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).expect("UTF-8 from UTF-8")
}
