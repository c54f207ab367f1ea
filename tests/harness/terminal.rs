//! A pseudo-terminal for tests: captures the output, sends keys and reads the modes. pty(7); `setsid --ctty` (util-linux) makes it the controlling terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, SpecialCodeIndex, Winsize, tcgetattr, tcsetwinsize};

use super::eventually;
use super::executable::{Running, standfast};

/// Both ends of the pseudo-terminal.
pub(crate) struct Terminal {
    ours: File,
    theirs: OwnedFd,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub(crate) fn open(columns: u16, rows: u16) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a pseudo-terminal opens");
        grantpt(&ours).expect("it is ours");
        unlockpt(&ours).expect("it unlocks");
        let theirs = ioctl_tiocgptpeer(&ours, flags).expect("its other end opens");
        let terminal = Terminal { ours: File::from(ours), theirs, seen: Arc::default() };
        terminal.resize(columns, rows);
        let mut reader = terminal.ours.try_clone().expect("a descriptor is free");
        let seen = Arc::clone(&terminal.seen);
        // Ends with an error when both ends are closed.
        thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                seen.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        terminal
    }

    /// Runs the executable on this terminal.
    pub(crate) fn run(&self, args: &[&str], env: &[(&str, &str)]) -> Running {
        let inside = standfast(args);
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(inside.get_program()).args(inside.get_args());
        command.env_remove("NO_COLOR").env("TERM", "xterm-256color").envs(env.iter().copied());
        let end = || Stdio::from(self.theirs.try_clone().expect("a descriptor is free"));
        command.stdin(end()).stdout(end()).stderr(end());
        Running(command.spawn().expect("setsid of util-linux starts"))
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.ours, size).expect("a terminal has a size");
    }

    pub(crate) fn press(&self, keys: &[u8]) {
        (&self.ours).write_all(keys).expect("keys are taken");
    }

    /// Returns everything written to the terminal.
    pub(crate) fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Waits until what was written after the first `from` bytes contains all of `words`.
    pub(crate) fn shows(&self, from: usize, words: &[&str]) {
        eventually(&format!("the terminal shows {words:?}"), || {
            let seen = self.seen();
            let new = seen.get(from..).unwrap_or_default();
            words.iter().all(|word| new.contains(word))
        });
    }

    /// Returns the modes that a full-screen program changes: echo, line editing and the suspend key.
    pub(crate) fn modes(&self) -> (bool, bool, u8) {
        let modes = tcgetattr(&self.theirs).expect("a terminal has modes");
        (
            modes.local_modes.contains(LocalModes::ECHO),
            modes.local_modes.contains(LocalModes::ICANON),
            modes.special_codes[SpecialCodeIndex::VSUSP],
        )
    }
}
