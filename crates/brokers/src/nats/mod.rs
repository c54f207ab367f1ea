//! NATS as a [`Transport`]: publish and subscribe of its core, and a history by JetStream (`jetstream.rs`), by a client
//! of our own, as the official one keeps a queue of five kilobytes for each subscription
//! (docs/decisions/0006-nats-client.md).
//!
//! A subscription is confirmed by a ping after it: the server answers it when it has processed what came before.
//! Subjects are channels with other bytes than letters, digits and a few signs encoded.

mod api;
mod bucket;
mod connection;
mod jetstream;
pub mod messages;
mod protocol;
mod store;
mod stored;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use rustls::ClientConfig;
use tracing::warn;

pub(crate) use self::bucket::{Bucket, NotPut, Put};
pub(crate) use self::connection::Connection;
use self::connection::Requests;
use self::jetstream::Stream;
pub(crate) use self::jetstream::now_ms;
pub(crate) use self::protocol::{Delivery, subject};
use self::store::Store;
pub(crate) use self::stored::Stored as StoredMessage;
use crate::broker::Settings;
use crate::kept::Position;
use crate::limits::CONNECT_TIMEOUT;
use crate::members::is_event;
use crate::members::nats::{Presence, passed_on};
use crate::nats_servers::NatsServers;
use crate::store::{NewValue, StoreAnswer, StoreCommand};
use crate::transport::{
    Channel, Fault, FaultKind, Fetched, Inbox, Incoming, Link, Outgoing, Rejected, Taken, Transport,
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
    /// What keeps publications, if anything does.
    stream: Option<Rc<Stream>>,
    /// What keeps values by key, if anything does.
    store: Option<Store>,
    /// What keeps members, if anything does.
    presence: Option<Presence>,
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
        arrived: impl Fn(Delivery) + 'static,
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

impl Transport for NatsTransport {
    type Link = NatsLink;

    fn server(&self) -> String {
        self.servers.to_string()
    }

    async fn connect(&self, inbox: Inbox, settings: &Settings) -> Result<NatsLink, Fault> {
        let subscriptions = Rc::<RefCell<Subscriptions>>::default();
        let stream = Rc::<OnceCell<Rc<Stream>>>::default();
        let (by_number, keeper) = (Rc::clone(&subscriptions), Rc::clone(&stream));
        let arrived = move |delivery: Delivery| {
            // It may have been unsubscribed a moment ago.
            if let Some(channel) = by_number.borrow().channels.get(&delivery.sid) {
                let Delivery { head, mut body, .. } = delivery;
                let mut kept = None;
                if is_event(&body) {
                    if let Some((at, before)) = stored::sequences(&head) {
                        body = passed_on(before, at, &body);
                    }
                } else {
                    kept = keeper.get().and_then(|stream| stream.place(&head, now_ms));
                }
                inbox.push(Incoming { channel: (**channel).into(), body, kept });
            }
        };
        let connection = Connection::open(self, arrived).await?;
        if settings.history.is_some() || settings.values.is_some() || settings.members.is_some() {
            connection.open_inbox().await?;
        }
        if let Some(history) = settings.history {
            let opened = Stream::open(&connection, &settings.prefix, history).await?;
            // Nothing is subscribed before it is there.
            let _ = stream.set(Rc::new(opened));
        }
        let store = match settings.values {
            Some(longest) => Some(Store::open(&connection, &settings.prefix, longest).await?),
            None => None,
        };
        let presence = match settings.members {
            Some(_) => Some(Presence::open(&connection, &settings.prefix).await?),
            None => None,
        };
        let stream = stream.get().cloned();
        let (next, has_dropped) = (Cell::new(1), Cell::default());
        Ok(NatsLink { connection, subscriptions, next, stream, store, presence, has_dropped })
    }
}

impl NatsLink {
    /// What keeps members, if anything does.
    pub(crate) fn members(&self) -> Option<(&Connection, &Presence)> {
        self.presence.as_ref().map(|presence| (&self.connection, presence))
    }

    fn too_long(&self, length: usize) -> Taken {
        // The server would close the connection, again and again.
        if !self.has_dropped.replace(true) {
            let most = self.connection.payload_bytes_max();
            warn!("publication dropped: {length} bytes, max_payload of NATS is {most}");
        }
        Taken::TooLong
    }

    /// Publishes, and waits until the stream has what it is to keep.
    async fn keep(&self, stream: &Stream, batch: &[Outgoing]) -> Result<Vec<Taken>, Fault> {
        let mut taken: Vec<Option<Taken>> = vec![None; batch.len()];
        let mut rest: Vec<(usize, &Outgoing)> = batch.iter().enumerate().collect();
        while !rest.is_empty() {
            let mut requests = self.connection.requests();
            let (mut waiting, mut channels, mut is_pinged) = (Vec::new(), HashSet::new(), false);
            let mut many = 0;
            for (at, one) in &rest {
                let is_long = one.body.len() > self.connection.payload_bytes_max();
                // The stream passes on what it has kept before it answers, and what is not kept goes past it.
                if !one.keep && channels.contains(&one.channel) {
                    break;
                }
                many += 1;
                let place = taken.get_mut(*at);
                if is_long {
                    place
                        .into_iter()
                        .for_each(|place| *place = Some(self.too_long(one.body.len())));
                } else if !one.keep {
                    is_pinged = true;
                    let subject = protocol::subject(&one.channel);
                    protocol::publish(&mut requests.bytes, &subject, &one.body);
                    place.into_iter().for_each(|place| *place = Some(Taken::To(None)));
                } else if stream.publish(&self.connection, &mut requests, one).is_some() {
                    channels.insert(Channel::clone(&one.channel));
                    waiting.push(*at);
                } else {
                    place
                        .into_iter()
                        .for_each(|place| *place = Some(self.too_long(one.body.len())));
                }
            }
            rest.drain(..many);
            let answers = self.send(requests, is_pinged).await?;
            for (at, delivery) in waiting.into_iter().zip(&answers) {
                if let Some(place) = taken.get_mut(at) {
                    *place = Some(stream.published(delivery)?);
                }
            }
        }
        taken.into_iter().map(|one| one.ok_or_else(|| stored::invalid("a publication"))).collect()
    }

    /// Sends requests, and waits for their answers and until the server has processed the bytes between them.
    async fn send(&self, requests: Requests<'_>, is_pinged: bool) -> Result<Vec<Delivery>, Fault> {
        if !is_pinged {
            return requests.send().await;
        }
        let (answers, ()) = tokio::try_join!(requests.send(), self.connection.round_trip(&[]))?;
        Ok(answers)
    }
}

impl Link for NatsLink {
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Taken>, Fault> {
        if let Some(stream) = &self.stream {
            return self.keep(stream, batch).await;
        }
        let (mut bytes, most) = (Vec::new(), self.connection.payload_bytes_max());
        let mut taken = Vec::with_capacity(batch.len());
        for Outgoing { channel, body, .. } in batch {
            if body.len() > most {
                taken.push(self.too_long(body.len()));
                continue;
            }
            protocol::publish(&mut bytes, &protocol::subject(channel), body);
            taken.push(Taken::To(None));
        }
        self.connection.round_trip(&bytes).await?;
        Ok(taken)
    }

    async fn subscribe(&self, channels: &[Channel]) -> Result<Vec<(Channel, Rejected)>, Fault> {
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
        self.connection.round_trip(&bytes).await?;
        Ok(Vec::new())
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

    async fn fetch(
        &self,
        channels: &[(Channel, Option<Position>)],
    ) -> Result<Vec<Result<Fetched, Rejected>>, Fault> {
        match &self.stream {
            Some(stream) => {
                let all = stream.fetch(&self.connection, channels).await?;
                Ok(all.into_iter().map(Ok).collect())
            }
            None => Err(Fault::new(FaultKind::Refused, "there is no history")),
        }
    }

    async fn check(&self) -> Result<(), Fault> {
        if let Some(store) = &self.store {
            store.check(&self.connection).await?;
        }
        if let Some(presence) = &self.presence {
            presence.check(&self.connection).await?;
        }
        match &self.stream {
            Some(stream) => stream.check(&self.connection).await,
            None => self.connection.round_trip(&[]).await,
        }
    }

    async fn store(&self, commands: &[StoreCommand]) -> Result<Vec<StoreAnswer>, Fault> {
        match &self.store {
            Some(store) => store.perform(&self.connection, commands).await,
            None => {
                let refused = |_| StoreAnswer::Refused("no values are kept".into());
                Ok(commands.iter().map(refused).collect())
            }
        }
    }

    async fn read(&self, keys: &[Arc<str>]) -> Result<Vec<StoreAnswer>, Fault> {
        match &self.store {
            Some(store) => store.read(&self.connection, keys).await,
            None => Ok(vec![StoreAnswer::Unsupported; keys.len()]),
        }
    }

    async fn add(&self, values: &[NewValue]) -> Result<Vec<StoreAnswer>, Fault> {
        match &self.store {
            Some(store) => store.add(&self.connection, values).await,
            None => Ok(vec![StoreAnswer::Unsupported; values.len()]),
        }
    }

    async fn ended(&self) -> Fault {
        self.connection.ended().await
    }
}
