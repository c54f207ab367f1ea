//! Tests of the registry: what survives a change, and what a refused one leaves alone.

use super::*;
use crate::balance::{Permit, PickContext, UpstreamState};
use crate::routes::{MemberChange, RouteConfig};

fn endpoint(text: &str) -> Endpoint {
    text.parse().unwrap()
}

/// An upstream in the default pool, by name or address.
fn of(upstream: &Endpoint) -> UpstreamFilter {
    let (pool, upstream) = (Some("default".into()), Some(upstream.clone()));
    UpstreamFilter { pool, upstream, address: None }
}

fn registry(endpoints: &[&str]) -> (Registry, Arc<Table>) {
    let table = Arc::new(Table::default());
    let mut registry = Registry::new(Arc::clone(&table));
    let config = RoutesConfig::to(endpoints.iter().map(|text| endpoint(text)));
    registry.apply(config, 1_000).unwrap();
    (registry, table)
}

fn pick(table: &Table, random: u64) -> Permit {
    let routes = table.routes();
    let pool = &routes.find("x", "/").unwrap().pool;
    pool.pick(&PickContext { now_ns: 5_000, random, ..PickContext::default() }).unwrap()
}

fn names(table: &Table) -> Vec<String> {
    let routes = table.routes();
    let members = routes.pools()[0].members().iter();
    members.map(|member| member.upstream.address().to_string()).collect()
}

#[test]
fn counts_survive_every_change() {
    let (mut registry, table) = registry(&["10.0.0.1:80", "10.0.0.2:80"]);
    let held: Vec<Permit> = (0..10).map(|n| pick(&table, n << 33)).collect();
    let add = Change::Set("default".into(), MemberChange::new(endpoint("10.0.0.3:80")));
    let changed = registry.change(&add, 2_000).unwrap();
    assert_eq!(changed, Changed { added: 1, ..Changed::default() });
    let routes = table.routes();
    let members = routes.pools()[0].members();
    let tunnels: u32 = members.iter().map(|member| member.upstream.tunnels()).sum();
    assert_eq!((members.len(), tunnels), (3, 10));
    drop(held);
    assert!(members.iter().all(|member| member.upstream.tunnels() == 0));
}

#[test]
fn changes_of_different_fields_do_not_undo_each_other() {
    let (mut registry, _) = registry(&["10.0.0.1:80"]);
    // Both are made before either is applied, as by two requests at the same time.
    let same = || MemberChange::new(endpoint("10.0.0.1:80"));
    let weight = MemberChange { weight: Some(7), ..same() };
    let max = MemberChange { max: Some(Some(9)), backup: Some(false), ..same() };
    for change in [weight, max] {
        registry.change(&Change::Set("default".into(), change), 2_000).unwrap();
    }
    let member = &registry.config().pools[0].members[0];
    assert_eq!((member.weight, member.max), (7, Some(9)));
}

#[test]
fn a_removed_upstream_is_known_while_it_has_tunnels_and_can_return() {
    let (mut registry, table) = registry(&["10.0.0.1:80", "10.0.0.2:80"]);
    let held: Vec<Permit> = (0..8).map(|n| pick(&table, n << 33)).collect();
    let gone = endpoint("10.0.0.2:80");
    let remove = Change::Remove("default".into(), gone.clone());
    assert_eq!(
        registry.change(&remove, 2_000).unwrap(),
        Changed { removed: 1, ..Changed::default() }
    );
    assert_eq!(names(&table), ["10.0.0.1:80"]);
    let left = registry.retired().first().unwrap().upstream.clone();
    assert!(left.tunnels() > 0);
    assert_eq!(registry.upstreams(&of(&gone)).len(), 1, "it can still be drained");
    let back = Change::Set("default".into(), MemberChange::new(gone.clone()));
    assert_eq!(registry.change(&back, 3_000).unwrap(), Changed::default());
    let again = registry.upstreams(&of(&gone));
    assert!(Arc::ptr_eq(&again[0], &left));
    registry.change(&remove, 4_000).unwrap();
    drop(held);
    assert!(registry.retired().is_empty());
}

