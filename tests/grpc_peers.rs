//! What a server of gRPC must see of `load`, for each library that is a peer: grpc-js and tonic have the same service
//! and pass the same list.

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished};
use crate::harness::peer::{self, Program};
use crate::harness::tonic::{Reflected, Shop, WATCHED};

/// Calls of each step of the list.
const CALLS: u64 = 100;

/// 100 calls of a method over 2 connections with 5 streams each.
fn call(server: &str, method: &str, more: &[&str]) -> (Finished, Value) {
    let url = format!("{server}/shop.v1.Orders/{method}");
    let flags = ["load", &url, "--connections", "2", "--streams", "5", "--requests", "100"];
    let common = ["--json", "-", "--late-after", "60s"];
    let late = if ["Place", "Watch"].contains(&method) { &common[..2] } else { &common[..] };
    let finished = executable::run(&[&flags[..], late, more].concat());
    let said = if finished.stdout.is_empty() { Value::Null } else { finished.json() };
    (finished, said)
}

fn count(said: &Value, pointer: &str) -> u64 {
    said.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// All calls are good; messages sent, received and answered.
fn good(server: &str, method: &str, more: &[&str]) -> (u64, u64, u64) {
    let (finished, said) = call(server, method, more);
    assert_eq!((finished.code, &said["errors"]), (Some(0), &json!({})), "{method}: {finished:?}");
    assert_eq!(count(&said, "/requests/ok"), CALLS, "{method}: {said}");
    let of = |name: &str| count(&said, &format!("/messages/{name}"));
    (of("sent"), of("received"), of("answered"))
}

/// All calls fail by this kind.
fn fails(server: &str, method: &str, more: &[&str], kind: &str) {
    let (finished, said) = call(server, method, more);
    assert_eq!(finished.code, Some(1), "{method}: {finished:?}");
    assert_eq!(said["errors"], json!({kind: CALLS}), "{method}: {said}");
}

/// The list.
fn conforms(server: &str) {
    let listed = executable::run(&["load", "grpc-list", server]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    for line in [
        "Place  unary  shop.v1.Order → shop.v1.Receipt",
        "Import  client stream  shop.v1.Order → shop.v1.Receipt",
        "Watch  server stream  google.protobuf.Empty → shop.v1.Order",
        "Negotiate  bidi stream  shop.v1.Order → shop.v1.Receipt",
    ] {
        assert!(listed.stdout.contains(line), "{line}: {listed:?}");
    }
    let of = |name: &str| format!("{{\"customerName\":\"{name}\"}}");
    good(server, "Place", &["-d", &of("user {{seq}}"), "--timeout", "20s"]);
    good(server, "Place", &["-d", &of("user {{seq}}"), "--compression", "gzip"]);
    good(server, "Place", &["--check", "json $.text is thanks"]);
    fails(server, "Place", &["-d", &of("NOT_FOUND")], "grpc_not_found");
    fails(server, "Place", &["-d", &of("RESOURCE_EXHAUSTED")], "grpc_resource_exhausted");
    fails(server, "Place", &["-d", &of("DETAILS")], "grpc_invalid_argument");
    let message = of("DETAILS");
    let details = [
        &["-d", &message, "--accept", "INVALID_ARGUMENT"][..],
        &["--check", "header grpc-message is no such customer"],
        &["--check", "header grpc-status-details-bin"],
    ];
    good(server, "Place", &details.concat());
    let watched = WATCHED as u64 * CALLS;
    assert_eq!(good(server, "Watch", &[]), (0, watched, 0));
    let three = ["--check", "json $[2].customerName is customer 2"];
    good(server, "Watch", &three);
    let stamped = of("{{stamp}}");
    let five = ["-d", &stamped, "--messages", "5"];
    assert_eq!(good(server, "Import", &five), (500, 100, 0));
    fails(server, "Import", &["-d", &of("NOT_FOUND")], "grpc_not_found");
    assert_eq!(good(server, "Negotiate", &five), (500, 500, 500));
    let echo = [&five[..], &["--echo"]].concat();
    assert_eq!(good(server, "Negotiate", &echo), (500, 500, 500));
    let gzip = [&echo[..], &["--compression", "gzip"]].concat();
    assert_eq!(good(server, "Negotiate", &gzip), (500, 500, 500));
    fails(server, "Negotiate", &["-d", &of("NOT_FOUND")], "grpc_not_found");
    let file = Scratch::new(
        &format!("peer-{}.toml", server.rsplit_once(':').unwrap().1),
        &format!(
            "version = 1\nusers = 5\npasses = 20\ntarget = '{server}'\n[[flows]]\n[[flows.steps]]\n\
             grpc = 'shop.v1.Orders/Negotiate'\n\
             message = [{{ customerName = 'user {{{{user}}}}' }}, {{ customerName = 'b' }}]\n\
             checks = [{{ json = '$[1].text', is = 'b' }}]\ncapture = {{ one = {{ json = '$[0].text' }} }}\n\
             [[flows.steps]]\ngrpc = 'shop.v1.Orders/Import'\n\
             message = [{{ customerName = '{{{{one}}}}' }}, {{}}, {{}}]\n\
             checks = [{{ json = '$.text', is = '3' }}]\n"
        ),
    );
    let finished = executable::run(&["load", file.path(), "--json", "-"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(finished.json()["requests"]["ok"], 200, "{finished:?}");
}

/// The health of the server and of its services.
fn tells_its_health(server: &str) {
    good(server, "Place", &["--health"]);
    good(server, "Place", &["--health=on"]);
    for (flag, why) in [("--health=off", "NOT_SERVING"), ("--health=unknown", "NOT_FOUND")] {
        let (finished, _) = call(server, "Place", &[flag]);
        assert_eq!(finished.code, Some(2), "{flag}: {finished:?}");
        assert!(finished.stderr.contains(why), "{flag}: {finished:?}");
    }
    let url = format!("{server}/grpc.health.v1.Health/Check");
    let run = ["load", &url, "--requests", "100", "--check", "json $.status is SERVING"];
    assert_eq!(executable::run(&run).code, Some(0));
}

#[test]
fn grpc_js_conforms() {
    for mode in ["v1", "v1alpha"] {
        let Some(server) = Program::start(&peer::GRPC_REFLECTION, "grpc_shop.js", &[mode]) else {
            return;
        };
        let url = format!("grpc://127.0.0.1:{}", server.first_line());
        conforms(&url);
        if mode == "v1" {
            tells_its_health(&url);
        }
    }
}

#[test]
fn tonic_conforms() {
    for reflected in [Reflected::V1, Reflected::V1Alpha] {
        let server = Shop::start(reflected);
        let url = format!("grpc://{}", server.address);
        conforms(&url);
        tells_its_health(&url);
    }
    let server = Shop::start(Reflected::None);
    let listed = executable::run(&["load", "grpc-list", &server.address.to_string()]);
    assert_eq!(listed.code, Some(2), "{listed:?}");
    assert!(listed.stderr.contains("no reflection service (UNIMPLEMENTED)"), "{listed:?}");
}

#[test]
fn more_than_waits_to_be_sent_at_a_time_is_sent() {
    let server = Shop::start(Reflected::V1);
    let url = format!("grpc://{}/shop.v1.Orders/Import", server.address);
    let message = format!("{{\"customerName\":\"{}\"}}", "x".repeat(3_000));
    let flags = ["-c", "1", "--streams", "50", "--messages", "100", "--requests", "50"];
    let flags = [&["load", &url, "-d", &message][..], &flags, &["--json", "-"]].concat();
    let said = executable::run(&flags).json();
    assert_eq!(said["requests"]["ok"], 50, "{said}");
    assert_eq!(said["messages"]["sent"], 5_000, "{said}");
}
