//! Distributions and limits of balancing, from seeds: shares by weight, and which keys move when an
//! upstream is removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;

fn upstream(number: u32) -> Arc<Upstream> {
    let address = UpstreamAddress::Tcp(([10, 0, (number / 256) as u8, number as u8], 80).into());
    Arc::new(Upstream::new(number, &address.to_string(), address, 0))
}

fn member(number: u32, weight: u16) -> Member {
    Member { upstream: upstream(number), weight, max_tunnels: u32::MAX, backup: false }
}

fn pool(balance: Balance, members: Vec<Member>) -> Pool {
    Pool::new("p", balance, None, PoolLimits::default(), members, Arc::default())
}

/// Picks `times` times and keeps the permits.
fn picks(pool: &Pool, times: usize, seed: u64) -> Vec<Permit> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut key = || PickContext {
        now_ns: 1,
        random: random.u64(..),
        hash: random.u64(..),
        ..PickContext::default()
    };
    (0..times).map(|_| pool.pick(&key()).unwrap()).collect()
}

fn tunnels(pool: &Pool) -> Vec<u32> {
    pool.members().iter().map(|member| member.upstream.tunnels()).collect()
}

#[test]
fn two_choices_keep_open_tunnels_level() {
    let pool = pool(Balance::LeastConnections, (0..10).map(|number| member(number, 1)).collect());
    let _held = picks(&pool, 10_000, 7);
    for tunnels in tunnels(&pool) {
        // At random alone the spread would be about ±95.
        assert!((990..=1_010).contains(&tunnels), "{tunnels}");
    }
}

#[test]
fn least_connections_refill_a_restarted_upstream() {
    let members: Vec<Member> = (0..4).map(|number| member(number, 1)).collect();
    let pool = pool(Balance::LeastConnections, members.clone());
    let mut held = picks(&pool, 4_000, 3);
    // One restarts: its tunnels end and its clients reconnect.
    held.retain(|permit| permit.upstream().number() != 2);
    assert_eq!(members[2].upstream.tunnels(), 0);
    held.extend(picks(&pool, 400, 4));
    // It is drawn in every other choice of two among four, and wins each.
    let few = members[2].upstream.tunnels();
    assert!((160..=240).contains(&few), "{few}");
    held.extend(picks(&pool, 3_600, 5));
    for tunnels in tunnels(&pool) {
        assert!((1_740..=1_760).contains(&tunnels), "{tunnels}");
    }
}

#[test]
fn weights_are_shares_for_every_method() {
    let weights = [1u16, 2, 5, 12];
    let balances = [
        Balance::LeastConnections,
        Balance::RoundRobin,
        Balance::Random,
        Balance::Hash(HashBy::Path),
    ];
    for balance in balances {
        let members = weights.iter().enumerate().map(|(n, weight)| member(n as u32, *weight));
        let pool = pool(balance.clone(), members.collect());
        let _held = picks(&pool, 20_000, 11);
        for (tunnels, weight) in tunnels(&pool).into_iter().zip(weights) {
            let expected = 20_000.0 * f64::from(weight) / 20.0;
            // Five standard deviations of a binomial; the other methods stay far below.
            let bound = 5.0 * (expected * (1.0 - expected / 20_000.0)).sqrt();
            let off = (f64::from(tunnels) - expected).abs();
            assert!(
                off <= bound,
                "{balance:?}, weight {weight}: {tunnels}, not {expected} ± {bound}"
            );
        }
    }
}

#[test]
fn round_robin_is_smooth_and_shares_the_turns_of_a_down_upstream() {
    let members = vec![member(0, 3), member(1, 1), member(2, 2)];
    let pool = pool(Balance::RoundRobin, members);
    let order: Vec<u32> = picks(&pool, 6, 1).iter().map(|p| p.upstream().number()).collect();
    assert_eq!(order, [0, 2, 0, 1, 2, 0]);
    let even = super::tests::pool(Balance::RoundRobin, (0..3).map(|n| member(n, 1)).collect());
    even.members()[1].upstream.set_down(true, 0);
    drop(picks(&even, 1_000, 1));
    let taken: Vec<u64> = even.members().iter().map(|m| m.upstream.picks()).collect();
    assert_eq!(taken, [500, 0, 500]);
}

