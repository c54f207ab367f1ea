//! gRPC calls that stay open over steps of scenarios, whose next message depends on an answer: against a server that
//! logs and does each tenth call in a wrong way, to the unit; and against grpc-js and tonic.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::harness::executable::{self, Finished};
use crate::harness::forward::Forward;
use crate::harness::grpc_echo::{EchoServer, Wrong};
use crate::harness::grpc_web::{self, GrpcWebServer};
use crate::harness::http2_sockets::{Conduct, SocketServer};
use crate::harness::peer::{self, Program};
use crate::harness::server::Server;
use crate::harness::tonic::{Reflected, Shop};
use crate::harness::{Scratch, eventually};

const PROTO: &str = "syntax = \"proto3\";\npackage a;\nmessage Text { string text = 1; uint32 number = 2; }\n\
                     service B { rpc One(Text) returns (Text); rpc Send(stream Text) returns (Text);\n\
                     rpc Both(stream Text) returns (stream Text); rpc Many(Text) returns (stream Text); }\n";

fn run(text: &str) -> Finished {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = Scratch::new(&format!("grpc-open-{number}.toml"), text);
    executable::run(&["load", file.path(), "--json", "-"])
}

/// So many passes of 4 users, of which two share a connection, through these steps.
fn passes(passes: u32, target: &str, connect: &str, steps: &str) -> Finished {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let proto = Scratch::new(&format!("grpc-open-{number}.proto"), PROTO);
    let streams = if connect.contains("http2 = false") { "" } else { "streams = 2\n" };
    run(&format!(
        "version = 1\nusers = 4\npasses = {passes}\ntimeout = '2s'\ntarget = '{target}'\n\
         [connect]\n{streams}{connect}\n[grpc]\nproto = '{}'\n[[flows]]\n{steps}",
        proto.path()
    ))
}

/// The figures of each step.
fn of_steps(said: &Value, name: &str) -> Vec<u64> {
    let steps = said["flows"][0]["steps"].as_array().unwrap();
    steps.iter().map(|step| step[name].as_u64().unwrap()).collect()
}

/// A conversation of three messages.
const TALK: &str = "[[flows.steps]]\nstream = 'a.B/Both'\n\
    [[flows.steps]]\nname = 'ask'\nsend = { text = 'u{{user}} {{pass}}', number = '{{user}}' }\n\
    receive = { json = '$.text' }\ncapture = { first = { json = '$.text' } }\n\
    checks = [{ json = '$.text', matches = '^u[0-3] [0-9]+$' }]\n\
    [[flows.steps]]\nname = 'ask again'\nrepeat = 2\nsend = '{\"text\":\"{{first}}!\"}'\n\
    receive = { contains = '{{first}}!' }\nchecks = [{ json = '$.number', is = '0' }]\n\
    [[flows.steps]]\nclose = true\n";

#[test]
fn the_next_message_has_a_value_of_the_answer_before() {
    let server = EchoServer::start(Wrong::Nothing);
    let target = format!("grpc://{}", server.address);
    let checked = format!("{TALK}checks = [{{ status = 'OK' }}, {{ json = '$' }}]\n");
    let finished = passes(25, &target, "", &checked);
    let said = finished.json();
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    assert_eq!(of_steps(&said, "requests"), [100, 100, 200, 100], "{said}");
    assert_eq!(said["requests"]["ok"], 500, "{said}");
    let checks = &said["flows"][0]["steps"][2]["checks"];
    assert_eq!(checks, &json!([{"name": "json $.number is 0", "passed": 200, "failed": 0}]));
    assert_eq!(said["sockets"]["received"], 300, "{said}");
    assert!(said["sockets"].get("ended_by").is_none(), "{said}");
    let log = server.log.lock().unwrap();
    assert_eq!((log.calls, log.ok, log.resets), (100, 100, 0), "{log:?}");
    assert_eq!((log.messages, log.echoed), (300, 300), "{log:?}");
    assert!(log.connections <= 4, "two users share a connection: {log:?}");
}

