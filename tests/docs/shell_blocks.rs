//! Every command in a shell block of the README and the docs works as it is written. Pages are run command by
//! command, each page in a session of its own. What is not run is listed here with its reason, and still
//! has to parse (`every_command_in_the_docs_parses`).

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::thread;

use super::session::{Session, is_server, name_of};
use super::{blocks, has_a_gap, pages, quick_starts, root};
use crate::harness::peer::{self, NODE};

/// Pages whose commands run, with commands that the page assumes to run already.
const PAGES: [(&str, &str); 14] = [
    ("README.md", ""),
    ("docs/start.md", ""),
    ("docs/load/five-minutes.md", ""),
    ("docs/load/plan.md", ""),
    ("docs/load/scenarios.md", ""),
    ("docs/operate/anycable.md", "standfast serve"),
    ("docs/protocol/cable.md", "standfast serve"),
    ("docs/protocol/history.md", ""),
    ("docs/protocol/long-polling.md", ""),
    ("docs/protocol/presence.md", ""),
    ("docs/operate/authorization.md", ""),
    ("docs/operate/doctor.md", ""),
    ("docs/operate/proxy.md", "standfast proxy --config proxy.toml --admin-key KEY"),
    ("docs/operate/serve.md", "standfast serve"),
];
/// How many pages run at a time.
const READERS: usize = 4;

/// Commands that are not run: page, how they begin, why. An empty beginning is all of the page.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "cargo ", BUILDS),
    ("README.md", "npx ", PACKAGES),
    ("README.md", "uvx ", PACKAGES),
    ("README.md", "apt-get install ./", PACKAGES),
    ("README.md", "tar ", PACKAGES),
    ("README.md", "standfast prove", MINUTES),
    ("docs/library/chat.md", "cargo ", BUILDS),
    ("docs/load/compare.md", "", "six runs of 30 s"),
    ("docs/load/grpc.md", "", READERS_SERVER),
    ("docs/load/load.md", "", "runs of 10 s to 5 min, and servers of the reader"),
    ("docs/load/fleet.md", "", "a NATS server of the reader; tests/fleet.rs runs such fleets"),
    ("docs/load/merge.md", "", "two runs of a minute on two machines"),
    ("docs/load/plan.md", "standfast plan --requests", "needs the result of a run"),
    ("docs/load/plan.md", "standfast prove", MINUTES),
    ("docs/operate/applications.md", "", "applications of the reader"),
    ("docs/load/plan.md", "standfast plan --connections", "needs the result of prove"),
    ("docs/load/prove-cluster.md", "", MINUTES),
    ("docs/load/prove.md", "", MINUTES),
    ("docs/load/scenarios.md", "standfast load scenario.toml --target", READERS_SERVER),
    ("docs/load/scenarios.md", "standfast load go-stress-http", READERS_SERVER),
    ("docs/load/scenarios.md", "standfast load from-har", "needs a recording of the reader"),
    ("docs/load/stress.md", "", READERS_SERVER),
    ("docs/operate/admission.md", "", "opens a socket in /run"),
    ("docs/operate/install.md", "", "installs on this machine; tests/install.rs runs it elsewhere"),
    ("docs/operate/limits.md", "", "changes this machine"),
    ("docs/operate/proxy.md", "standfast ", EXAMPLE),
    ("docs/operate/proxy.md", "sleep ", EXAMPLE),
    ("docs/operate/proxy.md", "curl localhost:9080", EXAMPLE),
    ("docs/operate/proxy.md", "curl -s -o answer", EXAMPLE),
    ("docs/operate/rails.md", "", CERTIFICATE),
    ("docs/operate/serve.md", "key=", "needs a secret: docs/quickstart/curl.md runs it"),
    ("docs/operate/serve.md", "curl -H", "needs a secret: docs/quickstart/curl.md runs it"),
    ("docs/operate/systemd.md", "", "changes this machine"),
    ("docs/operate/tls.md", "", CERTIFICATE),
    ("docs/operate/authorization.md", "standfast serve --auth-url", "an application of the reader"),
    ("docs/operate/webhooks.md", "", "receivers of the reader"),
    ("docs/operate/brokers.md", "", "a Redis server of the reader"),
    ("docs/operate/scale.md", "", "a Redis server of the reader"),
    ("docs/protocol/history.md", "standfast serve --pubsub", "a Redis server of the reader"),
    ("docs/start.md", "standfast load", "runs of 30 s"),
];
const BUILDS: &str = "builds";
const CERTIFICATE: &str = "needs a certificate of the reader";
const EXAMPLE: &str = "the routed proxy has its own test; nodes are killed for a minute";
const MINUTES: &str = "takes minutes";
const PACKAGES: &str = "installs a package; cargo xtask dist --check does so in empty roots";
const READERS_SERVER: &str = "needs a server of the reader";