#[test]
fn removing_an_upstream_moves_only_its_own_keys() {
    let members: Vec<Member> = (0..8).map(|number| member(number, 1 + number as u16 % 3)).collect();
    let whole = pool(Balance::Hash(HashBy::Address), members.clone());
    let fewer = pool(
        Balance::Hash(HashBy::Address),
        members.iter().filter(|member| member.upstream.number() != 5).cloned().collect(),
    );
    let at = |pool: &Pool, hash| {
        let key = PickContext { now_ns: 1, hash, random: hash, ..PickContext::default() };
        pool.pick(&key).unwrap().upstream().number()
    };
    let mut random = fastrand::Rng::with_seed(5);
    let mut moved = 0;
    for _ in 0..20_000 {
        let hash = random.u64(..);
        let (before, after) = (at(&whole, hash), at(&fewer, hash));
        assert!(before == after || before == 5, "{hash}: from {before} to {after}");
        moved += u32::from(before == 5);
    }
    // Its weight is 3 of 15.
    assert!((3_700..=4_300).contains(&moved), "{moved}");
}

#[test]
fn the_order_of_a_file_does_not_matter_to_a_hash() {
    let members: Vec<Member> = (0..5).map(|number| member(number, 1)).collect();
    let forwards = pool(Balance::Hash(HashBy::Path), members.clone());
    let backwards = pool(Balance::Hash(HashBy::Path), members.into_iter().rev().collect());
    for hash in 0..500u64 {
        let key = PickContext {
            hash: hash.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            now_ns: 1,
            ..PickContext::default()
        };
        let number = |pool: &Pool| pool.pick(&key).unwrap().upstream().number();
        assert_eq!(number(&forwards), number(&backwards));
    }
}

#[test]
fn requests_hash_by_the_configured_key() {
    let header = |name: &str| match name {
        "x-user" => Some(&b"ann"[..]),
        "cookie" => Some(&b"a=1; session=s"[..]),
        _ => None,
    };
    let hash = |by, client: [u8; 4], path| {
        pool(Balance::Hash(by), vec![member(0, 1)]).hash(Some(client.into()), path, header, 9)
    };
    let one = [10, 0, 0, 1];
    let other = [10, 0, 0, 2];
    assert_eq!(hash(HashBy::Address, one, "/a"), hash(HashBy::Address, one, "/b"));
    assert_ne!(hash(HashBy::Address, one, "/a"), hash(HashBy::Address, other, "/a"));
    assert_ne!(hash(HashBy::Path, one, "/a"), hash(HashBy::Path, one, "/b"));
    assert_eq!(hash(HashBy::Header("x-user".into()), one, "/"), super::hash::hash_bytes(b"ann"));
    assert_eq!(hash(HashBy::Cookie("session".into()), one, "/"), super::hash::hash_bytes(b"s"));
    assert_eq!(hash(HashBy::Header("x-none".into()), one, "/"), 9, "random without the key");
    assert_eq!(pool(Balance::Random, vec![]).hash(None, "/", header, 9), 9);
}

#[test]
fn a_sticky_client_returns_while_its_upstream_is_up() {
    let sticky =
        Sticky { cookie: "lb".into(), max_age: None, secure: false, key: CookieKey::default() };
    let members: Vec<Member> = (0..5).map(|number| member(number, 1)).collect();
    let (balance, limits) = (Balance::default(), PoolLimits::default());
    let pool = Pool::new("p", balance, Some(sticky), limits, members.clone(), Arc::default());
    let first =
        pool.pick(&PickContext { now_ns: 1, random: 1 << 60, ..PickContext::default() }).unwrap();
    let set = pool.set_cookie(&first, None).unwrap();
    let requested = pool.sticky_value(set.split(';').next().map(str::as_bytes));
    assert!(requested.is_some());
    assert_eq!(pool.set_cookie(&first, requested), None, "the client has this cookie");
    let again = |random| {
        let key = PickContext { now_ns: 1, random, sticky: requested, ..PickContext::default() };
        pool.pick(&key).unwrap().upstream().number()
    };
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..100 {
        assert_eq!(again(random.u64(..)), first.upstream().number());
    }
    first.upstream().set_draining(true, 1);
    for _ in 0..100 {
        assert_ne!(again(random.u64(..)), first.upstream().number());
    }
}

