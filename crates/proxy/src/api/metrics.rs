//! The metrics of pools and upstreams.

use std::sync::atomic::Ordering;

use admin::{Exposition, Kind};
use engine::sys::process::now_ns;

use super::{Api, is_unchecked};
use crate::balance::{Pool, Upstream, UpstreamState};

impl Api {
    /// The metrics of pools and upstreams.
    pub(crate) fn metrics(&self, exposition: &mut Exposition) {
        let now_ns = now_ns();
        let (routes, left, unresolved, left_out) = {
            let mut registry = self.registry();
            let routes = self.table.routes();
            let unresolved = routes.pools().iter().flat_map(|pool| {
                let names = registry.unresolved(pool.name());
                let names = names.map(|member| member.endpoint.to_string());
                names.map(|name| (pool.name().to_owned(), name)).collect::<Vec<_>>()
            });
            let unresolved: Vec<(String, String)> = unresolved.collect();
            let left_out = routes.pools().iter().map(|pool| {
                (vec![("pool", pool.name().to_owned())], registry.left_out(pool.name()) as f64)
            });
            let left_out: Vec<_> = left_out.collect();
            (routes, registry.retired().to_vec(), unresolved, left_out)
        };
        let help =
            "Addresses of each pool that get no requests, as it has the most upstreams possible.";
        exposition.tagged("pool_addresses_left_out", Kind::Gauge, help, left_out);
        let current = routes.pools().iter().flat_map(|pool| {
            let members = pool.members().iter().map(|member| &*member.upstream);
            members.map(move |upstream| (pool.name(), upstream, Some(&**pool)))
        });
        let left = left.iter().map(|left| (&*left.pool, &*left.upstream, None));
        let members: Vec<(&str, &Upstream, Option<&Pool>)> = current.chain(left).collect();
        let labels = |pool: &str, upstream: &Upstream| {
            let (name, address) = (upstream.name().to_string(), upstream.address().to_string());
            vec![("pool", pool.to_owned()), ("upstream", name), ("address", address)]
        };
        let mut each = |name, kind, help, value: &dyn Fn(&Upstream) -> f64| {
            let samples =
                members.iter().map(|(pool, upstream, _)| (labels(pool, upstream), value(upstream)));
            exposition.tagged(name, kind, help, samples);
        };
        each("upstream_tunnels", Kind::Gauge, "Open tunnels of each upstream.", &|upstream| {
            upstream.tunnels().into()
        });
        let counter = Kind::Counter;
        each("upstream_picked", counter, "Times the upstream was chosen.", &|up| up.picks() as f64);
        each("upstream_failed", counter, "Failed connects, handshakes and responses.", &|up| {
            up.failed_times() as f64
        });
        each("upstream_ejections", counter, "Times the upstream was ejected.", &|up| {
            up.ejections() as f64
        });
        let help = "Times the upstream was ejected because of its 5xx answers.";
        each("upstream_ejections_5xx", counter, help, &|up| up.errors().ejections() as f64);
        each("upstream_flips", counter, "Times health checks changed the state.", &|up| {
            up.flips() as f64
        });
        each("upstream_checks", counter, "Finished health checks.", &|up| up.checks() as f64);
        // Removed upstreams take nothing. A name without an address is shown, or a pool whose names are
        // all unresolved would be missing.
        let nowhere = unresolved.into_iter().map(|(pool, name)| {
            (vec![("pool", pool), ("upstream", name), ("address", String::new())], 0.0)
        });
        let takes = members.iter().map(|(pool, upstream, of)| {
            let takes = of.is_some() && upstream.state(now_ns) == UpstreamState::Up;
            (labels(pool, upstream), f64::from(u8::from(takes)))
        });
        let help = "Whether the upstream takes new requests; it may be unchecked.";
        exposition.tagged("upstream_up", Kind::Gauge, help, takes.chain(nowhere));
        let unchecked = members.iter().map(|(pool, upstream, of)| {
            let unchecked = of.is_some_and(|pool| is_unchecked(pool, upstream, now_ns));
            (labels(pool, upstream), f64::from(u8::from(unchecked)))
        });
        let help =
            "Whether the upstream is only assumed to be up, as no health check has finished.";
        exposition.tagged("upstream_unchecked", Kind::Gauge, help, unchecked);
        let ports = members.iter().flat_map(|(pool, upstream, _)| {
            let labels = labels(pool, upstream);
            upstream.ports().into_iter().map(move |(source, count)| {
                let source =
                    source.map_or_else(|| "system".to_owned(), |source| source.to_string());
                let labels = labels.iter().cloned().chain([("source", source)]).collect();
                (labels, f64::from(count))
            })
        });
        let help = "Connections to each upstream by local address; each uses a port.";
        exposition.tagged("source_ports", Kind::Gauge, help, ports);
        let mut of_pool = |name, kind, help, value: &dyn Fn(&Pool) -> u64| {
            let samples =
                routes.pools().iter().map(|pool| (pool.name().to_owned(), value(pool) as f64));
            exposition.labelled(name, kind, help, "pool", samples);
        };
        let waiting = "Requests waiting for an upstream below its max.";
        of_pool("pool_waiting", Kind::Gauge, waiting, &|pool| pool.waiting().into());
        of_pool("pool_queued", counter, "Requests that were queued.", &|pool| {
            pool.state().queued.load(Ordering::Relaxed)
        });
        of_pool("pool_overflowed", counter, "Requests that found the queue full.", &|pool| {
            pool.state().overflowed.load(Ordering::Relaxed)
        });
        of_pool("pool_busy", counter, "Choices that found every upstream at its max.", &|pool| {
            pool.state().busy.load(Ordering::Relaxed)
        });
        let help = "Choices that ignored health, because too few upstreams were up.";
        of_pool("pool_panicked", counter, help, &|pool| {
            pool.state().panicked.load(Ordering::Relaxed)
        });
        of_pool("pool_backup_picked", counter, "Choices of a backup upstream.", &|pool| {
            pool.state().backup_picked.load(Ordering::Relaxed)
        });
        let help = "Ejections because of 5xx answers that would have left too few upstreams.";
        of_pool("pool_ejections_withheld", counter, help, &|pool| {
            pool.state().ejections_withheld.load(Ordering::Relaxed)
        });
        of_pool("pool_down", counter, "Choices that found no upstream up.", &|pool| {
            pool.state().down.load(Ordering::Relaxed)
        });
    }
}