#[test]
fn steps_fail_by_kind_and_counts_agree_with_the_server() {
    // Each tenth call is wrong from its third message on.
    for (wrong, kind, at) in [
        (Wrong::Reset, "stream_internal_error", 2),
        (Wrong::Silent, "timeout", 2),
        (Wrong::Early, "grpc_ended", 2),
        (Wrong::Garbage, "grpc_message", 2),
        (Wrong::Long, "too_large", 2),
        (Wrong::Unnamed, "grpc_encoding", 2),
        (Wrong::Bomb, "too_large", 2),
        (Wrong::Status("5"), "grpc_not_found", 3),
        (Wrong::NoTrailers, "grpc_no_status", 3),
    ] {
        let server = EchoServer::start(wrong);
        let finished = passes(25, &format!("grpc://{}", server.address), "", TALK);
        let said = finished.json();
        assert_eq!(said["errors"], json!({kind: 10}), "{wrong:?} {said}");
        let mut failed = [0; 4];
        failed[at] = 10;
        assert_eq!(of_steps(&said, "failed"), failed, "{wrong:?} {said}");
        eventually("the connections have ended", || {
            let log = server.log.lock().unwrap();
            log.ended == log.connections
        });
        let log = server.log.lock().unwrap();
        let [_, ask, again, _] = of_steps(&said, "requests")[..] else { panic!("{said}") };
        assert_eq!((log.calls, log.messages), (100, ask + again), "{wrong:?} {said} {log:?}");
        let early: u64 = if wrong == Wrong::Early { 10 } else { 0 };
        assert_eq!(log.ok, 90 + early, "{wrong:?} {log:?}");
        let ended = said["sockets"]["ended_by"]["OK"].as_u64().unwrap_or_default();
        assert_eq!(ended, early, "{wrong:?} {said}");
        // What times out leaves the call open: the next pass cancels it.
        let is_cancelled = matches!(
            wrong,
            Wrong::Silent | Wrong::Garbage | Wrong::Long | Wrong::Unnamed | Wrong::Bomb
        );
        assert_eq!(log.resets, if is_cancelled { 10 } else { 0 }, "{wrong:?} {log:?}");
    }
}

#[test]
fn answers_that_come_twice_late_or_changed_are_told_apart() {
    // Each tenth message: 12 of 120.
    let answered = "[[flows.steps]]\nstream = 'a.B/Both'\n\
        [[flows.steps]]\nname = 'ask'\nrepeat = 3\nsend = { text = 'm{{seq}}' }\nwithin = '2s'\n\
        on_failure = 'continue'\nreceive = { contains = '\"m{{seq}}\"' }\n\
        [[flows.steps]]\nclose = true\n";
    for (wrong, failed, received) in [
        (Wrong::Nothing, 0, 120),
        (Wrong::Doubles, 0, 132),
        (Wrong::Drops, 12, 108),
        (Wrong::Changes, 12, 120),
    ] {
        let server = EchoServer::start(wrong);
        let finished = passes(10, &format!("grpc://{}", server.address), "", answered);
        let said = finished.json();
        let errors = if failed > 0 { json!({"timeout": failed}) } else { json!({}) };
        assert_eq!(said["errors"], errors, "{wrong:?} {finished:?}");
        assert_eq!(of_steps(&said, "requests"), [40, 120, 40], "{wrong:?} {said}");
        assert_eq!(said["sockets"]["received"], received, "{wrong:?} {said}");
        let log = server.log.lock().unwrap();
        assert_eq!((log.calls, log.messages, log.ok), (40, 120, 40), "{wrong:?} {log:?}");
    }
}