#[test]
fn a_refused_change_changes_nothing() {
    let (mut registry, table) = registry(&["10.0.0.1:80"]);
    let before = table.routes();
    let last = Change::Remove("default".into(), endpoint("10.0.0.1:80"));
    assert!(registry.change(&last, 2_000).unwrap_err().contains("0 upstreams"));
    let nowhere = Change::Remove("default".into(), endpoint("10.0.0.9:80"));
    assert!(registry.change(&nowhere, 2_000).unwrap_err().contains("10.0.0.1:80"));
    let none = Change::Set("chat".into(), MemberChange::new(endpoint("10.0.0.9:80")));
    assert!(registry.change(&none, 2_000).unwrap_err().contains("known pools: default"));
    let drain = Change::Draining(of(&endpoint("10.0.0.9:80")), true);
    assert!(registry.change(&drain, 2_000).is_err());
    assert!(registry.apply(RoutesConfig::default(), 2_000).is_err());
    assert!(Arc::ptr_eq(&before, &table.routes()));
}

#[test]
fn draining_survives_changes() {
    let (mut registry, table) = registry(&["10.0.0.1:80", "10.0.0.2:80"]);
    let drain = |draining| Change::Draining(of(&endpoint("10.0.0.1:80")), draining);
    registry.change(&drain(true), 2_000).unwrap();
    let add = Change::Set("default".into(), MemberChange::new(endpoint("10.0.0.3:80")));
    registry.change(&add, 3_000).unwrap();
    for n in 0..50u64 {
        assert_ne!(pick(&table, n << 40).upstream().name().as_ref(), "10.0.0.1:80");
    }
    registry.apply(registry.config().clone(), 3_500).unwrap();
    let of_one = registry.upstreams(&of(&endpoint("10.0.0.1:80")));
    assert_eq!(of_one[0].state(5_000), UpstreamState::Draining, "a reload keeps a drain");
    registry.change(&drain(false), 4_000).unwrap();
    let back = registry.upstreams(&of(&endpoint("10.0.0.1:80")));
    assert_eq!(back[0].state(5_000), UpstreamState::Up);
}

#[test]
fn each_address_of_a_name_is_an_upstream() {
    let (mut registry, table) = registry(&["app.internal:80", "10.0.0.1:80"]);
    assert_eq!(names(&table), ["10.0.0.1:80"], "not resolved yet");
    assert_eq!(registry.names().len(), 1);
    let of = |hosts: &[u8]| hosts.iter().map(|n| ([10, 0, 0, *n], 80).into()).collect();
    let name = ("app.internal", 80);
    assert_eq!(registry.resolved(name, of(&[3, 2, 1, 2]), 2_000).added, 3);
    assert_eq!(names(&table).len(), 4, "an address that is also configured is another upstream");
    assert_eq!(registry.resolved(name, of(&[1, 2, 3]), 3_000), Changed::default());
    assert_eq!(registry.resolved(name, of(&[]), 3_000), Changed::default());
    assert_eq!(names(&table).len(), 4, "a failed lookup removes no upstream");
    let changed = registry.resolved(name, of(&[2, 4]), 4_000);
    assert_eq!(changed, Changed { added: 1, removed: 2, renamed: 0 });
}

#[test]
fn a_drained_name_is_drained_at_the_addresses_that_it_gets_later() {
    let (mut registry, _) = registry(&["app.internal:80", "10.0.0.9:80"]);
    let at = |hosts: &[u8]| hosts.iter().map(|n| ([10, 0, 0, *n], 80).into()).collect();
    let (host, name) = (("app.internal", 80), endpoint("app.internal:80"));
    let draining = |registry: &mut Registry| {
        let all = registry.upstreams(&of(&name));
        all.iter().map(|one| one.state(9_000) == UpstreamState::Draining).collect::<Vec<bool>>()
    };
    let change = |filter: UpstreamFilter, draining| Change::Draining(filter, draining);
    registry.resolved(host, at(&[1]), 2_000);
    registry.change(&change(of(&name), true), 2_000).unwrap();
    registry.resolved(host, at(&[1, 2]), 3_000);
    assert_eq!(draining(&mut registry), [true, true]);
    // One address alone.
    let address = Some(UpstreamAddress::Tcp(([10, 0, 0, 2], 80).into()));
    let second = UpstreamFilter { address, ..of(&name) };
    registry.change(&change(second.clone(), false), 4_000).unwrap();
    registry.resolved(host, at(&[1, 2, 3]), 5_000);
    assert_eq!(draining(&mut registry), [true, false, true]);
    registry.change(&change(of(&name), false), 6_000).unwrap();
    registry.resolved(host, at(&[1, 2, 3, 4]), 7_000);
    assert_eq!(draining(&mut registry), [false; 4]);
    registry.change(&change(second, true), 7_000).unwrap();
    // It outlasts the address: names lose addresses and get them back.
    registry.resolved(host, at(&[5]), 8_000);
    registry.resolved(host, at(&[2, 5]), 8_000);
    assert_eq!(draining(&mut registry), [true, false], "the drain was for one address");
    // It ends when the name is removed.
    registry.change(&change(of(&name), true), 8_000).unwrap();
    let config = registry.config().clone();
    registry.apply(RoutesConfig::to([endpoint("10.0.0.9:80")]), 8_000).unwrap();
    registry.apply(config, 8_000).unwrap();
    registry.resolved(host, at(&[6]), 8_000);
    assert_eq!(draining(&mut registry), [false]);
}

