//! Performs calls: the thread that starts them, and the runtime that they run on.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::sys::process::now_ns;
use engine::{Remote, invariant};
use tokio::runtime::{Builder, Handle};
use tracing::{info, warn};

use super::call::{Call, Method};
use super::client::{CallError, shown};
use super::grpc::GrpcApp;
use super::http::{HttpApp, HttpAuth};
use super::queue::{Ended, Entry, Next};
use super::reply::{Reply, Status};
use super::target::Target;
use super::{Answered, Calls, Failure};
use crate::handler::Post;
use crate::shared::UnixClock;

/// Pause of a call that the application refused for load, before it is put back.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Pause before an answer is posted again to a worker whose mailbox is full.
const MAILBOX_PAUSE: Duration = Duration::from_millis(5);
/// Shortest time between two lines about failed calls, in nanoseconds.
const LOG_INTERVAL_NS: u64 = 10_000_000_000;
/// How long the starting thread waits at most.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

enum App {
    Http(HttpApp),
    Grpc(GrpcApp),
}

/// Where calls go: those about Action Cable, and those of `--auth-url`.
struct Apps {
    app: Option<App>,
    auth: Option<HttpAuth>,
}

impl Apps {
    async fn call(&self, call: &Call) -> Result<Reply, CallError> {
        match (&self.app, &self.auth, call.method()) {
            (_, Some(auth), Method::Authorize) => auth.call(call).await,
            (_, None, Method::Authorize) | (None, ..) => {
                invariant::broken("a call has an application");
                Err(CallError::Invalid("there is no application".to_owned()))
            }
            (Some(App::Http(app)), ..) => app.call(call).await,
            (Some(App::Grpc(app)), ..) => app.call(call).await,
        }
    }
}

struct Runner {
    calls: Arc<Calls>,
    remote: Remote<Post>,
    apps: Apps,
    /// Of calls about Action Cable, and of those of `--auth-url`.
    logs: Mutex<[FailureLog; 2]>,
}

/// Failed calls that are not logged yet.
#[derive(Default)]
struct FailureLog {
    times: u64,
    next_ns: u64,
    /// The application was not reached, and that was logged.
    away: bool,
}

/// Starts the threads.
///
/// # Errors
/// A thread or the runtime cannot be started.
pub(crate) fn start(calls: Arc<Calls>, remote: Remote<Post>, clock: &UnixClock) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let handle = runtime.handle().clone();
    let config = &calls.config;
    let app = config.target.as_ref().map(|target| {
        info!("application at {target}");
        match target {
            Target::Http { host, path, .. } => App::Http(HttpApp::new(config, host, path)),
            Target::Grpc { hosts, .. } => App::Grpc(GrpcApp::new(config, hosts)),
        }
    });
    let auth = config.auth.as_ref().map(|auth| {
        info!("clients of topics are authorized by {}", auth.url.with_path());
        if auth.secret.is_none() {
            warn!("calls of --auth-url are not signed: set --auth-secret or --secret");
        }
        HttpAuth::new(auth, clock.clone(), config.reply_bytes)
    });
    let apps = Apps { app, auth };
    let runner = Arc::new(Runner { calls, remote, apps, logs: Mutex::default() });
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    thread("app calls").spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    thread("app queue").spawn(move || start_calls(&runner, &handle)).map(drop)
}

