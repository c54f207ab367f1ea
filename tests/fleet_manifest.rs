//! The run of `standfast fleet manifest` as Kubernetes runs it: each pod in a network namespace of its own, with the
//! command lines and the user of the manifest, in any order, and names by DNS.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::deploy::{manifest, manifest_documents};
use crate::fleet::Fleet;
use crate::fleet_scenarios::{run, shop, shopping};
use crate::harness::Scratch;
use crate::harness::brokers::Broker;
use crate::harness::executable::{self, Running};
use crate::harness::lowered::{Namespace, switched};
use crate::harness::names::{Lookup, Names};
use crate::harness::recorder::Recorder;

const AGENTS: usize = 3;

/// A pod, which sees the names of its cluster.
struct Pod {
    namespace: Namespace,
    names: Names,
}

impl Pod {
    fn new() -> Option<Pod> {
        let namespace = Namespace::create()?;
        let names = Names::start(&namespace);
        Some(Pod { namespace, names })
    }

    /// Starts the container of a Job, of this index, with its output in a file.
    fn start(&self, job: &Value, index: usize, log: &str) -> Running {
        let pod = &job["spec"]["template"]["spec"];
        let user = &pod["securityContext"]["runAsUser"];
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.args(["--clear-groups", "--no-new-privs", "--bounding-set=-all"]);
        command.arg(executable::copy_for_anybody());
        for arg in pod["containers"][0]["args"].as_array().expect("a list") {
            let arg = arg.as_str().expect("a text");
            let index = index.to_string();
            command.arg(arg.replace("$(JOB_COMPLETION_INDEX)", &index).replace("$$", "$"));
        }
        let mut inside = self.namespace.inside(&command);
        let log = File::create(log).expect("a file");
        inside.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Running(inside.spawn().expect("the container starts"))
    }
}

/// The document in a log, by the command in the head of a manifest.
fn document(log: &str) -> String {
    let manifest = fs::read_to_string(manifest(2, &["http://shop.test/"]).path()).expect("a file");
    let command = manifest.lines().find_map(|line| line.strip_prefix("#   sed ")).expect("sed");
    let command = command.strip_suffix(" fleet.log > result.json").expect("its files");
    let log = Scratch::new("merged.log", log);
    let input = File::open(log.path()).expect("a file");
    let output = Command::new("sh").args(["-c", &format!("sed {command}")]).stdin(input).output();
    let output = output.expect("a shell");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_result_is_found_in_a_log_whatever_text_is_among_its_lines() {
    let Some(fleet) = Fleet::start(2) else { return };
    let server = shop();
    let text =
        shopping(&server, "passes = 2").replace("'/logout?token={{url token}}'", "'/broken'");
    let failed = run(&fleet, 2, &text);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("[teardown] failed: agent agent-01: step"), "{failed:?}");
    // Two pipes, of which each line may come at any time.
    let mut errors = failed.stderr.lines().cycle();
    let merged = failed.stdout.lines().flat_map(|line| [errors.next().expect("text"), line]);
    let merged = format!("{}\n{}", merged.collect::<Vec<_>>().join("\n"), failed.stderr);
    assert_eq!(document(&merged), failed.stdout, "{merged}");
    assert_eq!(document(&failed.stderr), "", "a run that has no result");
}

#[test]
fn the_run_of_a_manifest_ends_with_its_exit_code_and_its_result_in_the_log() {
    let run = ["http://shop.test:8080/", "-c", "9", "--requests", "300", "--fail", "errors<1"];
    let Some(documents) = manifest_documents(AGENTS, &run) else { return };
    let of = |kind: &str, name: &str| {
        let is_it = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == name;
        documents.iter().find(is_it).unwrap_or_else(|| panic!("{kind} {name}: {documents:?}"))
    };
    let (agents, leader) = (of("Job", "fleet-agents"), of("Job", "fleet-leader"));
    let nats_args = &of("Deployment", "fleet-nats")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(nats_args["args"], json!(["--addr=0.0.0.0", "--port=4222"]));
    assert_eq!(of("Service", "fleet-nats")["spec"]["ports"][0]["port"], 4222);
    let (Some(hub), Some(nats)) = (Namespace::create(), Namespace::create().map(Arc::new)) else {
        return;
    };
    let pods: Option<Vec<Pod>> = (0..=AGENTS).map(|_| Pod::new()).collect();
    let Some(pods) = pods else { return };
    hub.switch(std::iter::once(&*nats).chain(pods.iter().map(|pod| &pod.namespace)));
    for pod in &pods {
        pod.names.set("fleet-nats", Some(Lookup::Address(switched(1))));
        pod.names.set("shop.test", Some(Lookup::Address(switched(0))));
    }
    let listener = hub.within(|| TcpListener::bind((switched(0), 8080))).expect("a free port");
    let server = Recorder::on(vec![listener], 0, |_| (200, Vec::new(), "hello".to_owned()));
    let logs: Vec<Scratch> =
        (0..=AGENTS).map(|at| Scratch::new(&format!("pod-{at}.log"), "")).collect();
    // In the order in which all of them have to wait.
    let mut running = vec![pods[AGENTS].start(leader, 0, logs[AGENTS].path())];
    for at in 0..AGENTS {
        running.push(pods[at].start(agents, at, logs[at].path()));
    }
    let address = SocketAddr::from((switched(1), 4222));
    let Some(_broker) = Broker::nats_in(&nats, address) else { return };
    let codes: Vec<Option<i32>> = running.iter_mut().map(|one| one.wait().code()).collect();
    let log = fs::read_to_string(logs[AGENTS].path()).expect("a log");
    assert_eq!(codes, [Some(0); AGENTS + 1], "{log}");
    assert_eq!(server.count(), 300);
    let json: Value = serde_json::from_str(&document(&log)).unwrap_or_else(|_| panic!("{log}"));
    assert_eq!((&json["requests"]["sent"], &json["held"]), (&json!(300), &json!(true)));
    assert_eq!(json["fleet"]["agents"].as_array().map(Vec::len), Some(AGENTS));
}
