//! `crates/serve/src/control/openapi.json` describes what the admin listener of `serve` answers: every
//! operation of every path, with each key and with bad input. A path that one of the two lacks is found.

use std::collections::{BTreeMap, BTreeSet};

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::harness::cable::Cable;
use crate::harness::http::{self, Response};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, derived_key};

const KEY: &str = "the-admin-key";
const DOCUMENT: &str = include_str!("../crates/serve/src/control/openapi.json");

/// What an operation answers to a request.
struct Case {
    operation: (&'static str, &'static str),
    /// The path and query.
    path: String,
    body: String,
    status: u16,
}

fn case(method: &'static str, template: &'static str, path: &str, status: u16) -> Case {
    Case { operation: (method, template), path: path.to_owned(), body: String::new(), status }
}

fn post(template: &'static str, query: &str, body: impl ToString, status: u16) -> Case {
    let path = format!("{template}{query}");
    Case { operation: ("post", template), path, body: body.to_string(), status }
}

/// Requests with the admin key.
fn cases(id: &str) -> Vec<Case> {
    let get = |template: &'static str, status| case("get", template, template, status);
    let history = |rest: &str, status| {
        case("get", "/api/history/{topic}", &format!("/api/history/{rest}"), status)
    };
    let presence = |rest: &str, status| {
        let template = "/api/presence/{topic}/users";
        case("get", template, &format!("/api/presence/{rest}"), status)
    };
    let connection = |method, rest: &str, status| {
        let template = "/api/connections/{id}";
        case(method, template, &format!("/api/connections/{rest}"), status)
    };
    let connections = |query: &str, status| {
        case("get", "/api/connections", &format!("/api/connections{query}"), status)
    };
    let topics =
        |query: &str, status| case("get", "/api/topics", &format!("/api/topics{query}"), status);
    let long = "x".repeat(20 << 10);
    let news = json!({"topic": "a/b", "data": "1"});
    vec![
        get("/", 200),
        get("/health", 200),
        get("/ready", 200),
        get("/metrics", 200),
        get("/api/stats", 200),
        get("/api/live", 200),
        get("/api/openapi.json", 200),
        get("/api/cluster", 200),
        post("/api/publish", "", &news, 200),
        post(
            "/api/publish",
            "?receivers=true",
            json!([news, {"topic": "a/b", "data_base64": "AP8="}]),
            200,
        ),
        post("/api/publish", "?receivers=yes", &news, 400),
        post("/api/publish", "", json!({"topic": "a"}), 400),
        post("/api/publish", "", "{", 400),
        post("/api/publish", "", json!({"topic": "a", "data": long}), 413),
        post(
            "/_broadcast",
            "",
            json!({"stream": "a/b", "data": "2", "meta": {"broadcast_type": "x"}}),
            201,
        ),
        post("/_broadcast", "", json!([{"stream": "a", "data": "1"}]), 201),
        post(
            "/_broadcast",
            "",
            json!({"command": "disconnect", "payload": {"identifier": "{}"}}),
            201,
        ),
        post("/_broadcast", "", json!({"stream": "a"}), 422),
        post("/_broadcast", "", json!({"stream": "a", "data": long}), 413),
        post("/api/disconnect", "", json!({"identifier": "{}", "reconnect": false}), 200),
        post("/api/disconnect", "", json!({"identifier": ""}), 400),
        history("a%2Fb", 200),
        history("a%2Fb?limit=1", 200),
        history("nobody?since=1", 410),
        history("a%2Fb?since=00000000:1", 410),
        history("a%2Fb?since=yesterday", 400),
        history("a%2Fb?limit=0", 400),
        history("a%2Fb?offset=1", 400),
        history("%FF", 400),
        history("", 400),
        presence("news/users", 200),
        presence("%FF/users", 400),
        connections("", 200),
        connections("?protocol=cable&limit=1", 200),
        connections("?protocol=mqtt", 400),
        connections("?limit=many", 400),
        connection("get", id, 200),
        connection("get", "17", 404),
        connection("get", "x", 400),
        topics("", 200),
        topics("?prefix=a", 200),
        topics("?topic=news", 200),
        topics("?limit=0", 400),
        connection("delete", "x", 400),
        connection("delete", &format!("{id}?reconnect=maybe"), 400),
        connection("delete", "17", 404),
        connection("delete", id, 200),
    ]
}

