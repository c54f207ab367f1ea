//! `standfast fleet manifest`: a run by a fleet on Kubernetes, as one file for `kubectl apply`.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};

use super::{AGENTS_MAX, agent, word};
use crate::{output, units};

/// Flags of the run that the manifest sets.
const SET: [&str; 7] =
    ["--agents", "--agents-within", "--nats", "--fleet", "--plain", "--json", "--json-max"];
/// Flags that agents would need, too, and that the manifest does not pass on to them.
const OF_BOTH: [&str; 3] = ["--files-max", "--nats-creds", "--nats-ca"];

/// Lines of a document of JSON in the leader's log, as `sed` finds them. Standard output and standard error of a
/// container are two pipes: lines of the text may be among those of the document.
const OF_DOCUMENT: &str = r#"^ +"|^ *[]{}[]+,?$|^ +(-?[0-9][0-9.eE+-]*|true|false|null),?$"#;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Number of agents, each a pod
    #[arg(long, value_name = "N", value_parser = units::positive_count)]
    agents: u64,
    /// Image of standfast
    #[arg(long, value_name = "IMAGE",
        default_value = concat!("standfast:", env!("CARGO_PKG_VERSION")), value_parser = image)]
    image: String,
    /// Image of the NATS server
    #[arg(long, value_name = "IMAGE", default_value = "nats:2.11", value_parser = image)]
    nats_image: String,
    /// Name of all objects, and of the fleet
    #[arg(long, value_name = "NAME", default_value = "fleet", value_parser = name)]
    name: String,
    /// CPU that each agent requests and may use
    #[arg(long, value_name = "CORES", default_value = "2", value_parser = quantity)]
    cpu: String,
    /// Memory that each agent requests and may use
    #[arg(long, value_name = "BYTES", default_value = "2Gi", value_parser = quantity)]
    memory: String,
    /// Target that agents may connect to; repeatable [default: the host of the URL]
    #[arg(long, value_name = "TARGET", value_parser = agent::target)]
    allow_target: Vec<String>,
    /// The run, as after `standfast load`: a URL and flags
    #[arg(value_name = "LOAD", last = true, required = true)]
    load: Vec<String>,
}

/// Prints the manifest.
///
/// # Errors
/// Values that cannot be used.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if args.agents > AGENTS_MAX as u64 {
        bail!("a fleet has at most {AGENTS_MAX} agents");
    }
    output::print(&manifest(args)?)?;
    Ok(ExitCode::SUCCESS)
}

fn image(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@".contains(&byte);
    let fits = !text.is_empty() && text.len() <= 255 && text.bytes().all(is_plain);
    fits.then(|| text.to_owned())
        .ok_or_else(|| "expected an image, such as HOST/NAME:TAG".to_owned())
}

/// A name of Kubernetes that is also one of a fleet.
fn name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let edges = text.starts_with(|first: char| first.is_ascii_lowercase()) && !text.ends_with('-');
    let fits = word(text).is_ok() && text.len() <= 40 && edges && text.bytes().all(is_plain);
    fits.then(|| text.to_owned())
        .ok_or_else(|| "expected up to 40 lower-case letters, digits and -".to_owned())
}

fn quantity(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
    let fits = text.starts_with(|first: char| first.is_ascii_digit()) && text.bytes().all(is_plain);
    fits.then(|| text.to_owned()).ok_or_else(|| "expected 500m, 2 or 2Gi".to_owned())
}

/// Hosts of URLs in a command line.
fn hosts(words: &[String]) -> Vec<String> {
    let mut hosts: Vec<String> = Vec::new();
    for word in words.iter().filter(|word| !word.starts_with('-')) {
        let Some((scheme, rest)) = word.split_once("://") else { continue };
        if !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            continue;
        }
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if !host.is_empty() && !hosts.iter().any(|known| known == host) {
            hosts.push(host.to_owned());
        }
    }
    hosts
}

fn manifest(args: &Args) -> Result<String> {
    let Args { agents, image, nats_image, name, cpu, memory, load, .. } = args;
    let targets =
        if args.allow_target.is_empty() { hosts(load) } else { args.allow_target.clone() };
    if targets.is_empty() {
        bail!("no allowed target: expected a URL in the run, or --allow-target TARGET");
    }
    for target in &targets {
        agent::target(target)
            .map_err(|why| anyhow!("agents cannot be allowed {target}: {why} (--allow-target)"))?;
    }
    let flag = |word: &String| word.split('=').next().unwrap_or_default().to_owned();
    if let Some(flag) = load.iter().map(flag).find(|flag| SET.contains(&flag.as_str())) {
        bail!("the manifest sets {flag} for the run: leave it out");
    }
    if let Some(flag) = load.iter().map(flag).find(|flag| OF_BOTH.contains(&flag.as_str())) {
        bail!(
            "{flag}: agents need it, too: print the manifest without it, and add it to both commands"
        );
    }
    let nats = format!("--nats=nats://{name}-nats:4222");
    let agent: Vec<String> = [
        "agent".to_owned(),
        "--name=agent-$(JOB_COMPLETION_INDEX)".to_owned(),
        nats.clone(),
        format!("--fleet={name}"),
        "--once".to_owned(),
    ]
    .into_iter()
    .chain(targets.iter().map(|target| format!("--allow-target={target}")))
    .collect();
    let leader: Vec<String> = std::iter::once("load".to_owned())
        .chain(load.iter().cloned())
        .chain([
            format!("--agents={agents}"),
            "--agents-within=10m".to_owned(),
            nats,
            format!("--fleet={name}"),
            "--plain".to_owned(),
            "--json=-".to_owned(),
            // A ConfigMap takes 1 MiB.
            "--json-max=1000KiB".to_owned(),
        ])
        .collect();
    let (agent, leader) = (list(&agent), list(&leader));
    let security = "          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
";
    let pod = "      restartPolicy: Never
      securityContext:
        runAsNonRoot: true
        runAsUser: 65534
        seccompProfile: { type: RuntimeDefault }
";
    let labels = |part: &str| {
        format!("{{ app.kubernetes.io/name: {name}, app.kubernetes.io/component: {part} }}")
    };
    let (of_nats, of_agent, of_leader) = (labels("nats"), labels("agent"), labels("leader"));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\
# A run by {agents} agents, made by standfast fleet manifest:
#
#   kubectl apply -f {name}.yaml
#   until kubectl logs --follow job/{name}-leader > {name}.log; do sleep 1; done    # until the run has ended
#   sed -nE '/^[{{]$/,/^[}}]$/{{/{OF_DOCUMENT}/p;}}' {name}.log > result.json
#   test -s result.json && kubectl create configmap {name}-result --from-file=result.json    # at most 1,000 KiB
#   kubectl delete -f {name}.yaml
#
# The leader's Job succeeds if the run holds; its exit code is that of standfast load. The other lines of its
# log are rows, text and errors; without a result the run could not begin, and the log says why. Agents end after the
# run; agents that no run has begun on wait until the last of these commands.
apiVersion: v1
kind: Service
metadata:
  name: {name}-nats
  labels: {of_nats}
spec:
  selector: {of_nats}
  ports:
    - {{ name: nats, port: 4222, targetPort: nats }}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}-agents
  labels: {of_agent}
