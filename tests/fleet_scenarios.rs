//! Scenarios that the agents of a fleet share: what is whole on one agent, and what travels to the others.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::fleet::{Fleet, end, load_of, url};
use crate::harness::brokers::NatsClient;
use crate::harness::chat::Chat;
use crate::harness::eventually;
use crate::harness::executable::{self, Finished, Running};
use crate::harness::recorder::{RecordedRequest, Recorder};

/// A run of a scenario by all agents, or by one generator.
fn command(fleet: &Fleet, agents: usize, scenario: &str) -> Command {
    fs::write(fleet.folder().join("run.toml"), scenario).expect("it can be written");
    let (nats, agents) = (fleet.broker.url(""), agents.to_string());
    let of_fleet = ["--agents", &agents, "--nats", &nats];
    let of_fleet = if agents == "0" { &[][..] } else { &of_fleet };
    let mut command =
        executable::standfast(&[&["load", "run.toml", "--json=-"], of_fleet].concat());
    command.current_dir(fleet.folder());
    command
}

pub(crate) fn run(fleet: &Fleet, agents: usize, scenario: &str) -> Finished {
    executable::run_command(command(fleet, agents, scenario))
}

fn targets(asked: &[RecordedRequest]) -> Vec<String> {
    asked.iter().map(|one| format!("{} {}", one.method, one.target)).collect()
}

/// A server that gives a new token for each setup.
pub(crate) fn shop() -> Recorder {
    Recorder::start(|asked| match asked.target.as_str() {
        "/login" => (200, Vec::new(), "{\"token\":\"tökén 1\"}".to_owned()),
        "/broken" => (500, Vec::new(), String::new()),
        _ => (200, Vec::new(), "{}".to_owned()),
    })
}

/// Users that need the token of a setup.
pub(crate) fn shopping(server: &Recorder, more: &str) -> String {
    format!(
        "version = 1\ntarget = '{}'\nusers = 7\nseed = 5\n{more}\n[setup]\n[[setup.steps]]\nname = 'log in'\n\
         url = '/login'\nmethod = 'POST'\ncapture = {{ token = {{ json = '$.token' }} }}\n\
         [[flows]]\n[[flows.steps]]\nname = 'buy'\n\
         url = '/buy/{{{{user}}}}?token={{{{url token}}}}&item={{{{random_int 1 9}}}}'\n\
         [teardown]\n[[teardown.steps]]\nname = 'log out'\nurl = '/logout?token={{{{url token}}}}'\nmethod = 'DELETE'\n",
        url(server).trim_end_matches('/')
    )
}

#[test]
fn one_agent_makes_the_setup_and_the_teardown_for_all() {
    let Some(fleet) = Fleet::start(3) else { return };
    let mut seen: Vec<Vec<String>> = Vec::new();
    for agents in [0, 3] {
        let server = shop();
        let finished = run(&fleet, agents, &shopping(&server, "passes = 20"));
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let mut all = targets(&server.asked());
        assert_eq!(all.len(), 1 + 7 * 20 + 1, "{all:?}");
        assert_eq!(all[0], "POST /login", "{all:?}");
        assert_eq!(all.last().unwrap(), "DELETE /logout?token=t%C3%B6k%C3%A9n%201", "{all:?}");
        all.sort_unstable();
        seen.push(all);
        if agents > 0 {
            let json = finished.json();
            assert_eq!(json["requests"]["ok"], 140, "{json}");
            let fleet = &json["fleet"];
            assert_eq!(
                (&fleet["setup"], &fleet["teardown"]),
                (&json!("agent-01"), &json!("agent-01"))
            );
            let line = "placed        [setup] on agent-01, [teardown] on agent-01\n";
            assert!(finished.stderr.contains(line), "{finished:?}");
        }
    }
    assert_eq!(seen[0], seen[1], "the same requests as those of one generator with this seed");
}

