//! Each limit lowered in turn is named, with what there is, what is needed and what to do.

use super::*;
use crate::machine::{Conntrack, Process};
use crate::nofile::Nofile;
use crate::root::fake::FakeRoot;

/// A machine with room for a million connections with both ends: 2 cores, 24 GB, 20,000 descriptors.
const ROOMY: &[(&str, &str)] = &[
    ("/proc/meminfo", "MemTotal: 24000000 kB\nMemAvailable: 23000000 kB\n"),
    ("/proc/sys/fs/nr_open", "1048576"),
    ("/proc/sys/fs/file-max", "2466183"),
    ("/proc/sys/fs/file-nr", "448 0 2466183"),
    ("/proc/sys/net/ipv4/ip_local_port_range", "32768 60999"),
    ("/proc/sys/net/ipv4/tcp_mem", "1000000 2000000 3000000"),
    ("/proc/sys/net/core/somaxconn", "4096"),
    ("/proc/sys/net/netfilter/nf_conntrack_max", "1500000"),
    ("/proc/sys/net/netfilter/nf_conntrack_count", "10"),
    ("/proc/sys/kernel/threads-max", "192731"),
    ("/proc/sys/kernel/pid_max", "32768"),
    ("/proc/loadavg", "0.2 0.3 0.2 1/87 8166"),
];

const ROOMY_PROCESS: Process = Process {
    nofile: Nofile { soft: 1_024, hard: 20_000 },
    cores: 2,
    nproc: None,
    uid: 0,
    address_space: None,
};

fn machine(changes: &[(&str, &str)]) -> Machine {
    let root = FakeRoot::new(ROOMY);
    for (path, text) in changes {
        root.write(path, text);
    }
    Machine::read_from(root.path(), ROOMY_PROCESS)
}

fn prove() -> Goal {
    Goal::new(Role::Prove, 1_000_000)
}

/// The report's only shortfall; checks that its figures agree.
fn only_shortfall(report: &Report, limit: Limit) -> &Shortfall {
    let [shortfall] = report.shortfalls.as_slice() else { panic!("{report}") };
    assert_eq!(shortfall.need.limit, limit, "{report}");
    assert!(shortfall.need.now < shortfall.need.needed);
    assert!(shortfall.need.fits < report.goal.connections);
    assert_eq!(report.fits, shortfall.need.fits);
    assert!(!report.holds());
    assert!(report.to_string().starts_with(&shortfall.text));
    shortfall
}

/// Checks that the prediction is exact: `fits` connections hold, and one more does not.
fn assert_fits_exactly(machine: &Machine, goal: &Goal) {
    let fits = check(machine, goal).fits;
    let with = |connections| check(machine, &Goal { connections, ..goal.clone() });
    assert!(with(fits).holds(), "{fits} should fit: {}", with(fits));
    assert!(!with(fits + 1).holds(), "{} should not fit", fits + 1);
}

#[test]
fn a_million_fits_a_roomy_machine() {
    let report = check(&machine(&[]), &prove());
    assert!(report.holds(), "{report}");
    assert_eq!(report.workers, Some(51));
    assert_eq!(report.suggested(), 1_000_000);
    assert!(report.warnings.is_empty());
    assert_eq!(report.needs.len(), 6);
    assert_eq!(
        report.to_string(),
        "1,000,000 sockets on this machine (both ends) fit: 51 workers in each process, \
         about 9.1 GB of the 22 GB that may be used"
    );
}

#[test]
fn memory() {
    let machine = machine(&[("/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 6054688 kB\n")]);
    let report = check(&machine, &prove());
    let shortfall = only_shortfall(&report, Limit::Memory);
    assert_eq!(
        shortfall.text,
        "not enough memory: 1,000,000 sockets on this machine (both ends) need about 9.1 GB, \
         6.2 GB are available (5 % of it kept free); about 640,000 fit"
    );
    assert_eq!(shortfall.fixes, [Fix::Fewer { connections: 640_000, flag: "--connections" }]);
    assert_eq!(report.suggested(), 640_000);
    assert!(report.to_string().ends_with("use a number that fits: --connections 640000"));
    assert_fits_exactly(&machine, &prove());
}