/// Statuses that are described and that no case leads to: they need a server or a client in need, or another
/// test here.
fn is_elsewhere(path: &str, status: &str) -> bool {
    let too_long = path == "/api/disconnect" && status == "413";
    too_long || matches!(status, "401" | "403" | "404" | "408" | "429" | "501" | "503")
}

fn ask(server: &Server, method: &str, path: &str, key: Option<&str>, body: &str) -> Response {
    let authorization = key.map(|key| format!("Authorization: Bearer {key}\r\n"));
    let request = format!(
        "{} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        method.to_uppercase(),
        authorization.unwrap_or_default(),
        body.len()
    );
    http::ask(server.admin, &request)
}

/// The description, with validators of what it promises.
struct Description {
    document: Value,
    validators: BTreeMap<String, Validator>,
}

impl Description {
    fn read() -> Self {
        let document = serde_json::from_str(DOCUMENT).expect("JSON");
        Description { document, validators: BTreeMap::new() }
    }

    fn operation(&self, (method, path): (&str, &str)) -> &Value {
        let operation = &self.document["paths"][path][method];
        assert!(operation.is_object(), "{method} {path} is not described");
        operation
    }

    fn operations(&self) -> BTreeSet<(String, String)> {
        let paths = self.document["paths"].as_object().expect("paths");
        let of = |(path, item): (&String, &Value)| {
            let methods = item.as_object().expect("operations").keys();
            let methods = methods.filter(|key| *key != "parameters");
            methods.map(|method| (method.clone(), path.clone())).collect::<Vec<_>>()
        };
        paths.iter().flat_map(of).collect()
    }

    /// Checks status, type and body of a response.
    fn check(&mut self, operation: (&str, &str), what: &str, response: &Response) {
        let (method, path) = operation;
        let status = response.status.to_string();
        let described = self.operation(operation)["responses"][&status].clone();
        assert!(described.is_object(), "{what}: {status} is not described: {response:?}");
        let content = described["content"].as_object().expect("content");
        let (kind, media) = content.iter().next().expect("a type");
        let is = response.header("content-type").unwrap_or_default();
        assert!(is.starts_with(kind.as_str()), "{what}: {is} instead of {kind}");
        if kind != "application/json" {
            return;
        }
        let (name, schema) = (format!("{method} {path} {status}"), media["schema"].clone());
        let components = self.document["components"].clone();
        let validator =
            self.validators.entry(name).or_insert_with(|| validator(schema, components));
        let body = response.json();
        let errors: Vec<String> = validator.iter_errors(&body).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{what}: {errors:?}\n{body}");
    }
}

/// A schema with what it refers to.
fn validator(schema: Value, components: Value) -> Validator {
    let whole = json!({"allOf": [schema], "components": components});
    jsonschema::draft202012::new(&whole).expect("a valid schema")
}

fn start() -> Server {
    let flags = [
        "--secret",
        SECRET,
        "--admin-key",
        KEY,
        "--history",
        "memory",
        "--public",
        "--presence",
        "memory",
        "--max-message",
        "16KiB",
    ];
    Server::start(&flags)
}

