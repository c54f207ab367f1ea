//! Three nodes by Redis and by NATS.

use serde_json::json;

use crate::brokers::{Broker, Kind};
use crate::client::{Client, Node, eventually, push};

const QUIET: [&str; 4] = ["--announce-users", "0", "--node-ttl-ms", "1000"];

fn message<'a>(user: &'a str, id: &'a str, text: &'a str) -> [(&'a str, &'a str); 4] {
    [("appID", "101"), ("userID", user), ("msgID", id), ("message", text)]
}

fn send(node: &Node, user: &str, id: &str) -> serde_json::Value {
    node.post("/user/sendMessage", &message(user, id, "hi"))
}

#[test]
fn three_nodes_are_one_chat_by_redis() {
    three_nodes_are_one_chat(Kind::Redis);
}

#[test]
fn three_nodes_are_one_chat_by_nats() {
    three_nodes_are_one_chat(Kind::Nats);
}

fn three_nodes_are_one_chat(kind: Kind) {
    let broker = Broker::start(kind);
    let mut nodes = broker.nodes("chat", &QUIET);
    let _other_chat = broker.node("other", &[]);
    let mut users: Vec<Client> = nodes
        .iter()
        .zip(["ada", "bob", "eve"])
        .map(|(node, name)| Client::login(node, name))
        .collect();
    let (sent, duplicate) = (json!({ "sendResults": true }), json!({}));
    let offline = json!({ "sendResults": false, "sendResultsErr": "用户不在线" });
    for node in &nodes {
        let list = node.data("/user/list?appID=101");
        let mut names: Vec<_> = list["userList"].as_array().unwrap().to_vec();
        names.sort_by_key(|name| name.to_string());
        assert_eq!(
            (&list["userCount"], names),
            (&json!(3), vec!["ada".into(), "bob".into(), "eve".into()])
        );
        for (app, user, online) in [(101, "eve", true), (0, "ada", true), (102, "bob", false)] {
            let data = node.data(&format!("/user/online?appID={app}&userID={user}"));
            assert_eq!(data["online"], online, "{user}");
        }
    }
    // To one, wherever the user is, and each id once on all nodes.
    assert_eq!(send(&nodes[0], "eve", "1"), sent);
    assert_eq!(users[2].json(), push("1", "msg", "hi", "eve"));
    for node in &nodes {
        assert_eq!(send(node, "eve", "1"), duplicate);
    }
    assert_eq!(send(&nodes[2], "eve", "2"), sent);
    eventually("the others know a local id", || send(&nodes[0], "eve", "2") == duplicate);
    assert_eq!(users[2].json()["seq"], "2");
    assert_eq!(send(&nodes[1], "nobody", "3"), offline);
    let answer = users[0].request("msg", json!({ "to": "bob", "message": "x", "msgID": "4" }));
    assert_eq!(answer["data"], sent);
    assert_eq!(users[1].json()["response"]["data"]["from"], "ada");
    // To all but the sender, who is on another node than the request.
    let all = nodes[2].post("/user/sendMessageAll", &message("ada", "5", "to others"));
    assert_eq!(all, sent);
    assert_eq!(users[1].json(), push("5", "msg", "to others", "ada"));
    assert_eq!(users[2].json(), push("5", "msg", "to others", "ada"));
    assert_eq!(nodes[1].post("/user/sendMessageAll", &message("", "6", "to all")), sent);
    for user in &mut users {
        assert_eq!(user.json(), push("6", "msg", "to all", ""));
        assert!(user.received().is_empty());
    }
    // A login on another node ends the first session.
    let mut again = Client::login(&nodes[1], "ada");
    assert_eq!(users[0].closed(), 4009);
    nodes[0].wait_for_users(0);
    assert_eq!(send(&nodes[0], "ada", "7"), sent);
    assert_eq!(again.json()["seq"], "7");
    // A node is killed.
    nodes.remove(1);
    for node in &nodes {
        eventually("its users are offline", || {
            node.data("/user/online?appID=101&userID=bob")["online"] == false
                && node.data("/user/list?appID=101")["userCount"] == 1
        });
        eventually("the node is gone", || node.others() == 1);
        assert_eq!((send(node, "bob", ""), node.counter("nodesLost")), (offline.clone(), 1));
    }
    assert_eq!(send(&nodes[0], "eve", "8"), sent);
    assert_eq!(users[2].json()["seq"], "8");
    let _bob = Client::login(&nodes[0], "bob");
    assert_eq!(send(&nodes[1], "bob", "9"), sent);
}

#[test]
fn enters_and_exits_are_told_on_all_nodes() {
    let broker = Broker::start(Kind::Redis);
    let nodes = broker.nodes("chat", &[]);
    let channels = broker.channels();
    let mut ada = Client::login(&nodes[0], "ada");
    // What is published before is not for her.
    eventually("the topic of the application is subscribed to", || broker.channels() > channels);
    let bob = Client::login(&nodes[1], "bob");
    let enter = ada.json();
    assert_eq!(
        (&enter["cmd"], &enter["response"]["data"]["from"]),
        (&json!("enter"), &json!("bob"))
    );
    bob.leave();
    assert_eq!(ada.json()["cmd"], "exit");
}

#[test]
fn without_its_broker_a_node_serves_its_own_users() {
    let broker = Broker::start(Kind::Redis);
    let nodes = broker.nodes("chat", &QUIET);
    let mut ada = Client::login(&nodes[0], "ada");
    let _bob = Client::login(&nodes[1], "bob");
    drop(broker);
    eventually("the node is alone", || nodes[0].others() == 0);
    assert_eq!(send(&nodes[0], "ada", "1"), json!({ "sendResults": true }));
    assert_eq!(ada.json()["seq"], "1");
    assert_eq!(send(&nodes[0], "bob", "2")["sendResults"], false);
    assert!(nodes[0].data("/system/state")["nodes"]["trouble"].is_string());
}
