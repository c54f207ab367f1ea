//! The limits of the control groups this process is in, version 2 and version 1.
//!
//! A group and all groups above it count, so the lowest of their limits applies. In a container the
//! path may be a directory that is not mounted there; the mount point is then the group. Sources:
//! cgroups(7), the kernel's `cgroup-v2` and `cgroup-v1/memory`.

use std::path::{Component, Path, PathBuf};

use crate::root::{Root, field};

/// A limit, and how much of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) max: u64,
    pub(crate) left: u64,
}

/// Memory, in bytes. Page cache that can be dropped at once (`inactive_file`) counts as left.
pub(crate) fn memory(root: &Root<'_>) -> Option<Quota> {
    tightest(root, "memory", |at, version| {
        let (max, used, dropped) = match version {
            Version::Two => {
                let max = at.number("memory.max");
                let high = at.number("memory.high");
                (max.into_iter().chain(high).min()?, "memory.current", "inactive_file")
            }
            Version::One => {
                // "No limit" is the largest multiple of the page size, hence the rounding.
                let max = at.number("memory.limit_in_bytes").filter(|&max: &u64| max < 1 << 62)?;
                (max, "memory.usage_in_bytes", "total_inactive_file")
            }
        };
        let stat = at.text("memory.stat").unwrap_or_default();
        let used = at.number::<u64>(used)?.saturating_sub(field(&stat, dropped).unwrap_or(0));
        Some(Quota { max, left: max.saturating_sub(used) })
    })
}

/// Processes and threads.
pub(crate) fn pids(root: &Root<'_>) -> Option<Quota> {
    tightest(root, "pids", |at, _| {
        let max = at.number("pids.max")?;
        let used = at.number::<u64>("pids.current")?;
        Some(Quota { max, left: max.saturating_sub(used) })
    })
}

/// Whole cores' worth of CPU time, at least 1, as `std::thread::available_parallelism` counts it.
pub(crate) fn cores(root: &Root<'_>) -> Option<usize> {
    let quota = tightest(root, "cpu", |at, version| {
        let [quota, period] = match version {
            Version::Two => at.numbers("cpu.max")?,
            Version::One => [at.number("cpu.cfs_quota_us")?, at.number("cpu.cfs_period_us")?],
        };
        let cores = u64::checked_div(quota, period)?.max(1);
        Some(Quota { max: cores, left: cores })
    })?;
    usize::try_from(quota.max).ok()
}

#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

/// The quota with the least left among this process's group and those above it.
fn tightest(
    root: &Root<'_>,
    controller: &str,
    read: impl Fn(&Root<'_>, Version) -> Option<Quota>,
) -> Option<Quota> {
    let (mount, path, version) = group(root, controller)?;
    let relative = Path::new(path.trim_start_matches('/'));
    let inside = relative.components().all(|part| matches!(part, Component::Normal(_)));
    let levels = if inside { relative.ancestors().collect() } else { vec![Path::new("")] };
    let quotas = levels.into_iter().filter_map(|level| read(&Root(&mount.join(level)), version));
    quotas.min_by_key(|quota| quota.left)
}

/// Where `controller`'s hierarchy is mounted, and this process's path in it.
fn group(root: &Root<'_>, controller: &str) -> Option<(PathBuf, String, Version)> {
    let text = root.text("/proc/self/cgroup")?;
    let mut unified = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(names), Some(path)) = (parts.next(), parts.next()) else { continue };
        if names.is_empty() {
            unified = Some(path);
        } else if names.split(',').any(|name| name == controller) {
            let mount = [names, controller]
                .into_iter()
                .map(|name| format!("/sys/fs/cgroup/{name}"))
                .find(|mount| root.exists(mount))?;
            return Some((root.path(&mount), path.to_owned(), Version::One));
        }
    }
    let hybrid = "/sys/fs/cgroup/unified";
    let mount = if root.exists(hybrid) { hybrid } else { "/sys/fs/cgroup" };
    Some((root.path(mount), unified?.to_owned(), Version::Two))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fake::FakeRoot;

    #[test]
    fn version_2_takes_the_lowest_limit() {
        let root = FakeRoot::new(&[
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/memory.max", "1000\n"),
            ("/sys/fs/cgroup/a/memory.current", "900\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 300\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.high", "800\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "100\n"),
            ("/sys/fs/cgroup/a/b/pids.max", "50\n"),
            ("/sys/fs/cgroup/a/b/pids.current", "20\n"),
            ("/sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"),
        ]);
        let at = Root(root.path());
        assert_eq!(memory(&at), Some(Quota { max: 1000, left: 400 }));
        assert_eq!(pids(&at), Some(Quota { max: 50, left: 30 }));
        assert_eq!(cores(&at), Some(2));
    }

    #[test]
    fn version_1_with_joined_controllers() {
        let root = FakeRoot::new(&[
            ("/proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n"),
            ("/sys/fs/cgroup/unified/cgroup.procs", ""),
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2000"),
            ("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "500"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "500"),
            ("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "50000"),
            ("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000"),
        ]);
        let at = Root(root.path());
        assert_eq!(memory(&at), Some(Quota { max: 2000, left: 1500 }));
        assert_eq!(cores(&at), Some(1));
        assert_eq!(pids(&at), None);
    }

    #[test]
    fn a_path_that_is_not_mounted_falls_back_to_the_mount() {
        for path in ["/docker/0123", "/../other"] {
            let root = FakeRoot::new(&[
                ("/proc/self/cgroup", &format!("0::{path}\n")),
                ("/sys/fs/cgroup/memory.max", "700"),
                ("/sys/fs/cgroup/memory.current", "100"),
                ("/other/memory.max", "1"),
            ]);
            assert_eq!(memory(&Root(root.path())), Some(Quota { max: 700, left: 600 }));
        }
    }

    #[test]
    fn no_limit_is_none() {
        let root = FakeRoot::new(&[
            ("/proc/self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/memory.max", "max"),
            ("/sys/fs/cgroup/cpu.max", "max 100000"),
            ("/sys/fs/cgroup/pids.max", "max"),
        ]);
        let at = Root(root.path());
        assert_eq!((memory(&at), pids(&at), cores(&at)), (None, None, None));
        assert_eq!(memory(&Root(Path::new("/nowhere"))), None);
    }
}
