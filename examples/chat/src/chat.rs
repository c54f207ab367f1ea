//! [`Chat`]: what the workers of a node share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use standfast::{CloseCode, Remote, Socket, SocketId};

use crate::announce::{Announcements, Event, push_text};
use crate::codes::Code;
use crate::message_ids::MessageIds;
use crate::nodes::{Gathered, Nodes, Question};
use crate::protocol;
use crate::settings::Settings;
use crate::users::{AppIndex, UserId, UserRef, Users};

/// The close code of a socket whose user has logged in on another one.
pub(crate) const ELSEWHERE: CloseCode = CloseCode(4009);
pub(crate) const ELSEWHERE_REASON: &str = "logged in elsewhere";

/// What became of a message to a user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    Sent,
    Duplicate,
    /// Not sent, and why.
    Failed(&'static str),
}

/// What gowebsocket says of a user who is not connected.
pub(crate) const NOT_ONLINE: &str = "用户不在线";
/// Too much waits for the worker or for the topic.
pub(crate) const OVERLOADED: &str = "overloaded: try again later";

/// What the workers share.
pub(crate) struct Chat {
    pub(crate) settings: Settings,
    pub(crate) users: Users,
    pub(crate) message_ids: MessageIds,
    pub(crate) announcements: Announcements,
    pub(crate) counters: Counters,
    /// The other nodes; `None` on a node without a broker.
    pub(crate) nodes: Option<Nodes>,
    /// The topic of each application.
    topics: Vec<String>,
    clock: Clock,
    /// The server stops: nobody is told who leaves.
    stopping: AtomicBool,
    /// Numbers of announcements.
    sequence: AtomicU64,
}

/// What was counted, by all workers.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) logins: AtomicU64,
    pub(crate) heartbeats: AtomicU64,
    /// Logins that ended the user's session on another socket.
    pub(crate) replaced: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) sent_to_all: AtomicU64,
    pub(crate) not_online: AtomicU64,
    pub(crate) overloaded: AtomicU64,
    pub(crate) invalid: AtomicU64,
    /// User lists that were cut at `--list-users`.
    pub(crate) lists_cut: AtomicU64,
}