#[test]
fn names_that_a_pool_adds_are_resolved_before_it_changes() {
    let (mut registry, table) = registry(&["app.internal:80", "10.0.0.1:80"]);
    let config = |texts: &[&str]| RoutesConfig::to(texts.iter().map(|text| endpoint(text)));
    let new = |registry: &Registry, texts| registry.new_names(&config(texts));
    assert!(new(&registry, &["app.internal:80"]).is_empty(), "unresolved before, too");
    let next = ["new.internal:80", "10.0.0.2:80"];
    let name: Name = ("new.internal".into(), 80);
    assert_eq!(new(&registry, &next), std::slice::from_ref(&name));
    let address = SocketAddr::from(([10, 0, 0, 7], 80));
    let found = BTreeMap::from([(name, vec![address, address])]);
    registry.apply_resolved(config(&next), found, 2_000).unwrap();
    assert_eq!(names(&table), ["10.0.0.7:80", "10.0.0.2:80"]);
    assert!(new(&registry, &["new.internal:80"]).is_empty());
    // The addresses of names that are gone are forgotten.
    registry.apply(config(&["10.0.0.2:80"]), 3_000).unwrap();
    assert_eq!(new(&registry, &next).len(), 1);
}

#[test]
fn the_last_upstream_with_an_address_cannot_be_removed() {
    let (mut registry, table) = registry(&["app.internal:80", "10.0.0.1:80"]);
    let remove = Change::Remove("default".into(), endpoint("10.0.0.1:80"));
    let error = registry.change(&remove, 2_000).unwrap_err();
    assert!(error.contains("no other upstream of pool default is resolved"), "{error}");
    assert_eq!(names(&table), ["10.0.0.1:80"]);
    let found = vec![([10, 0, 0, 7], 80).into()];
    registry.resolved(("app.internal", 80), found, 3_000);
    registry.change(&remove, 4_000).unwrap();
    assert_eq!(names(&table), ["10.0.0.7:80"]);
}

#[test]
fn a_reload_that_leaves_a_pool_without_an_address_is_refused() {
    let (mut registry, table) = registry(&["app.internal:80", "10.0.0.1:80"]);
    let before = table.routes();
    let only = RoutesConfig::to([endpoint("app.internal:80")]);
    let error = registry.apply(only.clone(), 2_000).unwrap_err();
    assert!(error.contains("pool default would have no address"), "{error}");
    assert!(Arc::ptr_eq(&before, &table.routes()));
    assert_eq!(registry.config().pools[0].members.len(), 2);
    // An address found for this reload counts, and so does one found before.
    let found = BTreeMap::from([(("app.internal".into(), 80), vec![([10, 0, 0, 7], 80).into()])]);
    registry.apply_resolved(only.clone(), found, 3_000).unwrap();
    registry.apply(only, 4_000).unwrap();
    assert_eq!(names(&table), ["10.0.0.7:80"]);
}

#[test]
fn a_pool_that_has_no_address_yet_stops_no_reload() {
    let (mut registry, table) = registry(&["app.internal:80"]);
    let add = RoutesConfig::to([endpoint("app.internal:80")]);
    registry.apply(add, 2_000).unwrap();
    assert!(names(&table).is_empty());
}