#[test]
fn a_failed_setup_starts_nothing_and_a_failed_teardown_fails_the_run() {
    let Some(fleet) = Fleet::start(2) else { return };
    let server = shop();
    let text = shopping(&server, "passes = 2");
    let failed = run(&fleet, 2, &text.replace("'/login'", "'/broken'"));
    assert_eq!(failed.code, Some(2), "{failed:?}");
    let what = "agent agent-01: run.toml: [setup] failed, nothing was measured: step \"log in\" failed: status 500\n";
    let left =
        "[setup] was begun on agent agent-01 and may have been made; [teardown] was not made";
    assert!(
        ["no load was started", what, left].iter().all(|part| failed.stderr.contains(part)),
        "{failed:?}"
    );
    assert!(!failed.stderr.contains("agent-02"), "only the cause is listed: {failed:?}");
    assert_eq!(targets(&server.asked()), ["POST /broken"]);
    let text = text.replace("'/logout?token={{url token}}'", "'/broken'");
    let failed = run(&fleet, 2, &text);
    assert_eq!((failed.code, &failed.json()["held"]), (Some(1), &json!(true)), "{failed:?}");
    let what = "run.toml: [teardown] failed: agent agent-01: step \"log out\" failed: status 500\n";
    assert!(failed.stderr.contains(what), "{failed:?}");
    // An agent that cannot do its part: nothing is set up for it.
    let before = server.count();
    let text =
        format!("{text}[connect]\nsources = ['127.0.0.1']\n").replace("127.0.0.1:", "10.255.0.1:");
    let refused = run(&fleet, 2, &text);
    assert_eq!((refused.code, server.count()), (Some(2), before), "{refused:?}");
    assert!(refused.stderr.contains("agent agent-02: "), "{refused:?}");
}

#[test]
fn the_teardown_is_made_after_ctrl_c_and_by_another_agent_if_the_first_is_lost() {
    for lost in [false, true] {
        let Some(fleet) = Fleet::start(2) else { return };
        let server = shop();
        let text = shopping(&server, "duration = '10m'\nrate = 50");
        let leader = Running(command(&fleet, 2, &text).spawn().expect("it starts"));
        eventually("both send", || server.count() > 30);
        match lost {
            true => end(&fleet.agents[0], Signal::KILL),
            false => end(&leader, Signal::INT),
        }
        let finished = executable::finish(leader);
        let json = finished.json();
        assert_eq!(finished.code, Some(if lost { 1 } else { 130 }), "{finished:?}");
        assert_eq!(json["fleet"]["complete"], json!(!lost), "{json}");
        let by = if lost { "agent-02" } else { "agent-01" };
        assert_eq!(json["fleet"]["teardown"], json!(by), "{json}");
        let all = targets(&server.asked());
        let is_last = |target: &String| target.starts_with("DELETE /logout");
        assert_eq!(all.iter().filter(|one| is_last(one)).count(), 1, "{all:?}");
        assert!(all.last().is_some_and(is_last), "{all:?}");
        if !lost {
            assert_eq!(json["requests"]["sent"], json!(all.len() - 2), "{json}");
        }
    }
}

#[test]
fn the_teardown_is_made_by_another_agent_if_the_load_of_the_first_is_killed_in_it() {
    let Some(fleet) = Fleet::start(2) else { return };
    let (begun, killed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_begun, is_killed) = (Arc::clone(&begun), Arc::clone(&killed));
    let server = Recorder::start(move |asked| {
        if asked.target.starts_with("/logout") && !is_begun.swap(true, Ordering::SeqCst) {
            eventually("the load is killed", || is_killed.load(Ordering::SeqCst));
        }
        (200, Vec::new(), "{\"token\":\"1\"}".to_owned())
    });
    let text = shopping(&server, "passes = 2");
    let leader = Running(command(&fleet, 2, &text).spawn().expect("it starts"));
    eventually("the teardown has begun", || begun.load(Ordering::SeqCst));
    kill_process(load_of(&fleet.agents[0]).expect("a load"), Signal::KILL).expect("it runs");
    killed.store(true, Ordering::SeqCst);
    let finished = executable::finish(leader);
    let json = finished.json();
    assert_eq!((finished.code, &json["held"]), (Some(0), &json!(true)), "{finished:?}");
    assert_eq!(json["fleet"]["teardown"], "agent-02", "{json}");
    let note = "agent agent-01 was lost in [teardown]: agent agent-02 makes it";
    assert!(finished.stderr.contains(note), "{finished:?}");
    let all = targets(&server.asked());
    assert_eq!(all.iter().filter(|one| one.contains("/logout")).count(), 2, "{all:?}");
}

