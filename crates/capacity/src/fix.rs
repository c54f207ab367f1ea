//! [`Fix`]: how to raise a limit that is too low, as lines to copy and paste.
//!
//! It changes nothing itself. Sources: sysctl(8), limits.conf(5), systemd.exec(5), systemd's
//! `resource-control`, the kernel's `sysctl/fs` and `cgroup-v2`.

use serde::Serialize;

/// One way to raise a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Fix {
    /// Set a kernel parameter; for a container, on its host.
    Sysctl {
        /// Its name, `fs.file-max`.
        key: &'static str,
        /// Its new value.
        value: String,
    },
    /// Raise the descriptor limit.
    Nofile {
        /// Descriptors per table, soft and hard limit.
        files: u64,
    },
    /// Raise the user's limit of processes and threads.
    Nproc {
        /// In total.
        threads: u64,
    },
    /// Start more workers, each with a table of its own.
    Workers {
        /// In each process.
        workers: u64,
    },
    /// Connect from more addresses.
    Sources {
        /// In total.
        sources: u64,
    },
    /// Give the container or service more memory.
    GroupMemory {
        /// In total.
        bytes: u64,
    },
    /// Raise the container's or service's limit of threads.
    GroupPids {
        /// In total.
        pids: u64,
    },
    /// Raise a process's limit of address space.
    AddressSpace {
        /// In total.
        bytes: u64,
    },
    /// Use fewer connections.
    Fewer {
        /// How many fit.
        connections: u64,
        /// The flag that sets them.
        flag: &'static str,
    },
}

/// A line to paste, and where to paste it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Where: a shell, a file, a tool's command line.
    pub place: &'static str,
    /// The line.
    pub line: String,
}