#[test]
fn routes_are_added_and_removed() {
    let (mut registry, table) = registry(&["10.0.0.1:80"]);
    let route = |pool: &str| RouteConfig::new("a.de".parse().unwrap(), "/x", pool);
    assert!(registry.change(&Change::Route(route("none")), 1).unwrap_err().contains("[pool.none]"));
    registry.change(&Change::Route(route("default")), 1).unwrap();
    assert_eq!(&*table.routes().find("a.de", "/x").unwrap().path, "/x");
    let unroute = Change::Unroute("a.de".parse().unwrap(), "/x".into());
    registry.change(&unroute, 1).unwrap();
    assert_eq!(&*table.routes().find("a.de", "/x").unwrap().path, "/");
    assert!(registry.change(&unroute, 1).is_err());
}

/// A registry of names that all resolve to one address.
fn named(names: &[&str]) -> (Registry, Arc<Table>) {
    let (mut registry, table) = registry(names);
    for name in names {
        registry.resolved((host(name), 80), vec![([10, 0, 0, 1], 80).into()], 1_500);
    }
    (registry, table)
}

fn host(name: &str) -> &str {
    name.strip_suffix(":80").unwrap()
}

/// Reloads with these names, which all resolve to one address.
fn reload(registry: &mut Registry, names: &[&str]) -> Changed {
    let config = RoutesConfig::to(names.iter().map(|name| endpoint(name)));
    let address = vec![([10, 0, 0, 1], 80).into()];
    let found = names.iter().map(|name| ((host(name).into(), 80), address.clone()));
    registry.apply_resolved(config, found.collect(), 2_000).unwrap()
}

#[test]
fn two_names_of_one_address_are_two_upstreams() {
    let (mut registry, table) = named(&["a.test:80", "b.test:80"]);
    let mut upstreams = |name: &str| registry.upstreams(&of(&endpoint(name)));
    let (a, b) = (upstreams("a.test:80"), upstreams("b.test:80"));
    assert_eq!((a.len(), b.len()), (1, 1));
    assert_ne!(a[0].number(), b[0].number());
    assert_ne!(a[0].connection_key(), b[0].connection_key());
    let both = upstreams("10.0.0.1:80");
    assert_eq!(both.len(), 2, "an address means all its names");
    registry.change(&Change::Draining(of(&endpoint("b.test:80")), true), 2_000).unwrap();
    let states = [&a[0], &b[0]].map(|upstream| upstream.state(5_000));
    assert_eq!(states, [UpstreamState::Up, UpstreamState::Draining]);
    for n in 0..20 {
        assert_eq!(pick(&table, n << 58).upstream().number(), a[0].number());
    }
    // An address that is itself a name of the pool means that upstream only.
    let add = Change::Set("default".into(), MemberChange::new(endpoint("10.0.0.1:80")));
    registry.change(&add, 3_000).unwrap();
    let own = registry.upstreams(&of(&endpoint("10.0.0.1:80")));
    assert_eq!((own.len(), &*own[0].name()), (1, "10.0.0.1:80"));
}

#[test]
fn a_reload_that_renames_an_upstream_keeps_its_tunnels_and_its_drain() {
    let (mut registry, table) = named(&["a.test:80", "b.test:80"]);
    let held: Vec<Permit> = (0..6).map(|n| pick(&table, n << 61)).collect();
    let a = registry.upstreams(&of(&endpoint("a.test:80"))).remove(0);
    let (tunnels, number, key) = (a.tunnels(), a.number(), a.connection_key());
    assert!(tunnels > 0);
    registry.change(&Change::Draining(of(&endpoint("a.test:80")), true), 2_000).unwrap();
    // The order of the file does not matter.
    let changed = reload(&mut registry, &["b.test:80", "c.test:80"]);
    assert_eq!(changed, Changed { renamed: 1, ..Changed::default() });
    let c = registry.upstreams(&of(&endpoint("c.test:80"))).remove(0);
    assert!(Arc::ptr_eq(&a, &c));
    assert_eq!((c.tunnels(), c.number()), (tunnels, number));
    assert_eq!(c.state(5_000), UpstreamState::Draining);
    assert_ne!(c.connection_key(), key, "no connection to the old name is used for the new one");
    assert!(registry.upstreams(&of(&endpoint("a.test:80"))).is_empty());
    assert!(registry.retired().is_empty());
    // Both names at once, and one becomes the address itself.
    let changed = reload(&mut registry, &["d.test:80", "e.test:80"]);
    assert_eq!(changed, Changed { renamed: 2, ..Changed::default() });
    let changed = registry.apply(RoutesConfig::to([endpoint("10.0.0.1:80")]), 3_000).unwrap();
    assert_eq!(changed, Changed { removed: 1, renamed: 1, ..Changed::default() });
    drop(held);
    assert!(registry.retired().is_empty());
}

