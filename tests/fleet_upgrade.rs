//! `standfast fleet upgrade`: agents become the file that they were started from, which others may have replaced.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::fleet::{Fleet, url};
use crate::harness::eventually;
use crate::harness::executable::{self, Finished, Running};
use crate::harness::recorder::Recorder;

/// The release of this executable, and one of as many characters.
const OWN: &str = env!("CARGO_PKG_VERSION");
const OTHER: &str = "9.8.7";

/// Puts an executable in the place of another, as packages do.
fn replace(file: &Path, content: &[u8]) {
    let new = file.with_extension("new");
    fs::write(&new, content).expect("it can be written");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("it is ours");
    fs::rename(&new, file).expect("it is in the same folder");
}

/// This executable as one of another release.
fn other_release() -> Vec<u8> {
    assert_eq!(OWN.len(), OTHER.len(), "its release can be replaced within the file");
    let script = format!("s/{}/{OTHER}/g", OWN.replace('.', "\\."));
    let output =
        Command::new("sed").arg(script).arg(executable::path()).env("LC_ALL", "C").output();
    output.expect("sed is there").stdout
}

fn upgrade(fleet: &Fleet, args: &[&str]) -> Finished {
    let nats = fleet.broker.url("");
    executable::run(&[&["fleet", "upgrade", "--nats", &nats], args].concat())
}

fn list(fleet: &Fleet) -> Value {
    executable::run(&["fleet", "list", "--json=-", "--nats", &fleet.broker.url("")]).json()
}

/// An agent of a file of its own in the folder of the fleet.
fn agent_of(fleet: &mut Fleet, name: &str, file: &Path) {
    let nats = fleet.broker.url("");
    let mut command = Command::new(file);
    command.args(["agent", "--nats", &nats, "--name", name, "--label", "kind=own"]);
    command.env("TMPDIR", fleet.folder()).stdin(std::process::Stdio::null());
    command.stderr(fs::File::create(fleet.folder().join("log")).unwrap());
    fleet.agents.push(Running(command.spawn().expect("the agent starts")));
}

fn own_file(fleet: &Fleet) -> PathBuf {
    let file = fleet.folder().join("standfast");
    fs::copy(executable::path(), &file).expect("it can be copied");
    file
}

#[test]
fn agents_become_the_release_of_their_file() {
    let Some(mut fleet) = Fleet::start(1) else { return };
    let file = own_file(&fleet);
    agent_of(&mut fleet, "own", &file);
    eventually("both answer", || list(&fleet)["agents"].as_array().unwrap().len() == 2);
    // Nothing was replaced yet.
    let same = upgrade(&fleet, &[]);
    assert_eq!(same.code, Some(0), "{same:?}");
    let line = format!("same    own       {OWN}: its file is of {OWN}\n");
    assert!(same.stdout.contains(&line), "{same:?}");
    replace(&file, &other_release());
    let pid = fleet.agents[1].0.id();
    let done = upgrade(&fleet, &["--json=-"]);
    let json = done.json();
    assert_eq!((done.code, &json["succeeded"]), (Some(0), &json!(true)), "{done:?}");
    let expected =
        json!({"name": "own", "from": OWN, "to": OTHER, "result": "upgraded", "reason": null});
    assert_eq!((&json["agents"][0]["result"], &json["agents"][1]), (&json!("same"), &expected));
    // It is the same process with the same arguments, and only one folder of it is left.
    assert_eq!((fleet.agents[1].0.id(), fleet.agents[1].0.try_wait().unwrap()), (pid, None));
    let after = list(&fleet);
    let own = after["agents"].as_array().unwrap().iter().find(|one| one["name"] == "own").unwrap();
    assert_eq!((&own["labels"], &own["usable"]), (&json!(["kind=own"]), &json!(false)));
    assert!(own["release"].as_str().unwrap().starts_with(OTHER), "{own}");
    let folders = fs::read_dir(fleet.folder()).unwrap().flatten();
    assert_eq!(folders.filter(|entry| entry.path().is_dir()).count(), 2);
    let log = fs::read_to_string(fleet.folder().join("log")).unwrap();
    assert!(log.contains(&format!("upgrade from {OWN} to {OTHER}: executing")), "{log}");
}

