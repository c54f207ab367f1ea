//! Limits lowered for some processes only: a network namespace with its own sysctls, a control group,
//! resource limits, a system call refused. Namespaces and groups are taken away at their end.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{executable, skip};

/// The device at either end of a cable.
const CABLE: &str = "cable0";
const SWITCH: &str = "switch0";

const PYTHON: &str = "/usr/bin/python3";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The namespace; its loopback device is up.
pub(crate) struct Namespace(String);

impl Namespace {
    /// Makes one. `None`, and said so, where this process may not: never under `CI`.
    pub(crate) fn create() -> Option<Namespace> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("standfast-test-{}-{number}", std::process::id());
        if let Err(why) = run("ip", &["netns", "add", &name]) {
            skip::missing(&format!("no network namespaces (needs root and iproute2): {why}"));
            return None;
        }
        let namespace = Namespace(name);
        run("ip", &["-n", &namespace.0, "link", "set", "lo", "up"]).expect("loopback comes up");
        Some(namespace)
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Sets a sysctl of this namespace.
    pub(crate) fn set(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        let script = "printf %s \"$1\" > \"$0\"";
        run("ip", &["netns", "exec", &self.0, "sh", "-c", script, &path, value])
            .unwrap_or_else(|why| panic!("{key} cannot be set: {why}"));
    }

    /// Lays a cable to another one: this end is 198.18.0.1, the other 198.18.0.2 (RFC 2544 appendix C).
    pub(crate) fn join(&self, other: &Namespace) {
        let pair = ["type", "veth", "peer", "name", CABLE, "netns", &other.0];
        let lines = [&["-n", &self.0, "link", "add", CABLE][..], &pair].concat();
        run("ip", &lines).expect("two devices can be joined");
        for (end, address) in [(self, "198.18.0.1/24"), (other, "198.18.0.2/24")] {
            let set = ["-n", &end.0, "addr", "add", address, "dev", CABLE];
            run("ip", &set).expect("an address can be set");
            end.plug(true);
        }
    }

    /// Joins others to this one by a switch: this one is 198.18.0.1, the first of the others 198.18.0.2, and so on.
    pub(crate) fn switch<'a>(&self, others: impl IntoIterator<Item = &'a Namespace>) {
        let mut lines = format!(
            "link add {SWITCH} type bridge\naddr add {}/16 dev {SWITCH}\nlink set {SWITCH} up\n",
            switched(0)
        );
        let others: Vec<&Namespace> = others.into_iter().collect();
        for (at, other) in others.iter().enumerate() {
            let name = &other.0;
            lines += &format!(
                "link add port{at} type veth peer name {CABLE} netns {name}\nlink set port{at} master {SWITCH} up\n"
            );
        }
        self.batch(&lines);
        for (at, other) in others.iter().enumerate() {
            let address = switched(at + 1);
            other.batch(&format!("addr add {address}/16 dev {CABLE}\nlink set {CABLE} up\n"));
        }
    }

    /// Bytes that have come and gone through the cable, of all protocols.
    pub(crate) fn cable_bytes(&self) -> u64 {
        let devices = self.within(|| fs::read_to_string("/proc/thread-self/net/dev"));
        let devices = devices.expect("the kernel counts");
        let cable = devices.lines().find_map(|line| line.trim_start().strip_prefix(CABLE));
        let counts = cable.and_then(|line| line.strip_prefix(':')).expect("it has a cable");
        let counts: Vec<u64> =
            counts.split_whitespace().map(|text| text.parse().unwrap()).collect();
        counts[0] + counts[8]
    }

    /// Runs commands of ip inside.
    fn batch(&self, lines: &str) {
        let mut command = Command::new("ip");
        command.args(["-n", &self.0, "-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("ip runs");
        let mut input = child.stdin.take().expect("it is piped");
        input.write_all(lines.as_bytes()).expect("ip reads");
        drop(input);
        let output = child.wait_with_output().expect("ip ends");
        assert!(output.status.success(), "{lines}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Pulls this end of the cable, or plugs it in again: nobody at the other end is told.
    pub(crate) fn plug(&self, plugged: bool) {
        let state = if plugged { "up" } else { "down" };
        run("ip", &["-n", &self.0, "link", "set", CABLE, state]).expect("a device can be set");
    }

    /// Does something inside, in a thread of its own. Sockets that it opens stay inside.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = fs::File::open(Path::new("/run/netns").join(&self.0));
        let namespace = namespace.expect("its file is where ip keeps them");
        let enter = || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).expect("root may enter it");
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().expect("the work is done"))
    }

    /// What a program says, run inside.
    pub(crate) fn output(&self, program: &str, args: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(args);
        let output = self.inside(&command).output().expect("ip runs it");
        String::from_utf8_lossy(&output.stdout).into_owned()
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

/// An address of those at a switch (RFC 2544 appendix C); 0 is the switch.
pub(crate) fn switched(at: usize) -> Ipv4Addr {
    let at = u32::try_from(at).expect("they fit into 198.18.0.0/16");
    Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 1).to_bits() + at)
}