#[test]
fn memory_of_the_control_group() {
    let machine = machine(&[
        ("/proc/self/cgroup", "0::/\n"),
        ("/sys/fs/cgroup/memory.max", "2000000000"),
        ("/sys/fs/cgroup/memory.current", "100000000"),
    ]);
    let report = check(&machine, &Goal::new(Role::Serve, 1_000_000));
    let shortfall = only_shortfall(&report, Limit::Memory);
    assert!(shortfall.text.contains("need about 4.6 GB, 1.9 GB are available"));
    assert!(shortfall.fixes.contains(&Fix::Fewer {
        connections: about(shortfall.need.fits),
        flag: "--max-connections"
    }));
    assert!(report.to_string().contains("fix (docker run): --memory"));
    let Some(&Fix::GroupMemory { bytes }) = shortfall.fixes.last() else { panic!("{report}") };
    let mut larger = machine;
    larger.memory.available_bytes = Some(bytes - 100_000_000);
    assert!(check(&larger, &report.goal).holds());
}

#[test]
fn descriptors_of_one_shared_table() {
    let goal = Goal { private_tables: false, ..prove() };
    let report = check(&machine(&[]), &goal);
    let shortfall = only_shortfall(&report, Limit::OpenFiles);
    assert_eq!(
        shortfall.text,
        "not enough descriptors: 1,000,000 sockets on this machine (both ends) need 1,000,082 in \
         each process, 20,000 are allowed (one table for all workers); about 19,000 fit"
    );
    assert_eq!(shortfall.fixes, [Fix::Nofile { files: 1_000_082 }]);
    assert!(report.to_string().contains("fix (this shell, as root): ulimit -n 1000082"));
    assert_eq!(report.workers, Some(2));
    assert_fits_exactly(&machine(&[]), &goal);
}

#[test]
fn descriptors_beyond_nr_open_raise_that_first() {
    let machine = machine(&[("/proc/sys/fs/nr_open", "16384")]);
    let report = check(&machine, &Goal { private_tables: false, ..prove() });
    let shortfall = only_shortfall(&report, Limit::OpenFiles);
    assert_eq!(shortfall.need.now, 16_384);
    let nr_open = Fix::Sysctl { key: "fs.nr_open", value: "1000082".into() };
    assert_eq!(shortfall.fixes, [nr_open, Fix::Nofile { files: 1_000_082 }]);
}

#[test]
fn configured_number_of_workers() {
    let goal = Goal { workers: Some(4), ..prove() };
    let report = check(&machine(&[]), &goal);
    let shortfall = only_shortfall(&report, Limit::OpenFiles);
    assert!(shortfall.text.contains("4 workers with 20,000 descriptors each"), "{report}");
    assert_eq!(shortfall.need.now, 4 * worker_capacity(20_000, 4));
    let [Fix::Workers { workers: 51 }, Fix::Nofile { files }] = shortfall.fixes[..] else {
        panic!("{report}")
    };
    assert!(check(&machine(&[]), &Goal { workers: Some(51), ..prove() }).holds());
    let mut raised = machine(&[]);
    raised.files.nofile.hard = files;
    assert!(check(&raised, &goal).holds());
    raised.files.nofile.hard = files - 1;
    assert!(!check(&raised, &goal).holds());
    assert_fits_exactly(&machine(&[]), &goal);
}

#[test]
fn a_table_too_small_for_any_number_of_workers() {
    let mut small = machine(&[]);
    small.files.nofile = Nofile { soft: 256, hard: 256 };
    let report = check(&small, &prove());
    let shortfall = only_shortfall(&report, Limit::OpenFiles);
    assert!(shortfall.text.contains("workers with 256 descriptors each"), "{report}");
    assert_eq!(report.workers, None);
    let Fix::Nofile { files } = shortfall.fixes[0] else { panic!("{report}") };
    small.files.nofile.hard = files;
    assert!(check(&small, &prove()).holds(), "{}", check(&small, &prove()));
}