/// Starts calls on the runtime as the queue allows.
fn start_calls(runner: &Arc<Runner>, runtime: &Handle) {
    let calls = &runner.calls;
    let mut inner = calls.lock();
    loop {
        inner.looks_ns = None;
        match inner.queue.next(now_ns()) {
            Next::Call(entry) => drop(runtime.spawn(Arc::clone(runner).perform(entry))),
            Next::Late(entry) => {
                inner.stats.ended(entry.call.name(), Err(Failure::Late));
                drop(runtime.spawn(Arc::clone(runner).deliver(entry, Err(Failure::Late))));
            }
            Next::Wait(until_ns) => {
                let now_ns = now_ns();
                let longest_ns = now_ns + LONGEST_WAIT.as_nanos() as u64;
                let until_ns = until_ns.unwrap_or(longest_ns).min(longest_ns);
                inner.looks_ns = Some(until_ns);
                let wait = Duration::from_nanos(until_ns.saturating_sub(now_ns));
                let waited = calls.changed.wait_timeout(inner, wait);
                inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl Runner {
    /// Performs a call, and then others as long as some are ready.
    async fn perform(self: Arc<Self>, mut entry: Box<Entry<Call>>) {
        loop {
            let began_ns = now_ns();
            let timeout = self.calls.config.timeout;
            let result = tokio::time::timeout(timeout, self.apps.call(&entry.call)).await;
            let (ended, outcome, why) = match result {
                Ok(Ok(reply)) => {
                    let why = (reply.status == Status::Error)
                        .then(|| format!("status error: {}", shown(reply.error_msg.as_bytes())));
                    (Ended::Answered, Some(Ok(reply)), why)
                }
                Ok(Err(CallError::Unreached(why))) => (Ended::Unreached, None, Some(why)),
                Ok(Err(CallError::Busy(why))) => {
                    // It keeps its place meanwhile, so that others are not refused, too.
                    tokio::time::sleep(BUSY_PAUSE).await;
                    (Ended::Overloaded, None, Some(why))
                }
                Ok(Err(CallError::Lost(why))) => {
                    let again = entry.call.is_repeatable() && entry.repeat();
                    (Ended::Unreached, (!again).then_some(Err(Failure::Lost)), Some(why))
                }
                Ok(Err(CallError::Invalid(why))) => {
                    (Ended::Answered, Some(Err(Failure::Invalid)), Some(why))
                }
                Err(_) => {
                    let why = format!("no answer within {timeout:?}");
                    (Ended::Overloaded, Some(Err(Failure::Timeout)), Some(why))
                }
            };
            self.log(&entry.call, ended, why);
            match self.finish(entry, began_ns, ended, outcome) {
                Some(next) => entry = next,
                None => return,
            }
        }
    }

    /// Reports the end of a call; without an outcome it is put back. Returns the next one.
    fn finish(
        self: &Arc<Self>,
        entry: Box<Entry<Call>>,
        began_ns: u64,
        ended: Ended,
        outcome: Option<Result<Reply, Failure>>,
    ) -> Option<Box<Entry<Call>>> {
        let now_ns = now_ns();
        let latency_ns = now_ns.saturating_sub(began_ns);
        let mut inner = self.calls.lock();
        let gone = inner.queue.finished(now_ns, entry.id, entry.method, latency_ns, ended);
        let outcome = outcome.or(gone.then_some(Err(Failure::Lost)));
        match outcome {
            Some(outcome) => {
                let status = outcome.as_ref().map(|reply| reply.status).map_err(|why| *why);
                inner.stats.ended(entry.call.name(), status);
                if let Some(took) = inner.stats.took.get_mut(entry.method as usize) {
                    took.record(latency_ns);
                }
                inner.stats.waited.record(entry.waited_ns(began_ns));
                drop(tokio::spawn(Arc::clone(self).deliver(entry, outcome)));
            }
            None => {
                inner.stats.put_back += 1;
                inner.queue.put_back(entry);
            }
        }
        let mut next = None;
        loop {
            match inner.queue.next(now_ns) {
                Next::Call(entry) if next.is_none() => next = Some(entry),
                Next::Call(entry) => drop(tokio::spawn(Arc::clone(self).perform(entry))),
                Next::Late(entry) => {
                    inner.stats.ended(entry.call.name(), Err(Failure::Late));
                    drop(tokio::spawn(Arc::clone(self).deliver(entry, Err(Failure::Late))));
                }
                Next::Wait(until_ns) => {
                    // The starting thread waits for a later time.
                    if until_ns.zip(inner.looks_ns).is_some_and(|(until, looks)| until < looks) {
                        self.calls.changed.notify_one();
                    }
                    return next;
                }
            }
        }
    }

    /// Posts the end of a call to the worker of its connection.
    async fn deliver(self: Arc<Self>, entry: Box<Entry<Call>>, outcome: Result<Reply, Failure>) {
        let Entry { id, call, .. } = *entry;
        if call.method() == Method::Disconnect {
            return;
        }
        let bytes = call.bytes() + outcome.as_ref().map_or(0, Reply::bytes);
        let answered = Arc::new(Answered { id, call, outcome });
        let worker = usize::from(id.worker());
        while self.remote.post(worker, Post::Answered(Arc::clone(&answered)), bytes).is_err() {
            tokio::time::sleep(MAILBOX_PAUSE).await;
        }
    }

    /// Logs that the application is away or back, and failed calls at most every ten seconds.
    fn log(&self, call: &Call, ended: Ended, why: Option<String>) {
        let config = &self.calls.config;
        let (at, target) = match call.method() {
            Method::Authorize => (1, config.auth.as_ref().map(|auth| auth.url.with_path())),
            _ => (0, config.target.as_ref().map(Target::to_string)),
        };
        let target = target.unwrap_or_default();
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(log) = logs.get_mut(at) else { return };
        if ended == Ended::Answered && std::mem::take(&mut log.away) {
            info!("application reached again: {target}");
        }
        let Some(why) = why else { return };
        log.times += 1;
        let now_ns = now_ns();
        if now_ns < log.next_ns {
            return;
        }
        log.next_ns = now_ns.saturating_add(LOG_INTERVAL_NS);
        let (name, times) = (call.name(), std::mem::take(&mut log.times));
        if ended == Ended::Unreached {
            log.away = true;
            warn!(times, "application unreachable: {target}: {why}; calls wait and are repeated");
        } else {
            warn!(times, "application failed to answer {name}: {target}: {why}");
        }
    }
}
