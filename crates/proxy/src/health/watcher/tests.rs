//! Tests of the watcher: states that follow checks, and what a reload changes of them.

use std::net::TcpListener;

use super::super::CheckKind;
use super::*;
use crate::balance::UpstreamState;
use crate::routes::{Change, RoutesConfig, UpstreamFilter};

/// Waits for a condition, with a deadline for a failing test.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..4_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("gave up waiting until {what}");
}

#[test]
fn an_upstream_that_stops_answering_goes_down_and_comes_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let table = Arc::new(Table::default());
    let mut config = RoutesConfig::to([address.to_string().parse().unwrap()]);
    let every = Duration::from_millis(20);
    config.pools[0].check = HealthCheck { kind: CheckKind::Tcp, every, ..HealthCheck::default() };
    let mut registry = Registry::new(Arc::clone(&table));
    registry.apply(config.clone(), now_ns()).unwrap();
    let upstream = Arc::clone(&table.routes().pools()[0].members()[0].upstream);
    let registry = Arc::new(Mutex::new(registry));
    let watcher = Watcher::start(Arc::clone(&table), Arc::clone(&registry), &[]).unwrap();
    let stands = |standing| upstream.state(now_ns()) == standing;
    assert!(stands(UpstreamState::Up), "up until it fails");
    drop(listener);
    eventually("it is down", || stands(UpstreamState::Down));
    let listener = TcpListener::bind(address).unwrap();
    eventually("it is up again", || stands(UpstreamState::Up));
    assert_eq!(upstream.flips(), 2);
    drop(listener);
    eventually("it is down", || stands(UpstreamState::Down));
    config.pools[0].check.kind = CheckKind::Off;
    locked(&registry).apply(config, now_ns()).unwrap();
    assert!(stands(UpstreamState::Up), "without checks it counts as up");
    drop(watcher);
}

#[test]
fn names_are_resolved_and_used() {
    let table = Arc::new(Table::default());
    let mut registry = Registry::new(Arc::clone(&table));
    let config = RoutesConfig::to(["localhost:7".parse().unwrap()]);
    registry.apply(config, now_ns()).unwrap();
    assert!(table.routes().pools()[0].members().is_empty());
    let registry = Arc::new(Mutex::new(registry));
    let _watcher = Watcher::start(Arc::clone(&table), registry, &[]).unwrap();
    eventually("localhost is resolved", || !table.routes().pools()[0].members().is_empty());
}

/// A loop that has never run, with one upstream, one name and checks every ten minutes.
fn idle_loop() -> (WatchLoop, RoutesConfig) {
    let table = Arc::new(Table::default());
    let upstreams = ["10.0.0.1:80".parse().unwrap(), "app.internal:80".parse().unwrap()];
    let mut config = RoutesConfig::to(upstreams);
    let every = Duration::from_secs(600);
    let kind = CheckKind::Http("/health".into());
    config.pools[0].check = HealthCheck { kind, every, fall: 1, ..HealthCheck::default() };
    config.pools[0].resolve_every = every;
    let mut registry = Registry::new(Arc::clone(&table));
    registry.apply(config.clone(), now_ns()).unwrap();
    let mut watch = WatchLoop::new(table, Arc::new(Mutex::new(registry)), &[]);
    watch.sync_table();
    for checked in watch.checked.values_mut() {
        checked.due_ns = now_ns() + nanoseconds(every);
    }
    for lookup in watch.lookups.values_mut() {
        lookup.due_ns = now_ns() + nanoseconds(every);
    }
    (watch, config)
}

/// Seconds until the check and the lookup are due, after this configuration is applied.
fn due_after(watch: &mut WatchLoop, config: &RoutesConfig) -> (u64, u64) {
    locked(&watch.registry).apply(config.clone(), now_ns()).unwrap();
    let before_ns = now_ns();
    watch.sync_table();
    let seconds = |due_ns: u64| due_ns.saturating_sub(before_ns) / 1_000_000_000;
    let check = watch.checked.values().next().unwrap().due_ns;
    (seconds(check), seconds(watch.lookups.values().next().unwrap().due_ns))
}

#[test]
fn shorter_intervals_take_effect_at_once() {
    let (mut watch, mut config) = idle_loop();
    let (check, lookup) = due_after(&mut watch, &config);
    assert!(check > 500 && lookup > 500, "{check} {lookup}: nothing has changed");
    config.pools[0].check.every = Duration::from_secs(50);
    config.pools[0].resolve_every = Duration::from_secs(50);
    let (check, lookup) = due_after(&mut watch, &config);
    assert!(check <= 60 && lookup <= 60, "{check} {lookup}");
    config.pools[0].check.every = Duration::from_secs(600);
    config.pools[0].resolve_every = Duration::from_secs(600);
    let (check, lookup) = due_after(&mut watch, &config);
    assert!(check <= 60 && lookup <= 60, "{check} {lookup}: reloads never delay them");
}

