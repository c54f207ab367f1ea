//! Routes and pools of a configuration file, with the executable's own code: nothing panics, each error
//! says where, and an accepted configuration can be applied, matched and balanced over.
#![no_main]
#![allow(
    dead_code,
    unreachable_pub,
    clippy::disallowed_methods,
    reason = "the executable's modules"
)]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use proxy::{PickContext, Registry, RoutesConfig, Table};

#[path = "../../src/bodies.rs"]
mod bodies;
#[path = "../../src/routes.rs"]
mod routes;
#[path = "../../src/settings.rs"]
mod settings;
#[path = "../../src/units.rs"]
mod units;

const SHOWN: &str = "a file";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match routes::parse(text, SHOWN) {
        Ok(Some((said, speech))) => {
            assert_eq!(speech.len(), said.pools.len(), "each pool says how it speaks");
            check(said);
        }
        Ok(None) => {}
        Err(error) => assert!(format!("{error:#}").starts_with(SHOWN), "{error:#}"),
    }
});

fn check(said: RoutesConfig) {
    said.check().expect("what was read is right");
    let table = Arc::new(Table::default());
    let mut registry = Registry::new(Arc::clone(&table));
    registry.apply(said.clone(), 1).expect("what is right can be put in force");
    let routes = table.routes();
    assert_eq!(routes.all().count(), said.routes.len(), "no route is lost");
    for route in &said.routes {
        let host = match route.host.to_string() {
            any if any == "*" => "somewhere.test".to_owned(),
            below if below.starts_with('*') => below.replacen('*', "a", 1),
            exact => exact,
        };
        let found = routes.find(&host, &route.path);
        let found = found.expect("each route leads somewhere from where it says");
        // Another host may be more specific, but no route with a shorter path.
        assert!(route.path.starts_with(&*found.path), "{host} {}", route.path);
        let pool = &found.pool;
        let key = PickContext { now_ns: 2, random: data_of(&host), ..PickContext::default() };
        if let Ok(permit) = pool.pick(&key) {
            let mine = |upstream: &Arc<_>| Arc::ptr_eq(upstream, permit.upstream());
            assert!(pool.members().iter().any(|member| mine(&member.upstream)));
            assert_eq!(permit.upstream().tunnels(), 1);
        }
        assert!(pool.members().iter().all(|member| member.upstream.tunnels() == 0));
    }
    // Applying it again changes no upstream.
    let changed = registry.apply(said, 3).expect("and once more");
    assert_eq!((changed.added, changed.removed), (0, 0));
}

/// Bits from a text, instead of random ones.
fn data_of(text: &str) -> u64 {
    text.bytes().fold(7, |bits, byte| bits.rotate_left(9) ^ u64::from(byte))
}
