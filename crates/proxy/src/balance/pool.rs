//! [`Pool`]: the upstreams of a route, and the choice among them.
//!
//! A pool is immutable: a change of the table brings a new pool with the same upstreams and counts.
//! Least connections uses Mitzenmacher's two choices ("The power of two choices in randomized load
//! balancing", 2001): the less loaded of two upstreams drawn by weight, so that workers that choose at
//! the same moment do not all choose the same one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::invariant;

use super::cookie::{Sticky, cookie};
use super::hash::{hash_bytes, score};
use super::queue::{PoolState, QueueTicket};
use super::round::round;
use super::settings::{Balance, HashBy, PoolLimits};
use super::upstream::{Permit, Upstream, UpstreamState, WARM};
use crate::config::Transport;

/// An upstream in a pool.
#[derive(Clone, Debug)]
pub struct Member {
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// Its weight, 1 to [`Pool::WEIGHT_MAX`].
    pub weight: u16,
    /// Maximum number of tunnels.
    pub max_tunnels: u32,
    /// It gets requests only while no other upstream of the pool can take them.
    pub backup: bool,
}

/// How many upstreams of a pool pass their health checks, without draining ones.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct PoolHealth {
    /// Those that pass, and their number; without backups.
    pub(crate) up: usize,
    pub(crate) total: usize,
    /// The same of backups.
    pub(crate) backups_up: usize,
    pub(crate) backups: usize,
}

/// The upstreams that a request may go to.
#[derive(Copy, Clone)]
struct Candidates<'s> {
    states: &'s [UpstreamState],
    backup: bool,
}

/// The properties of a request that the choice depends on.
#[derive(Copy, Clone, Debug, Default)]
pub struct PickContext<'r> {
    /// The worker's clock.
    pub now_ns: u64,
    /// 64 random bits.
    pub random: u64,
    /// From [`Pool::hash`].
    pub hash: u64,
    /// From [`Pool::sticky_value`].
    pub sticky: Option<u64>,
    /// Numbers of upstreams that have already failed this request.
    pub tried: &'r [u32],
}

/// Why no upstream was chosen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PickError {
    /// Every upstream that is up is at its maximum; one may become free.
    Busy,
    /// No upstream is up, or all were tried.
    Down,
}

/// The upstreams of a route.
#[derive(Debug)]
pub struct Pool {
    name: Box<str>,
    balance: Balance,
    sticky: Option<Sticky>,
    limits: PoolLimits,
    members: Vec<Member>,
    /// The hash of each member, for consistent hashing.
    hashes: Vec<u64>,
    /// The value of the sticky cookie for each member; empty without one.
    cookies: Vec<u64>,
    /// One round of turns, as member indices; empty except for round robin.
    round: Vec<u16>,
    transport: Transport,
    /// Changes with the transport.
    transport_key: u32,
    /// Its upstreams have health checks.
    checked: bool,
    has_backups: bool,
    state: Arc<PoolState>,
}

impl Pool {
    /// Maximum number of upstreams in a pool; each choice looks at all of them.
    pub const MEMBERS_MAX: usize = 256;
    /// The largest weight.
    pub const WEIGHT_MAX: u16 = 256;

    pub(crate) fn new(
        name: &str,
        balance: Balance,
        sticky: Option<Sticky>,
        limits: PoolLimits,
        mut members: Vec<Member>,
        state: Arc<PoolState>,
    ) -> Self {
        members.truncate(Self::MEMBERS_MAX);
        for member in &mut members {
            member.weight = member.weight.clamp(1, Self::WEIGHT_MAX);
        }
        let round = if balance == Balance::RoundRobin { round(&members) } else { Vec::new() };
        let has_backups = members.iter().any(|member| member.backup);
        let hashes = hashes(&members);
        let cookies = sticky
            .iter()
            .flat_map(|sticky| hashes.iter().map(move |upstream| sticky.value(name, *upstream)));
        let cookies = cookies.collect();
        let (name, transport, checked) = (name.into(), Transport::default(), false);
        Pool {
            name,
            balance,
            sticky,
            limits,
            members,
            hashes,
            cookies,
            round,
            transport,
            transport_key: 0,
            checked,
            has_backups,
            state,
        }
    }

