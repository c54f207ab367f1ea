//! Who is told of enters and exits.

use serde_json::json;

use crate::client::{Client, Node, eventually, push};

#[test]
fn users_are_told_who_enters_and_leaves_in_their_application() {
    let node = Node::start(&[]);
    let mut ada = Client::login(&node, "ada");
    let mut other = Client::connect(&node);
    other.request("login", json!({ "appID": 102, "userID": "other" }));
    let bob = Client::login(&node, "bob");
    let mut enter = ada.json();
    assert!(enter["seq"].as_str().unwrap().bytes().all(|byte| byte.is_ascii_digit()));
    enter["seq"] = "".into();
    assert_eq!(enter, push("", "enter", "哈喽~", "bob"));
    bob.leave();
    let mut exit = ada.json();
    exit["seq"] = "".into();
    assert_eq!(exit, push("", "exit", "用户已经离开~", "bob"));
    assert!(ada.received().is_empty() && other.received().is_empty());
    assert_eq!(node.counter("announced"), 4);
}

#[test]
fn many_enters_are_announced_together_and_none_in_a_large_application() {
    let node = Node::start(&["--announce-users", "100", "--announce-rate", "200"]);
    let mut watcher = Client::login(&node, "watcher");
    let users: Vec<_> = (0..90).map(|number| quick_login(&node, number)).collect();
    node.wait_for_users(91);
    eventually("all are announced", || {
        node.counter("announced") + node.counter("announcedTogether") == 91
    });
    let (mut names, mut deliveries) = (0, 0);
    for event in watcher.received() {
        let data = &event["response"]["data"];
        assert_eq!(event["cmd"], "enter");
        names += 1 + data["others"].as_array().map_or(0, Vec::len) as u64;
        names += data["more"].as_u64().unwrap_or(0);
        deliveries += 1;
    }
    assert_eq!(names, 90);
    assert!(deliveries < 90, "{deliveries} messages");
    let more: Vec<_> = (90..110).map(|number| quick_login(&node, number)).collect();
    node.wait_for_users(111);
    assert!(node.counter("notAnnounced") >= 11);
    drop((users, more));
}

fn quick_login(node: &Node, number: u32) -> Client {
    Client::connect_to(node, &format!("/acc?appID=101&userID=u{number}")).unwrap()
}
