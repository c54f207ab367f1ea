//! `standfast load` with too little CPU: it says so first and meets no threshold on a time; and CPU per message of the
//! measured time only.

use std::process::{Child, Command, Stdio};
use std::thread;

use engine::sys::process;
use serde_json::Value;

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished, Running, standfast};
use crate::harness::server::Server;

/// Starts a command on one core, which is always the same.
pub(crate) fn on_one_core(mut command: Command) -> Running {
    // A child inherits the cores of the thread that starts it.
    let start = move || -> Child {
        let is_pinned = (0..1024).any(|core| process::pin_to_core(core).is_ok());
        assert!(is_pinned, "there is a core");
        command.spawn().expect("the command starts")
    };
    Running(thread::spawn(start).join().expect("the command starts"))
}

/// So many loops on that core.
pub(crate) fn busy_loops(loops: usize) -> Vec<Running> {
    let busy = |_| {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        on_one_core(command)
    };
    (0..loops).map(busy).collect()
}

/// Runs `load` on a core that it shares with busy loops.
fn beside_busy_loops(loops: usize, args: &[&str]) -> Finished {
    let _busy = busy_loops(loops);
    executable::finish(on_one_core(standfast(args)))
}

#[track_caller]
fn assert_saturated(finished: &Finished, first_figure: &str) {
    let document = finished.json();
    let generator = &document["generator"];
    assert_eq!(generator["saturated"], true, "{finished:?}");
    let reasons = generator["reasons"].as_array().unwrap();
    let reason = |part: &str| reasons.iter().any(|one| one.as_str().unwrap().contains(part));
    assert!(reason("waited for a core") || reason("late"), "{finished:?}");
    let [first, second] = ["SATURATED", first_figure].map(|word| finished.stderr.find(word));
    assert!(first.is_some() && first < second, "{finished:?}");
    let [time, errors] = [0, 1].map(|at| document["thresholds"][at].clone());
    assert_eq!((&time["met"], &errors["met"]), (&false.into(), &true.into()), "{finished:?}");
    assert_eq!(time["why"], "the generator was saturated", "{finished:?}");
    assert_eq!((finished.code, &errors["why"]), (Some(1), &Value::Null), "{finished:?}");
}

#[test]
fn a_closed_loop_with_a_quarter_of_a_core_is_saturated() {
    let server = Server::start(&[]);
    let fails = ["--fail", "p99<10ms", "--fail", "errors<1", "--json", "-"];
    let flags = ["--connections", "100", "--duration", "2s"];
    let url = format!("http://{}/health", server.listen);
    let finished = beside_busy_loops(3, &[&["load", &url], &flags[..], &fails[..]].concat());
    assert_saturated(&finished, "\nrequests      ");
    let url = format!("ws://{}/echo", server.listen);
    let finished = beside_busy_loops(3, &[&["load", &url], &flags[..], &fails[..]].concat());
    assert_saturated(&finished, "\nconnections   ");
}

#[test]
fn a_closed_loop_with_half_a_core_is_saturated() {
    let server = Server::start(&[]);
    let flags = ["--connections", "4", "--duration", "2s", "--fail", "p99<10ms", "--json", "-"];
    for (scheme, path, first_figure) in
        [("http", "health", "\nrequests      "), ("ws", "echo", "\nconnections   ")]
    {
        let url = format!("{scheme}://{}/{path}", server.listen);
        let args = [&["load", &url], &flags[..]].concat();
        // The loop leaves more than half of the core while other programs keep the server waiting.
        let told = (0..20).map(|_| beside_busy_loops(1, &args)).find(|finished| {
            let reasons = &finished.json()["generator"]["reasons"];
            let is_told = |why: &Value| why.as_str().unwrap().contains("1 ms or longer at a time");
            reasons.as_array().unwrap().iter().any(is_told)
        });
        let finished = told.expect("that another program had the core is told");
        let document = finished.json();
        assert_eq!(document["generator"]["saturated"], true, "{finished:?}");
        assert!(document["generator"]["stalled"].as_f64() > Some(0.2), "{finished:?}");
        let [first, second] = ["SATURATED", first_figure].map(|word| finished.stderr.find(word));
        assert!(first.is_some() && first < second, "{finished:?}");
        let threshold = &document["thresholds"][0];
        assert_eq!(threshold["why"], "the generator was saturated", "{finished:?}");
        assert_eq!((finished.code, &threshold["met"]), (Some(1), &false.into()), "{finished:?}");
        let file = Scratch::new("half-a-core.json", &finished.stdout);
        let compared = executable::run(&["load", "compare", file.path(), file.path()]);
        assert_eq!(compared.code, Some(2), "{compared:?}");
        assert!(compared.stderr.contains("was saturated"), "{compared:?}");
    }
}

/// The CPU time of a process per 1,000 messages, as `--watch-pid` measured it.
fn cpu_per_message(url: &str, server: &Server, more: &[&str]) -> f64 {
    let pid = server.pid().to_string();
    let flags = ["load", url, "--watch-pid", &pid, "--json", "-", "--connections", "10"];
    let finished = executable::run(&[&flags[..], more].concat());
    let document: Value = finished.json();
    let each = &document["watched"]["cpu_ms_per_1000_messages"];
    assert!(document["generator"]["cpu_us_per_message"].as_f64() > Some(0.0), "{finished:?}");
    each.as_f64().unwrap_or_else(|| panic!("{finished:?}"))
}

#[test]
fn a_warm_up_of_web_sockets_is_refused_where_it_does_nothing() {
    for (flags, said) in [
        ("--stages 1s:5", "--warm-up is for"),
        ("--control", "--warm-up cannot be combined with --control"),
    ] {
        let url = "ws://127.0.0.1:1/";
        let flags: Vec<&str> = flags.split(' ').collect();
        let finished = executable::run(&[&["load", url, "--warm-up", "1s"], &flags[..]].concat());
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(said), "{finished:?}");
    }
}

#[test]
fn cpu_per_message_is_that_of_the_measured_time() {
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let rate = ["--rate", "2k", "--duration", "500ms"];
    let cold = cpu_per_message(&url, &server, &rate);
    let warm = cpu_per_message(&url, &server, &[&rate[..], &["--warm-up", "3s"]].concat());
    // With the CPU time of the warm-up it would be seven times as much.
    assert!(warm < 3.0 * cold, "{warm} with a warm-up, {cold} without");
    let url = format!("ws://{}/echo", server.listen);
    let cold = cpu_per_message(&url, &server, &rate);
    let warm = cpu_per_message(&url, &server, &[&rate[..], &["--warm-up", "3s"]].concat());
    assert!(warm < 3.0 * cold, "{warm} with a warm-up, {cold} without");
}