#[test]
fn open_files_of_the_whole_machine() {
    let machine = machine(&[("/proc/sys/fs/file-max", "1000000")]);
    let report = check(&machine, &prove());
    let shortfall = only_shortfall(&report, Limit::SystemFiles);
    assert_eq!(
        shortfall.text,
        "not enough open files on the whole machine: 1,000,000 sockets on this machine (both \
         ends) need 2,002,000, fs.file-max leaves 999,552; about 490,000 fit"
    );
    let expected = Fix::Sysctl { key: "fs.file-max", value: "2002448".into() };
    assert_eq!(shortfall.fixes, [expected]);
    assert_fits_exactly(&machine, &prove());
    assert!(check(&machine, &Goal::new(Role::Serve, 990_000)).holds());
}

#[test]
fn ports_of_a_few_sources() {
    let goal = Goal { sources: Sources::Addresses(2), ..Goal::new(Role::Load, 100_000) };
    let report = check(&machine(&[]), &goal);
    let shortfall = only_shortfall(&report, Limit::Ports);
    assert_eq!(
        shortfall.text,
        "not enough ephemeral ports: 100,000 sockets need 8 source addresses with 14,116 each \
         (half of the range, beyond which connects are slow), there are 2; about 28,000 fit"
    );
    let range = Fix::Sysctl { key: "net.ipv4.ip_local_port_range", value: "1024 65535".into() };
    assert_eq!(shortfall.fixes, [Fix::Sources { sources: 8 }, range]);
    assert_fits_exactly(&machine(&[]), &goal);
    assert!(check(&machine(&[]), &Goal { destinations: 4, ..goal.clone() }).holds());
    assert!(check(&machine(&[]), &Goal { role: Role::Serve, ..goal }).holds());
}

#[test]
fn no_ports_at_all() {
    let machine = machine(&[
        ("/proc/sys/net/ipv4/ip_local_port_range", "40000 40009"),
        ("/proc/sys/net/ipv4/ip_local_reserved_ports", "40000-40009"),
    ]);
    let report = check(&machine, &prove());
    let shortfall = only_shortfall(&report, Limit::Ports);
    assert!(shortfall.text.contains("need some, 0 are usable"));
    assert!(report.to_string().ends_with("no connection fits until this is fixed"));
    assert!(report.to_string().contains("ip_local_port_range=\"1024 65535\""));
}

#[test]
fn threads_of_the_control_group() {
    let machine = machine(&[
        ("/proc/self/cgroup", "0::/\n"),
        ("/sys/fs/cgroup/pids.max", "64"),
        ("/sys/fs/cgroup/pids.current", "4"),
    ]);
    let report = check(&machine, &prove());
    let shortfall = only_shortfall(&report, Limit::Threads);
    assert!(shortfall.text.contains("need 118, 60 are left; about 430,000 fit"), "{report}");
    assert_eq!(shortfall.fixes, [Fix::GroupPids { pids: 122 }]);
    assert_fits_exactly(&machine, &prove());
}

#[test]
fn threads_of_the_kernel() {
    for (path, key) in [
        ("/proc/sys/kernel/threads-max", "kernel.threads-max"),
        ("/proc/sys/kernel/pid_max", "kernel.pid_max"),
    ] {
        let machine = machine(&[(path, "150")]);
        let report = check(&machine, &prove());
        let shortfall = only_shortfall(&report, Limit::Threads);
        assert_eq!((shortfall.need.now, shortfall.need.needed), (63, 118));
        assert_eq!(shortfall.fixes, [Fix::Sysctl { key, value: "205".into() }]);
        assert_fits_exactly(&machine, &prove());
    }
    let report = check(
        &machine(&[("/proc/sys/kernel/pid_max", "100")]),
        &Goal { workers: Some(60), ..prove() },
    );
    assert_eq!(only_shortfall(&report, Limit::Threads).need.fits, 0);
}

#[test]
fn threads_of_the_user() {
    let mut machine = machine(&[]);
    machine.threads.nproc = Some(70);
    machine.threads.user_threads = Some(10);
    let report = check(&machine, &prove());
    let shortfall = only_shortfall(&report, Limit::Threads);
    assert_eq!((shortfall.need.now, shortfall.need.needed), (60, 118));
    assert_eq!(shortfall.fixes, [Fix::Nproc { threads: 128 }]);
    assert_fits_exactly(&machine, &prove());
}

