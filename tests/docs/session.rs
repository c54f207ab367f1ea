//! A reader who types what a page says into one terminal: a shell in a folder and a network namespace of
//! its own, so that pages can use the same ports at the same time.
//!
//! Programs that install packages are replaced: they check that the suite has installed the same ones.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Folder, root};
use crate::harness::executable::Running;
use crate::harness::lowered::Namespace;
use crate::harness::{eventually, executable};

/// Programs of the reader's machine that install something. Tests install nothing: `cargo xtask test --install`
/// does.
const INSTALLERS: [(&str, &str); 5] = [
    ("sudo", "exec \"$@\"\n"),
    (
        "apt-get",
        "[ \"$1\" = install ] || exit 1\nshift\nfor package; do\n  dpkg-query -W \"$package\" \
         || { echo \"missing: $package: add it to xtask/src/machine.rs\"; exit 1; }\ndone\n",
    ),
    (
        "npm",
        "[ \"$1\" = install ] || exit 1\nshift\nfor package; do\n  [ -d \"$PEERS/$package\" ] \
         || { echo \"missing: $package: add it to tests/peers/package.json\"; exit 1; }\ndone\n\
         ln -s \"$PEERS\" node_modules\n",
    ),
    // Our archive, of this version: `cargo xtask dist --check` unpacks it.
    (
        "tar",
        "version=$(standfast --version | cut -d' ' -f2)\nname=${2%.tar.gz}\n\
         [ \"$1 $name\" = \"-xzf standfast-$version-x86_64-unknown-linux-musl\" ] || exit 1\n\
         mkdir \"$name\"\nln -s \"$(command -v standfast)\" \"$name/standfast\"\n",
    ),
    // Debian's, for which the packages are.
    ("python3", "exec /usr/bin/python3 \"$@\"\n"),
];
/// standfast, and a run with a threshold again if the machine was too busy to judge, as its reader would.
const STANDFAST: &str = "case \" $* \" in\n*\" --fail \"*) ;;\n*) exec \"$EXECUTABLE\" \"$@\" ;;\nesac\n\
     for attempt in 1 2 3 4 5; do\n  \"$EXECUTABLE\" \"$@\" >.run-$$ 2>&1\n  code=$?\n\
     grep -q 'MISSED: the generator was saturated' .run-$$ || break\ndone\ncat .run-$$\nexit $code\n";
/// curl on a terminal, but quiet about its progress.
const CURLRC: &str = "silent\nshow-error\n";

/// A reader at work.
pub(super) struct Session {
    shell: Child,
    blocks: usize,
    /// Where the output of the last block begins.
    since: usize,
    folder: Folder,
    namespace: Namespace,
}