#[test]
fn a_client_cannot_compute_the_cookie_of_an_upstream() {
    let sticky =
        Sticky { cookie: "lb".into(), max_age: None, secure: false, key: CookieKey::default() };
    let members: Vec<Member> = (0..5).map(|number| member(number, 1)).collect();
    let (balance, limits) = (Balance::Random, PoolLimits::default());
    let pool = Pool::new("p", balance, Some(sticky), limits, members.clone(), Arc::default());
    let wanted = &members[3].upstream;
    // Addresses of upstreams are few enough to try all, and the hash of an address is public.
    let forged =
        format!("lb={:016x}", super::hash::hash_bytes(wanted.address().to_string().as_bytes()));
    let sticky = pool.sticky_value(Some(forged.as_bytes()));
    let mut random = fastrand::Rng::with_seed(2);
    let picked = (0..100).filter(|_| {
        let random = random.u64(..);
        let key = PickContext { now_ns: 1, random, sticky, ..PickContext::default() };
        pool.pick(&key).unwrap().upstream().number() == wanted.number()
    });
    let picked = picked.count();
    assert!(picked < 60, "the forged cookie was honoured {picked} times out of 100");
}

#[test]
fn slow_start_limits_the_share_at_first() {
    let limits = PoolLimits {
        slow_start: std::time::Duration::from_nanos(1_000_000),
        ..PoolLimits::default()
    };
    for balance in [Balance::Random, Balance::RoundRobin] {
        let members = vec![member(0, 1), member(1, 1)];
        let pool = Pool::new("p", balance.clone(), None, limits, members, Arc::default());
        pool.members()[1].upstream.set_down(true, 1);
        pool.members()[1].upstream.set_down(false, 1_000_000);
        let share_at = |now_ns: u64| {
            let before = pool.members()[1].upstream.picks();
            let mut random = fastrand::Rng::with_seed(now_ns);
            for _ in 0..4_000 {
                drop(
                    pool.pick(&PickContext {
                        now_ns,
                        random: random.u64(..),
                        ..PickContext::default()
                    })
                    .unwrap(),
                );
            }
            (pool.members()[1].upstream.picks() - before) as f64 / 4_000.0
        };
        let (cold, half, warm) = (share_at(1_000_000), share_at(1_500_000), share_at(2_000_000));
        assert!(cold > 0.0 && cold < 0.06, "{balance:?}: {cold}");
        assert!((0.28..0.39).contains(&half), "{balance:?}: {half}");
        assert!((0.46..0.54).contains(&warm), "{balance:?}: {warm}");
    }
}

#[test]
fn no_upstream_exceeds_its_max_and_the_next_request_may_queue() {
    let mut members: Vec<Member> = (0..3).map(|number| member(number, 1)).collect();
    for member in &mut members {
        member.max_tunnels = 2;
    }
    let limits = PoolLimits { queue: 2, panic_threshold: 0, ..PoolLimits::default() };
    let pool = Pool::new("p", Balance::default(), None, limits, members, Arc::default());
    let pool = Arc::new(pool);
    let mut held = picks(&pool, 6, 1);
    assert_eq!(tunnels(&pool), [2, 2, 2]);
    let key = PickContext { now_ns: 1, random: 5, ..PickContext::default() };
    assert_eq!(pool.pick(&key).unwrap_err(), PickError::Busy);
    let waiting = [pool.enqueue(0).unwrap(), pool.enqueue(1).unwrap()];
    assert!(pool.enqueue(0).is_none(), "the queue is full");
    assert_eq!(pool.waiting(), 2);
    assert!(waiting[0].is_first() && !waiting[1].is_first());
    assert_eq!((pool.has_queue(), pool.queue_head_worker()), (true, Some(0)));
    assert!(pool.members()[2].upstream.has_waiters());
    drop(waiting);
    assert_eq!(pool.waiting(), 0);
    assert!(!pool.members()[2].upstream.has_waiters());
    held.pop();
    assert!(pool.pick(&key).is_ok());
    pool.members()[0].upstream.set_down(true, 0);
    pool.members()[1].upstream.set_draining(true, 0);
    pool.members()[2].upstream.set_down(true, 0);
    assert_eq!(pool.pick(&key).unwrap_err(), PickError::Down);
}