#[test]
fn every_operation_answers_as_described() {
    let server = start();
    let mut description = Description::read();
    let client = Cable::join(server.listen, None).welcomed();
    let listed = ask(&server, "get", "/api/connections", Some(KEY), "").json();
    let id = listed["connections"][0]["id"].as_str().expect("an id").to_owned();
    let mut called: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for Case { operation, path, body, status } in cases(&id) {
        let what = format!("{} {path}", operation.0);
        let response = ask(&server, operation.0, &path, Some(KEY), &body);
        assert_eq!(response.status, status, "{what}: {response:?}");
        description.check(operation, &what, &response);
        let request = &description.operation(operation)["requestBody"];
        if let Some(media) = request["content"].as_object().and_then(|all| all.values().next()) {
            let components = description.document["components"].clone();
            let validator = validator(media["schema"].clone(), components);
            let valid = serde_json::from_str(&body).is_ok_and(|body| validator.is_valid(&body));
            // What is too long or in the query is not in the schema of a body.
            let expected =
                status < 300 || status == 413 && body.starts_with('{') || path.contains('?');
            assert_eq!(valid, expected, "{what}: {body:.200}");
        }
        let operation = (operation.0.to_owned(), operation.1.to_owned());
        called.entry(operation).or_default().insert(status.to_string());
    }
    drop(client);
    let all: BTreeSet<(String, String)> = called.keys().cloned().collect();
    assert_eq!(all, description.operations(), "cases and operations");
    for ((method, path), statuses) in &called {
        let responses = &description.operation((method, path))["responses"];
        for status in responses.as_object().expect("responses").keys() {
            let tested = statuses.contains(status) || is_elsewhere(path, status);
            assert!(tested, "{method} {path}: no case leads to {status}");
        }
    }
}

#[test]
fn each_operation_accepts_the_described_keys_only() {
    let server = start();
    let mut description = Description::read();
    let keys = [
        ("adminKey", KEY.to_owned()),
        ("applicationKey", derived_key("api-cable")),
        ("broadcastKey", derived_key("broadcast-cable")),
    ];
    for (method, path) in description.operations() {
        let concrete = path.replace("{id}", "17").replace("{topic}", "news");
        let operation = (&*method, &*path);
        let security = description.operation(operation)["security"].clone();
        let schemes = security.as_array().expect("security");
        let accepts = |name: &str| schemes.iter().any(|scheme| scheme.get(name).is_some());
        let mut ask = |key: Option<&str>, accepted: bool| {
            let what = format!("{method} {path} with {key:?}");
            let response = ask(&server, &method, &concrete, key, "");
            assert_eq!(response.status != 401, accepted, "{what}: {response:?}");
            description.check(operation, &what, &response);
        };
        for (name, key) in &keys {
            ask(Some(key), schemes.is_empty() || accepts(name));
        }
        for wrong in [None, Some("wrong"), Some("")] {
            ask(wrong, schemes.is_empty());
        }
    }
}

/// Without a key, pages of other sites are refused, and connections are closed by nobody.
#[test]
fn a_listener_without_a_key_refuses_as_described() {
    let server = Server::start(&[]);
    let mut description = Description::read();
    for (method, path) in description.operations() {
        let concrete = path.replace("{id}", "17").replace("{topic}", "news");
        let request = format!(
            "{} {concrete} HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://example.com\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n",
            method.to_uppercase()
        );
        let response = http::ask(server.admin, &request);
        let open = matches!(&*path, "/health" | "/ready");
        assert_eq!(response.status, if open { 200 } else { 403 }, "{method} {path}");
        description.check((&method, &path), "of another site", &response);
    }
    let response = ask(&server, "delete", "/api/connections/17", None, "");
    assert_eq!(response.status, 403);
    description.check(("delete", "/api/connections/{id}"), "without a key", &response);
    let response = ask(&server, "get", "/api/history/news", None, "");
    assert_eq!((response.status, &response.json()["error"]), (404, &json!("history_off")));
    description.check(("get", "/api/history/{topic}"), "without a history", &response);
    let response = ask(&server, "get", "/api/presence/news/users", None, "");
    assert_eq!(response.status, 501);
    description.check(("get", "/api/presence/{topic}/users"), "without presence", &response);
}

