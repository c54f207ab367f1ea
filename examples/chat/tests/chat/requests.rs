//! What clients of `/acc` are answered.

use serde_json::json;
use tungstenite::Message;

use crate::client::{Client, Node, eventually, push};

#[test]
fn requests_are_answered_with_the_codes_of_the_original() {
    let node = Node::start(&[]);
    let mut client = Client::connect(&node);
    let code = |code, text| json!({ "code": code, "codeMsg": text, "data": null });
    assert_eq!(
        client.request("ping", json!({})),
        json!({ "code": 200, "codeMsg": "Success", "data": "pong" })
    );
    assert_eq!(client.request("heartbeat", json!({})), code(1000, "未登录"));
    assert_eq!(client.request("heartbeat", json!("x")), code(1001, "参数不合法"));
    assert_eq!(client.request("msg", json!({ "message": "x" })), code(1000, "未登录"));
    assert_eq!(client.request("nothing", json!({})), code(1010, "路由不存在"));
    for (data, expected) in [
        (json!("x"), code(1001, "参数不合法")),
        (json!({ "appID": "101" }), code(1001, "参数不合法")),
        (json!({ "appID": 101, "userID": "" }), code(1002, "非法的用户ID")),
        (json!({ "appID": 101, "userID": "12345678901234567890" }), code(1002, "非法的用户ID")),
        (json!({ "appID": 100, "userID": "ada" }), code(1003, "未授权")),
        (json!({ "appID": 104, "userID": "1234567890123456789" }), code(200, "Success")),
        (json!({ "appID": 101, "userID": "ada" }), code(1009, "操作失败")),
    ] {
        assert_eq!(client.request("login", data), expected);
    }
    assert_eq!(client.request("heartbeat", json!({})), code(200, "Success"));
    for invalid in ["", "x", "[]", "{\"seq\":1}"] {
        client.send(invalid);
        assert_eq!(client.text(), "数据不合法");
    }
    client.socket.send(Message::binary(&br#"{"cmd":"ping","seq":"b"}"#[..])).unwrap();
    assert_eq!(client.json()["seq"], "b");
    assert_eq!((node.counter("logins"), node.counter("invalid")), (1, 4));
    assert_eq!(node.counter("heartbeats"), 1);
}

#[test]
fn a_client_can_log_in_by_its_url() {
    let node = Node::start(&["--service-token", "secret"]);
    let connect = |query: &str| Client::connect_to(&node, &format!("/acc?{query}"));
    assert_eq!(connect("appID=101&userID=ada").err(), Some(403));
    assert_eq!(connect("appID=1&userID=ada&serviceToken=secret").err(), Some(403));
    assert_eq!(connect("appID=101&userID=&serviceToken=secret").err(), Some(400));
    let mut ada = connect("appID=101&userID=%E9%A9%AC&serviceToken=secret").unwrap();
    assert_eq!(ada.request("heartbeat", json!({}))["code"], 200);
    assert_eq!(node.data("/user/list?appID=101")["userList"], json!(["马"]));
    let mut bob = Client::connect(&node);
    let login = |token: &str| json!({ "appID": 101, "userID": "bob", "serviceToken": token });
    assert_eq!(bob.request("login", login("Secret"))["code"], 1003);
    assert_eq!(bob.request("login", login("secret"))["code"], 200);
}

#[test]
fn a_second_login_ends_the_first_and_says_so() {
    let node = Node::start(&[]);
    let mut watcher = Client::login(&node, "watcher");
    let mut first = Client::login(&node, "ada");
    let mut second = Client::login(&node, "ada");
    assert_eq!(first.closed(), 4009);
    assert_eq!(node.data("/user/list?appID=101")["userCount"], 2);
    let sent = node.post(
        "/user/sendMessage",
        &[("appID", "101"), ("userID", "ada"), ("msgID", "1"), ("message", "hi")],
    );
    assert_eq!(sent, json!({ "sendResults": true }));
    assert_eq!(second.json(), push("1", "msg", "hi", "ada"));
    second.leave();
    node.wait_for_users(1);
    eventually("watcher sees one enter and one exit", || node.counter("announced") == 3);
    let events: Vec<_> = watcher.received().iter().map(|event| event["cmd"].clone()).collect();
    assert_eq!(events, ["enter", "exit"]);
    assert_eq!(node.counter("replaced"), 1);
}

#[test]
fn clients_send_to_one_and_to_all() {
    let node = Node::start(&["--announce-users", "0"]);
    let mut users: Vec<_> = ["ada", "bob", "eve"].map(|name| Client::login(&node, name)).into();
    let mut other = Client::connect(&node);
    other.request("login", json!({ "appID": 102, "userID": "bob" }));
    let mut send = |data| users[0].request("msg", data)["data"].clone();
    let (sent, duplicate) = (json!({ "sendResults": true }), json!({}));
    assert_eq!(send(json!({ "to": "bob", "message": "a\"b", "msgID": "1" })), sent);
    assert_eq!(send(json!({ "to": "bob", "message": "again", "msgID": "1" })), duplicate);
    assert_eq!(send(json!({ "to": "nobody", "message": "x" })), json!({ "sendResults": false }));
    assert_eq!(send(json!({ "to": "12345678901234567890" })), json!(null));
    assert_eq!(send(json!({ "message": "all", "msgID": "2" })), sent);
    let mut private = push("1", "msg", "a\"b", "ada");
    private["response"]["data"]["target"] = "bob".into();
    assert_eq!(users[1].json(), private);
    for user in &mut users[1..] {
        assert_eq!(user.json(), push("2", "msg", "all", "ada"));
    }
    for client in users.iter_mut().chain([&mut other]) {
        assert!(client.received().is_empty());
    }
}

#[test]
fn the_silent_are_closed_and_users_without_heartbeats_are_offline() {
    let node = Node::start(&["--idle-seconds", "2", "--online-seconds", "0"]);
    let mut silent = [Client::login(&node, "ada"), Client::connect(&node)];
    let mut lively = Client::login(&node, "bob");
    let online = || node.data("/user/online?appID=101&userID=bob")["online"].clone();
    eventually("the last heartbeat is too old", || online() == false);
    eventually("the silent user is gone", || {
        assert_eq!(lively.request_through("heartbeat")["code"], 200);
        node.data("/user/list?appID=101")["userList"] == json!(["bob"])
    });
    for client in &mut silent {
        assert!(client.closed() > 1000);
    }
}
