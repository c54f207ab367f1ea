//! What to do about a limit that is short, as lines to copy and paste.
//!
//! It changes nothing itself. Sources: sysctl(8), limits.conf(5), systemd.exec(5), systemd's
//! `resource-control`, the kernel's `sysctl/fs` and `cgroup-v2`.

use serde::Serialize;

/// One remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Fix {
    /// Set a kernel parameter; on the host where we are in a container.
    Sysctl {
        /// Its name, `fs.file-max`.
        key: &'static str,
        /// Its new value.
        value: String,
    },
    /// Let a descriptor table hold more.
    Nofile {
        /// Descriptors, soft and hard.
        files: u64,
    },
    /// Start more workers, each with a table of its own.
    Workers {
        /// In each process.
        workers: u64,
    },
    /// Connect from more addresses.
    Sources {
        /// In all.
        sources: u64,
    },
    /// Give the container or service more memory.
    GroupMemory {
        /// In all.
        bytes: u64,
    },
    /// Let the container or service have more threads.
    GroupPids {
        /// In all.
        pids: u64,
    },
    /// Ask for fewer connections.
    Fewer {
        /// How many fit.
        connections: u64,
        /// The flag that says so.
        flag: &'static str,
    },
}

/// A line to paste, and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Where: a shell, a file, a tool's command line.
    pub place: &'static str,
    /// The line.
    pub line: String,
}

impl Fix {
    /// The lines that carry it out; of several places, the one that fits is enough.
    pub fn commands(&self) -> Vec<Command> {
        let command = |place, line| Command { place, line };
        match self {
            Self::Sysctl { key, value } => {
                // Values of several words need quotes in a shell.
                let quote = if value.contains(' ') { "\"" } else { "" };
                vec![command("as root", format!("sysctl -w {key}={quote}{value}{quote}"))]
            }
            Self::Nofile { files } => vec![
                command("this shell, as root", format!("ulimit -n {files}")),
                command(
                    "/etc/security/limits.conf, then log in again",
                    format!("* - nofile {files}"),
                ),
                command("systemd unit", format!("LimitNOFILE={files}")),
                command("docker run", format!("--ulimit nofile={files}:{files}")),
            ],
            Self::Workers { workers } => {
                vec![command("command line", format!("--workers {workers}"))]
            }
            Self::Sources { sources } => vec![command(
                "command line",
                format!("--source ADDRESS, repeated for {sources} addresses of this machine"),
            )],
            Self::GroupMemory { bytes } => {
                let mebibytes = bytes.div_ceil(1 << 20);
                vec![
                    command("docker run", format!("--memory {mebibytes}m")),
                    command("systemd unit", format!("MemoryMax={mebibytes}M")),
                ]
            }
            Self::GroupPids { pids } => vec![
                command("docker run", format!("--pids-limit {pids}")),
                command("systemd unit", format!("TasksMax={pids}")),
            ],
            Self::Fewer { connections, flag } => {
                vec![command("command line", format!("{flag} {connections}"))]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(fix: &Fix) -> Vec<String> {
        fix.commands().into_iter().map(|command| command.line).collect()
    }

    #[test]
    fn every_fix_is_a_line_to_paste() {
        let tcp_mem = Fix::Sysctl { key: "net.ipv4.tcp_mem", value: "1 2 3".into() };
        assert_eq!(lines(&tcp_mem), ["sysctl -w net.ipv4.tcp_mem=\"1 2 3\""]);
        let file_max = Fix::Sysctl { key: "fs.file-max", value: "7".into() };
        assert_eq!(lines(&file_max), ["sysctl -w fs.file-max=7"]);
        assert_eq!(
            lines(&Fix::Nofile { files: 9 }),
            ["ulimit -n 9", "* - nofile 9", "LimitNOFILE=9", "--ulimit nofile=9:9"]
        );
        assert_eq!(lines(&Fix::Workers { workers: 54 }), ["--workers 54"]);
        let memory = Fix::GroupMemory { bytes: (1 << 30) + 1 };
        assert_eq!(lines(&memory), ["--memory 1025m", "MemoryMax=1025M"]);
        assert_eq!(lines(&Fix::GroupPids { pids: 99 }), ["--pids-limit 99", "TasksMax=99"]);
        let fewer = Fix::Fewer { connections: 640_000, flag: "--connections" };
        assert_eq!(lines(&fewer), ["--connections 640000"]);
        assert!(lines(&Fix::Sources { sources: 71 })[0].contains("71 addresses"));
    }
}
