//! Answers of an application, over HTTP RPC, gRPC and to `--auth-url`, with the readers of `serve`: any bytes
//! are an answer or an error; what an answer makes a connection keep is counted in full, and state survives the
//! next call; a decision is within its bounds.
//!
//! The first byte chooses: a decision, a body of JSON, or a body of gRPC for one of the methods, with or without
//! the prefix of its message.
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of `serve`")]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/serve/src/path.rs"]
mod path;

#[path = "../../crates/serve/src/app"]
mod app {
    pub mod call;
    pub mod decision;
    mod proto;
    pub mod reply;

    use self::call::Method;
    use self::reply::Reply;

    pub fn decode(method: Method, body: &[u8]) -> Result<Reply, String> {
        proto::decode(method, body)
    }
}

use app::call::{Call, CommandName, Env, Method, State, What};
use app::decision::{Decision, Verdict};
use app::decode;
use app::reply::Reply;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, body)) = data.split_first() else { return };
    let method = Method::ALL[usize::from(choice >> 2) % Method::ALL.len()];
    if method == Method::Authorize {
        return decide(body);
    }
    let read = match choice & 3 {
        0 | 1 => Reply::from_json(body),
        2 => decode(method, body),
        _ => decode(method, &framed(body)),
    };
    match read {
        Ok(reply) => check(reply, body.len()),
        Err(why) => assert!(!why.is_empty()),
    }
});

fn decide(body: &[u8]) {
    match Decision::from_json(body) {
        Ok(decision) => {
            assert!(decision.bytes() >= decision.reason.len());
            assert!(decision.reason.len() <= 512 && decision.ttl_s <= 3600);
            match decision.verdict {
                Verdict::Allowed(own) => assert_ne!(own.expires_in_s, Some(0)),
                Verdict::Denied(status) => assert!((400..500).contains(&status)),
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("inputs are short").to_be_bytes();
    [&[0], &length[..], message].concat()
}

fn check(reply: Reply, body: usize) {
    let texts = [&reply.transmissions, &reply.streams, &reply.stopped_streams];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    let states = reply.env.cstate.iter().chain(&reply.env.istate);
    let states: usize = states.map(|(key, value)| key.len() + value.len()).sum();
    let holds = texts + states + reply.identifiers.len() + reply.error_msg.len();
    assert!(reply.bytes() >= holds, "{} bytes counted, {holds} held", reply.bytes());
    // Nothing is made of nothing: no count or length of an answer is taken at its word.
    assert!(holds <= body, "{holds} bytes from {body}");
    let changes = reply.env.istate.clone();
    let mut state = State::default();
    state.merge(reply.env.cstate);
    assert!(state.fields().iter().all(|(_, value)| !value.is_empty()));
    state.merge(changes.clone());
    for (key, value) in &changes {
        let expected = Some(&**value).filter(|value| !value.is_empty());
        assert_eq!(state.get(key), expected, "{key:?}");
    }
    // The next call repeats it.
    let what = What::Command {
        name: CommandName::Message,
        identifier: "{}".into(),
        identifiers: (*reply.identifiers).into(),
        data: "".into(),
        istate: state.clone(),
    };
    let env = Env::new("/", std::iter::empty());
    let call = Call { sid: "s".into(), env, cstate: State::default(), what };
    let text = serde_json::to_string(&call).expect("a call is JSON");
    let again: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for (key, value) in state.fields() {
        assert_eq!(again["env"]["istate"][&**key], **value);
    }
    assert_eq!(again["connection_identifiers"], *reply.identifiers);
}