/// Commands whose exit code is a verdict on this machine.
const JUDGES: [&str; 2] =
    ["standfast doctor", "standfast load http://127.0.0.1:8080/health --rate"];

#[test]
fn shell_blocks_run_as_they_are_written() {
    if !peer::is_here(&NODE, "the docs") {
        return;
    }
    let mut sessions = Vec::new();
    for (page, assumed) in PAGES {
        let Some(session) = Session::start(&name_of(page.as_ref())) else { return };
        sessions.push((page, assumed, session));
    }
    let sessions = Mutex::new(sessions);
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                loop {
                    let next = sessions.lock().unwrap().pop();
                    let Some((page, assumed, session)) = next else { break };
                    read(page, assumed, session);
                }
            });
        }
    });
}

/// The part of the page about the proxy that a reader copies as a whole.
#[test]
fn a_routed_proxy_before_loopback_nodes_works_as_its_page_says() {
    let text = fs::read_to_string(root().join("docs/operate/proxy.md")).unwrap();
    let (_, part) = text.split_once("\n## Example: a site before nodes on loopback\n").unwrap();
    let part = part.split("\n## ").next().unwrap();
    let Some(mut session) = Session::start("routed-proxy") else { return };
    let mut seen = 0;
    for block in blocks(part) {
        if let Some(file) = &block.file {
            session.save(file, &block.text);
        } else if block.is_shell() {
            session.run(&block.text);
        } else if block.language == "text" {
            session.sees(&block.text);
            seen += 1;
        }
    }
    assert!(seen >= 2, "{seen} blocks were compared");
}

#[test]
fn every_shell_block_is_run_or_named_with_its_reason() {
    let mut used = BTreeSet::new();
    let mut unknown = Vec::new();
    for page in pages() {
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        // The blocks of README.zh-CN.md are those of README.md (`translation.rs`).
        let for_users = name.starts_with("docs/") || name == "README.md" || name == "SECURITY.md";
        if !for_users || name.starts_with(quick_starts::FOLDER) {
            continue;
        }
        for command in commands(&fs::read_to_string(&page).unwrap()) {
            let not_run: Vec<usize> =
                (0..NOT_RUN.len()).filter(|nth| is_of(*nth, &name, &command)).collect();
            let is_run =
                PAGES.iter().any(|(page, _)| *page == name) || has_a_gap(without_comment(&command));
            if not_run.is_empty() && !is_run {
                unknown.push(format!("{name}: {command}"));
            }
            used.extend(not_run);
        }
    }
    assert!(unknown.is_empty(), "neither run nor listed:\n{}", unknown.join("\n"));
    for (nth, entry) in NOT_RUN.iter().enumerate() {
        assert!(used.contains(&nth), "matches no command: {entry:?}");
    }
}

/// Types the commands of a page. A server gets a terminal of its own: it runs in the background.
fn read(page: &str, assumed: &str, mut session: Session) {
    let text = fs::read_to_string(root().join(page)).unwrap();
    for block in blocks(&text) {
        if let Some(file) = &block.file {
            session.save(file, &block.text);
        }
    }
    session.check_statuses();
    if !assumed.is_empty() {
        session.run(&format!("{assumed} &\n"));
    }
    let is_run = |command: &String| {
        !has_a_gap(without_comment(command))
            && !(0..NOT_RUN.len()).any(|nth| is_of(nth, page, command))
    };
    let mut ran = 0;
    for command in commands(&text).into_iter().filter(is_run) {
        ran += 1;
        let is_subscriber = command.starts_with("node -e");
        if (is_server(&command) || is_subscriber) && !command.ends_with('&') {
            let command = without_comment(&command);
            session.run(&format!("{command} &\n"));
        } else if JUDGES.iter().any(|judge| command.starts_with(judge)) {
            session.run(&format!(
                "code=0; {} || code=$?; [ $code -le 1 ]\n",
                without_comment(&command)
            ));
        } else {
            session.run(&format!("{command}\n"));
        }
    }
    assert!(ran > 0, "{page}: nothing was run");
}

fn commands(page: &str) -> Vec<String> {
    let blocks = blocks(page).into_iter().filter(super::Block::is_shell);
    blocks.flat_map(|block| block.commands()).collect()
}

fn without_comment(command: &str) -> &str {
    command.split_once(" # ").map_or(command, |(command, _)| command).trim_end()
}

fn is_of(nth: usize, page: &str, command: &str) -> bool {
    NOT_RUN.get(nth).is_some_and(|(of, begins, _)| *of == page && command.starts_with(begins))
}