#[test]
fn epoll_watches() {
    let machine = machine(&[("/proc/sys/fs/epoll/max_user_watches", "1500000")]);
    let report = check(&machine, &prove());
    let shortfall = only_shortfall(&report, Limit::EpollWatches);
    assert!(shortfall.text.contains("need 2,000,000, fs.epoll.max_user_watches is 1,500,000"));
    assert_fits_exactly(&machine, &prove());
}

#[test]
fn a_proxy_has_both_ends_in_one_process() {
    let goal = Goal { workers: Some(2), ..Goal::new(Role::Proxy, 1_000_000) };
    let machine = machine(&[]);
    let report = check(&machine, &goal);
    let shortfall = only_shortfall(&report, Limit::OpenFiles);
    assert_eq!(shortfall.need.fits, 2 * worker_capacity(20_000, 2) / 2);
    assert_fits_exactly(&machine, &goal);
}

#[test]
fn settings_that_cause_problems_later_are_notes() {
    for (path, text, word) in [
        ("/proc/sys/fs/file-max", "19000", "nobody can log in"),
        ("/proc/sys/net/ipv4/tcp_tw_reuse", "0", "TIME_WAIT"),
        ("/proc/sys/net/ipv4/tcp_max_syn_backlog", "512", "SYN cookies"),
        ("/proc/sys/vm/overcommit_memory", "2", "threads may fail"),
    ] {
        let goal = Goal::new(Role::Prove, 5_000);
        let report = check(&machine(&[(path, text)]), &goal);
        assert!(report.holds(), "{report}");
        let [warning] = report.warnings.as_slice() else { panic!("{path}: {report}") };
        assert!(warning.text.contains(word), "{report}");
    }
}

#[test]
fn ports_run_out_at_the_full_range_and_are_slow_from_half() {
    let goal = Goal { sources: Sources::Addresses(2), ..Goal::new(Role::Load, 100_000) };
    let report = check(&machine(&[]), &goal);
    let need = &only_shortfall(&report, Limit::Ports).need;
    assert_eq!((need.fits, need.breaks), (2 * 14_116, 2 * 28_232));
}

#[test]
fn unused_connection_tracking_is_not_checked() {
    let mut machine = machine(&[("/proc/sys/net/netfilter/nf_conntrack_max", "262144")]);
    let report = check(&machine, &prove());
    let shortfall = only_shortfall(&report, Limit::Conntrack);
    assert!(shortfall.text.contains("need 1,000,000 entries, 262,134 are free"), "{report}");
    let expected = Fix::Sysctl { key: "net.netfilter.nf_conntrack_max", value: "1000010".into() };
    assert_eq!(shortfall.fixes, [expected]);
    assert_fits_exactly(&machine, &prove());
    machine.conntrack = Some(Conntrack { max: 262_144, count: 0 });
    assert!(check(&machine, &prove()).holds());
}

#[test]
fn shortfalls_are_sorted_lowest_first() {
    let machine = machine(&[
        ("/proc/sys/fs/file-max", "1000000"),
        ("/proc/meminfo", "MemAvailable: 2000000 kB\n"),
    ]);
    let report = check(&machine, &prove());
    let limits: Vec<Limit> = report.shortfalls.iter().map(|short| short.need.limit).collect();
    assert_eq!(limits, [Limit::Memory, Limit::SystemFiles]);
    assert_eq!(report.fits, report.shortfalls[0].need.fits);
}

#[test]
fn a_short_accept_queue_is_a_note() {
    let machine = machine(&[("/proc/sys/net/core/somaxconn", "128")]);
    let report = check(&machine, &prove());
    assert!(report.holds());
    let text = report.to_string();
    assert!(
        text.contains("note: net.core.somaxconn limits the accept queue to 128 connections"),
        "{text}"
    );
    assert!(text.contains("sysctl -w net.core.somaxconn=4096"), "{text}");
    assert!(check(&machine, &Goal::new(Role::Load, 1_000_000)).warnings.is_empty());
    assert!(check(&machine, &Goal::new(Role::Prove, 100)).warnings.is_empty());
}

