//! The kernel's figures for a process and for the machine, read from `/proc`.
//!
//! CPU is `sum_exec_runtime` of every live thread (nanoseconds, no tick rounding), so a difference is
//! exact when the process is idle at both readings. The CPU of threads that have ended is missing.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::step;

/// CPU of all threads of `pid` so far, in seconds.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0u64;
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("the process has ended")? {
        // A thread may end between the listing and the read.
        if let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) {
            nanoseconds += first_number(&text).unwrap_or(0);
        }
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// CPU seconds of the whole machine since its start, without idle time: includes kernel work that no
/// process is charged for. In ticks of a hundredth of a second.
pub(super) fn machine_cpu_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let ticks: Vec<u64> = line
        .context("/proc/stat has no line of all CPUs")?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq: proc(5)
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|&at| ticks.get(at)).sum::<u64>();
    Ok(busy as f64 / 100.0)
}

/// Steal time since the machine's start, in hundredths of a second: it had work and the hypervisor ran
/// something else (`/proc/stat`, proc(5)).
pub(super) fn stolen_ticks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let stolen = stat.lines().next().and_then(|all| all.split_whitespace().nth(8));
    stolen.context("/proc/stat has no steal time")?.parse().context("/proc/stat")
}

/// Resident memory of the whole process, shared pages included, in bytes.
pub(super) fn rss_bytes(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kilobytes = line.and_then(first_number).context("smaps_rollup has no Rss")?;
    Ok(kilobytes * 1024)
}

/// TCP sockets in use in this network namespace, listeners included.
pub(super) fn tcp_sockets() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/sockstat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("TCP: inuse"));
    line.and_then(first_number).context("sockstat has no TCP line")
}

/// The machine's properties for a reader of the figures; no host name, no path.
pub(super) fn machine() -> Value {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let after = |text: &str, key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)).map(|rest| rest.trim().to_owned())
    };
    let nofile = after(&limits, "Max open files");
    json!({
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "cpu": after(&cpuinfo, "model name").map(|m| m.trim_start_matches(": ").to_owned()),
        "cores": cores(),
        "memory_bytes": after(&meminfo, "MemTotal:").and_then(|m| first_number(&m)).map(|k| k * 1024),
        "nofile_hard": nofile.and_then(|n| n.split_whitespace().nth(1)?.parse::<u64>().ok()),
        "load_average_before": load.split(' ').next().and_then(|l| l.parse::<f64>().ok()),
        "date": output("date", &["-u", "+%Y-%m-%dT%H:%MZ"]),
        "commit": output("git", &["describe", "--always", "--dirty"]),
    })
}

/// CPUs this process may run on.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).current_dir(step::root()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_memory_grow_with_work() {
        let pid = std::process::id();
        let (cpu, rss) = (cpu_seconds(pid).unwrap(), rss_bytes(pid).unwrap());
        let filled = vec![1u8; 64 << 20];
        assert_eq!(filled.iter().step_by(4096).map(|&b| u64::from(b)).sum::<u64>(), 16 << 10);
        assert!(rss_bytes(pid).unwrap() - rss > 60 << 20);
        assert!(cpu_seconds(pid).unwrap() > cpu);
    }
}
