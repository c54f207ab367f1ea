//! Applications and clients of others: AnyCable's library for applications over HTTP RPC, with Rails' and
//! AnyCable's clients; gRPC with its own library for Node.js; Rails' channels over HTTP RPC with its client.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};

use crate::harness::app::room;
use crate::harness::cable::Cable;
use crate::harness::peer::{self, Program};
use crate::harness::rails::Rails;
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, derived_key};
use crate::harness::socket::TEXT;
use crate::harness::{Deserted, Scratch, eventually, http};

fn join(server: &Server) -> Cable {
    Cable::connect(server.listen, "", "", ("Cookie", "user=ann"))
}

fn perform(cable: &mut Cable, identifier: &Value, data: &str) {
    let identifier = identifier.to_string();
    let message = json!({"command": "message", "identifier": identifier, "data": data});
    cable.socket.send_frame(TEXT, message.to_string().as_bytes());
}

fn calls(server: &Server, method: &str, status: &str) -> f64 {
    let name = format!("standfast_app_calls_total{{method=\"{method}\",status=\"{status}\"}}");
    server.metrics().get(&name).copied().unwrap_or_default()
}

#[test]
fn an_application_of_anycable_over_http() {
    let Some(app) = Program::start(&peer::APPLICATION, "cable_app.js", &["serve", SECRET]) else {
        return;
    };
    let url = format!("http://127.0.0.1:{}/_anycable", app.first_line());
    let key = derived_key("rpc-cable");
    let server = Server::start(&["--rpc-host", &url, "--http-rpc-secret", &key]);
    let (listen, admin) = (format!("ws://{}", server.listen), format!("http://{}", server.admin));
    let expected = [
        "@rails/actioncable",
        "@anycable/core actioncable-v1-json",
        "@anycable/core actioncable-v1-ext-json",
    ];
    peer::works(&peer::APPLICATION, "cable_app.js", &["talk", &listen, &admin], &expected);
    eventually("all ends are reported", || calls(&server, "disconnect", "success") == 5.0);
    let expected = [
        "actioncable-v1-msgpack performs",
        "actioncable-v1-ext-msgpack performs",
        "actioncable-v1-protobuf performs",
        "actioncable-v1-ext-protobuf performs",
    ];
    peer::works(&peer::ENCODERS, "anycable_encodings.js", &[&listen, &admin, "app"], &expected);
    let keyless = Server::start(&["--rpc-host", &url]);
    assert_eq!(join(&keyless).socket.close_code(), 1011);
    eventually("why is logged", || keyless.log().contains("status 401"));
}

/// Rails' own connection, session and channels, unchanged, with Rails' client.
#[test]
fn channels_of_rails_over_http() {
    let Some(rails) = Rails::start_application(SECRET) else { return };
    let url = format!("http://{}/_anycable", rails.address);
    let server = Server::start(&["--rpc-host", &url, "--secret", SECRET]);
    let broadcasts = format!("/use?url=http://{}/_broadcast", server.admin);
    assert_eq!(http::post(rails.address, &broadcasts, "").status, 204);
    let expected = [
        "identified_by, session, subscribed, transmit",
        "perform, broadcasts, state",
        "stream_for",
        "stop_stream_from, stop_all_streams",
        "reject",
        "unsubscribe",
        "disconnect, once each",
        "reject_unauthorized_connection",
    ];
    let (listen, app) = (format!("ws://{}", server.listen), format!("http://{}", rails.address));
    peer::works(&peer::NODE, "rails_app.js", &[&listen, &app], &expected);
    assert_eq!(calls(&server, "disconnect", "success"), 2.0);
    // What the application fails at is no verdict.
    let mut cable = Cable::connect(server.listen, "", "", ("Cookie", &login(&rails)));
    cable.welcome();
    let nowhere = json!({"channel": "RoomChannel", "room": "nowhere"}).to_string();
    let command = json!({"command": "subscribe", "identifier": nowhere}).to_string();
    cable.socket.send_frame(TEXT, command.as_bytes());
    eventually("it has failed", || calls(&server, "subscribe", "error") == 1.0);
    eventually("why is logged", || server.log().contains("RuntimeError: no such room"));
}

/// The cookie of a user.
fn login(rails: &Rails) -> String {
    let answer = http::post(rails.address, "/login?user=ann", "");
    let cookie = answer.header("set-cookie").expect("a session");
    cookie.split(';').next().unwrap_or_default().to_owned()
}

