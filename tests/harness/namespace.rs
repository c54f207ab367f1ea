//! A network namespace of a test's own, with its own sysctls, taken away at its end.

use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The namespace; its loopback device is up.
pub(crate) struct Namespace(String);

impl Namespace {
    /// Makes one. `None`, and said so, where this process may not: never under `CI`.
    pub(crate) fn create() -> Option<Namespace> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("standfast-test-{}-{number}", std::process::id());
        if let Err(why) = run("ip", &["netns", "add", &name]) {
            assert!(env::var_os("CI").is_none(), "no network namespaces: {why}");
            eprintln!("skipped: no network namespaces here (needs root and iproute2): {why}");
            return None;
        }
        let namespace = Namespace(name);
        run("ip", &["-n", &namespace.0, "link", "set", "lo", "up"]).expect("loopback comes up");
        Some(namespace)
    }

    /// Sets a sysctl of this namespace.
    pub(crate) fn set(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        let script = "printf %s \"$1\" > \"$0\"";
        run("ip", &["netns", "exec", &self.0, "sh", "-c", script, &path, value])
            .unwrap_or_else(|why| panic!("{key} cannot be set: {why}"));
    }

    /// The same command, inside.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.0]).arg(command.get_program()).args(command.get_args());
        inside
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run("ip", &["netns", "del", &self.0]);
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