#[test]
fn agents_that_are_busy_follow_after_their_run() {
    let Some(mut fleet) = Fleet::start(0) else { return };
    let file = own_file(&fleet);
    agent_of(&mut fleet, "own", &file);
    let server = Recorder::hello();
    let other = other_release();
    let leader = fleet.lead(&[&url(&server), "-c", "2", "--rate", "20", "--requests", "200"]);
    eventually("it sends", || server.count() > 2);
    replace(&file, &other);
    let later = upgrade(&fleet, &["kind=own"]);
    let line = format!("later   own  {OWN}: busy: it looks at its file after the run\n");
    assert_eq!((later.code, &later.stdout), (Some(0), &line), "{later:?}");
    let finished = executable::finish(leader);
    assert_eq!((finished.code, server.count()), (Some(0), 200), "{finished:?}");
    eventually("it is of the other release", || {
        let release = list(&fleet)["agents"][0]["release"].clone();
        release.as_str().is_some_and(|release| release.starts_with(OTHER))
    });
}

#[test]
fn files_that_are_not_standfast_are_not_executed() {
    let Some(mut fleet) = Fleet::start(0) else { return };
    let file = own_file(&fleet);
    agent_of(&mut fleet, "own", &file);
    eventually("it answers", || list(&fleet)["agents"].as_array().unwrap().len() == 1);
    let failed = |what: &str| {
        let failed = upgrade(&fleet, &["1"]);
        assert_eq!(failed.code, Some(1), "{failed:?}");
        assert!(
            failed.stdout.starts_with("FAILED  own  ") && failed.stdout.contains(what),
            "{failed:?}"
        );
    };
    replace(&file, b"#!/bin/sh\necho hello\n");
    failed("is it standfast?");
    // Without an end, and with more than is read.
    replace(&file, b"#!/bin/sh\necho standfast; exec cat /dev/zero\n");
    failed("is it standfast?");
    fs::remove_file(&file).unwrap();
    failed("cannot execute");
    // Runs are of the release that has been started.
    let server = Recorder::hello();
    let finished = fleet.run(&[&url(&server), "-c", "2", "--requests", "9"]);
    assert_eq!((finished.code, server.count()), (Some(0), 9), "{finished:?}");
    assert_eq!(upgrade(&fleet, &["--fleet", "none"]).code, Some(2), "nobody answers");
}

#[test]
fn agents_of_one_name_are_refused_with_their_machines() {
    let Some(mut fleet) = Fleet::start(1) else { return };
    fleet.agent("agent-01", &["--label", "zone=b"]);
    eventually("both answer", || list(&fleet)["agents"].as_array().unwrap().len() == 2);
    let server = Recorder::hello();
    let (url, nats) = (url(&server), fleet.broker.url(""));
    let host = list(&fleet)["agents"][0]["host"].as_str().expect("a text").to_owned();
    assert!(!host.is_empty());
    for args in [
        &["load", &url, "-c", "2", "--agents", "2"][..],
        &["load", &url, "-c", "2", "--agents", "zone=b"],
        &["prove", "--connections", "2", "--agents", "2"],
        &["fleet", "doctor", "-c", "2"],
        &["fleet", "upgrade", "2"],
        &["fleet", "upgrade", "zone=b"],
    ] {
        let refused = executable::run(&[args, &["--nats", &nats]].concat());
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let what = format!("2 agents are named agent-01: on {host} (id ");
        assert!(refused.stderr.contains(&what), "{refused:?}");
        assert!(refused.stderr.contains("give each a unique --name"), "{refused:?}");
    }
    assert_eq!(server.count(), 0);
    let listed = executable::run(&["fleet", "list", "--nats", &nats]);
    assert!(listed.code == Some(0) && listed.stdout.contains("2 agents are named"), "{listed:?}");
}