#[test]
fn ctrl_c_during_the_teardown_ends_it_and_leaves_a_complete_run() {
    let Some(fleet) = Fleet::start(2) else { return };
    let (begun, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_begun, is_ended) = (Arc::clone(&begun), Arc::clone(&ended));
    let server = Recorder::start(move |asked| {
        if asked.target.starts_with("/logout") {
            is_begun.store(true, Ordering::SeqCst);
            eventually("the run has ended", || is_ended.load(Ordering::SeqCst));
        }
        (200, Vec::new(), "{\"token\":\"1\"}".to_owned())
    });
    let text = shopping(&server, "passes = 2");
    let leader = Running(command(&fleet, 2, &text).spawn().expect("it starts"));
    eventually("the teardown has begun", || begun.load(Ordering::SeqCst));
    end(&leader, Signal::INT);
    let finished = executable::finish(leader);
    ended.store(true, Ordering::SeqCst);
    let json = finished.json();
    assert_eq!((finished.code, &json["held"]), (Some(1), &json!(true)), "{finished:?}");
    assert_eq!((&json["interrupted"], &json["requests"]["ok"]), (&json!(false), &json!(14)));
    let of_fleet = &json["fleet"];
    assert_eq!((&of_fleet["complete"], &of_fleet["teardown"]), (&json!(true), &Value::Null));
    assert_eq!(of_fleet["teardown_failed"], "agent agent-01: interrupted", "{json}");
    assert!(finished.stderr.contains("[teardown] failed: agent agent-01: interrupted\n"));
}

#[test]
fn ctrl_c_between_the_setup_and_the_start_makes_the_teardown() {
    let Some(fleet) = Fleet::start(2) else { return };
    let server = shop();
    let mut listener = NatsClient::connect(&fleet.broker, "", "");
    listener.subscribe("standfast.fleet.standfast.to.*");
    let text = shopping(&server, "passes = 2");
    let leader = Running(command(&fleet, 2, &text).spawn().expect("it starts"));
    while !listener.message().1.starts_with("{\"begin\"") {}
    end(&leader, Signal::INT);
    let finished = executable::finish(leader);
    assert_eq!((finished.code, &*finished.stdout), (Some(130), ""), "{finished:?}");
    let what = "interrupted: no load was started; [setup] was made on agent agent-01, [teardown] on agent agent-01\n";
    assert!(finished.stderr.contains(what), "{finished:?}");
    assert!(!finished.stderr.contains("nothing was started"), "{finished:?}");
    let logout = "DELETE /logout?token=t%C3%B6k%C3%A9n%201";
    assert_eq!(targets(&server.asked()), ["POST /login", logout]);
    let next = run(&fleet, 2, &text);
    assert_eq!((next.code, &next.json()["requests"]["ok"]), (Some(0), &json!(14)), "{next:?}");
}