#[test]
fn a_changed_check_is_due_at_once_and_the_result_of_the_old_one_is_dropped() {
    let (mut watch, mut config) = idle_loop();
    let upstream = Arc::clone(&watch.checked.values().next().unwrap().upstream);
    let number = upstream.number();
    watch.checked.get_mut(&number).unwrap().probe = Some(7);
    config.pools[0].check.kind = CheckKind::Http("/other".into());
    assert_eq!(due_after(&mut watch, &config).0, 0);
    watch.on_probed((number, 7), Err(ProbeError::Ended), false);
    assert_eq!(upstream.state(now_ns()), UpstreamState::Up);
    assert_eq!(due_after(&mut watch, &config).0, 0, "it is still due");
}

#[test]
fn a_check_that_could_not_be_made_is_no_finished_check() {
    let (mut watch, _) = idle_loop();
    let upstream = Arc::clone(&watch.checked.values().next().unwrap().upstream);
    let number = upstream.number();
    let mut probed = |result| {
        watch.checked.get_mut(&number).unwrap().probe = Some(7);
        watch.on_probed((number, 7), result, false);
    };
    // EADDRNOTAVAIL and EMFILE.
    for code in [99, 24] {
        probed(Err(ProbeError::Broken(io::Error::from_raw_os_error(code))));
    }
    assert_eq!((upstream.checks(), upstream.state(now_ns())), (0, UpstreamState::Up));
    probed(Ok(()));
    assert_eq!(upstream.checks(), 1);
}

/// The result arrives before the loop has seen that checks are off.
#[test]
fn a_result_after_checks_were_turned_off_is_dropped() {
    let (mut watch, mut config) = idle_loop();
    let upstream = Arc::clone(&watch.checked.values().next().unwrap().upstream);
    let number = upstream.number();
    let on = config.clone();
    watch.checked.get_mut(&number).unwrap().probe = Some(7);
    config.pools[0].check.kind = CheckKind::Off;
    locked(&watch.registry).apply(config, now_ns()).unwrap();
    watch.on_probed((number, 7), Err(ProbeError::Ended), false);
    assert_eq!(upstream.state(now_ns()), UpstreamState::Up);
    // Nor does it count when they are on again.
    locked(&watch.registry).apply(on, now_ns()).unwrap();
    watch.on_probed((number, 7), Err(ProbeError::Ended), false);
    assert_eq!(upstream.state(now_ns()), UpstreamState::Up);
}

#[test]
fn a_drained_address_that_returns_is_up_again_when_its_checks_pass() {
    let (watch, config) = idle_loop();
    let (mut watch, name) = (watch, config.pools[0].members[1].endpoint.clone());
    let at = |hosts: &[u8]| hosts.iter().map(|n| ([10, 0, 0, *n], 80).into()).collect();
    let resolve = |watch: &mut WatchLoop, hosts: &[u8]| {
        locked(&watch.registry).resolved(("app.internal", 80), at(hosts), now_ns());
        watch.sync_table();
    };
    let probed = |watch: &mut WatchLoop, number: u32, result| {
        watch.checked.get_mut(&number).unwrap().probe = Some(7);
        watch.on_probed((number, 7), result, false);
    };
    let filter = UpstreamFilter { upstream: Some(name), ..UpstreamFilter::default() };
    resolve(&mut watch, &[2]);
    let upstream = locked(&watch.registry).upstreams(&filter).remove(0);
    let _tunnel = upstream.acquire(1).unwrap();
    let drain = |on| Change::Draining(filter.clone(), on);
    locked(&watch.registry).change(&drain(true), now_ns()).unwrap();
    probed(&mut watch, upstream.number(), Err(ProbeError::Ended));
    // The name loses the address and gets it back while a tunnel is open.
    resolve(&mut watch, &[3]);
    resolve(&mut watch, &[2, 3]);
    for _ in 0..config.pools[0].check.rise {
        probed(&mut watch, upstream.number(), Ok(()));
    }
    locked(&watch.registry).change(&drain(false), now_ns()).unwrap();
    assert_eq!(upstream.state(now_ns()), UpstreamState::Up);
}

#[test]
fn a_check_that_could_not_be_made_says_nothing_about_the_upstream() {
    let (mut watch, _) = idle_loop();
    let upstream = Arc::clone(&watch.checked.values().next().unwrap().upstream);
    let number = upstream.number();
    // Linux: EADDRNOTAVAIL, EMFILE and ECONNREFUSED.
    for (error, state) in
        [(99, UpstreamState::Up), (24, UpstreamState::Up), (111, UpstreamState::Down)]
    {
        watch.checked.get_mut(&number).unwrap().probe = Some(7);
        let error = ProbeError::Broken(io::Error::from_raw_os_error(error));
        watch.on_probed((number, 7), Err(error), false);
        assert_eq!(upstream.state(now_ns()), state);
    }
}

#[test]
fn checks_are_spread_by_a_tenth() {
    for seed in 0..1_000 {
        let spread = spread(Duration::from_nanos(1_000), seed << 20);
        assert!((900..=1_100).contains(&spread), "{spread}");
    }
}
