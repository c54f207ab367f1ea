//! `/metrics`: every metric has a help and a type, and every metric that the Grafana board and the alert
//! rules use exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::Deserted;
use crate::harness::http;
use crate::harness::server::Server;
use crate::harness::socket::{Socket, TEXT};

/// What one program exposes.
struct Exposed {
    text: String,
    families: BTreeSet<String>,
}

impl Exposed {
    fn read(server: &Server) -> Exposed {
        let response = http::get(server.admin, "/metrics");
        assert_eq!(response.status, 200, "{response:?}");
        let text = response.body;
        let named = |kind: &str| -> Vec<(String, String)> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(kind));
            lines
                .filter_map(|line| line.split_once(' '))
                .map(|(name, rest)| (name.to_owned(), rest.to_owned()))
                .collect()
        };
        let (helps, types) = (named("# HELP "), named("# TYPE "));
        for (name, help) in &helps {
            assert!(help.len() > 5 && help.ends_with(['.', ')']), "{name}: {help:?}");
        }
        let families: BTreeSet<String> = types.iter().map(|(name, _)| name.clone()).collect();
        let helped: BTreeSet<String> = helps.into_iter().map(|(name, _)| name).collect();
        assert_eq!(families, helped, "each metric has a help and a type");
        assert_eq!(families.len(), types.len(), "each metric has one type");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let is_of = |ending: &str| {
                name.strip_suffix(ending).is_some_and(|family| families.contains(family))
            };
            let histogram = ["_bucket", "_sum", "_count"].into_iter().any(is_of);
            assert!(families.contains(name) || histogram, "{line} has no type");
        }
        Exposed { text, families }
    }
}

/// Metrics that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|sign: char| !(sign.is_ascii_alphanumeric() || sign == '_'));
    words.filter(|word| word.starts_with("standfast_")).map(str::to_owned).collect()
}

fn deployed(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn board_and_alert_rules_name_metrics_that_exist_and_each_has_a_help() {
    // Parts that are off expose no metrics.
    let away = Deserted::port();
    let url = format!("http://{}/", away.address);
    let serve = Server::start(&["--rpc-host", &url, "--webhook-url", &url]);
    let mut socket = Socket::open(serve.listen, "/topics/news");
    socket.send_frame(TEXT, b"hello");
    socket.frame().unwrap();
    let proxy = Server::start_proxy(&["--upstream", &serve.listen.to_string()]);
    let _tunnel = Socket::open(proxy.listen, "/topics/news");
    let broker = format!("redis://{}", away.address);
    let flags = ["--pubsub=redis", "--history=redis", "--broadcast-adapter=redisx", "--redis-url"];
    let node = Server::start(&[&flags[..], &[&broker]].concat());
    let exposed = [Exposed::read(&serve), Exposed::read(&proxy), Exposed::read(&node)];
    let families: BTreeSet<&String> = exposed.iter().flat_map(|each| &each.families).collect();
    for file in ["grafana/standfast.json", "prometheus/standfast-alerts.yml"] {
        let names = named(&deployed(file));
        assert!(names.len() > 10, "{file} names {names:?}");
        let unknown: Vec<&String> = names
            .iter()
            .filter(|name| {
                let family = name.strip_suffix("_bucket").unwrap_or(name);
                !families.iter().any(|known| **known == *family)
            })
            .collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
    for each in &exposed {
        assert!(each.text.contains("# HELP standfast_connections Connections"), "{}", each.text);
    }
}

#[test]
fn the_board_is_complete() {
    let board: Value = serde_json::from_str(&deployed("grafana/standfast.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has its own id");
    let mut places = BTreeSet::new();
    for panel in panels {
        let place = &panel["gridPos"];
        assert!(places.insert((place["x"].as_u64(), place["y"].as_u64())), "{panel}");
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            let count = |sign: char| expression.matches(sign).count();
            assert_eq!(count('('), count(')'), "{expression}");
            assert!(expression.contains("job=~\"$job\""), "{expression}");
        }
    }
}

/// The syntax of the rules, where Prometheus is installed.
#[test]
fn prometheus_reads_the_alert_rules() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus/standfast-alerts.yml");
    let mut promtool = Command::new("promtool");
    promtool.arg("check").arg("rules").arg(path).stdin(Stdio::null());
    match promtool.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
        }
        Err(_) => crate::harness::skip::unsupported("promtool is not installed"),
    }
}
