//! The systemd units in `deploy/systemd`: their commands run, reload and end as they say, report their
//! state, and systemd itself accepts them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::executable::{self, standfast};
use crate::harness::server::Server;
use crate::harness::{PATIENCE, Scratch, eventually, skip};

const INSTALLED: &str = "/usr/local/bin/standfast";
const UNITS: [&str; 2] = ["standfast.service", "standfast-proxy.service"];

fn unit_file(unit: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd").join(unit)
}

/// The values of each key of a unit, by `Section.Key`, in order.
fn parsed(unit: &str) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(unit_file(unit)).unwrap();
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut section = "";
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(name) => section = name,
            None => {
                let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
                values.entry(format!("{section}.{key}")).or_default().push(value.to_owned());
            }
        }
    }
    values
}

fn single<'u>(unit: &'u BTreeMap<String, Vec<String>>, key: &str) -> &'u str {
    match unit.get(&format!("Service.{key}")).map(Vec::as_slice) {
        Some([value]) => value,
        other => panic!("{key}: {other:?}"),
    }
}

/// The arguments of a unit's command, with another configuration file.
fn arguments<'u>(command: &'u str, config: &'u Scratch) -> Vec<&'u str> {
    let mut words = command.split(' ');
    assert_eq!(words.next(), Some(INSTALLED), "{command}");
    words.map(|word| if word.starts_with("/etc/") { config.path() } else { word }).collect()
}

/// Where a process reports its state.
struct Notifications {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Notifications {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sf-notify-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Notifications { socket, path }
    }

    fn next(&self) -> String {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).expect("a state is reported");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// Whether the next report begins with this line and contains this text.
    fn expect(&self, first: &str, text: &str) {
        let report = self.next();
        assert_eq!(report.lines().next(), Some(first), "{report}");
        assert!(report.contains(text), "{report}");
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Runs the `kill` of a unit's ExecReload.
fn reload(unit: &BTreeMap<String, Vec<String>>, server: &Server) {
    let command = unit["Service.ExecReload"].last().unwrap();
    let command = command.replace("$MAINPID", &server.pid().to_string());
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}");
}

#[test]
fn each_unit_starts_reloads_and_stops_with_its_own_commands() {
    for unit in UNITS {
        let values = parsed(unit);
        assert_eq!(single(&values, "Type"), "notify");
        let config = Scratch::new(unit, "[pool.a]\nupstreams = ['127.0.0.1:9']\n");
        let notifications = Notifications::new(unit);
        let mut command = standfast(&arguments(single(&values, "ExecStart"), &config));
        let command_name = command.get_args().next().unwrap().to_string_lossy().to_uppercase();
        for (key, value) in [("LISTEN", "127.0.0.1:0"), ("ADMIN", "127.0.0.1:0"), ("DRAIN", "0s")] {
            command.env(format!("STANDFAST_{command_name}_{key}"), value);
        }
        command.env(format!("STANDFAST_{command_name}_READY_JSON"), "true");
        command.env("NOTIFY_SOCKET", &notifications.path);
        let mut server = Server::run(command);
        notifications.expect("READY=1", "STATUS=serving");
        reload(&values, &server);
        notifications.expect("RELOADING=1", "\nMONOTONIC_USEC=");
        notifications.expect("READY=1", "configuration reloaded");
        if unit == "standfast-proxy.service" {
            config.write("[pool.a]\nupstreams = ['127.0.0.1:9']\nunknown = 1\n");
            let check = values["Service.ExecReload"].first().unwrap();
            let checked = executable::run(&arguments(check, &config));
            assert_eq!(checked.code, Some(2), "systemctl reload fails: {checked:?}");
            reload(&values, &server);
            notifications.expect("RELOADING=1", "");
            notifications.expect("READY=1", "reload failed: ");
        }
        server.signal(rustix::process::Signal::TERM);
        notifications.expect("STOPPING=1", "STATUS=draining");
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    }
}

#[test]
fn a_unit_whose_configuration_is_invalid_reports_nothing_and_is_not_restarted() {
    for unit in UNITS {
        let values = parsed(unit);
        let config = Scratch::new(&format!("invalid-{unit}"), "[pool.a]\nupstreams = []\n");
        let notifications = Notifications::new(&format!("invalid-{unit}"));
        let mut command = standfast(&arguments(single(&values, "ExecStart"), &config));
        command.env("NOTIFY_SOCKET", &notifications.path);
        command.env("STANDFAST_SERVE_LISTEN", "nowhere");
        let finished = executable::run_command(command);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert_eq!(single(&values, "RestartPreventExitStatus"), "2");
        notifications.socket.set_nonblocking(true).unwrap();
        assert!(notifications.socket.recv(&mut [0; 16]).is_err());
    }
}

#[test]
fn a_missing_notify_socket_stops_nothing() {
    let env = [("NOTIFY_SOCKET", "/nonexistent/notify")];
    let mut server = Server::start_with(&["--drain", "0s"], &env);
    server.signal(rustix::process::Signal::HUP);
    eventually("it reloads", || server.log().contains("configuration reloaded"));
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn units_are_hardened_and_wait_for_the_drain() {
    for (unit, drain_seconds) in UNITS.into_iter().zip([30, 30 + 30]) {
        let values = parsed(unit);
        let stop: u32 = single(&values, "TimeoutStopSec").parse().unwrap();
        assert!(stop > drain_seconds, "{unit}: {stop}");
        assert_eq!(single(&values, "LimitNOFILE"), "1048576");
        let capability = "CAP_NET_BIND_SERVICE";
        assert_eq!(single(&values, "CapabilityBoundingSet"), capability);
        assert_eq!(single(&values, "AmbientCapabilities"), capability);
        for key in ["DynamicUser", "NoNewPrivileges", "PrivateTmp", "ProtectHome"] {
            assert_eq!(single(&values, key), "yes", "{unit}: {key}");
        }
        assert_eq!(single(&values, "ProtectSystem"), "strict");
        // No WATCHDOG=1 is sent.
        assert!(!values.contains_key("Service.WatchdogSec"));
    }
}

#[test]
fn systemd_accepts_the_units() {
    let found = Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return skip::unsupported("systemd-analyze");
    }
    let folder = std::env::temp_dir().join(format!("standfast-units-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for unit in UNITS {
        // systemd requires that the command exists.
        let text = fs::read_to_string(unit_file(unit)).unwrap();
        let own = executable::path();
        let text = text.replace(INSTALLED, own.to_str().unwrap());
        let copy = folder.join(unit);
        fs::write(&copy, text).unwrap();
        let verified = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&copy)
            .output()
            .expect("it was found");
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        // It prints warnings for unknown keys, and about other units of the machine.
        let about: Vec<&str> = said.lines().filter(|line| line.contains(unit)).collect();
        assert!(verified.status.success() && about.is_empty(), "{said}");
    }
    fs::remove_dir_all(&folder).unwrap();
}
