//! NATS as a [`Transport`]: publish and subscribe of its core, by a client of our own, as the official one keeps a
//! queue of five kilobytes for each subscription (docs/decisions/0006-nats-client.md).
//!
//! A subscription is confirmed by a ping after it: the server answers it when it has processed what came before.
//! Subjects are channels with other bytes than letters, digits and a few signs encoded.

mod connection;
mod protocol;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use rustls::ClientConfig;
use tracing::warn;

use self::connection::Connection;
use crate::broker::Settings;
use crate::kept::Position;
use crate::limits::CONNECT_TIMEOUT;
use crate::members::MemberStore;
use crate::nats_servers::NatsServers;
use crate::transport::{
    Channel, Fault, FaultKind, Fetched, Inbox, Incoming, Link, Outgoing, Taken, Transport,
};

/// The servers of one NATS.
#[derive(Clone, Debug)]
pub struct NatsTransport {
    /// Where they are; one of them is connected to.
    pub servers: NatsServers,
    /// Trust for servers that want TLS.
    pub tls: Option<Arc<ClientConfig>>,
}

/// A connection to one of them.
pub struct NatsLink {
    connection: Connection,
    subscriptions: Rc<RefCell<Subscriptions>>,
    next: Cell<u64>,
    /// A publication was too long for the server, which is logged once.
    has_dropped: Cell<bool>,
}

#[derive(Default)]
struct Subscriptions {
    channels: HashMap<u64, Channel, RandomState>,
    numbers: HashMap<Channel, u64, RandomState>,
}

impl NatsTransport {
    /// Connects for something other than a link.
    pub(crate) async fn connection(
        &self,
        arrived: impl Fn(u64, Vec<u8>) + 'static,
    ) -> Result<Connection, Fault> {
        let opening = Connection::open(self, arrived);
        tokio::time::timeout(CONNECT_TIMEOUT, opening).await.unwrap_or_else(|_| {
            let why = format!("no connection within {CONNECT_TIMEOUT:?}");
            Err(Fault::new(FaultKind::Unreachable, why))
        })
    }
}

/// The bytes that subscribe a connection to one subject.
pub(crate) fn subscription(subject: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    protocol::subscribe(&mut bytes, subject, 1);
    bytes
}

fn no_history() -> Fault {
    Fault::new(FaultKind::Refused, "NATS keeps no history of publications")
}

impl Transport for NatsTransport {
    type Link = NatsLink;

    fn server(&self) -> String {
        self.servers.to_string()
    }

    async fn connect(&self, inbox: Inbox, settings: &Settings) -> Result<NatsLink, Fault> {
        if settings.history.is_some() {
            return Err(no_history());
        }
        let subscriptions = Rc::<RefCell<Subscriptions>>::default();
        let by_number = Rc::clone(&subscriptions);
        let arrived = move |sid: u64, body: Vec<u8>| {
            // It may have been unsubscribed a moment ago.
            if let Some(channel) = by_number.borrow().channels.get(&sid) {
                inbox.push(Incoming { channel: (**channel).into(), body, kept: None });
            }
        };
        let connection = Connection::open(self, arrived).await?;
        Ok(NatsLink { connection, subscriptions, next: Cell::new(1), has_dropped: Cell::default() })
    }
}

impl MemberStore for NatsLink {}

impl Link for NatsLink {
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Taken>, Fault> {
        let (mut bytes, most) = (Vec::new(), self.connection.payload_bytes_max());
        let mut taken = Vec::with_capacity(batch.len());
        for Outgoing { channel, body, .. } in batch {
            if body.len() > most {
                // The server would close the connection, again and again.
                if !self.has_dropped.replace(true) {
                    let length = body.len();
                    warn!("publication dropped: {length} bytes, max_payload of NATS is {most}");
                }
                taken.push(Taken::TooLong);
                continue;
            }
            protocol::publish(&mut bytes, &protocol::subject(channel), body);
            taken.push(Taken::To(None));
        }
        self.connection.round_trip(&bytes).await?;
        Ok(taken)
    }

    async fn subscribe(&self, channels: &[Channel]) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        for channel in channels {
            let sid = self.next.replace(self.next.get() + 1);
            let mut subscriptions = self.subscriptions.borrow_mut();
            subscriptions.channels.insert(sid, Channel::clone(channel));
            if let Some(before) = subscriptions.numbers.insert(Channel::clone(channel), sid) {
                subscriptions.channels.remove(&before);
                protocol::unsubscribe(&mut bytes, before);
            }
            protocol::subscribe(&mut bytes, &protocol::subject(channel), sid);
        }
        self.connection.round_trip(&bytes).await
    }

    async fn unsubscribe(&self, channels: &[Channel]) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        for channel in channels {
            let mut subscriptions = self.subscriptions.borrow_mut();
            if let Some(sid) = subscriptions.numbers.remove(channel) {
                subscriptions.channels.remove(&sid);
                protocol::unsubscribe(&mut bytes, sid);
            }
        }
        self.connection.round_trip(&bytes).await
    }

    async fn fetch(&self, _: &[(Channel, Option<Position>)]) -> Result<Vec<Fetched>, Fault> {
        Err(no_history())
    }

    async fn check(&self) -> Result<(), Fault> {
        self.connection.round_trip(&[]).await
    }

    async fn ended(&self) -> Fault {
        self.connection.ended().await
    }
}