#[test]
fn tcp_memory_below_a_broadcast_is_a_note() {
    let machine = machine(&[("/proc/sys/net/ipv4/tcp_mem", "287901 383869 575802")]);
    let report = check(&machine, &prove());
    assert!(report.holds());
    let text = report.to_string();
    assert!(text.contains("beyond 383,869 and drops segments beyond 575,802"), "{text}");
    assert!(text.contains("sysctl -w net.ipv4.tcp_mem=\"1000000 1250000 1500000\""), "{text}");
    assert!(check(&machine, &Goal::new(Role::Prove, 300_000)).warnings.is_empty());
}

#[test]
fn unknown_limits_are_not_checked() {
    let root = FakeRoot::new(&[]);
    let machine = Machine::read_from(root.path(), ROOMY_PROCESS);
    let report = check(&machine, &prove());
    assert!(report.holds());
    let limits: Vec<Limit> = report.needs.iter().map(|need| need.limit).collect();
    assert_eq!(limits, [Limit::OpenFiles]);
}

#[test]
fn largest_goal_is_checked_without_overflow() {
    for role in [Role::Serve, Role::Load, Role::Prove, Role::Proxy] {
        for workers in [None, Some(0), Some(u64::MAX)] {
            for private_tables in [true, false] {
                let goal = Goal { workers, private_tables, ..Goal::new(role, u64::MAX) };
                let report = check(&machine(&[]), &goal);
                assert!(!report.holds());
                assert!(!report.to_string().is_empty());
            }
        }
    }
}

#[test]
fn report_serializes_to_json() {
    let report = check(&machine(&[("/proc/sys/fs/file-max", "1000000")]), &prove());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["goal"]["role"], "prove");
    assert_eq!(json["shortfalls"][0]["need"]["limit"], "system_files");
    assert_eq!(json["shortfalls"][0]["fixes"][0]["kind"], "sysctl");
    assert_eq!(json["needs"].as_array().unwrap().len(), 6);
}

#[test]
fn address_space() {
    let process = Process { address_space: Some(100_000_000), ..ROOMY_PROCESS };
    let machine = Machine::read_from(FakeRoot::new(ROOMY).path(), process);
    let goal = Goal::new(Role::Load, 1_000_000);
    let report = check(&machine, &goal);
    let shortfall = only_shortfall(&report, Limit::AddressSpace);
    assert!(shortfall.text.contains("`ulimit -v` allows 100 MB"), "{}", shortfall.text);
    assert!(report.fits > 280_000, "{report}");
    assert_fits_exactly(&machine, &goal);
}

#[test]
fn mappings_are_a_limit_of_threads() {
    let machine = machine(&[("/proc/sys/vm/max_map_count", "500")]);
    let goal = Goal::new(Role::Load, 1_000_000);
    let report = check(&machine, &goal);
    let shortfall = only_shortfall(&report, Limit::Threads);
    assert_eq!(shortfall.need.now, 40);
    let fix = Fix::Sysctl { key: "vm.max_map_count", value: "555".to_owned() };
    assert_eq!(shortfall.fixes, [fix]);
}

#[test]
fn guaranteed_buffers_are_compared_with_memory() {
    let of = |least: &str| {
        let machine = machine(&[("/proc/sys/net/ipv4/tcp_rmem", least)]);
        let warnings = check(&machine, &prove()).warnings;
        warnings.into_iter().find(|warning| warning.limit == Limit::TcpBuffers)
    };
    assert_eq!(of("4096 131072 6291456"), None);
    let raised = of("65536 131072 6291456").expect("2,000,000 × 64 KiB are not there");
    assert_eq!(raised.needed, 2_000_000 * 65_536);
    let value = "4096 131072 6291456".to_owned();
    assert_eq!(raised.fix, Fix::Sysctl { key: "net.ipv4.tcp_rmem", value });
}

#[test]
fn every_table_has_room_for_a_listener_per_core() {
    let on = |cores: usize, role| {
        let machine = Machine { cores, ..machine(&[]) };
        let goal = Goal { workers: Some(64), ..Goal::new(role, 10_000_000) };
        check(&machine, &goal).needs.iter().find(|need| need.limit == Limit::OpenFiles).unwrap().now
    };
    assert_eq!(on(64, Role::Serve), on(2, Role::Serve));
    assert_eq!(on(2, Role::Serve) - on(192, Role::Serve), 64 * 128);
    assert_eq!(on(192, Role::Load), on(2, Role::Load), "a client has no listeners");
}
