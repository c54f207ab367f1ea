//! `examples/chat` with its peers: Chromium, and `standfast stress`. Its protocol is tested beside it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::harness::executable;
use crate::harness::http::get;
use crate::harness::peer::{self, BROWSER};

/// A running node.
struct Node {
    child: Child,
    address: SocketAddr,
    _stdout: BufReader<ChildStdout>,
}

impl Node {
    fn start(args: &[&str]) -> Node {
        // Built with the tests, beside the executable.
        let executable = PathBuf::from(env!("CARGO_BIN_EXE_standfast"));
        let path = executable.parent().unwrap().join("chat");
        let mut command = Command::new(&path);
        command.args(["--listen", "127.0.0.1:0"]).args(args).stdout(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("http://").unwrap_or_default();
        let address = url.split('/').next().unwrap().parse();
        let address = address.unwrap_or_else(|error| panic!("{line:?}: {error}"));
        Node { child, address, _stdout: stdout }
    }

    fn counters(&self) -> Value {
        get(self.address, "/system/state").json()["data"]["counters"].clone()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_people_chat_on_its_page() {
    let node = Node::start(&[]);
    let url = format!("http://{}/home/index?appID=101", node.address);
    let mut args = vec![url];
    args.extend(std::env::var("CHAT_PICTURE"));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let expected = [
        "both are in",
        "both chat",
        "a private message",
        "a second login",
        "a name that is too long",
    ];
    peer::works(&BROWSER, "chat_example.js", &args, &expected);
}

#[test]
fn stress_pings_it_in_the_forks_dialect() {
    let node = Node::start(&[]);
    let url = format!("ws://{}/acc", node.address);
    let flags = "stress -dialect fork -c 20 -n 3 --pause 10ms --json - -u";
    let args: Vec<&str> = flags.split(' ').chain([&*url]).collect();
    let (finished, document) = executable::run(&args).with_json();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(document["stress"]["ok"], 60, "{document}");
    assert_eq!(document["stress"]["failed"], 0, "{document}");
}

#[test]
fn stress_sends_between_its_users_in_the_forks_roles() {
    let node = Node::start(&["--announce-users", "0"]);
    let private = r#"{"seq":"1","cmd":"msg","data":{"to":"u{{to}}","message":"{{stamp}}"}}"#;
    let group = r#"{"seq":"1","cmd":"msg","data":{"message":"{{stamp}}"}}"#;
    let url = format!("ws://{}/acc?appID=101&userID=u{{{{user}}}}", node.address);
    // Private chats of two, and a group whose senders send to all others.
    for (roles, message, receipts) in [
        ("-clients 2 -issenders true", private, 8 * 20),
        ("-iscollectmsg true -issenders true", group, 8 * 7 * 20),
    ] {
        let flags = format!("stress -dialect fork -c 8 -n 20 {roles} --pause 10ms --json -");
        let mut args: Vec<&str> = flags.split(' ').collect();
        args.extend(["-u", &url, "--message", message]);
        let (finished, document) = executable::run(&args).with_json();
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let groups = &document["groups"];
        let counts = ["expected", "received", "lost", "foreign"].map(|name| groups[name].as_u64());
        assert_eq!(counts, [receipts, receipts, 0, 0].map(Some), "{document}");
    }
    let counters = node.counters();
    assert_eq!((&counters["sent"], &counters["sentToAll"]), (&160.into(), &160.into()));
}
