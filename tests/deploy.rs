//! What `deploy/` starts: the Kubernetes manifests match the schemas of the API, and every command line in them
//! and in the compose file is one that the executable accepts.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::Scratch;
use crate::harness::executable::standfast;
use crate::harness::skip;

/// Lists the containers of both files as JSON: name, arguments and names of environment variables.
const CONTAINERS: &str = r#"
import json, sys, yaml
found = []
for document in yaml.safe_load_all(open("deploy/kubernetes/standfast.yaml")):
    if document["kind"] == "Deployment":
        for c in document["spec"]["template"]["spec"]["containers"]:
            found.append({"name": c["name"], "args": c["args"], "env": [e["name"] for e in c["env"]]})
for file in ["compose", "fleet"]:
    for name, service in yaml.safe_load(open(f"deploy/compose/{file}.yaml"))["services"].items():
        if service["image"].startswith("standfast"):
            env = list(service.get("environment", {}))
            found.append({"name": name, "args": service["command"], "env": env})
json.dump(found, sys.stdout)
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A program of the environment with the schemas, which `cargo xtask requirements --install` makes.
fn program(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    let path = target.join("tools/kubernetes/bin").join(name);
    path.exists().then_some(path)
}

#[test]
fn the_kubernetes_manifests_match_the_schemas_of_the_api() {
    let Some(validate) = program("kubernetes-validate") else {
        return skip::missing("Kubernetes' schemas: cargo xtask requirements --install");
    };
    // The oldest version whose preStop hook can sleep without a feature gate, and the newest known.
    for version in ["1.30", "1.37"] {
        let mut command = Command::new(&validate);
        command.args(["--strict", "-k", version]).arg("deploy/kubernetes/standfast.yaml");
        let output = command.current_dir(root()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{version}: {text}");
        assert_eq!(text.matches("passed").count(), 6, "{version}: {text}");
    }
}

#[test]
fn every_container_has_a_command_line_that_the_executable_accepts() {
    let Some(python) = program("python") else {
        return skip::missing("Kubernetes' schemas: cargo xtask requirements --install");
    };
    let output = Command::new(python).args(["-c", CONTAINERS]).current_dir(root()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let containers: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        containers.len(),
        8,
        "one in Kubernetes, three nodes, a proxy and a fleet in compose"
    );
    for container in containers {
        let words = |key: &str| -> Vec<String> {
            let list = container[key].as_array().unwrap();
            list.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
        };
        // A variable is a flag by another name; `--help` acts once all before it has been read.
        let mut args = words("args");
        args.extend(words("env").iter().map(|variable| {
            let flag = variable.strip_prefix("STANDFAST_SERVE_").unwrap();
            format!("--{}=redis://127.0.0.1", flag.to_lowercase().replace('_', "-"))
        }));
        args.push("--help".to_owned());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = standfast(&args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{container}: {error}");
    }
}

/// Documents of a manifest on standard input as a list in JSON.
const DOCUMENTS: &str =
    "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";

/// The manifest of a fleet for this run.
pub(crate) fn manifest(agents: usize, run: &[&str]) -> Scratch {
    let agents = agents.to_string();
    let made =
        ["fleet", "manifest", "--agents", &agents, "--image", "registry.test/standfast:1", "--"];
    let output = standfast(&[&made[..], run].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Scratch::new(&format!("fleet-{agents}.yaml"), &String::from_utf8(output.stdout).unwrap())
}

/// Its documents; `None` without the program that reads them.
pub(crate) fn manifest_documents(agents: usize, run: &[&str]) -> Option<Vec<Value>> {
    let Some(python) = program("python") else {
        skip::missing("Kubernetes' schemas: cargo xtask requirements --install");
        return None;
    };
    let input = std::fs::File::open(manifest(agents, run).path()).unwrap();
    let output = Command::new(python).args(["-c", DOCUMENTS]).stdin(input).output().unwrap();
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn the_manifest_of_a_fleet_matches_the_schemas_and_its_command_lines_are_accepted() {
    let Some(validate) = program("kubernetes-validate") else {
        return skip::missing("Kubernetes' schemas: cargo xtask requirements --install");
    };
    let run = ["http://shop.test:8080/a?b=$(C)", "-c", "1M", "--rate", "1k", "--fail", "p99<1s"];
    let manifest = manifest(16, &run);
    for version in ["1.30", "1.37"] {
        let mut command = Command::new(&validate);
        let output = command.args(["--strict", "-k", version, manifest.path()]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{version}: {text}");
        assert_eq!(text.matches("passed").count(), 5, "{version}: {text}");
    }
    let Some(documents) = manifest_documents(16, &run) else { return };
    let jobs: Vec<&Value> = documents.iter().filter(|one| one["kind"] == "Job").collect();
    assert_eq!(jobs.len(), 2, "{documents:?}");
    assert_eq!(jobs[0]["spec"]["completions"], 16);
    for job in jobs {
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        let args: Vec<String> = container["args"]
            .as_array()
            .unwrap()
            .iter()
            // As Kubernetes replaces them.
            .map(|arg| {
                arg.as_str().unwrap().replace("$(JOB_COMPLETION_INDEX)", "7").replace("$$", "$")
            })
            .collect();
        assert_eq!(container["image"], "registry.test/standfast:1");
        let is_agent = args[0] == "agent";
        assert!(
            !is_agent || args.contains(&"--allow-target=shop.test:8080".to_owned()),
            "{args:?}"
        );
        assert!(is_agent || args.contains(&run[0].to_owned()), "{args:?}");
        let args: Vec<&str> = args.iter().map(String::as_str).chain(["--help"]).collect();
        let output = standfast(&args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