#[test]
fn nothing_is_sent_during_a_teardown_after_ctrl_c_before_the_start() {
    let Some(fleet) = Fleet::start(2) else { return };
    let (begun, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (has_begun, may_end) = (Arc::clone(&begun), Arc::clone(&ended));
    let server = Recorder::start(move |request| {
        if request.target.starts_with("/logout") {
            has_begun.store(true, Ordering::SeqCst);
            eventually("the start is over", || may_end.load(Ordering::SeqCst));
        }
        (200, Vec::new(), "{\"token\":\"1\"}".to_owned())
    });
    let mut listener = NatsClient::connect(&fleet.broker, "", "");
    listener.subscribe("standfast.fleet.standfast.to.*");
    let text = shopping(&server, "passes = 2");
    let leader = Running(command(&fleet, 2, &text).spawn().expect("it starts"));
    // Both know when to begin.
    for _ in 0..2 {
        while !listener.message().1.starts_with("{\"begin\"") {}
    }
    end(&leader, Signal::INT);
    eventually("the teardown has begun", || begun.load(Ordering::SeqCst));
    // They would begin two seconds after they were told.
    eventually("the other agent is free", || load_of(&fleet.agents[1]).is_none());
    ended.store(true, Ordering::SeqCst);
    let finished = executable::finish(leader);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    assert_eq!(targets(&server.asked()), ["POST /login", "DELETE /logout?token=1"]);
}

#[test]
fn the_teardown_is_made_if_an_agent_is_lost_between_the_setup_and_the_start() {
    let Some(fleet) = Fleet::start(2) else { return };
    let may_answer = Arc::new(AtomicBool::new(false));
    let may = Arc::clone(&may_answer);
    let server = Recorder::start(move |_| {
        eventually("the load is stopped", || may.load(Ordering::SeqCst));
        (200, Vec::new(), "{\"token\":\"1\"}".to_owned())
    });
    let mut seen = NatsClient::connect(&fleet.broker, "", "");
    seen.subscribe("standfast.fleet.standfast.to.*");
    let text = shopping(&server, "passes = 2");
    let leader = Running(command(&fleet, 2, &text).spawn().expect("it starts"));
    eventually("the setup has begun", || server.count() > 0);
    // It never takes what the setup captures.
    kill_process(load_of(&fleet.agents[1]).expect("a load"), Signal::STOP).expect("it runs");
    may_answer.store(true, Ordering::SeqCst);
    while !seen.message().1.contains("{\"ready\":{\"captured\":[") {}
    end(&fleet.agents[1], Signal::KILL);
    let finished = executable::finish(leader);
    assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{finished:?}");
    let left = "[setup] was made on agent agent-01, [teardown] on agent agent-01\n";
    for what in ["no load was started:\n  agent agent-02: not heard for 6 s", left] {
        assert!(finished.stderr.contains(what), "{finished:?}");
    }
    assert_eq!(targets(&server.asked()), ["POST /login", "DELETE /logout?token=1"]);
}

/// Groups of five users, one of which sends to the others.
fn rooms(chat: &Chat) -> String {
    "version = 1\nusers = 20\npasses = 1\nseed = 9\n[group]\nkind = '1:N'\nsize = 5\nquiet = '1s'\nlate = '20s'\n\
         [[flows]]\nrole = 'sender'\n[[flows.steps]]\nconnect = 'TARGET'\n[[flows.steps]]\nmeet = true\n\
         [[flows.steps]]\nname = 'say'\nrepeat = 60\n\
         send = '{\"from\":{{user}},\"item\":{{random_int 1 9}},\"text\":\"{{stamp}}\"}'\n\
         [[flows]]\nrole = 'receiver'\n[[flows.steps]]\nconnect = 'TARGET'\n[[flows.steps]]\nmeet = true\n\
         [[flows.steps]]\nstay = true\n"
    .replace("TARGET", &format!("ws://{}/room/{{{{group}}}}", chat.address))
}

/// What was said, without the stamp of each.
fn said(chat: &Chat) -> BTreeMap<String, u64> {
    let mut said = BTreeMap::new();
    for text in chat.book().said {
        let before = text.split("\"text\"").next().unwrap_or_default().to_owned();
        *said.entry(before).or_insert(0) += 1;
    }
    said
}

#[test]
fn groups_are_whole_on_one_agent_and_counted_to_the_unit() {
    let Some(mut fleet) = Fleet::start(3) else { return };
    let mut heard: Vec<(BTreeMap<String, u64>, Vec<String>)> = Vec::new();
    for agents in [0, 3] {
        let chat = Chat::start(10);
        let finished = run(&fleet, agents, &rooms(&chat));
        let (json, book) = (finished.json(), chat.book());
        assert_eq!(finished.code, Some(1), "some are lost: {finished:?}");
        let groups = &json["groups"];
        let figure =
            |name: &str| groups[name].as_u64().unwrap_or_else(|| panic!("{name}: {groups}"));
        assert_eq!([figure("groups"), figure("met"), figure("senders")], [4, 4, 4], "{groups}");
        assert_eq!((figure("sent"), figure("expected")), (240, book.due), "{groups}\n{book:?}");
        let faults = [figure("lost"), figure("duplicated"), figure("reordered")];
        assert_eq!(faults, [book.dropped, book.doubled, book.swapped], "{groups}\n{book:?}");
        assert_eq!(figure("received"), book.due - book.dropped);
        assert_eq!((&groups["latency"]["count"], figure("foreign")), (&groups["received"], 0));
        let mut handshakes: Vec<String> =
            book.handshakes.iter().map(|one| one.target.clone()).collect();
        handshakes.sort_unstable();
        heard.push((said(&chat), handshakes));
        if agents > 0 {
            let own = |at: usize, name: &str| {
                json["fleet"]["agents"][at]["outcome"]["groups"][name].clone()
            };
            let of_each = |name: &str| [0, 1, 2].map(|at| own(at, name));
            assert_eq!(of_each("groups"), [2, 1, 1].map(Value::from), "{json}");
            assert_eq!(of_each("met"), [2, 1, 1].map(Value::from), "{json}");
            let line = "placed        groups of 5 users, each whole on one agent: 2 on agent-01, 1 on agent-02, \
                        1 on agent-03\n";
            assert!(finished.stderr.contains(line), "{finished:?}");
        }
    }
    assert_eq!(heard[0], heard[1], "the same users, rooms and messages as with one generator");
    for name in ["agent-04", "agent-05"] {
        fleet.agent(name, &[]);
    }
    let refused = run(&fleet, 5, &rooms(&Chat::start(0)));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let what = "4 groups of users cannot be shared by 5 agents: raise users";
    assert!(refused.stderr.contains(what), "{refused:?}");
}