/// A control group with one limit.
pub(crate) struct Group(PathBuf);

impl Group {
    /// With so many tasks. `None`, and said so, where groups cannot be made, as in most containers.
    pub(crate) fn of_tasks(max: u64) -> Option<Group> {
        Self::create("pids", ["pids.max", "pids.max"], max)
    }

    /// With so many bytes of memory. `None` as above.
    pub(crate) fn of_memory(max: u64) -> Option<Group> {
        Self::create("memory", ["memory.limit_in_bytes", "memory.max"], max)
    }

    /// Version 1 has a hierarchy for each controller, version 2 one for all.
    fn create(controller: &str, files: [&str; 2], max: u64) -> Option<Group> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("standfast-test-{}-{number}", std::process::id());
        let parent = Path::new("/sys/fs/cgroup");
        let groups = [parent.join(controller).join(&name), parent.join(&name)];
        for (group, file) in groups.into_iter().zip(files) {
            let made = fs::create_dir(&group).is_ok();
            let group = Group(group);
            let file = fs::OpenOptions::new().write(true).open(group.0.join(file));
            let lowered = file.and_then(|mut file| file.write_all(max.to_string().as_bytes()));
            if made && lowered.is_ok() {
                return Some(group);
            }
        }
        skip::unsupported(&format!("cannot create a control group with controller {controller}"));
        None
    }

    /// The same command, inside.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.0.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The executable as somebody else, who may have so many threads and descriptors.
pub(crate) fn nobody(threads: u32, nofile: u32, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "prlimit"]);
    command.args([format!("--nproc={threads}"), format!("--nofile={nofile}")]);
    command.arg(executable::copy_for_anybody()).args(args);
    command
}

/// The same command with so many bytes of address space.
pub(crate) fn address_space(bytes: u64, command: &Command) -> Command {
    let mut inside = Command::new("prlimit");
    inside.arg(format!("--as={bytes}")).arg(command.get_program()).args(command.get_args());
    inside
}

/// Whether [`one_table`] works here; if not, the test is recorded as skipped.
pub(crate) fn python_is_here() -> bool {
    let here = Path::new(PYTHON).is_file();
    if !here {
        skip::missing(&format!("{PYTHON} is not installed: try cargo xtask test --install"));
    }
    here
}

/// The same command where close_range(2) is refused, so that no thread may leave the shared table.
pub(crate) fn one_table(command: &Command) -> Command {
    let mut inside = Command::new(PYTHON);
    inside.args(["-c", REFUSE_CLOSE_RANGE]).arg(command.get_program()).args(command.get_args());
    inside
}

/// seccomp(2): system call 436, which is close_range everywhere, answers EPERM.
const REFUSE_CLOSE_RANGE: &str = "
import ctypes, os, struct, sys
LOAD_NUMBER, EQUALS, RETURN, EPERM, ALLOW = 0x20, 0x15, 0x06, 0x00050001, 0x7fff0000
steps = [(LOAD_NUMBER, 0, 0, 0), (EQUALS, 0, 1, 436), (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [('steps', ctypes.c_ushort), ('code', ctypes.c_void_p)]
program = Program(len(steps), ctypes.addressof(code))
prctl = ctypes.CDLL(None, use_errno=True).prctl
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
assert prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
assert prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[1], sys.argv[1:])
";

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