#[test]
fn with_too_few_healthy_upstreams_requests_go_to_all_that_are_not_drained() {
    let pick_all = |threshold: u8, down: &[usize]| {
        let members = (0..4).map(|number| member(number, 1)).collect();
        let limits = PoolLimits { panic_threshold: threshold, ..PoolLimits::default() };
        let pool = Pool::new("p", Balance::default(), None, limits, members, Arc::default());
        pool.members()[3].upstream.set_draining(true, 0);
        for at in down {
            pool.members()[*at].upstream.set_down(true, 0);
        }
        let key = |n: u64| PickContext {
            now_ns: 1,
            random: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..PickContext::default()
        };
        let picked = (1..200).filter_map(|n| Some(pool.pick(&key(n)).ok()?.upstream().number()));
        let picked: std::collections::BTreeSet<u32> = picked.collect();
        // A request whose only healthy upstream has failed goes to no other.
        let tried = PickContext { tried: &[2], ..key(1) };
        (picked.into_iter().collect::<Vec<_>>(), pool.pick(&tried).is_ok())
    };
    assert_eq!(pick_all(1, &[0, 1]), (vec![2], false));
    assert_eq!(pick_all(1, &[0, 1, 2]), (vec![0, 1, 2], true));
    assert_eq!(pick_all(0, &[0, 1, 2]), (vec![], false));
    assert_eq!(pick_all(34, &[0, 1]), (vec![0, 1, 2], true));
    assert_eq!(pick_all(33, &[0, 1]), (vec![2], false));
}

#[test]
fn a_retry_avoids_failed_upstreams_and_ejected_ones_are_the_last_resort() {
    let pool = pool(Balance::default(), (0..3).map(|number| member(number, 1)).collect());
    let key = |tried| PickContext { now_ns: 1, random: 5, tried, ..PickContext::default() };
    assert_eq!(pool.pick(&key(&[0, 2])).unwrap().upstream().number(), 1);
    assert_eq!(pool.pick(&key(&[0, 1, 2])).unwrap_err(), PickError::Down);
    for number in [0, 1] {
        let upstream = &pool.members()[number].upstream;
        upstream.set_ejection(Ejection { after: 1, for_ns: 100 });
        upstream.failed(0, Fault::Refused);
    }
    for _ in 0..10 {
        assert_eq!(pool.pick(&key(&[])).unwrap().upstream().number(), 2);
    }
    assert_ne!(pool.pick(&key(&[2])).unwrap().upstream().number(), 2);
}

#[test]
fn concurrent_workers_exceed_no_limit() {
    let mut members: Vec<Member> = (0..3).map(|number| member(number, 1)).collect();
    for member in &mut members {
        member.max_tunnels = 100;
    }
    let pool = pool(Balance::default(), members);
    let mut all: BTreeMap<u32, usize> = BTreeMap::new();
    std::thread::scope(|scope| {
        let pool = &pool;
        let worker = |seed| {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut held = Vec::new();
                for _ in 0..200 {
                    let key =
                        PickContext { now_ns: 1, random: random.u64(..), ..PickContext::default() };
                    match pool.pick(&key) {
                        Ok(permit) => held.push(permit),
                        Err(why) => assert_eq!(why, PickError::Busy, "they are full, not down"),
                    }
                }
                held
            })
        };
        let workers: Vec<_> = (0..4).map(worker).collect();
        let held: Vec<Permit> =
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
        for permit in &held {
            *all.entry(permit.upstream().number()).or_default() += 1;
        }
    });
    assert_eq!(all.into_values().collect::<Vec<_>>(), [100, 100, 100]);
    assert_eq!(tunnels(&pool), [0, 0, 0]);
}

