//! Fleets: `standfast agent` and `standfast load --agents` over a real NATS server, against a server that logs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::brokers::{Broker, NatsClient};
use crate::harness::eventually;
use crate::harness::executable::{self, Finished, Running};
use crate::harness::recorder::Recorder;
use crate::harness::server::Server;

/// A folder that is removed after its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("{}-{name}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).expect("a folder can be made");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Agents and a NATS server. Temporary files of agents are in a folder of its own.
pub(crate) struct Fleet {
    pub(crate) broker: Broker,
    pub(crate) agents: Vec<Running>,
    folder: Folder,
}

impl Fleet {
    /// `None` without a NATS server.
    pub(crate) fn start(agents: usize) -> Option<Fleet> {
        Some(Fleet::of(Broker::nats(&[])?, agents))
    }

    /// Agents of this NATS server.
    pub(crate) fn of(broker: Broker, agents: usize) -> Fleet {
        // A port may be that of another fleet which is about to remove its folder.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let folder = Folder::new(&format!("fleet-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut fleet = Fleet { broker, agents: Vec::new(), folder };
        for number in 1..=agents {
            fleet.agent(&format!("agent-{number:02}"), &[]);
        }
        fleet
    }

    pub(crate) fn agent(&mut self, name: &str, more: &[&str]) {
        self.spawn(self.agent_command(name, more));
    }

    pub(crate) fn agent_command(&self, name: &str, more: &[&str]) -> Command {
        let nats = self.broker.url("");
        executable::standfast(&[&["agent", "--nats", &nats, "--name", name], more].concat())
    }

    /// Starts an agent by this command.
    pub(crate) fn spawn(&mut self, command: Command) {
        self.spawn_by(command, |mut command| Running(command.spawn().expect("the agent starts")));
    }

    /// The same in another way.
    pub(crate) fn spawn_by(&mut self, mut command: Command, start: impl Fn(Command) -> Running) {
        let log = File::create(self.log(self.agents.len())).expect("a file can be made");
        command.env("TMPDIR", &self.folder.0).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(log);
        self.agents.push(start(command));
    }

    /// What an agent has said.
    fn log(&self, agent: usize) -> PathBuf {
        self.folder.0.join(format!("agent-{agent}.log"))
    }

    pub(crate) fn command(&self, agents: &str, args: &[&str]) -> Command {
        let nats = self.broker.url("");
        let fleet = ["--agents", agents, "--nats", &nats, "--json=-"];
        executable::standfast(&[&["load"], args, &fleet].concat())
    }

    pub(crate) fn lead(&self, args: &[&str]) -> Running {
        self.lead_of(&self.agents.len().to_string(), args)
    }

    pub(crate) fn lead_of(&self, agents: &str, args: &[&str]) -> Running {
        Running(self.command(agents, args).spawn().expect("the leader starts"))
    }

    /// A run from its start to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Finished {
        executable::finish(self.lead(args))
    }

    /// For temporary files of agents.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Folders of agents.
    fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder.0).expect("it exists").flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    /// Folders of runs.
    pub(crate) fn runs(&self) -> Vec<PathBuf> {
        let runs = self.folders().into_iter().flat_map(fs::read_dir).flatten();
        runs.flatten().map(|entry| entry.path()).collect()
    }
}

impl Drop for Fleet {
    /// A test that fails shows what agents have said, and which of them have ended.
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let logs: Vec<PathBuf> = (0..self.agents.len()).map(|at| self.log(at)).collect();
        for (agent, log) in self.agents.iter_mut().zip(logs).filter(|_| failed) {
            let text = fs::read_to_string(&log).unwrap_or_default();
            println!("agent {}, ended {:?}: {text}", agent.0.id(), agent.0.try_wait());
        }
    }
}