spec:
  # Headless: the agents have names, such as {name}-agents-0.{name}-agents.
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {of_agent}
  ports:
    - {{ name: none, port: 9, targetPort: 9 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}-nats
  labels: {of_nats}
spec:
  replicas: 1
  selector:
    matchLabels: {of_nats}
  template:
    metadata:
      labels: {of_nats}
    spec:
      securityContext:
        runAsNonRoot: true
        runAsUser: 65534
        seccompProfile: {{ type: RuntimeDefault }}
      containers:
        - name: nats
          image: {nats_image}
          args: [\"--addr=0.0.0.0\", \"--port=4222\"]
          ports:
            - {{ name: nats, containerPort: 4222 }}
          readinessProbe:
            tcpSocket: {{ port: nats }}
            periodSeconds: 2
          resources:
            requests: {{ cpu: 100m, memory: 64Mi }}
            limits: {{ memory: 256Mi }}
{security}---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}-agents
  labels: {of_agent}
spec:
  completionMode: Indexed
  completions: {agents}
  parallelism: {agents}
  # A run that loses an agent is incomplete: another one would come too late.
  backoffLimit: 0
  template:
    metadata:
      labels: {of_agent}
    spec:
      subdomain: {name}-agents
{pod}      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {of_agent}
      containers:
        - name: agent
          image: {image}
          args: {agent}
          # The status of a pod that fails says why.
          terminationMessagePolicy: FallbackToLogsOnError
          env:
            - name: JOB_COMPLETION_INDEX
              valueFrom:
                fieldRef:
                  fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
          resources:
            requests: {{ cpu: {cpu:?}, memory: {memory:?} }}
            limits: {{ cpu: {cpu:?}, memory: {memory:?} }}
          volumeMounts:
            - {{ name: tmp, mountPath: /tmp }}
{security}      volumes:
        - name: tmp
          emptyDir: {{ sizeLimit: 256Mi }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}-leader
  labels: {of_leader}
spec:
  backoffLimit: 0
  template:
    metadata:
      labels: {of_leader}
    spec:
{pod}      containers:
        - name: leader
          image: {image}
          args: {leader}
          # The status of a pod that fails says why.
          terminationMessagePolicy: FallbackToLogsOnError
          resources:
            requests: {{ cpu: 100m, memory: 128Mi }}
            limits: {{ memory: 512Mi }}
{security}"
    );
    Ok(text)
}

/// A list of strings in YAML, of which JSON is a part. `$(NAME)` is a variable for Kubernetes, and `$$` a `$`.
fn list(words: &[String]) -> String {
    let own = "$(JOB_COMPLETION_INDEX)";
    let escaped = |word: &String| match word.ends_with(own) {
        true => word.clone(),
        false => word.replace('$', "$$"),
    };
    let words: Vec<String> = words.iter().map(escaped).collect();
    serde_json::to_string(&words).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_those_of_the_urls() {
        let words = ["http://a:1/x", "-H", "X: http://no/", "ws://b", "--publish-url=http://c/"];
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(hosts(&words), ["a:1", "b"]);
    }

    #[test]
    fn names_and_amounts_are_those_of_kubernetes() {
        assert!(name("fleet-1").is_ok() && image("a.b/c:1").is_ok() && quantity("500m").is_ok());
        for text in ["", "Fleet", "1a", "a-", "a_b", "a b"] {
            assert!(name(text).is_err(), "{text}");
        }
        assert!(image("a b").is_err() && image("").is_err());
        assert!(quantity("many").is_err() && quantity("1;2").is_err());
    }

    #[test]
    fn dollars_of_the_run_are_not_variables() {
        let words = ["--message=$(X)".to_owned(), "--name=a-$(JOB_COMPLETION_INDEX)".to_owned()];
        assert_eq!(list(&words), r#"["--message=$$(X)","--name=a-$(JOB_COMPLETION_INDEX)"]"#);
    }
}