#[test]
fn a_capture_that_finds_nothing_ends_the_pass_and_the_next_one_cancels_the_call() {
    let server = EchoServer::start(Wrong::Nothing);
    let steps = "[[flows.steps]]\nstream = 'a.B/Both'\n\
        [[flows.steps]]\nsend = {}\nreceive = {}\ncapture = { no = { json = '$.none' } }\n\
        [[flows.steps]]\nsend = { text = '{{no}}' }\n";
    let finished = passes(10, &format!("grpc://{}", server.address), "", steps);
    let said = finished.json();
    assert_eq!(said["errors"], json!({"check": 40}), "{finished:?}");
    assert_eq!(of_steps(&said, "requests"), [40, 40, 0], "{said}");
    eventually("all calls are cancelled", || server.log.lock().unwrap().resets == 40);
}

#[test]
fn a_message_that_the_window_does_not_take_is_not_sent() {
    let server = EchoServer::start(Wrong::Stalls(4));
    let steps = "[[flows.steps]]\nstream = 'a.B/Both'\n\
        [[flows.steps]]\nsend = { text = 'longer than the window' }\nwithin = '300ms'\n";
    let finished = passes(2, &format!("grpc://{}", server.address), "", steps);
    let said = finished.json();
    assert_eq!(said["errors"], json!({"timeout": 8}), "{finished:?}");
    assert_eq!(of_steps(&said, "failed"), [0, 8], "{said}");
    let log = server.log.lock().unwrap();
    assert_eq!((log.calls, log.messages), (8, 0), "{log:?}");
}

#[test]
fn calls_that_are_held_stay_open_over_passes_through_a_proxy_beside_requests() {
    let server = EchoServer::start(Wrong::Nothing);
    let proxy = Forward::start(None);
    let steps = "[[flows.steps]]\nstream = 'a.B/Both'\nhold = true\nsocket = 'one'\n\
        [[flows.steps]]\nstream = 'a.B/Both'\nhold = true\nsocket = 'two'\n\
        [[flows.steps]]\nsend = { text = 'one {{pass}}' }\nsocket = 'one'\n\
        [[flows.steps]]\nsend = { text = 'two {{pass}}' }\nsocket = 'two'\n\
        receive = { contains = 'two {{pass}}' }\n\
        [[flows.steps]]\ngrpc = 'a.B/Both'\nmessage = [{ text = 'beside' }]\nchecks = [{ json = '$[0].text', is = 'beside' }]\n\
        [[flows.steps]]\nreceive = { contains = 'one {{pass}}' }\nsocket = 'one'\n";
    let connect = format!("proxy = '{}'", proxy.address);
    let finished = passes(25, &format!("grpc://{}", server.address), &connect, steps);
    let said = finished.json();
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    assert_eq!(of_steps(&said, "requests"), [4, 4, 100, 100, 100, 100], "{said}");
    let log = server.log.lock().unwrap();
    assert_eq!((log.calls, log.messages, log.echoed), (108, 300, 300), "{log:?}");
    assert!(proxy.asked().len() as u64 >= log.connections, "{:?} {log:?}", proxy.asked());
}

