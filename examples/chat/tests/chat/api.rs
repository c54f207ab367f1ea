//! The HTTP API.

use serde_json::json;

use crate::client::{Client, Node, push};

fn message<'a>(user: &'a str, id: &'a str, text: &'a str) -> [(&'a str, &'a str); 4] {
    [("appID", "101"), ("userID", user), ("msgID", id), ("message", text)]
}

#[test]
fn users_are_listed_and_online() {
    let node = Node::start(&["--list-users", "2"]);
    let none = json!({ "userCount": 0, "userList": [] });
    assert_eq!(node.data("/user/list?appID=101"), none);
    let _clients = [Client::login(&node, "ada"), Client::login(&node, "马\"")];
    let list = node.data("/user/list?appID=101");
    let mut names: Vec<_> =
        list["userList"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!((names, &list["userCount"]), (vec!["ada", "马\""], &json!(2)));
    for path in ["/user/list?appID=102", "/user/list?appID=9", "/user/list", "/user/list?appID=x"] {
        assert_eq!(node.data(path), none, "{path}");
    }
    for (app, user, online) in [
        ("101", "ada", true),
        ("0", "ada", true),
        ("", "ada", true),
        ("102", "ada", false),
        ("7", "ada", false),
        ("101", "eve", false),
        ("101", "", false),
        ("101", "a user id of many bytes", false),
    ] {
        let path = format!("/user/online?appID={app}&userID={}", user.replace(' ', "%20"));
        assert_eq!(node.data(&path), json!({ "online": online, "userID": user }), "{path}");
    }
    let _third = Client::login(&node, "eve");
    let list = node.data("/user/list?appID=101");
    assert_eq!((&list["userCount"], list["userList"].as_array().unwrap().len()), (&json!(3), 2));
    assert_eq!(node.counter("listsCut"), 1);
}

#[test]
fn messages_are_sent_to_one_and_to_all_once() {
    let node = Node::start(&["--announce-users", "0"]);
    let mut ada = Client::login(&node, "ada");
    let mut bob = Client::login(&node, "bob");
    let (sent, duplicate) = (json!({ "sendResults": true }), json!({}));
    let offline = json!({ "sendResults": false, "sendResultsErr": "用户不在线" });
    let one = "/user/sendMessage";
    assert_eq!(node.post(one, &message("ada", "1", "hi + \u{1F600}")), sent);
    assert_eq!(node.post(one, &message("ada", "1", "twice")), duplicate);
    assert_eq!(node.post(one, &message("nobody", "2", "x")), offline);
    assert_eq!(node.post(one, &message("", "3", "x")), offline);
    assert_eq!(node.post(one, &[("appID", "5"), ("userID", "ada")]), offline);
    let from = [&message("ada", "4", "from bob")[..], &[("fromID", "bob")]].concat();
    assert_eq!(node.post(one, &from), sent);
    let all = "/user/sendMessageAll";
    assert_eq!(node.post(all, &message("bob", "5", "to others")), sent);
    assert_eq!(node.post(all, &message("bob", "5", "twice")), duplicate);
    assert_eq!(node.post(all, &message("", "6", "to all")), sent);
    assert_eq!(node.post(all, &message("system", "7", "to all")), sent);
    let unknown = node.post(all, &[("appID", "5"), ("message", "x")]);
    assert_eq!(unknown["sendResults"], false);
    let expected = [
        push("1", "msg", "hi + \u{1F600}", "ada"),
        push("4", "msg", "from bob", "bob"),
        push("5", "msg", "to others", "bob"),
        push("6", "msg", "to all", ""),
        push("7", "msg", "to all", "system"),
    ];
    let received: Vec<_> = (0..5).map(|_| ada.json()).collect();
    assert_eq!(received, expected);
    assert_eq!([bob.json(), bob.json()], expected[3..]);
    assert!(ada.received().is_empty() && bob.received().is_empty());
    for (name, count) in [("sent", 2), ("sentToAll", 3), ("notOnline", 3), ("duplicates", 2)] {
        assert_eq!(node.counter(name), count, "{name}");
    }
}

#[test]
fn state_and_page_and_other_origins() {
    let node = Node::start(&["--apps", "7,8"]);
    let _clients = [Client::connect(&node), Client::connect(&node)];
    let mut ada = Client::connect(&node);
    ada.request("login", json!({ "appID": 8, "userID": "ada" }));
    let state = node.data("/system/state");
    for name in ["chanRegisterLen", "chanLoginLen", "chanUnregisterLen", "chanBroadcastLen"] {
        assert_eq!(state["managerInfo"][name], 0);
    }
    assert_eq!(state["managerInfo"]["clientsLen"], 3);
    assert_eq!(state["managerInfo"]["usersLen"], 1);
    assert!(state["numGoroutine"].as_u64() > Some(0) && state["numCPU"].as_u64() > Some(0));
    assert_eq!(state["managerInfo"].get("users"), None);
    let debug = node.data("/system/state?isDebug=true");
    assert_eq!(debug["managerInfo"]["users"], json!(["8_ada"]));
    assert_eq!(debug["managerInfo"]["clients"].as_array().unwrap().len(), 1);
    let (status, head, page) = node.get("/home/index?appID=8");
    assert_eq!(status, 200);
    assert!(head.contains("text/html") && page.contains("content=\"7,8\""), "{head}");
    let (status, head, _) = node.get("/");
    assert!(status == 302 && head.contains("Location: /home/index"), "{head}");
    let preflight = "OPTIONS /user/sendMessageAll HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    for (status, head, _) in [node.ask(preflight), node.get("/user/list")] {
        assert!(status < 300 && head.contains("Access-Control-Allow-Origin: *\r\n"), "{head}");
        assert!(!head.contains("Credentials"), "{head}");
    }
}

#[test]
fn the_api_can_have_a_key() {
    let node = Node::start(&["--api-key", "open sesame"]);
    let (_, _, body) = node.get("/user/list");
    assert_eq!(body, r#"{"code":1003,"msg":"未授权","data":null}"#);
    let key = "Authorization: Bearer open sesame\r\n";
    let (_, _, body) = node.post_with("/user/sendMessageAll", &message("", "1", "x"), key);
    assert!(body.contains(r#""sendResults":true"#), "{body}");
    assert_eq!(node.get("/home/index").0, 200);
}

#[test]
fn each_worker_can_have_a_descriptor_table() {
    let node = Node::start(&["--private-tables", "--sockets", "1000"]);
    let mut ada = Client::login(&node, "ada");
    assert_eq!(node.post("/user/sendMessage", &message("ada", "1", "hi"))["sendResults"], true);
    assert_eq!(ada.json(), push("1", "msg", "hi", "ada"));
    assert_eq!(node.data("/user/online?appID=101&userID=ada")["online"], true);
    assert_eq!(node.data("/user/list?appID=101")["userCount"], 1);
    assert_eq!(node.get("/home/index").0, 200);
    assert_eq!(node.counter("logins"), 1);
}
