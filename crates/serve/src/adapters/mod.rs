//! Broadcast adapters: what applications publish by a broker is published here, as what they post to `/_broadcast`.
//! The adapters themselves are those of `brokers`; an inlet knows what their messages mean.

mod deferred;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brokers::adapters::{Adapter, Adapters, Inlet, Message, Offered};
use engine::sys::process::now_ns;
use topics::Publication;

use self::deferred::{Attempt, Deferred};
use crate::broadcast::{self, BroadcastRequest, Disconnect};
use crate::control::Control;
use crate::publish::BodyError;
use crate::pubsub::Posted;

/// Memory of what was refused and waits, for each adapter, in bytes. What a broker keeps may take more: its
/// adapter stops reading at this.
const WAITING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Publications accepted from the adapters of one name.
pub(crate) struct AdapterPublished {
    /// The adapters' name.
    pub(crate) adapter: &'static str,
    pub(crate) count: Arc<AtomicU64>,
}

/// Opens the adapters.
///
/// # Errors
/// Their thread cannot be started.
pub(crate) fn open(adapters: &[Adapter], control: &Arc<Control>) -> io::Result<OpenAdapters> {
    let mut published: Vec<AdapterPublished> = Vec::new();
    let with_inlet = adapters.iter().map(|adapter| {
        let name = adapter.name();
        let count = match published.iter().find(|other| other.adapter == name) {
            Some(other) => Arc::clone(&other.count),
            None => {
                let count = Arc::<AtomicU64>::default();
                published.push(AdapterPublished { adapter: name, count: Arc::clone(&count) });
                count
            }
        };
        let inlet = AdapterInlet {
            control: Arc::clone(control),
            is_rails: adapter.streams().is_some(),
            is_alone: adapter.takes_alone(),
            deferred: Deferred::new(WAITING_BYTES_MAX),
            published: count,
            next: 0,
        };
        (adapter.clone(), Box::new(inlet) as Box<dyn Inlet>)
    });
    let adapters = Adapters::open(with_inlet.collect())?;
    Ok(OpenAdapters { adapters, published })
}

/// Adapters that are open, and what was published by them.
pub(crate) struct OpenAdapters {
    pub(crate) adapters: Adapters,
    pub(crate) published: Vec<AdapterPublished>,
}

/// What a message requests, piece by piece.
pub(crate) enum Work {
    Publish(Posted),
    Disconnect(Arc<Disconnect>),
}

/// Takes the messages of one adapter.
struct AdapterInlet {
    control: Arc<Control>,
    /// Messages are those of Rails' own adapter, not bodies of `/_broadcast`.
    is_rails: bool,
    /// No other node gets what this one gets.
    is_alone: bool,
    deferred: Deferred<Work>,
    published: Arc<AtomicU64>,
    /// The number of the next message that the broker does not keep.
    next: u64,
}

impl Work {
    /// What it must not overtake: what is published to the same topic, or other commands.
    fn lane(&self) -> &str {
        match self {
            Work::Publish(posted) => &posted.publication.topic,
            Work::Disconnect(_) => "",
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Work::Publish(posted) => posted.publication.bytes(),
            Work::Disconnect(request) => size_of::<Disconnect>() + request.identifiers.len(),
        }
    }
}

impl AdapterInlet {
    fn parse(&self, message: Message<'_>) -> Result<Vec<Work>, String> {
        match (self.is_rails, message.identifiers) {
            (true, Some(name)) => self.parse_rails_disconnect(message.body, name),
            (true, None) => self.parse_rails(message),
            (false, _) => self.parse_body(message.body),
        }
    }

    /// What Rails publishes to a stream is what its subscribers get.
    fn parse_rails(&self, message: Message<'_>) -> Result<Vec<Work>, String> {
        let (bytes, max) = (message.body.len(), self.control.message_bytes_max());
        if bytes > max {
            return Err(format!("it has {bytes} bytes; --max-message allows {max}"));
        }
        if std::str::from_utf8(message.body).is_err() {
            return Err("it is not text".to_owned());
        }
        let publication = Publication::new(message.channel.into(), message.body.into(), false);
        let publication = Arc::new(publication.accepted(now_ns()));
        Ok(vec![Work::Publish(Posted { publication, exclude: None })])
    }

    fn parse_rails_disconnect(&self, body: &[u8], name: &str) -> Result<Vec<Work>, String> {
        match broadcast::parse_rails_disconnect(body, name) {
            Ok(request) => Ok(vec![Work::Disconnect(Arc::new(request))]),
            Err(BodyError::Malformed(what) | BodyError::TooLarge(what)) => Err(what),
        }
    }

    fn parse_body(&self, body: &[u8]) -> Result<Vec<Work>, String> {
        if body.len() > self.control.body_bytes_max() {
            return Err(format!("it has {} bytes, too many for a message", body.len()));
        }
        match broadcast::parse(body, self.control.message_bytes_max()) {
            Ok(BroadcastRequest::Publications(items)) => {
                Ok(self.control.publications(items).into_iter().map(Work::Publish).collect())
            }
            Ok(BroadcastRequest::Disconnect(request)) => {
                Ok(vec![Work::Disconnect(Arc::new(request))])
            }
            Err(BodyError::Malformed(what) | BodyError::TooLarge(what)) => Err(what),
        }
    }
}

fn attempt(control: &Control, alone: bool, published: &AtomicU64, work: &Work) -> Attempt {
    let accepted = match work {
        Work::Publish(posted) if alone => control.publish_everywhere(posted),
        Work::Publish(posted) => control.publish_here(posted),
        Work::Disconnect(request) => control.disconnect_from_adapter(request, alone),
    };
    if !accepted {
        return Attempt::Refused;
    }
    if matches!(work, Work::Publish(_)) {
        published.fetch_add(1, Ordering::Relaxed);
    }
    Attempt::Accepted
}

impl Inlet for AdapterInlet {
    fn offer(&mut self, message: Message<'_>) -> Offered {
        let pieces = match self.parse(message) {
            Ok(pieces) => pieces,
            Err(why) => return Offered::Invalid(why),
        };
        let number = message.kept.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        let mut offered = Offered::Accepted;
        for work in pieces {
            let waits = self.deferred.is_waiting(work.lane());
            let attempt = || attempt(&self.control, self.is_alone, &self.published, &work);
            if !waits && attempt() == Attempt::Accepted {
                continue;
            }
            let (lane, bytes) = (Box::<str>::from(work.lane()), work.bytes());
            let kept = message.kept.is_some();
            offered = match self.deferred.push(&lane, work, bytes, number, kept) {
                true if offered == Offered::Accepted => Offered::Waits,
                true => offered,
                false => Offered::Dropped,
            };
        }
        offered
    }

    fn retry(&mut self) -> Vec<u64> {
        let AdapterInlet { control, is_alone, deferred, published, .. } = self;
        deferred.retry(|work| attempt(control, *is_alone, published, work))
    }

    fn begun(&mut self, streams: &[&str]) {
        self.control.interrupt_history(streams);
    }

    fn confirmed(&mut self, streams: &[Box<str>]) -> bool {
        self.control.post_confirmed(streams)
    }

    fn waiting_bytes(&self) -> usize {
        self.deferred.bytes()
    }
}