impl Session {
    /// `None`, recorded as skipped, where namespaces cannot be made: never under `CI`.
    pub(super) fn start(name: &str) -> Option<Session> {
        let namespace = Namespace::create()?;
        let folder = Folder::new(&format!("docs-{name}"));
        let bin = folder.0.join(".bin");
        fs::create_dir(&bin).unwrap();
        for (program, script) in INSTALLERS.into_iter().chain([("standfast", STANDFAST)]) {
            let file = bin.join(program);
            fs::write(&file, format!("#!/bin/sh\n{script}")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(folder.0.join(".curlrc"), CURLRC).unwrap();
        let output = File::create(folder.0.join(".output")).unwrap();
        let mut shell = Command::new("bash");
        shell.args(["--noprofile", "--norc", "-e"]);
        let mut shell = namespace.inside(&shell);
        let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap_or_default());
        shell.current_dir(&folder.0).env("PATH", path).env("HOME", &folder.0);
        shell.env("EXECUTABLE", executable::path());
        shell.env("PEERS", root().join(".peers/node_modules")).env("PYTHONUNBUFFERED", "1");
        shell.stdin(Stdio::piped()).process_group(0);
        shell.stdout(output.try_clone().unwrap()).stderr(output);
        let shell = shell.spawn().expect("ip starts a shell");
        Some(Session { shell, blocks: 0, since: 0, folder, namespace })
    }

    /// Saves a file.
    pub(super) fn save(&self, name: &str, text: &str) {
        fs::write(self.folder.0.join(name), text).unwrap();
    }

    /// From now on curl fails if the status is an error.
    pub(super) fn check_statuses(&self) {
        self.save(".curlrc", &format!("{CURLRC}fail-with-body\n"));
    }

    /// Runs commands to their end, and waits until the servers among them listen.
    ///
    /// # Panics
    /// If one fails.
    pub(super) fn run(&mut self, commands: &str) {
        self.since = self.output().len();
        self.blocks += 1;
        self.save(".block", commands);
        let done = self.folder.0.join(".done");
        let line = format!(". ./.block </dev/null; echo {} >.done\n", self.blocks);
        let sent = self.shell.stdin.as_mut().map(|input| input.write_all(line.as_bytes()));
        assert!(matches!(sent, Some(Ok(()))), "the shell has ended:\n{}", self.output());
        eventually(&format!("these commands end:\n{commands}"), || {
            let ended = self.shell.try_wait().expect("the shell is ours to wait for");
            assert!(ended.is_none(), "{commands}\nfailed:\n{}", self.output());
            fs::read_to_string(&done).is_ok_and(|text| text.trim() == self.blocks.to_string())
        });
        let servers = commands.lines().filter(|line| is_server(line)).count();
        eventually(&format!("{servers} servers listen"), || {
            self.new_output().matches("listening on").count() >= servers
        });
    }

    /// Waits until each of these lines is part of the last output; `…` stands for anything.
    pub(super) fn sees(&self, lines: &str) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            eventually(&format!("the output has the line: {line}"), || {
                self.new_output().lines().any(|output| matches(output, line))
            });
        }
    }

    /// Opens a page in two tabs, and waits until what was sent in one has appeared in both. The tabs stay until
    /// [`Tabs::close`].
    pub(super) fn open_tabs(&self, args: &[&str]) -> Tabs {
        let mut node = Command::new("node");
        node.arg(root().join("tests/peers/two_tabs.js")).args(args);
        let mut node = self.namespace.inside(&node);
        node.env("NODE_PATH", root().join(".peers/node_modules"));
        node.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut tabs = Running(node.spawn().expect("ip starts it"));
        let mut lines = BufReader::new(tabs.0.stdout.take().expect("stdout is piped")).lines();
        let both = lines.find(|line| line.as_ref().is_ok_and(|line| line == "ok both tabs"));
        assert!(both.is_some(), "{args:?}\n{}", self.output());
        // Read on, or it would meet a broken pipe.
        thread::spawn(move || lines.for_each(drop));
        Tabs(tabs)
    }

    /// What the last commands, and the programs in the background, have printed since.
    pub(super) fn new_output(&self) -> String {
        let output = self.output();
        output.get(self.since..).unwrap_or_default().to_owned()
    }

    fn output(&self) -> String {
        let bytes = fs::read(self.output_file()).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn output_file(&self) -> PathBuf {
        self.folder.0.join(".output")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.folder.0.display(), self.output());
        }
        // The programs in the background, too.
        let group = i32::try_from(self.shell.id()).ok().and_then(Pid::from_raw);
        let _ = kill_process_group(group.expect("a child's pid is positive"), Signal::KILL);
        let _ = self.shell.wait();
    }
}

/// A browser with two tabs.
pub(super) struct Tabs(Running);

impl Tabs {
    /// Waits until what was to appear later has appeared, and the tabs are closed.
    pub(super) fn close(mut self) {
        assert!(self.0.wait().success(), "the tabs did not show what was published");
    }
}

/// Whether a line starts one of our servers.
pub(super) fn is_server(line: &str) -> bool {
    let command = line.split_once("standfast ").map(|(_, rest)| rest).unwrap_or_default();
    ["serve", "proxy"].iter().any(|name| command.split(' ').next() == Some(name))
        && !command.starts_with("proxy check")
}

/// Whether a line of output has the parts of `line` in their order.
fn matches(output: &str, line: &str) -> bool {
    let mut rest = output;
    line.split('…').all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// The page's path in `docs`, as a name of a folder.
pub(super) fn name_of(page: &Path) -> String {
    page.display().to_string().replace(['/', '.'], "-")
}

#[test]
fn lines_of_output_are_compared_up_to_ellipses() {
    assert!(matches("expires  in 14m 59s, at 2026", "in …, at …"));
    assert!(!matches("expires  in 14m", "in …, at …"));
    assert!(is_server("standfast serve --echo &") && is_server("x=1 standfast proxy --listen"));
    assert!(!is_server("standfast proxy check FILE") && !is_server("standfast load serve"));
}
