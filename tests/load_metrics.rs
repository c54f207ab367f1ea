//! `standfast load --metrics`: scrapes a running test as Prometheus does.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{ChildStderr, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::executable::{self, Running, standfast};
use crate::harness::server::Server;
use crate::harness::web::Web;
use crate::harness::{Scratch, eventually, http};

/// A run under way, with its endpoint.
struct Run {
    running: Running,
    address: SocketAddr,
    said: BufReader<ChildStderr>,
}

impl Run {
    fn start(words: &[&str]) -> Run {
        let metrics = ["--metrics", "127.0.0.1:0", "--plain", "--json", "-"];
        let mut command = standfast(&[&["load"], words, &metrics].concat());
        let mut running = Running(command.stdin(Stdio::null()).spawn().unwrap());
        let mut said = BufReader::new(running.0.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("metrics at http://");
        let address = address.and_then(|rest| rest.strip_suffix("/metrics"));
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
        Run { running, address: address.parse().unwrap(), said }
    }

    fn text(&self) -> String {
        let response = http::get(self.address, "/metrics");
        assert_eq!(response.status, 200, "{response:?}");
        assert!(response.header("content-type").unwrap().contains("version=0.0.4"));
        response.body
    }

    fn samples(&self) -> HashMap<String, f64> {
        let text = self.text();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|line| line.rsplit_once(' ').unwrap())
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect()
    }

    /// Scrapes until a sample is at least so large; all of that scrape.
    fn until(&self, name: &str, least: f64) -> HashMap<String, f64> {
        let mut samples = HashMap::new();
        eventually(&format!("{name} is {least}"), || {
            samples = self.samples();
            samples.get(name).is_some_and(|value| *value >= least)
        });
        samples
    }

    /// Ends the run; what it says in the end.
    fn end(mut self) -> Value {
        let pid = Pid::from_raw(self.running.0.id().try_into().unwrap());
        kill_process(pid.unwrap(), Signal::INT).unwrap();
        // Both pipes are read to their ends, lest the run waits for that.
        let mut said = self.said;
        let rows = thread::spawn(move || io::copy(&mut said, &mut io::sink()));
        let mut json = String::new();
        self.running.0.stdout.take().unwrap().read_to_string(&mut json).unwrap();
        rows.join().unwrap().unwrap();
        let status = self.running.wait();
        assert_eq!(status.code(), Some(130), "{json}");
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }
}

fn is_a_histogram(samples: &HashMap<String, f64>, name: &str) {
    let bucket = |end: &str| samples[&format!("standfast_{name}_bucket{{le=\"{end}\"}}")];
    let count = samples[&format!("standfast_{name}_count")];
    assert!(count > 0.0 && bucket("+Inf") == count && bucket("30") <= count, "{name}");
    assert!(bucket("0.00005") <= bucket("0.01") && bucket("0.01") <= bucket("10"), "{name}");
    let sum = samples[&format!("standfast_{name}_sum")];
    assert!(sum > 0.0 && sum / count < 60.0, "{name}: {sum} of {count}");
}

#[test]
fn metrics_of_requests_can_be_scraped_during_a_run() {
    let server = Server::start(&[]);
    let (good, bad) =
        (format!("http://{}/health", server.listen), format!("http://{}/no", server.listen));
    let run = Run::start(&[&good, &bad, "--rate", "400", "--connections", "8", "--duration", "1h"]);
    let health = http::get(run.address, "/health");
    assert_eq!(health.status, 200, "before the first second is over");
    let samples = run.until("standfast_load_requests_ok_total", 300.0);
    let of = |name: &str| samples[&format!("standfast_load_{name}")];
    // The server closes after a 404.
    assert!((1.0..=8.0).contains(&of("connections")), "{}", of("connections"));
    assert_eq!(of("phase{phase=\"requests\"}"), 1.0);
    let failed = of("requests_failed_total{kind=\"status\"}");
    assert!(failed >= 300.0 && of("requests_failed_total{kind=\"timeout\"}") == 0.0, "{failed}");
    assert_eq!(of("answers_total{status=\"404\"}"), failed);
    assert!(of("resident_bytes") > 1e6 && of("cpu_seconds_total") > 0.0);
    assert!(of("elapsed_seconds") >= 1.0);
    is_a_histogram(&samples, "load_latency_seconds");
    is_a_histogram(&samples, "load_service_time_seconds");
    let text = run.text();
    assert!(text.contains("# TYPE standfast_load_requests_ok_total counter"), "{text}");
    assert!(text.contains("# TYPE standfast_load_latency_seconds histogram"), "{text}");
    let stats = http::get(run.address, "/api/stats").json();
    assert_eq!(stats["phase"], "requests", "{stats}");
    assert_eq!(http::get(run.address, "/api/connections").status, 404);
    let said = run.end();
    assert!(said["requests"]["ok"].as_f64().unwrap() >= of("requests_ok_total"), "{said}");
    assert!(said["requests"]["failed"].as_f64().unwrap() >= failed, "{said}");
}