    /// Returns the pool with this information whether its upstreams have health checks.
    pub(crate) fn with_checks(self, checked: bool) -> Self {
        Pool { checked, ..self }
    }

    /// Returns the pool with this transport; `transport_key` differs from that of any other transport.
    pub(crate) fn with_transport(self, transport: Transport, transport_key: u32) -> Self {
        Pool { transport, transport_key, ..self }
    }

    /// A pool with default settings, of upstreams with equal weights.
    #[must_use]
    pub fn of(name: &str, upstreams: Vec<Arc<Upstream>>) -> Self {
        let member =
            |upstream| Member { upstream, weight: 1, max_tunnels: u32::MAX, backup: false };
        let members = upstreams.into_iter().map(member).collect();
        Pool::new(name, Balance::default(), None, PoolLimits::default(), members, Arc::default())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its upstreams.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Its balancing method.
    #[must_use]
    pub fn balance(&self) -> &Balance {
        &self.balance
    }

    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> &PoolLimits {
        &self.limits
    }

    /// TLS and PROXY header to its upstreams.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Changes with the transport.
    pub(crate) fn transport_key(&self) -> u32 {
        self.transport_key
    }

    /// Identifies the address, name and transport of connections to one of its upstreams: they are
    /// reused only under this key. Read before the name of the upstream.
    pub(crate) fn connection_key(&self, upstream: &Upstream) -> u64 {
        u64::from(self.transport_key) << 32 | u64::from(upstream.connection_key())
    }

    /// Whether its upstreams have health checks.
    pub(crate) fn is_checked(&self) -> bool {
        self.checked
    }

    /// How many of its upstreams pass their health checks.
    pub(crate) fn health(&self, now_ns: u64) -> PoolHealth {
        let mut health = PoolHealth::default();
        for member in &self.members {
            let (up, total) = match member.backup {
                true => (&mut health.backups_up, &mut health.backups),
                false => (&mut health.up, &mut health.total),
            };
            match member.upstream.state(now_ns) {
                UpstreamState::Up | UpstreamState::Ejected => (*up, *total) = (*up + 1, *total + 1),
                UpstreamState::Down => *total += 1,
                UpstreamState::Draining => {}
            }
        }
        health
    }

    /// Whether too few of its upstreams are healthy. With a threshold of 0 or 1, however many upstreams there are,
    /// that is none.
    pub(crate) fn lacks_upstreams(&self, health: PoolHealth) -> bool {
        let percent = usize::from(self.limits.panic_threshold);
        match health.up {
            0 => health.backups_up == 0 && health.total + health.backups > 0,
            up => percent > 1 && up * 100 < percent * health.total,
        }
    }

    /// Whether enough upstreams remain if one that is up is ejected.
    pub(crate) fn can_spare_one(&self, now_ns: u64) -> bool {
        let states = self.members.iter().map(|member| member.upstream.state(now_ns));
        let (up, total) = states.fold((0, 0), |(up, total), state| match state {
            UpstreamState::Up => (up + 1, total + 1),
            UpstreamState::Ejected | UpstreamState::Down => (up, total + 1),
            UpstreamState::Draining => (up, total),
        });
        let left: usize = if up > 1 { up - 1 } else { return false };
        left * 100 >= usize::from(self.limits.panic_threshold.max(1)) * total
    }

    pub(crate) fn count_withheld(&self) {
        count(&self.state.ejections_withheld);
    }

    pub(crate) fn state(&self) -> &Arc<PoolState> {
        &self.state
    }

    /// The number of queued requests.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.state.waiting.load(Ordering::Relaxed)
    }