/// The listener names its paths, from the tables by which it answers.
#[test]
fn the_description_has_the_paths_of_the_listener() {
    let server = start();
    let reply = ask(&server, "get", "/api/nothing", Some(KEY), "");
    assert_eq!(reply.status, 404);
    let reply = reply.json();
    let message = reply["message"].as_str().expect("a message");
    let paths = message.split_once("available: ").expect("the paths").1;
    let paths: BTreeSet<&str> = paths.split(", ").collect();
    let description = Description::read();
    let operations = description.operations();
    let described: BTreeSet<&str> = operations.iter().map(|(_, path)| &**path).collect();
    assert_eq!(paths, described);
    let served = ask(&server, "get", "/api/openapi.json", Some(KEY), "").json();
    assert_eq!(served, description.document);
    for path in paths {
        let concrete = path.replace("{id}", "17").replace("{topic}", "news");
        for method in ["get", "post", "put", "delete", "patch"] {
            let status = ask(&server, method, &concrete, Some(KEY), "").status;
            let known = operations.contains(&(method.to_owned(), path.to_owned()));
            assert_eq!(status != 405, known, "{method} {path}: {status}");
        }
    }
}

#[test]
fn the_history_of_a_topic_is_read_in_pages() {
    let server = Server::start(&["--history", "memory", "--history-limit", "50"]);
    let page = |query: &str| http::get(server.admin, &format!("/api/history/a%2Fb{query}"));
    let empty = page("").json();
    assert_eq!((&empty["messages"], &empty["next"]), (&json!([]), &Value::Null));
    let batch = |range: std::ops::RangeInclusive<u64>| -> Value {
        range.map(|n| json!({"topic": "a/b", "data": n.to_string()})).collect()
    };
    let reply = server.publish(&batch(1..=60)).json();
    let epoch = reply["epoch"].as_str().expect("an epoch").to_owned();
    let mut next = String::new();
    let mut read = Vec::new();
    loop {
        let page = page(&format!("?limit=20{next}")).json();
        assert_eq!(
            (&page["topic"], &page["epoch"], &page["first"], &page["last"]),
            (&json!("a/b"), &json!(epoch), &json!(11), &json!(60))
        );
        let messages = page["messages"].as_array().expect("messages").clone();
        assert!(messages.len() <= 20 && !messages.is_empty());
        read.extend(messages.iter().map(|message| {
            assert_eq!(message["data"], json!(message["offset"].to_string()));
            message["offset"].as_u64().expect("a number")
        }));
        match page["next"].as_str() {
            Some(position) => next = format!("&since={position}"),
            None => break,
        }
    }
    assert_eq!(read, (11..=60).collect::<Vec<u64>>());
    let offsets = |query: &str| {
        let page = page(query).json();
        page["messages"].as_array().map(Vec::len)
    };
    assert_eq!(offsets(&format!("?since={epoch}:10")), Some(50));
    assert_eq!(offsets(&format!("?since={epoch}:60")), Some(0));
    assert_eq!(offsets("?since=9999999999"), Some(0));
    let refused = |query: &str| {
        let reply = page(query);
        (reply.status, reply.json()["error"].as_str().expect("a word").to_owned())
    };
    let gone = |why: &str| (410, why.to_owned());
    assert_eq!(refused(&format!("?since={epoch}:9")), gone("evicted"));
    assert_eq!(refused(&format!("?since={epoch}:61")), gone("ahead"));
    assert_eq!(refused("?since=00000000:1"), gone("epoch"));
    assert_eq!(refused("?since=1000000000"), gone("evicted"));
    // Binary messages and types are as they were.
    let body = json!({"topic": "b", "data_base64": "AP8="});
    assert_eq!(server.publish(&body).status, 200);
    let body = json!({"stream": "b", "data": "1", "meta": {"broadcast_type": "x"}}).to_string();
    assert_eq!(server.admin_post("/_broadcast", &body).status, 201);
    let b = http::get(server.admin, "/api/history/b").json();
    let [first, second] = [&b["messages"][0], &b["messages"][1]];
    assert_eq!((&first["data_base64"], &first["data"]), (&json!("AP8="), &Value::Null));
    assert_eq!((&second["data"], &second["type"]), (&json!("1"), &json!("x")));
    assert!(second["time"].as_u64().expect("a time") > 1_700_000_000);
}