#[test]
fn sockets_and_requests_are_beside_calls_of_either_form() {
    let (calls, sockets) =
        (EchoServer::start(Wrong::Nothing), SocketServer::start(Conduct::Echoes));
    let steps = format!(
        "[[flows.steps]]\nstream = 'a.B/Both'\n\
         [[flows.steps]]\nconnect = '{}'\nsocket = 'web'\n\
         [[flows.steps]]\nsend = 'over a socket'\nsocket = 'web'\nreceive = {{ text = 'over a socket' }}\n\
         [[flows.steps]]\nsend = {{ text = 'over a call' }}\nreceive = {{ contains = 'over a call' }}\n\
         [[flows.steps]]\ngrpc = 'a.B/Both'\nmessage = [{{ text = 'b' }}]\nchecks = [{{ json = '$[0].text', is = 'b' }}]\n\
         [[flows.steps]]\nclose = true\nsocket = 'web'\n\
         [[flows.steps]]\nclose = true\n",
        sockets.url()
    );
    let finished = passes(5, &format!("grpc://{}", calls.address), "http2 = true", &steps);
    let said = finished.json();
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    assert_eq!(of_steps(&said, "requests"), [20; 7], "{said}");
    let (log, web) = (calls.log.lock().unwrap(), sockets.log());
    assert_eq!((log.calls, log.ok, log.messages, log.echoed), (40, 40, 40, 40), "{log:?}");
    assert_eq!((web.sockets, web.messages, web.echoed), (20, 20, 20), "{web:?}");
    let (calls, server) = (GrpcWebServer::start(grpc_web::Wrong::Nothing), Server::start(&[]));
    let steps = format!(
        "[[flows.steps]]\nconnect = 'ws://{0}/echo'\n\
         [[flows.steps]]\nsend = 'a'\nreceive = {{ text = 'a' }}\n\
         [[flows.steps]]\ngrpc = 'a.B/One'\nrepeat = 2\nchecks = [{{ json = '$.text', is = 'x' }}]\n\
         [[flows.steps]]\nurl = 'http://{0}/health'\nchecks = [{{ status = 200 }}]\n\
         [[flows.steps]]\nclose = true\n",
        server.listen
    );
    let finished = passes(5, &format!("grpc-web://{}", calls.address), "http2 = false", &steps);
    let said = finished.json();
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    assert_eq!(of_steps(&said, "requests"), [20, 20, 40, 20, 20], "{said}");
    let log = calls.log.lock().unwrap();
    assert_eq!((log.calls, log.answered), (40, 40), "{log:?}");
}

/// What is to be seen of a service of `shop.proto`, which may end a call before its client has ended its side.
fn conforms(target: &str, ends_early: bool) {
    let of = |steps: &str| {
        run(&format!(
            "version = 1\nusers = 4\npasses = 25\ntarget = '{target}'\n[connect]\nstreams = 4\n\
             [[flows]]\n{steps}"
        ))
    };
    let negotiated = of("[[flows.steps]]\nstream = 'shop.v1.Orders/Negotiate'\n\
        metadata = { authorization = 'Bearer {{user}}' }\n\
        [[flows.steps]]\nsend = { customerName = 'user {{user}}' }\nreceive = { json = '$.text' }\n\
        capture = { name = { json = '$.text' } }\n\
        [[flows.steps]]\nsend = { customerName = '{{name}} again' }\nreceive = { json = '$.text', matches = ' again$' }\n\
        [[flows.steps]]\nclose = true\nchecks = [{ status = 'OK' }]\n");
    let said = negotiated.json();
    assert_eq!((negotiated.code, &said["errors"]), (Some(0), &json!({})), "{negotiated:?}");
    assert_eq!(of_steps(&said, "requests"), [100; 4], "{said}");
    let imported = of("[[flows.steps]]\nstream = 'shop.v1.Orders/Import'\n\
        [[flows.steps]]\nsend = { customerName = 'a' }\nrepeat = 3\n\
        [[flows.steps]]\nclose = true\nchecks = [{ json = '$.text', is = '3' }]\n");
    let said = imported.json();
    assert_eq!((imported.code, &said["errors"]), (Some(0), &json!({})), "{imported:?}");
    let watched = of("[[flows.steps]]\nstream = 'shop.v1.Orders/Watch'\nmessage = {}\n\
        [[flows.steps]]\nreceive = { json = '$.customerName', is = 'customer 0' }\nthink = '5ms'\n\
        [[flows.steps]]\nreceive = { json = '$.customerName', is = 'customer 2' }\n\
        [[flows.steps]]\nclose = true\nchecks = [{ status = 'OK' }, { header = 'grpc-status', is = '0' }]\n");
    let said = watched.json();
    assert_eq!((watched.code, &said["errors"]), (Some(0), &json!({})), "{watched:?}");
    assert_eq!(of_steps(&said, "requests"), [100; 4], "{said}");
    assert!(said["sockets"].get("ended_by").is_none(), "{said}");
    let refused = of("[[flows.steps]]\nstream = 'shop.v1.Orders/Negotiate'\n\
        [[flows.steps]]\nsend = { customerName = 'NOT_FOUND' }\n\
        [[flows.steps]]\nclose = true\nchecks = [{ status = 'NOT_FOUND' }, { header = 'grpc-message', is = 'no order of NOT_FOUND' }]\n");
    let said = refused.json();
    assert_eq!((refused.code, &said["errors"]), (Some(0), &json!({})), "{refused:?}");
    if !ends_early {
        return;
    }
    let asked = of("[[flows.steps]]\nstream = 'shop.v1.Orders/Negotiate'\n\
        [[flows.steps]]\nsend = { customerName = 'RESOURCE_EXHAUSTED' }\nreceive = {}\n");
    let said = asked.json();
    let kind = "grpc_resource_exhausted";
    assert_eq!(said["errors"], json!({kind: 100}), "{asked:?}");
    assert_eq!(said["sockets"]["ended_by"]["RESOURCE_EXHAUSTED"], 100, "{said}");
    assert_eq!(said["call_errors"][kind], "no order of RESOURCE_EXHAUSTED", "{said}");
}