    /// The hash of a request, for [`PickContext::hash`]: `random` unless this pool hashes and the
    /// request has the key. `header` returns a header's value.
    pub fn hash<'b>(
        &self,
        client: Option<IpAddr>,
        path: &str,
        header: impl Fn(&str) -> Option<&'b [u8]>,
        random: u64,
    ) -> u64 {
        let Balance::Hash(by) = &self.balance else { return random };
        let hash = match by {
            HashBy::Address => client.map(|client| match client.to_canonical() {
                IpAddr::V4(address) => hash_bytes(&address.octets()),
                IpAddr::V6(address) => hash_bytes(&address.octets()),
            }),
            HashBy::Path => Some(hash_bytes(path.as_bytes())),
            HashBy::Header(name) => header(name).map(hash_bytes),
            HashBy::Cookie(name) => {
                header("cookie").and_then(|value| cookie(value, name)).map(hash_bytes)
            }
        };
        hash.unwrap_or(random)
    }

    /// The value of a client's sticky cookie, for [`PickContext::sticky`]. `cookies` is the value of its
    /// `Cookie` header.
    #[must_use]
    pub fn sticky_value(&self, cookies: Option<&[u8]>) -> Option<u64> {
        self.sticky.as_ref()?.requested(cookies?)
    }

    /// The value of the `Set-Cookie` header for the response, whatever its status; `None` if the
    /// client already has this cookie.
    #[must_use]
    pub fn set_cookie(&self, permit: &Permit, requested: Option<u64>) -> Option<String> {
        let sticky = self.sticky.as_ref()?;
        let is_its = |member: &Member| Arc::ptr_eq(&member.upstream, permit.upstream());
        let value = *self.cookies.get(self.members.iter().position(is_its)?)?;
        (requested != Some(value)).then(|| sticky.set(value))
    }

    /// Chooses an upstream and acquires a permit there.
    ///
    /// # Errors
    /// No upstream is available.
    pub fn pick(&self, key: &PickContext<'_>) -> Result<Permit, PickError> {
        // With the default only the absence of any healthy upstream matters, which is noticed below.
        if self.limits.panic_threshold > 1 && self.lacks_upstreams(self.health(key.now_ns)) {
            return self.pick_any(key);
        }
        match self.pick_in_order(key, &[UpstreamState::Up]) {
            // No upstream is up: an ejected one is better than none.
            Err(PickError::Down) => {
                match self.pick_in_order(key, &[UpstreamState::Ejected]) {
                    // A request whose upstreams were all tried is no reason to panic.
                    Err(PickError::Down)
                        if self.limits.panic_threshold > 0
                            && self.lacks_upstreams(self.health(key.now_ns)) =>
                    {
                        self.pick_any(key)
                    }
                    picked => picked.inspect_err(|why| self.count_error(*why)),
                }
            }
            Err(PickError::Busy) => {
                count(&self.state.busy);
                Err(PickError::Busy)
            }
            permit => permit,
        }
    }

    /// Chooses among all upstreams that an operator has not taken out, whatever their health checks say:
    /// if most fail, the checks are more likely at fault than the upstreams, and the rest would not
    /// survive the load alone.
    fn pick_any(&self, key: &PickContext<'_>) -> Result<Permit, PickError> {
        let states = [UpstreamState::Up, UpstreamState::Ejected, UpstreamState::Down];
        let picked = self.pick_in_order(key, &states);
        picked.inspect(|_| count(&self.state.panicked)).inspect_err(|why| self.count_error(*why))
    }

    /// Chooses among the upstreams in these states: a backup only if no other one can take the request.
    fn pick_in_order(
        &self,
        key: &PickContext<'_>,
        states: &[UpstreamState],
    ) -> Result<Permit, PickError> {
        let picked = self.pick_among(key, Candidates { states, backup: false });
        match picked {
            Err(why) if self.has_backups => {
                let backup = self.pick_among(key, Candidates { states, backup: true });
                let backup = backup.inspect(|_| count(&self.state.backup_picked));
                backup.map_err(|other| if why == PickError::Busy { why } else { other })
            }
            picked => picked,
        }
    }

    /// The upstream of the sticky cookie if it is among the candidates and has room, or any of them.
    fn pick_among(
        &self,
        key: &PickContext<'_>,
        among: Candidates<'_>,
    ) -> Result<Permit, PickError> {
        let sticky = key.sticky.and_then(|value| self.sticky_member(key, value, among));
        match sticky.and_then(|member| self.acquire(member, key)) {
            Some(permit) => Ok(permit),
            None => self.choose(key, among),
        }
    }

    fn count_error(&self, why: PickError) {
        count(match why {
            PickError::Busy => &self.state.busy,
            PickError::Down => &self.state.down,
        });
    }

    /// Acquires a permit at the upstream of connections with this key. `None` if it is not in this pool,
    /// was renamed, has another transport, was tried already, or takes no requests. One that is drained
    /// takes those of clients that are authenticating, unless its tunnels are closed, too.
    pub(crate) fn pick_member(
        &self,
        connection_key: u64,
        key: &PickContext<'_>,
        authenticating: bool,
    ) -> Option<Result<Permit, PickError>> {
        let is_its = |member: &&Member| self.connection_key(&member.upstream) == connection_key;
        let member = self.members.iter().find(is_its)?;
        let all = &[UpstreamState::Up, UpstreamState::Ejected, UpstreamState::Draining];
        let stays = authenticating && !member.upstream.is_closing();
        let states = if stays { &all[..] } else { &all[..2] };
        if !Self::is_candidate(member, key, Candidates { states, backup: member.backup }) {
            return None;
        }
        Some(self.acquire(member, key).ok_or_else(|| {
            count(&self.state.busy);
            PickError::Busy
        }))
    }

    /// Queues a request of this worker; `None` if the queue is full.
    #[must_use]
    pub fn enqueue(self: &Arc<Self>, worker: usize) -> Option<QueueTicket> {
        let ticket = self.state.push(worker, self.limits.queue as usize).or_else(|| {
            count(&self.state.overflowed);
            None
        })?;
        count(&self.state.queued);
        self.members.iter().for_each(|member| member.upstream.count_waiter(true));
        Some(QueueTicket { pool: Arc::clone(self), ticket })
    }

    /// Whether requests are queued, so that a new one must queue behind them.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        self.limits.queue > 0 && self.waiting() > 0
    }

    /// Whether both pools share a queue: they are the same pool, possibly of different tables.
    pub(crate) fn shares_queue_with(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Identifies its queue while anything refers to it.
    pub(crate) fn queue_id(&self) -> usize {
        Arc::as_ptr(&self.state).addr()
    }

    /// The worker of the request that has waited longest.
    #[must_use]
    pub fn queue_head_worker(&self) -> Option<usize> {
        let first = || self.state.queue().first_key_value().map(|(_, worker)| *worker);
        if self.waiting() > 0 { first() } else { None }
    }

    fn sticky_member(
        &self,
        key: &PickContext<'_>,
        value: u64,
        among: Candidates<'_>,
    ) -> Option<&Member> {
        let at = self.cookies.iter().position(|cookie| *cookie == value)?;
        let member = self.members.get(at)?;
        Self::is_candidate(member, key, among).then_some(member)
    }

    fn choose(&self, key: &PickContext<'_>, among: Candidates<'_>) -> Result<Permit, PickError> {
        let mut busy = false;
        let alive = self.members.iter().any(|member| {
            let candidate = Self::is_candidate(member, key, among);
            let room = candidate && self.has_room(member, key);
            busy |= candidate && !room;
            room
        });
        // Another worker may take the last permit between the check and the acquisition.
        for _ in 0..ACQUIRE_TRIES {
            let member = if alive { self.best(key, among) } else { None };
            let Some(member) = member else { break };
            if let Some(permit) = self.acquire(member, key) {
                return Ok(permit);
            }
        }
        // An upstream that had room a moment ago is up.
        Err(if busy || alive { PickError::Busy } else { PickError::Down })
    }

    fn best(&self, key: &PickContext<'_>, among: Candidates<'_>) -> Option<&Member> {
        let open =
            |member: &&Member| Self::is_candidate(member, key, among) && self.has_room(member, key);
        match &self.balance {
            Balance::LeastConnections => {
                let first = self.draw(key, key.random >> 32, open)?;
                let other = |member: &&Member| {
                    open(member) && !Arc::ptr_eq(&member.upstream, &first.upstream)
                };
                let second = self.draw(key, key.random & 0xffff_ffff, other);
                Some(second.map_or(first, |second| self.less_loaded(key, first, second)))
            }
            Balance::RoundRobin => self.in_turn(key, open),
            Balance::Random => self.draw(key, key.random >> 32, open),
            Balance::Hash(_) => {
                let hashed =
                    self.members.iter().zip(&self.hashes).filter(|(member, _)| open(member));
                let scored = hashed.map(|(member, upstream)| {
                    (score(key.hash, *upstream, member.weight.into()), member)
                });
                scored.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, member)| member)
            }
        }
    }

    /// One at random, by weight. `bits` holds 32 random bits.
    fn draw(
        &self,
        key: &PickContext<'_>,
        bits: u64,
        open: impl Fn(&&Member) -> bool,
    ) -> Option<&Member> {
        let total: u64 = self.members.iter().filter(&open).map(|m| self.share(m, key)).sum();
        let mut at = (bits * total) >> 32;
        self.members.iter().filter(&open).find(|member| {
            let share = self.share(member, key);
            let here = at < share;
            at = at.saturating_sub(share);
            here
        })
    }

    fn less_loaded<'m>(&self, key: &PickContext<'_>, a: &'m Member, b: &'m Member) -> &'m Member {
        let load = |m: &Member| u64::from(m.upstream.tunnels()) + 1;
        // a/share(a) against b/share(b), without dividing.
        let (of_a, of_b) = (load(a) * self.share(b, key), load(b) * self.share(a, key));
        if of_b < of_a { b } else { a }
    }

    /// The next in round-robin order. An unavailable upstream costs the others no turn; one in slow
    /// start is skipped at times.
    fn in_turn(&self, key: &PickContext<'_>, open: impl Fn(&&Member) -> bool) -> Option<&Member> {
        let length = self.round.len() as u64;
        let mut bits = key.random;
        for _ in 0..2 * length {
            let turn = self.state.turn.fetch_add(1, Ordering::Relaxed) % length;
            let index = self.round.get(turn as usize).copied().map(usize::from);
            let Some(member) = index.and_then(|index| self.members.get(index)) else {
                invariant::broken("every turn of a round is a member's");
                continue;
            };
            if !open(&member) {
                continue;
            }
            bits = bits.rotate_left(10);
            if bits % WARM < member.upstream.warmth(self.slow_start_ns(), key.now_ns) {
                return Some(member);
            }
        }
        self.members.iter().find(open)
    }

    fn is_candidate(member: &Member, key: &PickContext<'_>, among: Candidates<'_>) -> bool {
        member.backup == among.backup
            && !key.tried.contains(&member.upstream.number())
            && among.states.contains(&member.upstream.state(key.now_ns))
    }

    fn has_room(&self, member: &Member, key: &PickContext<'_>) -> bool {
        member.upstream.tunnels() < self.max_tunnels(member, key)
    }

    fn acquire(&self, member: &Member, key: &PickContext<'_>) -> Option<Permit> {
        member.upstream.acquire(self.max_tunnels(member, key))
    }

    /// Its weight, reduced during slow start.
    fn share(&self, member: &Member, key: &PickContext<'_>) -> u64 {
        u64::from(member.weight) * member.upstream.warmth(self.slow_start_ns(), key.now_ns)
    }

    /// Its maximum number of tunnels, reduced during slow start.
    fn max_tunnels(&self, member: &Member, key: &PickContext<'_>) -> u32 {
        if member.max_tunnels == u32::MAX {
            return member.max_tunnels;
        }
        let warmth = member.upstream.warmth(self.slow_start_ns(), key.now_ns);
        let most = (u64::from(member.max_tunnels) * warmth).div_ceil(WARM);
        u32::try_from(most).unwrap_or(member.max_tunnels)
    }

    fn slow_start_ns(&self) -> u64 {
        u64::try_from(self.limits.slow_start.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Attempts to acquire one of the last permits before the pool counts as busy.
const ACQUIRE_TRIES: usize = 4;

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The hash of each member: of its address, so that a renamed upstream keeps its keys and cookies, and
/// of its name too if it shares the address with other names.
fn hashes(members: &[Member]) -> Vec<u64> {
    let mut names = BTreeMap::new();
    for member in members {
        *names.entry(member.upstream.address()).or_insert(0) += 1;
    }
    let shared =
        |upstream: &Upstream| names.get(upstream.address()).is_some_and(|names| *names > 1);
    let hash = |member: &Member| match &*member.upstream {
        upstream if shared(upstream) => upstream.named_hash(),
        upstream => upstream.hash(),
    };
    members.iter().map(hash).collect()
}