#[test]
fn the_drain_of_a_name_goes_to_the_name_that_replaces_it() {
    let (mut registry, _) = named(&["a.test:80", "b.test:80"]);
    let drain = |name: &str| Change::Draining(of(&endpoint(name)), true);
    registry.change(&drain("a.test:80"), 2_000).unwrap();
    let next = RoutesConfig::to(["b.test:80", "c.test:80"].map(endpoint));
    let at = |hosts: &[u8]| hosts.iter().map(|n| ([10, 0, 0, *n], 80).into()).collect();
    // The new name has a further address from the start, and gets another one later.
    let found = BTreeMap::from([(("c.test".into(), 80), at(&[1, 2]))]);
    let changed = registry.apply_resolved(next, found, 3_000).unwrap();
    assert_eq!(changed, Changed { added: 1, renamed: 1, ..Changed::default() });
    registry.resolved(("c.test", 80), at(&[1, 2, 3]), 4_000);
    let states = |registry: &mut Registry, name: &str| {
        let all = registry.upstreams(&of(&endpoint(name)));
        all.iter().map(|one| one.state(9_000)).collect::<Vec<UpstreamState>>()
    };
    assert_eq!(states(&mut registry, "c.test:80"), [UpstreamState::Draining; 3]);
    registry.resolved(("b.test", 80), at(&[1, 2]), 4_000);
    assert_eq!(states(&mut registry, "b.test:80"), [UpstreamState::Up; 2]);
    // It ends like that of any name.
    let resume = Change::Draining(of(&endpoint("c.test:80")), false);
    registry.change(&resume, 5_000).unwrap();
    registry.resolved(("c.test", 80), at(&[1, 2, 3, 4]), 6_000);
    assert_eq!(states(&mut registry, "c.test:80"), [UpstreamState::Up; 4]);
}

#[test]
fn a_name_that_replaces_more_than_a_drained_name_is_not_drained() {
    let at = |hosts: &[u8]| hosts.iter().map(|n| ([10, 0, 0, *n], 80).into()).collect();
    // A drained address, and a drained name together with one that is not drained.
    for before in [&["10.0.0.1:80", "b.test:80"][..], &["a.test:80", "b.test:80"]] {
        let (mut registry, _) = registry(before);
        registry.resolved(("a.test", 80), at(&[1]), 1_500);
        registry.resolved(("b.test", 80), at(&[2]), 1_500);
        registry.change(&Change::Draining(of(&endpoint(before[0])), true), 2_000).unwrap();
        let next = RoutesConfig::to([endpoint("c.test:80")]);
        let found = BTreeMap::from([(("c.test".into(), 80), at(&[1, 2]))]);
        let changed = registry.apply_resolved(next, found, 3_000).unwrap();
        assert_eq!(changed, Changed { renamed: 2, ..Changed::default() });
        registry.resolved(("c.test", 80), at(&[1, 2, 3]), 4_000);
        let all = registry.upstreams(&of(&endpoint("c.test:80")));
        let states: Vec<UpstreamState> = all.iter().map(|one| one.state(9_000)).collect();
        let expected = [UpstreamState::Draining, UpstreamState::Up, UpstreamState::Up];
        assert_eq!(states, expected, "{before:?}");
    }
}