/// The process that an agent has started for a run.
pub(crate) fn load_of(agent: &Running) -> Option<Pid> {
    let pid = agent.0.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

pub(crate) fn end(running: &Running, signal: Signal) {
    kill_process(Pid::from_child(&running.0), signal).expect("it runs");
}

pub(crate) fn url(server: &Recorder) -> String {
    format!("http://{}/", server.address)
}

fn missing(json: &Value) -> &str {
    assert_eq!((&json["fleet"]["complete"], &json["held"]), (&json!(false), &json!(false)));
    json["fleet"]["missing"][0].as_str().unwrap_or_default()
}

#[test]
fn agents_send_what_one_generator_would() {
    let Some(fleet) = Fleet::start(2) else { return };
    let server = Recorder::hello();
    let finished = fleet.run(&[&url(&server), "-c", "7", "--requests", "1001"]);
    let json = finished.json();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(server.count(), 1_001);
    let connections: BTreeSet<u64> =
        server.asked().iter().map(|request| request.connection).collect();
    assert_eq!(connections.len(), 7);
    assert_eq!(
        (&json["fleet"]["complete"], &json["requests"]["sent"]),
        (&json!(true), &json!(1_001))
    );
    assert_eq!((&json["users"], &json["latency"]["count"]), (&json!(7), &json!(1_001)));
    let agents = json["fleet"]["agents"].as_array().expect("a list");
    let sent: u64 =
        agents.iter().map(|one| one["outcome"]["requests"]["sent"].as_u64().unwrap()).sum();
    assert_eq!((agents.len(), sent), (2, 1_001));
    assert!(agents.iter().all(|one| one["start_error_ms"].as_f64().unwrap() < 1_000.0), "{json}");
    // The folder of a run is gone with it, that of an agent stays and is its user's only.
    eventually("the runs are removed", || fleet.runs().is_empty());
    for folder in fleet.folders() {
        assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn sixteen_agents_count_to_the_unit() {
    let Some(fleet) = Fleet::start(16) else { return };
    let server = Recorder::hello();
    let flags = ["-c", "33", "--rate", "300", "--requests", "1203", "--fail", "errors<1"];
    let finished = fleet.run(&[&[url(&server).as_str()], &flags[..]].concat());
    let json = finished.json();
    assert_eq!((server.count(), &json["requests"]["answered"]), (1_203, &json!(1_203)));
    assert_eq!(
        (finished.code, &json["thresholds"][0]["met"]),
        (Some(0), &json!(true)),
        "{finished:?}"
    );
    assert_eq!(json["fleet"]["agents"].as_array().expect("a list").len(), 16);
    // Thresholds are of the whole.
    let none = json["fleet"]["agents"].as_array().unwrap().iter();
    assert!(none.map(|one| &one["outcome"]["thresholds"]).all(|list| list == &json!([])));
}

#[test]
fn a_result_is_as_short_as_asked_for_and_says_what_it_leaves_out() {
    let Some(fleet) = Fleet::start(8) else { return };
    let server = Recorder::hello();
    let url = url(&server);
    let run = |more: &[&str]| {
        let finished = fleet.run(&[&[&url, "-c", "8", "--requests", "80"], more].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        (finished.stdout.len(), finished.json())
    };
    let (all, json) = run(&[]);
    assert_eq!(
        (&json["fleet"]["left_out"], &json["fleet"]["agents"][0]["sent"]),
        (&json!([]), &json!(10))
    );
    // Which levels are long enough depends on the numbers; the shortest ones are in the unit tests.
    let mut bytes_max = all;
    let mut seen = BTreeSet::new();
    let least = 16 * 1024;
    while bytes_max >= least {
        let (bytes, json) = run(&["--json-max", &bytes_max.to_string()]);
        let left_out = json["fleet"]["left_out"].as_array().expect("a list").len();
        assert!(bytes <= bytes_max, "{bytes} of {bytes_max}: {json}");
        assert_eq!(json["requests"]["sent"], json!(80));
        let agents = json["fleet"]["agents"].as_array().expect("a list");
        assert_eq!(agents.is_empty(), left_out >= 4, "{json}");
        assert!(agents.iter().all(|one| one["sent"] == 10 && one["p99_ms"].is_f64()), "{json}");
        assert!(agents.iter().all(|one| one["outcome"].is_null() == (left_out > 1)), "{json}");
        assert_eq!(json["histograms"].is_null(), left_out > 2, "{json}");
        seen.insert(left_out);
        bytes_max = (bytes - 1).min(bytes_max - 1);
    }
    assert!(seen.len() > 1, "{seen:?}");
    let refused = fleet.run(&[&*url, "-c", "8", "--requests", "80", "--json-max", "16383"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("expected at least 16KiB"), "{refused:?}");
}

#[test]
fn agents_without_a_request_change_no_verdict() {
    let Some(fleet) = Fleet::start(3) else { return };
    let server = Recorder::hello();
    let finished = fleet.run(&[&url(&server), "-c", "3", "--requests", "1"]);
    let json = finished.json();
    assert_eq!((finished.code, server.count()), (Some(0), 1), "{finished:?}");
    assert_eq!((&json["held"], &json["reasons"]), (&json!(true), &json!([])));
    assert!(json["per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{json}");
}

#[test]
fn files_travel_and_rows_are_used_once() {
    let Some(fleet) = Fleet::start(3) else { return };
    let server = Recorder::hello();
    let made = Folder::new("fleet-files");
    let folder = made.0.as_path();
    fs::create_dir(folder.join("data")).unwrap();
    let rows: String = (0..50).map(|row| format!("row-{row}\n")).collect();
    fs::write(folder.join("data/rows.csv"), format!("id\n{rows}")).unwrap();
    let scenario = format!(
        "version = 1\ntarget = \"{}\"\nusers = 7\nseed = 3\n[[feeds]]\nname = \"rows\"\nfile = \"rows.csv\"\nat_end = \"stop\"\n\
         [[flows]]\nname = \"f\"\n[[flows.steps]]\nurl = \"/{{{{rows.id}}}}/{{{{seq}}}}\"\n",
        url(&server)
    );
    fs::write(folder.join("data/run.toml"), scenario).unwrap();
    let run = |args: &[&str]| {
        let mut command = fleet.command("3", args);
        executable::run_command({
            command.current_dir(folder);
            command
        })
    };
    let finished = run(&["data/run.toml"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let targets: Vec<String> = server.asked().into_iter().map(|request| request.target).collect();
    let of = |at: usize| -> BTreeSet<&str> {
        targets.iter().map(|target| target.split('/').nth(at).unwrap()).collect()
    };
    assert_eq!((targets.len(), of(1).len(), of(2).len()), (50, 50, 50), "{targets:?}");
    assert_eq!(finished.json()["seed"], json!(3));
    // What cannot travel is refused before anything is started.
    let above = format!("@{}/data/rows.csv", folder.display());
    let with_variable = fs::read_to_string(folder.join("data/run.toml")).unwrap();
    let with_variable = with_variable.replace("{{seq}}", "{{env HOME}}");
    fs::write(folder.join("data/env.toml"), with_variable).unwrap();
    for (args, what) in [
        (vec![&*url(&server), "-d", &above], "relative paths"),
        (vec!["data/env.toml"], "{{env HOME}} cannot be used with --agents"),
        (vec!["data/run.toml", "--files-max", "100"], "--files-max"),
    ] {
        let refused = run(&args);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(what), "{refused:?}");
    }
    assert_eq!(server.count(), 50);
}

#[test]
fn a_run_that_loses_an_agent_is_incomplete_and_stops() {
    for (signal, what) in [
        (Signal::KILL, "agent agent-02: not heard for 6 s; "),
        (Signal::TERM, "agent agent-02: the agent was stopped"),
    ] {
        let Some(fleet) = Fleet::start(2) else { return };
        let server = Recorder::hello();
        let url = url(&server);
        let leader = fleet.lead(&[&url, "-c", "4", "--rate", "50", "--duration", "10m"]);
        eventually("both send", || server.count() > 20);
        end(&fleet.agents[1], signal);
        let finished = executable::finish(leader);
        let json = finished.json();
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert!(missing(&json).starts_with(what), "{json}");
        assert!(finished.stderr.contains("INCOMPLETE    1 of 2 agents"), "{finished:?}");
        assert!(json["reasons"][0].as_str().unwrap().starts_with("INCOMPLETE"), "{json}");
    }
}

#[test]
fn no_load_goes_on_without_its_leader() {
    let Some(fleet) = Fleet::start(2) else { return };
    let server = Recorder::hello();
    let url = url(&server);
    let leader = fleet.lead(&[&url, "-c", "4", "--rate", "50", "--duration", "10m"]);
    eventually("both send", || server.count() > 20);
    end(&leader, Signal::KILL);
    drop(leader);
    // The agents are free for the next run only when their loads have ended.
    let next = fleet.run(&[&url, "-c", "2", "--requests", "2", "--agents-within", "1m"]);
    assert_eq!(next.code, Some(0), "{next:?}");
}

#[test]
fn ctrl_c_stops_all_agents_and_their_counts_are_those_of_the_server() {
    let Some(fleet) = Fleet::start(3) else { return };
    let server = Recorder::hello();
    let leader = fleet.lead(&[&url(&server), "-c", "6", "--rate", "90", "--duration", "10m"]);
    eventually("all send", || server.count() > 30);
    end(&leader, Signal::INT);
    let finished = executable::finish(leader);
    let json = finished.json();
    assert_eq!(finished.code, Some(130), "{finished:?}");
    assert_eq!((&json["fleet"]["complete"], &json["interrupted"]), (&json!(true), &json!(true)));
    assert_eq!(json["requests"]["sent"], json!(server.count()));
}

#[test]
fn a_nats_server_that_restarts_changes_no_count() {
    let Some(mut fleet) = Fleet::start(2) else { return };
    let server = Recorder::hello();
    let leader = fleet.lead(&[&url(&server), "-c", "4", "--rate", "60", "--requests", "400"]);
    eventually("both send", || server.count() > 40);
    fleet.broker.restart();
    let finished = executable::finish(leader);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!((server.count(), &finished.json()["requests"]["answered"]), (400, &json!(400)));
}

#[test]
fn what_agents_do_not_allow_is_refused_by_all_of_them_at_once() {
    let Some(fleet) = Fleet::start(2) else { return };
    for (args, what) in [
        (&["http://10.255.0.1:80/"][..], "--allow-target 10.255.0.1:80"),
        (&["http://a.test/", "--resolve", "a.test:80:10.255.0.1"], "--allow-target a.test"),
        (&["http://127.0.0.1:9/", "--unix-socket", "/run/x"], "UNIX sockets"),
        (&["http://127.0.0.1:9/", "--proxy", "http://127.0.0.1:9"], "--allow-target 127.0.0.1:9"),
    ] {
        let finished = fleet.run(&[args, &["-c", "2", "--requests", "2"]].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        for part in ["nothing was started", "agent agent-01: ", "agent agent-02: ", what] {
            assert!(finished.stderr.contains(part), "{part}: {finished:?}");
        }
    }
}

#[test]
fn redirects_to_targets_that_are_not_allowed_fail() {
    let Some(fleet) = Fleet::start(2) else { return };
    let away = || vec![("Location", "http://10.255.0.1:81/".to_owned())];
    let server = Recorder::start(move |_| (302, away(), String::new()));
    let run = ["-c", "2", "--requests", "4", "--redirects", "3"];
    let finished = fleet.run(&[&[&*url(&server)], &run[..]].concat());
    let json = finished.json();
    assert_eq!((finished.code, &json["errors"]), (Some(1), &json!({ "dns": 4 })), "{finished:?}");
    assert_eq!(json["fleet"]["complete"], json!(true), "{finished:?}");
}

#[test]
fn an_agent_of_another_release_is_refused() {
    let Some(fleet) = Fleet::start(1) else { return };
    let mut other = NatsClient::connect(&fleet.broker, "", "");
    other.subscribe("standfast.fleet.standfast.all");
    let server = Recorder::hello();
    let url = url(&server);
    let leader = fleet.lead_of("2", &[&url, "-c", "2"]);
    let (_, call) = other.message();
    let call: Value = serde_json::from_str(call.trim()).expect("JSON");
    let id = call["call"]["leader"].as_str().expect("an id").to_owned();
    let here =
        json!({ "name": "old", "labels": [], "version": "0.0.1+1.1", "cores": 1, "busy": false });
    let answer = json!({ "agent": "x", "run": "", "says": { "here": here } });
    other.publish(&format!("standfast.fleet.standfast.to.{id}"), &format!("{answer}\n"));
    let finished = executable::finish(leader);
    assert_eq!((finished.code, server.count()), (Some(2), 0), "{finished:?}");
    assert!(finished.stderr.contains("agent old has version 0.0.1+1.1"), "{finished:?}");
}

#[test]
fn agents_are_listed_and_checked() {
    let Some(mut fleet) = Fleet::start(1) else { return };
    fleet.agent("second", &["--label", "zone=b", "--allow-target", "10.1.2.3"]);
    let nats = fleet.broker.url("");
    let list = |args: &[&str]| executable::run(&[&["fleet"], args, &["--nats", &nats]].concat());
    let mut json = Value::Null;
    eventually("both answer", || {
        json = list(&["list", "--json=-"]).json();
        json["agents"].as_array().is_some_and(|agents| agents.len() == 2)
    });
    let second = &json["agents"][1];
    assert_eq!((&second["name"], &second["labels"]), (&json!("second"), &json!(["zone=b"])));
    assert_eq!(
        (&second["usable"], &second["allowed_targets"]),
        (&json!(true), &json!(["10.1.2.3"]))
    );
    let text = list(&["list"]);
    assert!(text.code == Some(0) && text.stdout.contains("second"), "{text:?}");
    let fits = list(&["doctor", "-c", "10"]);
    assert_eq!(fits.code, Some(0), "{fits:?}");
    assert!(fits.stdout.contains("ok     agent-01: 5 connections"), "{fits:?}");
    let together = "note   agent-01, second: one machine, ";
    assert!(fits.stdout.contains(together), "{fits:?}");
    assert!(fits.stdout.contains(": 10 connections together\n"), "{fits:?}");
    let short = list(&["doctor", "-c", "900M", "--json=-"]);
    let json = short.json();
    assert_eq!((short.code, &json["holds"]), (Some(1), &json!(false)));
    let agents = json["agents"].as_array().expect("a list");
    assert!(agents.iter().all(|one| !one["problems"].as_array().unwrap().is_empty()), "{json}");
    let server = Recorder::hello();
    let mut one = fleet.command("zone=b", &[&url(&server), "-c", "2", "--requests", "9"]);
    let finished = executable::finish(Running(one.spawn().expect("it starts")));
    let agents = &finished.json()["fleet"]["agents"];
    assert_eq!((agents.as_array().unwrap().len(), &agents[0]["name"]), (1, &json!("second")));
    let nobody = list(&["list", "--fleet", "empty"]);
    assert!(nobody.code == Some(1) && nobody.stdout.contains("standfast agent"), "{nobody:?}");
}

#[test]
fn websockets_are_shared_and_fan_outs_are_refused() {
    let Some(fleet) = Fleet::start(3) else { return };
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let finished = fleet.run(&[&url, "-c", "31", "--rate", "100", "--messages", "4"]);
    let json = finished.json();
    assert_eq!((&json["connections"]["opened"], &json["echo"]["sent"]), (&json!(31), &json!(124)));
    assert_eq!(
        (&json["echo"]["received"], &json["fleet"]["complete"]),
        (&json!(124), &json!(true))
    );
    let held = fleet.run(&[&url, "-c", "32", "--hold", "2s", "--heartbeat", "1s"]);
    assert_eq!(held.code, Some(0), "{held:?}");
    assert_eq!(held.json()["connections"]["open"], json!(32));
    for (flags, what) in [
        (&["--fanout", "5", "--publish-by-socket"][..], "--agents is for"),
        (&["--connect", "one-by-one"], "--connect one-by-one cannot be shared"),
        (&["--rate", "2", "--messages", "1"], "--rate 2 cannot be shared by 3 agents"),
    ] {
        let refused = fleet.run(&[&[url.as_str(), "-c", "9"], flags].concat());
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(what), "{refused:?}");
    }
}
