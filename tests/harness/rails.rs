//! Rails on Puma (`tests/peers/rails`, Debian's packages) as a child process: its Action Cable, or an
//! application that answers HTTP RPC.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use super::PATIENCE;
use super::executable::Running;
use super::http;
use super::peer::{self, Runtime};

/// Debian 12's version; other versions of Rails answer differently.
pub(crate) const RAILS: Runtime = Runtime {
    program: "/usr/bin/ruby",
    check: &["-e", "gem 'actioncable', '~> 6.1'; gem 'railties', '~> 6.1'; gem 'puma'"],
};

/// A running Puma.
pub(crate) struct Rails {
    _running: Running,
    pub(crate) address: SocketAddr,
}

impl Rails {
    /// Starts Action Cable and waits until it is ready; `None` if it is not installed, which fails
    /// under `CI`.
    pub(crate) fn start() -> Option<Self> {
        Self::start_file("config.ru", &[])
    }

    /// The same with the application that answers HTTP RPC.
    pub(crate) fn start_application(secret: &str) -> Option<Self> {
        Self::start_file("app.ru", &[("CABLE_SECRET", secret)])
    }

    fn start_file(rackup: &str, env: &[(&str, &str)]) -> Option<Self> {
        if !peer::is_here(&RAILS, "Action Cable") {
            return None;
        }
        let rackup = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/rails").join(rackup);
        let mut puma = Command::new("/usr/bin/puma");
        // No other configuration; the kernel chooses the port.
        puma.args(["-C", "-", "--bind", "tcp://127.0.0.1:0", "--threads", "2:2"]).arg(rackup);
        puma.env("RACK_ENV", "production").envs(env.iter().copied()).stdin(Stdio::null());
        let spawned = puma.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut running = Running(spawned.expect("Puma starts"));
        let stdout = BufReader::new(running.0.stdout.take().expect("stdout is piped"));
        let (told, listens) = mpsc::channel();
        thread::spawn(move || {
            // Reads to the end, so that Puma does not get a broken pipe.
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("Listening on http://") {
                    let _ = told.send(address.parse());
                }
            }
        });
        let address = listens.recv_timeout(PATIENCE).expect("Puma says where it listens");
        Some(Self { _running: running, address: address.expect("it is an address") })
    }

    /// Makes the application broadcast `data`, which is JSON.
    pub(crate) fn publish(&self, stream: &str, data: &str) {
        let answer = http::post(self.address, &format!("/publish?stream={stream}"), data);
        assert_eq!(answer.status, 204, "{answer:?}");
    }

    /// Makes the server close all connections, as before a restart.
    pub(crate) fn restart(&self) {
        assert_eq!(http::post(self.address, "/restart", "").status, 204);
    }
}