/// What an application printed about its calls.
fn noted(app: &Program) -> Vec<Value> {
    let lines = app.lines();
    lines.iter().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn an_application_over_grpc() {
    let Some(app) = Program::start(&peer::GRPC, "grpc_app.js", &["0"]) else { return };
    let host = format!("127.0.0.1:{}", app.first_line());
    let server = Server::start(&["--rpc-host", &host]);
    let mut cable = join(&server);
    let sid = cable.welcome();
    let lobby = room("lobby");
    assert_eq!(cable.subscribe(&lobby), "confirm_subscription");
    assert_eq!(server.publish(&json!({"topic": "room:lobby", "data": "1"})).status, 200);
    assert_eq!(cable.hear()["message"], 1);
    perform(&mut cable, &lobby, "{}");
    assert_eq!(cable.hear()["message"]["echo"], "{}");
    drop(cable);
    eventually("its end is reported", || noted(&app).len() == 4);
    let noted = noted(&app);
    for call in &noted {
        assert_eq!((&call["sid"], &call["protov"]), (&json!(sid), &json!("v1")), "{call}");
        assert_eq!(call["request"]["env"]["url"], "http://127.0.0.1/cable");
    }
    let ann = json!({"user": "ann"}).to_string();
    assert_eq!(noted[0]["request"]["env"]["headers"]["cookie"], "user=ann");
    assert_eq!(noted[2]["request"]["connection_identifiers"], ann);
    assert_eq!(noted[2]["request"]["env"]["cstate"], json!({"n": "1"}));
    assert_eq!(noted[2]["request"]["env"]["istate"], json!({"room": "lobby"}));
    assert_eq!(noted[3]["request"]["identifiers"], ann);
    let states = json!({lobby.to_string(): json!({"room": "lobby"}).to_string()});
    assert_eq!(noted[3]["request"]["env"]["istate"], states);
    assert_eq!(Cable::join(server.listen, None).refused(), "unauthorized");
}

#[test]
fn statuses_of_grpc_are_understood() {
    let Some(app) = Program::start(&peer::GRPC, "grpc_app.js", &["0"]) else { return };
    let host = format!("grpc://127.0.0.1:{}", app.first_line());
    let flags = ["--rpc-host", &host, "--rpc-queue-wait", "1s"];
    let server = Server::start(&flags);
    let mut cable = join(&server).welcomed();
    let command = |name: &str| {
        json!({"command": "subscribe", "identifier": room(name).to_string()}).to_string()
    };
    cable.socket.send_frame(TEXT, command("INTERNAL").as_bytes());
    eventually("it has failed", || calls(&server, "subscribe", "invalid") == 1.0);
    eventually("why is logged", || server.log().contains("grpc-status 13: wish"));
    // The application is overloaded: called again until it is too late.
    cable.socket.send_frame(TEXT, command("RESOURCE_EXHAUSTED").as_bytes());
    eventually("it is late", || calls(&server, "subscribe", "late") == 1.0);
    assert!(server.metrics()["standfast_app_put_back_total"] >= 3.0);
    assert_eq!(cable.subscribe(&room("a")), "confirm_subscription");
}

/// Answers that are none of the contract let nobody in, whatever they say before.
#[test]
fn wrong_answers_of_grpc_are_refusals() {
    let Some(app) = Program::start(&peer::NODE, "grpc_wrong.js", &[]) else { return };
    let host = format!("grpc://127.0.0.1:{}", app.first_line());
    let server = Server::start(&["--rpc-host", &host, "--rpc-timeout", "500ms"]);
    for (case, status) in [
        ("no_status", "invalid"),
        ("no_number", "invalid"),
        ("refused", "invalid"),
        ("two_messages", "invalid"),
        ("page", "invalid"),
        ("long", "invalid"),
        ("status_in_head", "invalid"),
        ("not_found", "invalid"),
        ("no_trailers", "lost"),
        ("reset", "lost"),
        ("gone", "lost"),
        ("never_ends", "timeout"),
    ] {
        let before = calls(&server, "connect", status);
        let cookie = format!("case={case}");
        let mut cable = Cable::connect(server.listen, "", "", ("Cookie", &cookie));
        assert_eq!(cable.socket.close_code(), 1011, "{case}");
        assert_eq!(calls(&server, "connect", status), before + 1.0, "{case}: {}", server.log());
    }
    Cable::connect(server.listen, "", "", ("Cookie", "case=right")).welcome();
}

/// Balanced over the hosts of a list, of which one is away; then the other one, too, and both return.
#[test]
fn a_list_of_grpc_hosts_is_balanced_and_outlives_them() {
    let away = Deserted::port();
    let Some(one) = Program::start(&peer::GRPC, "grpc_app.js", &["0"]) else { return };
    let Some(two) = Program::start(&peer::GRPC, "grpc_app.js", &["0"]) else { return };
    let (first, second) = (one.first_line(), two.first_line());
    let hosts = format!("grpc-list://{},127.0.0.1:{first},127.0.0.1:{second}", away.address);
    let server = Server::start(&["--rpc-host", &hosts]);
    let cables: Vec<Cable> = (0..20).map(|_| join(&server).welcomed()).collect();
    eventually("all calls are noted", || noted(&one).len() + noted(&two).len() >= 20);
    for app in [&one, &two] {
        let connects = noted(app).len();
        assert!((5..=15).contains(&connects), "{connects}");
    }
    drop((one, two));
    let mut waiting: Vec<Cable> = (0..10).map(|_| join(&server)).collect();
    eventually("nobody is reached", || server.log().contains("application unreachable"));
    let one = Program::start(&peer::GRPC, "grpc_app.js", &[&first]).expect("as before");
    waiting.iter_mut().for_each(|cable| drop(cable.welcome()));
    drop((cables, one));
}

#[test]
fn grpc_over_tls() {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let cert = Scratch::new("app.pem", &cert.pem());
    let key = Scratch::new("app.key", &signing_key.serialize_pem());
    let args = ["0", cert.path(), key.path()];
    let Some(app) = Program::start(&peer::GRPC, "grpc_app.js", &args) else { return };
    let host = format!("grpcs://localhost:{}", app.first_line());
    let server = Server::start(&["--rpc-host", &host, "--rpc-tls-ca", cert.path()]);
    join(&server).welcome();
    let distrusting = Server::start(&["--rpc-host", &host, "--rpc-queue-wait", "500ms"]);
    assert_eq!(join(&distrusting).disconnect_reason(), ("overloaded".to_owned(), true));
    eventually("why is logged", || distrusting.log().contains("certificate"));
}
