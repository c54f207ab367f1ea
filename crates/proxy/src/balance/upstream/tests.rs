//! One upstream: permits, ports, ejection, checks, slow start.

use super::*;

fn upstream() -> Arc<Upstream> {
    let address = UpstreamAddress::Tcp(([127, 0, 0, 1], 80).into());
    Arc::new(Upstream::new(1, "127.0.0.1:80", address, 0))
}

#[test]
fn a_permit_is_released_when_dropped() {
    let upstream = upstream();
    let first = upstream.acquire(2).unwrap();
    let second = upstream.acquire(2).unwrap();
    assert!(upstream.acquire(2).is_none());
    drop(first);
    assert_eq!(upstream.tunnels(), 1);
    let third = upstream.acquire(2).unwrap();
    drop((second, third));
    assert_eq!((upstream.tunnels(), upstream.picks()), (0, 3));
}

#[test]
fn ports_are_counted_by_source_address() {
    let (upstream, one) = (upstream(), IpAddr::from([127, 0, 0, 1]));
    let (first, second) = (upstream.port(Some(one)), upstream.port(None));
    let third = upstream.port(Some(one));
    assert_eq!(upstream.ports(), [(Some(one), 2), (None, 1)]);
    drop((first, second));
    assert_eq!(upstream.ports(), [(Some(one), 1), (None, 0)]);
    let many: Vec<Port> = (0..1_000)
        .map(|n| upstream.port(Some(IpAddr::from([10, 0, (n >> 8) as u8, n as u8]))))
        .collect();
    assert_eq!(upstream.ports().len(), SOURCES_MAX, "the list is bounded");
    drop((third, many));
    assert!(upstream.ports().iter().all(|(_, count)| *count == 0));
}

#[test]
fn consecutive_failures_eject_for_a_while() {
    let upstream = upstream();
    upstream.set_ejection(Ejection { after: 3, for_ns: 10 });
    upstream.failed(1, Fault::Refused);
    upstream.failed(2, Fault::Refused);
    upstream.succeeded();
    upstream.failed(3, Fault::Refused);
    upstream.failed(4, Fault::Refused);
    assert_eq!(upstream.state(4), UpstreamState::Up, "a response resets the count");
    upstream.failed(5, Fault::Silent);
    assert_eq!(upstream.fault(), Some(Fault::Silent));
    assert_eq!(upstream.state(6), UpstreamState::Ejected);
    (0..5).for_each(|_| upstream.failed(14, Fault::Refused));
    assert_eq!(
        upstream.state(15),
        UpstreamState::Up,
        "requests in progress do not prolong an ejection"
    );
    assert_eq!((upstream.ejections(), upstream.failed_times()), (1, 10));
}

#[test]
fn repeated_check_results_are_no_flip() {
    let upstream = upstream();
    for down in [true, true, false, false, true] {
        upstream.set_down(down, 7);
    }
    assert_eq!((upstream.flips(), upstream.state(8)), (3, UpstreamState::Down));
    upstream.set_draining(true, 9);
    assert_eq!(upstream.state(9), UpstreamState::Draining);
}

#[test]
fn an_upstream_that_comes_up_starts_slowly() {
    let upstream = upstream();
    assert_eq!(upstream.warmth(1_000, 1), WARM, "no slow start at startup");
    upstream.set_down(true, 10);
    upstream.set_down(false, 1_000);
    assert_eq!(upstream.warmth(1_000, 1_000), COLD);
    assert_eq!(upstream.warmth(1_000, 1_500), WARM / 2);
    assert_eq!(upstream.warmth(1_000, 2_000), WARM);
    assert_eq!(upstream.warmth(0, 1_000), WARM, "no slow start configured");
}