#[test]
fn names_of_one_address_share_the_keys_and_have_their_own_cookies() {
    let of = |number, name: &str| {
        let address = UpstreamAddress::Tcp(([10, 0, 0, 1], 80).into());
        let upstream = Arc::new(Upstream::new(number, name, address, 0));
        Member { upstream, weight: 1, max_tunnels: u32::MAX, backup: false }
    };
    let sticky = |members| {
        let key = CookieKey::new(b"secret");
        let sticky = Sticky { cookie: "lb".into(), max_age: None, secure: false, key };
        let (limits, hash) = (PoolLimits::default(), Balance::Hash(HashBy::Path));
        Pool::new("p", hash, Some(sticky), limits, members, Arc::default())
    };
    let both = sticky(vec![of(1, "a.test:80"), of(2, "b.test:80")]);
    let held = picks(&both, 2_000, 9);
    for tunnels in tunnels(&both) {
        assert!((850..=1_150).contains(&tunnels), "{tunnels}");
    }
    let cookie = |pool: &Pool, permit: &Permit| pool.set_cookie(permit, None).unwrap();
    let cookies: std::collections::BTreeSet<_> = held.iter().map(|p| cookie(&both, p)).collect();
    assert_eq!(cookies.len(), 2);
    // A single name can change: keys and cookies stay.
    let (before, after) = (sticky(vec![of(1, "a.test:80")]), sticky(vec![of(1, "c.test:80")]));
    let [first, second] = [&before, &after].map(|pool| cookie(pool, &picks(pool, 1, 1)[0]));
    assert_eq!(first, second);
}

#[test]
fn one_healthy_upstream_of_hundreds_is_enough_without_a_threshold() {
    let lacks = |panic_threshold: u8, up: usize| {
        let members = (0..300).map(|number| member(number, 1)).collect();
        let limits = PoolLimits { panic_threshold, ..PoolLimits::default() };
        let pool = Pool::new("p", Balance::default(), None, limits, members, Arc::default());
        for member in pool.members().iter().skip(up) {
            member.upstream.set_down(true, 0);
        }
        let tried = PickContext { now_ns: 1, tried: &[0], ..PickContext::default() };
        (pool.lacks_upstreams(pool.health(1)), pool.pick(&tried).is_ok())
    };
    assert_eq!([0, 1].map(|threshold| lacks(threshold, 1)), [(false, false); 2]);
    assert_eq!([lacks(0, 0), lacks(1, 0)], [(true, false), (true, true)]);
    assert_eq!([lacks(2, 5), lacks(2, 6)], [(true, true), (false, true)]);
}

#[test]
fn backups_are_chosen_only_if_no_other_upstream_can_be() {
    let backup = |number| Member { backup: true, ..member(number, 1) };
    for (balance, panic_threshold) in
        [(Balance::LeastConnections, 1), (Balance::RoundRobin, 50), (Balance::Random, 1)]
    {
        let limits = PoolLimits { panic_threshold, ..PoolLimits::default() };
        let members = vec![member(1, 1), member(2, 1), backup(3), backup(4)];
        let [one, two, three, four] = [0, 1, 2, 3].map(|at: usize| &*members[at].upstream);
        let pool = Pool::new("p", balance, None, limits, members.clone(), Arc::default());
        let chosen = |tried: &[u32]| {
            let numbers = (0..40u64).filter_map(|n| {
                let random = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let key = PickContext { now_ns: 1, random, tried, ..PickContext::default() };
                Some(pool.pick(&key).ok()?.upstream().number())
            });
            numbers.collect::<std::collections::BTreeSet<u32>>()
        };
        assert_eq!(chosen(&[]), [1, 2].into());
        assert_eq!(chosen(&[1, 2]), [3, 4].into(), "both have failed the request");
        one.set_draining(true, 1);
        two.set_down(true, 1);
        assert_eq!(chosen(&[]), [3, 4].into());
        three.set_down(true, 1);
        assert_eq!(
            chosen(&[]),
            [4].into(),
            "a backup that passes its checks is no reason to panic"
        );
        four.set_down(true, 1);
        assert_eq!(chosen(&[]), [2].into(), "none passes: the others come first");
        assert_eq!(chosen(&[2]), [3, 4].into());
        two.set_down(false, 1);
        assert_eq!(chosen(&[]), [2].into());
    }
}