#[test]
fn metrics_of_sockets_and_fan_out_can_be_scraped() {
    let server = Server::start(&[]);
    let echo = format!("ws://{}/echo", server.listen);
    let run = Run::start(&[&echo, "--connections", "20", "--rate", "400", "--duration", "1h"]);
    let samples = run.until("standfast_load_messages_answered_total", 400.0);
    let of = |name: &str| samples[&format!("standfast_load_{name}")];
    assert_eq!((of("connections"), of("connections_opened_total")), (20.0, 20.0));
    assert!(of("messages_sent_total") >= 400.0 && of("errors_total{kind=\"corrupted\"}") == 0.0);
    is_a_histogram(&samples, "load_latency_seconds");
    is_a_histogram(&samples, "load_service_time_seconds");
    let said = run.end();
    assert!(said["echo"]["sent"].as_f64().unwrap() >= of("messages_sent_total"), "{said}");

    let topic = format!("ws://{}/topics/fan", server.listen);
    let publish = format!("http://{}/api/publish", server.admin);
    let fan = ["--fanout", "50", "--publish-url", &publish, "--duration", "1h"];
    let run = Run::start(&[&[&topic[..], "--connections", "10"], &fan[..]].concat());
    let samples = run.until("standfast_load_receipts_total", 500.0);
    let of = |name: &str| samples[&format!("standfast_load_{name}")];
    assert!(of("publications_total") >= 50.0 && of("publish_failed_total") == 0.0);
    assert_eq!(of("errors_total{kind=\"duplicated\"}"), 0.0);
    is_a_histogram(&samples, "load_receipt_seconds");
    run.end();
}

#[test]
fn metrics_of_checks_can_be_scraped_without_a_scenario() {
    let web = Web::start(|_| (200, Vec::new(), "fine".to_owned()));
    let url = format!("http://{}/a", web.address);
    let checks = ["--check", "contains fine", "--check", "size >100"];
    let flags = ["--rate", "200", "--connections", "4", "--duration", "1h"];
    let run = Run::start(&[&[&url[..]], &checks[..], &flags].concat());
    let name = |check: &str, result: &str| {
        let step = "flow=\"requests\",step=\"requests\"";
        format!("standfast_load_checks_total{{{step},check=\"{check}\",result=\"{result}\"}}")
    };
    let samples = run.until(&name("size >100", "failed"), 100.0);
    let passed = samples[&name("contains fine", "passed")];
    assert_eq!(passed, samples[&name("size >100", "failed")], "{samples:?}");
    assert_eq!(samples[&name("contains fine", "failed")], 0.0, "{samples:?}");
    let step = "{flow=\"requests\",step=\"requests\"}";
    assert_eq!(samples[&format!("standfast_load_step_requests_total{step}")], passed);
    let said = run.end();
    let checks = &said["flows"][0]["steps"][0]["checks"];
    assert!(checks[0]["passed"].as_f64().unwrap() >= passed, "{said}");
    assert_eq!(checks[0]["passed"], checks[1]["failed"], "{said}");
}

#[test]
fn metrics_of_scenario_steps_and_checks_can_be_scraped() {
    let web = Web::start(|got| match got.target.as_str() {
        "/a" => (200, Vec::new(), "fine".to_owned()),
        _ => (500, Vec::new(), String::new()),
    });
    let text = format!(
        "version = 1\nusers = 2\nduration = \"1h\"\ntarget = \"http://{}\"\n\
         [[flows]]\nname = \"f\"\n[[flows.steps]]\nname = \"good\"\nurl = \"/a\"\nthink = \"5ms\"\n\
         checks = [{{ name = \"well\", status = 200 }}]\n\
         [[flows.steps]]\nname = \"bad\"\nurl = \"/b\"\n",
        web.address
    );
    let scenario = Scratch::new("metrics.toml", &text);
    let run = Run::start(&[scenario.path()]);
    let good = "standfast_load_step_requests_total{flow=\"f\",step=\"good\"}";
    let samples = run.until(good, 20.0);
    let bad = "standfast_load_step_failed_total{flow=\"f\",step=\"bad\",kind=\"status\"}";
    assert!(samples[bad] >= 1.0, "{samples:?}");
    let passed = samples.iter().find(|(name, _)| {
        name.starts_with("standfast_load_checks_total{flow=\"f\",step=\"good\"")
            && name.ends_with("result=\"passed\"}")
    });
    assert!(passed.is_some_and(|(_, count)| *count >= 20.0), "{samples:?}");
    let slow = "standfast_load_step_latency_seconds{flow=\"f\",step=\"good\",quantile=\"0.99\"}";
    assert!(samples[slow] > 0.0 && samples[slow] < 60.0, "{samples:?}");
    assert!(samples["standfast_load_passes_total{flow=\"f\",state=\"begun\"}"] >= 20.0);
    let said = run.end();
    let steps = &said["flows"][0]["steps"];
    assert!(steps[0]["requests"].as_f64().unwrap() >= samples[good], "{steps}");
}

#[test]
fn metrics_beyond_loopback_need_a_key() {
    let open = ["load", "http://127.0.0.1:1/", "--metrics", "0.0.0.0:0", "--duration", "1s"];
    let finished = executable::run(&open);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("--metrics-key"), "{finished:?}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let finished = executable::run(&["load", "http://127.0.0.1:1/", "--metrics", &port]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains(&port), "{finished:?}");
    let server = Server::start(&[]);
    let url = format!("http://{}/health", server.listen);
    let run = Run::start(&[&url, "--metrics-key", "k3y", "--rate", "10", "--duration", "1h"]);
    assert_eq!(http::get(run.address, "/metrics").status, 401);
    let ask = format!(
        "GET /metrics HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer k3y\r\nConnection: close\r\n\r\n",
        run.address
    );
    assert_eq!(http::ask(run.address, &ask).status, 200);
    run.end();
}