impl Counters {
    /// All counters with their names.
    pub(crate) fn all(&self) -> [(&'static str, u64); 9] {
        [
            ("logins", &self.logins),
            ("heartbeats", &self.heartbeats),
            ("replaced", &self.replaced),
            ("sent", &self.sent),
            ("sentToAll", &self.sent_to_all),
            ("notOnline", &self.not_online),
            ("overloaded", &self.overloaded),
            ("invalid", &self.invalid),
            ("listsCut", &self.lists_cut),
        ]
        .map(|(name, counter)| (name, counter.load(Ordering::Relaxed)))
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Milliseconds since the epoch that never go back.
struct Clock {
    start: Instant,
    start_ms: u64,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the library has no clock for its users")]
    fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { start: Instant::now(), start_ms: since.as_millis() as u64 }
    }

    fn now_ms(&self) -> u64 {
        self.start_ms + self.start.elapsed().as_millis() as u64
    }
}

impl Chat {
    pub(crate) fn new(settings: Settings, nodes: Option<Nodes>) -> Arc<Self> {
        let apps = settings.apps.len();
        Arc::new(Chat {
            users: Users::new(apps),
            message_ids: MessageIds::new(settings.message_ids),
            announcements: Announcements::new(
                apps,
                settings.announce_users,
                settings.announce_rate,
            ),
            counters: Counters::default(),
            nodes,
            topics: settings.apps.iter().map(|app| format!("app/{app}")).collect(),
            clock: Clock::new(),
            stopping: AtomicBool::new(false),
            sequence: AtomicU64::new(0),
            settings,
        })
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(crate) fn now_seconds(&self) -> u32 {
        (self.now_ms() / 1_000) as u32
    }

    /// The place of an application; `None` for one that this server does not have.
    pub(crate) fn app(&self, id: u32) -> Option<AppIndex> {
        let place = self.settings.apps.iter().position(|app| *app == id)?;
        AppIndex::try_from(place).ok()
    }

    /// The topic of an application.
    pub(crate) fn topic(&self, app: AppIndex) -> &str {
        self.topics.get(usize::from(app)).map_or("", String::as_str)
    }

    /// Who wants to log in.
    ///
    /// # Errors
    /// The code of the answer.
    pub(crate) fn check_login(
        &self,
        token: &str,
        app: u32,
        user: &str,
    ) -> Result<(AppIndex, UserId), Code> {
        let user = UserId::new(user).ok_or(Code::InvalidUserId)?;
        let app = self.app(app).ok_or(Code::Unauthorized)?;
        let expected = self.settings.service_token.as_deref();
        if expected.is_some_and(|expected| !same_secret(expected, token)) {
            return Err(Code::Unauthorized);
        }
        Ok((app, user))
    }

    /// Logs a user in on a socket. A session of the same user on another socket ends.
    pub(crate) fn login(&self, socket: &mut Socket<'_>, app: AppIndex, user: &UserId) -> UserRef {
        let now_ms = self.now_ms();
        let (entry, before) = self.users.login(app, user, socket.id(), now_ms);
        count(&self.counters.logins);
        if let (Some(nodes), Some(app)) = (&self.nodes, self.settings.apps.get(usize::from(app))) {
            nodes.logged_in(*app, user, now_ms);
        }
        match before {
            Some(before) => {
                count(&self.counters.replaced);
                let _ = socket.remote().close(before.socket, ELSEWHERE, ELSEWHERE_REASON);
            }
            None => self.announce(socket, app, Event::Enter, user),
        }
        socket.subscribe(self.topic(app));
        entry
    }

    /// A socket has closed.
    pub(crate) fn logout(&self, socket: &mut Socket<'_>, user: UserRef) {
        if let Some((app, user)) = self.users.leave(user, socket.id())
            && !self.stopping.load(Ordering::Relaxed)
        {
            self.announce(socket, app, Event::Exit, &user);
        }
    }

    pub(crate) fn stops(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Tells the other users of an application that one enters or leaves, now or later.
    fn announce(&self, socket: &mut Socket<'_>, app: AppIndex, event: Event, user: &UserId) {
        let (users, now_ms) = (self.users_in_app(app), self.now_ms());
        if self.announcements.add(app, event, user, users, now_ms) {
            let (mut text, seq) = (String::new(), self.next_sequence());
            protocol::push(&mut text, &seq, event.command(), event.text(), user.as_str(), "");
            let _ = socket.publish_to_others(self.topic(app), &text);
        }
    }

    /// Publishes the announcements that had to wait.
    pub(crate) fn announce_waiting(&self, remote: &Remote) {
        for app in 0..self.topics.len() as AppIndex {
            let waiting = self.announcements.take(app, self.users_in_app(app), self.now_ms());
            for (event, together) in waiting {
                let mut text = String::new();
                push_text(&self.next_sequence(), event, &together, &mut text);
                let _ = remote.publish(self.topic(app), &text);
            }
        }
    }

    /// Whether a user is connected here, with a heartbeat that is recent enough.
    pub(crate) fn is_online(&self, app: AppIndex, user: &UserId) -> bool {
        let oldest = self.now_seconds().saturating_sub(self.settings.online_seconds);
        self.users.find(app, user).is_some_and(|found| found.heartbeat >= oldest)
    }

    /// Users of an application on all nodes.
    fn users_in_app(&self, app: AppIndex) -> u64 {
        let others = self.nodes.as_ref().map_or(0, |nodes| nodes.users_in_app(app.into()));
        self.users.in_app(app) + others
    }

    /// Whether a user is online here; application 0: in any.
    pub(crate) fn is_online_in(&self, app: u32, user: &str) -> bool {
        UserId::new(user).is_some_and(|user| match app {
            0 => (0..self.settings.apps.len()).any(|app| self.is_online(app as AppIndex, &user)),
            app => self.app(app).is_some_and(|app| self.is_online(app, &user)),
        })
    }

    /// A user of this node.
    pub(crate) fn find(&self, app: u32, user: &str) -> Option<(AppIndex, UserId, SocketId)> {
        let (app, user) = (self.app(app)?, UserId::new(user)?);
        self.users.find(app, &user).map(|found| (app, user, found.socket))
    }

    /// Sends a message to a user of this node, or returns what the other nodes have to be asked.
    pub(crate) fn begin_send(
        &self,
        remote: &Remote,
        app: u32,
        user: String,
        id: String,
        text: String,
    ) -> Result<Delivery, Question> {
        if !self.message_ids.is_new(&id, self.now_seconds()) {
            return Ok(Delivery::Duplicate);
        }
        if let Some((app, user, _)) = self.find(app, &user) {
            self.used(&id);
            return Ok(self.send(remote, app, &user, &text));
        }
        if self.nodes.is_some() && self.app(app).is_some() && UserId::new(&user).is_some() {
            return Err(Question::Send { app, user, id, text });
        }
        count(&self.counters.not_online);
        Ok(Delivery::Failed(NOT_ONLINE))
    }

    /// What became of a message that the other nodes were asked to send.
    pub(crate) fn end_send(&self, gathered: &Gathered) -> Delivery {
        let delivery = gathered.delivery();
        if delivery == Delivery::Failed(NOT_ONLINE) {
            count(&self.counters.not_online);
        }
        delivery
    }

    /// Tells the other nodes of a message id.
    pub(crate) fn used(&self, id: &str) {
        if let Some(nodes) = self.nodes.as_ref().filter(|_| !id.is_empty()) {
            nodes.used(id);
        }
    }

    /// Sends a message to a user of this node.
    pub(crate) fn send(&self, remote: &Remote, app: AppIndex, to: &UserId, text: &str) -> Delivery {
        let Some(found) = self.users.find(app, to) else {
            count(&self.counters.not_online);
            return Delivery::Failed(NOT_ONLINE);
        };
        self.count_sent(remote.send(found.socket, text).is_ok(), &self.counters.sent)
    }

    /// Sends a message to all users of an application but its sender.
    pub(crate) fn send_to_all(
        &self,
        remote: &Remote,
        app: AppIndex,
        from: Option<SocketId>,
        text: String,
    ) -> Delivery {
        let topic = self.topic(app);
        let published = match from {
            None => remote.publish(topic, &text).is_ok(),
            Some(socket) => {
                let topic = topic.to_owned();
                let call = move |_: &mut crate::handler::Acc,
                                 socket: &mut Socket<'_>,
                                 _: &mut crate::handler::Session| {
                    let _ = socket.publish_to_others(&topic, &text);
                };
                remote.call(socket, call).is_ok()
            }
        };
        self.count_sent(published, &self.counters.sent_to_all)
    }

    pub(crate) fn count_sent(&self, sent: bool, counter: &AtomicU64) -> Delivery {
        count(if sent { counter } else { &self.counters.overloaded });
        if sent { Delivery::Sent } else { Delivery::Failed(OVERLOADED) }
    }

    /// The `seq` of an announcement: digits that increase.
    fn next_sequence(&self) -> String {
        let number = self.sequence.fetch_add(1, Ordering::Relaxed) % 1_000_000;
        format!("{}{number:06}", self.now_ms())
    }
}

/// Compares secrets in a time that depends on their lengths only.
pub(crate) fn same_secret(expected: &str, given: &str) -> bool {
    let differences = expected.bytes().zip(given.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    expected.len() == given.len() && differences == 0
}