impl Fix {
    /// The lines that apply it, one per place; one of them is enough.
    pub fn commands(&self) -> Vec<Command> {
        let command = |place, line| Command { place, line };
        match self {
            Self::Sysctl { key, value } => {
                // Values of several words need quotes in a shell.
                let quote = if value.contains(' ') { "\"" } else { "" };
                let mut commands = vec![
                    command("as root", format!("sysctl -w {key}={quote}{value}{quote}")),
                    command(
                        "/etc/sysctl.d/90-standfast.conf, to keep it",
                        format!("{key} = {value}"),
                    ),
                ];
                // A container has its own value of these. The others are the host's.
                if key.starts_with("net.") && *key != "net.ipv4.tcp_mem" {
                    commands.push(command(
                        "docker run",
                        format!("--sysctl {key}={quote}{value}{quote}"),
                    ));
                    commands.push(command(
                        "docker compose",
                        format!("sysctls: {{{key}: \"{value}\"}}"),
                    ));
                    commands.push(command(
                        "Kubernetes, securityContext.sysctls",
                        format!("- {{name: {key}, value: \"{value}\"}}"),
                    ));
                }
                if *key == "net.core.somaxconn" {
                    commands.push(command("nginx, server", format!("listen 80 backlog={value};")));
                }
                commands
            }
            Self::Nofile { files } => vec![
                command("this shell, as root", format!("ulimit -n {files}")),
                command(
                    "/etc/security/limits.conf, then log in again",
                    format!("* - nofile {files}"),
                ),
                command("systemd unit", format!("LimitNOFILE={files}")),
                command("docker run", format!("--ulimit nofile={files}:{files}")),
                command(
                    "docker compose",
                    format!("ulimits: {{nofile: {{soft: {files}, hard: {files}}}}}"),
                ),
                command(
                    "Kubernetes, containerd.service on the node",
                    format!("[Service] LimitNOFILE={files}"),
                ),
                command(
                    "nginx, main",
                    format!(
                        "worker_rlimit_nofile {files}; events {{ worker_connections {files}; }}"
                    ),
                ),
                command("HAProxy, global", format!("ulimit-n {files}")),
            ],
            Self::Nproc { threads } => vec![
                command("this shell, as root", format!("ulimit -u {threads}")),
                command(
                    "/etc/security/limits.conf, then log in again",
                    format!("* - nproc {threads}"),
                ),
                command("systemd unit", format!("LimitNPROC={threads}")),
                command("docker run", format!("--ulimit nproc={threads}:{threads}")),
            ],
            Self::Workers { workers } => {
                vec![command("command line", format!("--workers {workers}"))]
            }
            Self::Sources { sources } => vec![
                command(
                    "command line",
                    format!("--source ADDRESS, repeated for {sources} addresses of this machine"),
                ),
                command(
                    "nginx, location",
                    format!("proxy_bind $source;    # by split_clients over {sources} addresses"),
                ),
                command(
                    "HAProxy, server",
                    format!("source ADDRESS    # in {sources} server lines, one address each"),
                ),
            ],
            Self::GroupMemory { bytes } => {
                let mebibytes = bytes.div_ceil(1 << 20);
                vec![
                    command("docker run", format!("--memory {mebibytes}m")),
                    command("docker compose", format!("mem_limit: {mebibytes}m")),
                    command("systemd unit", format!("MemoryMax={mebibytes}M")),
                    command("Kubernetes, resources.limits", format!("memory: {mebibytes}Mi")),
                ]
            }
            Self::GroupPids { pids } => vec![
                command("docker run", format!("--pids-limit {pids}")),
                command("docker compose", format!("pids_limit: {pids}")),
                command("systemd unit", format!("TasksMax={pids}")),
                command("Kubernetes, the kubelet's configuration", format!("podPidsLimit: {pids}")),
            ],
            Self::AddressSpace { bytes } => vec![
                command("this shell, as root", "ulimit -v unlimited".to_owned()),
                command(
                    "/etc/security/limits.conf (KiB), log in again",
                    format!("* - as {}", bytes.div_ceil(1_024)),
                ),
                command("systemd unit", format!("LimitAS={bytes}")),
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
    fn every_fix_has_lines_to_paste() {
        let tcp_mem = Fix::Sysctl { key: "net.ipv4.tcp_mem", value: "1 2 3".into() };
        let kept = "net.ipv4.tcp_mem = 1 2 3";
        assert_eq!(lines(&tcp_mem), ["sysctl -w net.ipv4.tcp_mem=\"1 2 3\"", kept]);
        let file_max = Fix::Sysctl { key: "fs.file-max", value: "7".into() };
        assert_eq!(lines(&file_max), ["sysctl -w fs.file-max=7", "fs.file-max = 7"]);
        let range = "net.ipv4.ip_local_port_range";
        let range = lines(&Fix::Sysctl { key: range, value: "1024 65535".into() });
        assert!(range.contains(&"--sysctl net.ipv4.ip_local_port_range=\"1024 65535\"".into()));
        let nofile = lines(&Fix::Nofile { files: 9 });
        for line in [
            "ulimit -n 9",
            "* - nofile 9",
            "LimitNOFILE=9",
            "--ulimit nofile=9:9",
            "worker_rlimit_nofile 9; events { worker_connections 9; }",
        ] {
            assert!(nofile.iter().any(|fix| fix == line), "no {line:?} in {nofile:?}");
        }
        assert_eq!(lines(&Fix::Nproc { threads: 99 })[0], "ulimit -u 99");
        assert_eq!(lines(&Fix::Workers { workers: 54 }), ["--workers 54"]);
        let memory = Fix::GroupMemory { bytes: (1 << 30) + 1 };
        assert_eq!(
            lines(&memory),
            ["--memory 1025m", "mem_limit: 1025m", "MemoryMax=1025M", "memory: 1025Mi"]
        );
        let pids = ["--pids-limit 99", "pids_limit: 99", "TasksMax=99", "podPidsLimit: 99"];
        assert_eq!(lines(&Fix::GroupPids { pids: 99 }), pids);
        let space = lines(&Fix::AddressSpace { bytes: 2_049 });
        assert_eq!(space, ["ulimit -v unlimited", "* - as 3", "LimitAS=2049"]);
        let fewer = Fix::Fewer { connections: 640_000, flag: "--connections" };
        assert_eq!(lines(&fewer), ["--connections 640000"]);
        assert!(lines(&Fix::Sources { sources: 71 })[0].contains("71 addresses"));
    }
}