#[test]
fn a_removed_name_is_not_taken_for_another_one_of_its_address() {
    let (mut registry, table) = named(&["a.test:80", "b.test:80"]);
    let held: Vec<Permit> = (0..6).map(|n| pick(&table, n << 61)).collect();
    let a = registry.upstreams(&of(&endpoint("a.test:80"))).remove(0);
    let changed = reload(&mut registry, &["b.test:80"]);
    assert_eq!(changed, Changed { removed: 1, ..Changed::default() });
    // A new name while the removed one still has tunnels is a new upstream.
    let changed = reload(&mut registry, &["b.test:80", "c.test:80"]);
    assert_eq!(changed, Changed { added: 1, ..Changed::default() });
    let changed = reload(&mut registry, &["a.test:80", "b.test:80", "c.test:80"]);
    assert_eq!(changed, Changed::default(), "the removed one returns");
    let again = registry.upstreams(&of(&endpoint("a.test:80"))).remove(0);
    assert!(Arc::ptr_eq(&a, &again));
    drop(held);
}

#[test]
fn an_upstream_that_cannot_be_drained_is_reported_with_the_reason() {
    let (mut registry, _table) = registry(&["app.internal:80", "10.0.0.1:80"]);
    let mut error = |filter| registry.change(&Change::Draining(filter, true), 2_000).unwrap_err();
    let unresolved = error(of(&endpoint("app.internal:80")));
    assert!(unresolved.ends_with("app.internal:80 of pool default has no address yet"));
    let address = Some(UpstreamAddress::Tcp(([10, 0, 0, 9], 80).into()));
    let other = error(UpstreamFilter { address, ..of(&endpoint("10.0.0.1:80")) });
    assert!(other.ends_with("has no address 10.0.0.9:80"), "{other}");
    let unknown = error(UpstreamFilter { pool: Some("x".into()), ..of(&endpoint("10.0.0.1:80")) });
    assert!(unknown.contains("no pool x; known pools: default"), "{unknown}");
}

#[test]
fn a_name_has_at_most_64_addresses() {
    let (mut registry, table) = registry(&["app.internal:80"]);
    let many = |from: u8| (from..=200).map(|n| ([10, 0, 0, n], 80).into()).collect();
    assert_eq!(registry.resolved(("app.internal", 80), many(1), 2_000).added, ADDRESSES_MAX);
    assert_eq!(names(&table).len(), ADDRESSES_MAX);
    registry.resolved(("app.internal", 80), many(101), 3_000);
    assert_eq!(names(&table).len(), ADDRESSES_MAX);
}

#[test]
fn addresses_that_do_not_fit_into_a_pool_count_as_removed() {
    let (mut registry, table) = registry(&["10.0.0.1:80"]);
    let names: Vec<String> = (0..5).map(|n| format!("{n}.internal:80")).collect();
    let mut config = registry.config().clone();
    let named = names.iter().map(|name| MemberConfig::new(endpoint(name)));
    config.pools[0].members.extend(named);
    registry.apply(config, 2_000).unwrap();
    let addresses = |n: u8| (0..64).map(|host| ([10, 1 + n, 0, host], 80).into()).collect();
    for n in (1..5).rev() {
        registry.resolved((&format!("{n}.internal"), 80), addresses(n), 2_000);
    }
    let pool = || Arc::clone(&table.routes().pools()[0]);
    assert_eq!(pool().members().len(), 256, "of 257");
    assert_eq!((registry.left_out("default"), registry.left_out("other")), (1, 0));
    let last = Arc::clone(&pool().members()[255].upstream);
    let held = last.acquire(1).unwrap();
    let changed = registry.resolved(("0.internal", 80), addresses(0), 3_000);
    assert_eq!(changed, Changed { added: 64, removed: 64, renamed: 0 });
    assert_eq!(registry.left_out("default"), 65, "256 of 321");
    assert_eq!(pool().members().len(), 256);
    assert!(registry.retired().iter().any(|left| left.upstream.number() == last.number()));
    drop(held);
    let drain = Change::Remove("default".into(), endpoint("10.0.0.1:80"));
    let changed = registry.change(&drain, 4_000).unwrap();
    assert_eq!(changed, Changed { added: 1, removed: 1, renamed: 0 }, "one more fits");
    assert_eq!(registry.left_out("default"), 64);
    let mut config = registry.config().clone();
    config.pools[0].members.truncate(4);
    registry.apply(config, 5_000).unwrap();
    assert_eq!((registry.left_out("default"), pool().members().len()), (0, 256), "all fit");
}