#[test]
fn grpc_js_and_tonic_converse() {
    let tonic = Shop::start(Reflected::V1);
    conforms(&format!("grpc://{}", tonic.address), true);
    let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &["v1"]) else {
        return;
    };
    conforms(&format!("grpc://127.0.0.1:{}", server.first_line()), false);
}

#[test]
fn the_conversation_of_the_docs_runs() {
    let docs = include_str!("../docs/load/scenarios.md");
    let text = docs.split("<!-- conversation -->\n```toml\n").nth(1).unwrap();
    let text = text.split("```").next().unwrap();
    let server = Shop::start(Reflected::V1);
    let (from, to) = ("127.0.0.1:50051", server.address.to_string());
    // The example's threshold is too short for a busy machine.
    let text = text.replace(from, &to).replace("duration = \"30s\"", "passes = 5");
    let finished = run(&text.replace("<50ms", "<30s"));
    let said = finished.json();
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{finished:?}");
    assert_eq!(of_steps(&said, "requests"), [100; 4], "{said}");
}

#[test]
fn what_a_call_cannot_do_is_refused_with_its_line() {
    let server = EchoServer::start(Wrong::Nothing);
    let target = format!("grpc://{}", server.address);
    let open = "[[flows.steps]]\nstream = 'a.B/Both'\n[[flows.steps]]\n";
    let many = "[[flows.steps]]\nstream = 'a.B/Many'\n[[flows.steps]]\n";
    for (steps, parts) in [
        ("[[flows.steps]]\nstream = 'a.B/One'\n".to_owned(), &["line 13", "use the key grpc"][..]),
        (
            "[[flows.steps]]\nstream = 'grpc-web://127.0.0.1:1/a.B/Many'\n".to_owned(),
            &["gRPC-Web end with their answer"],
        ),
        (
            "[[flows.steps]]\nstream = 'a.B/Both'\nmessage = {}\n".to_owned(),
            &["takes a stream", "send"],
        ),
        (format!("{open}send = [{{}}]\n"), &["line 15", "expected one message"]),
        (format!("{open}send = {{ txt = 'a' }}\n"), &["line 15", "send: txt: no such field"]),
        (format!("{open}send = {{}}\nbinary = true\n"), &["binary needs a WebSocket"]),
        (format!("{open}ping = true\n"), &["ping needs a WebSocket"]),
        (
            format!("{open}receive = {{}}\nchecks = [{{ status = 'OK' }}]\n"),
            &["status and header are known when a call has ended"],
        ),
        (format!("{many}send = {{}}\n"), &["takes one message", "stream"]),
        (format!("{open}connect = '/'\n"), &["HTTP/2", "http2 = true"]),
    ] {
        let finished = passes(1, &target, "", &steps);
        assert_eq!(finished.code, Some(2), "{steps}: {finished:?}");
        let has_all = parts.iter().all(|part| finished.stderr.contains(part));
        assert!(has_all, "{parts:?}: {}\n{steps}", finished.stderr);
    }
}
