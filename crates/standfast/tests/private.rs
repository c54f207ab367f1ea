//! Workers with descriptor tables of their own. In a process of its own: the tables of the workers keep what
//! other tests have open.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

use std::future::Future;
use std::net::TcpStream;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use standfast::{
    Accept, DescriptorFree, Error, Gone, Handler, Limits, Message, PrivateServer, Response, Sent,
    Socket, SocketId, UpgradeRequest,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// The workers that have acted at an interval, as bits.
static ACTED: AtomicU32 = AtomicU32::new(0);

#[derive(Clone)]
struct Echo(Sender<SocketId>);

impl Handler for Echo {
    type Data = ();

    fn upgrade(&mut self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Response> {
        Ok(Accept::default())
    }

    fn open(&mut self, socket: &mut Socket<'_>, _: &mut ()) {
        socket.subscribe("all");
        let _ = self.0.send(socket.id());
    }

    fn message(&mut self, socket: &mut Socket<'_>, _: &mut (), message: Message<'_>) {
        socket.send(message);
    }
}

impl DescriptorFree for Echo {}

/// Notes which thread has woken it.
struct Noting(Mutex<Sender<String>>);

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let _ = self.0.lock().unwrap().send(name);
    }
}

/// What a future results in, and the names of the threads that have woken it.
fn wait<T>(future: impl Future<Output = T>) -> (T, Vec<String>) {
    let (woken, names): (_, Receiver<String>) = channel();
    let waker = Waker::from(Arc::new(Noting(Mutex::new(woken))));
    let mut future = pin!(future);
    let mut all = Vec::new();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return (result, all),
            Poll::Pending => all.push(names.recv_timeout(PATIENCE).unwrap()),
        }
    }
}

/// Descriptors of sockets in the table of a thread, by its name.
fn sockets(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let named = |task: &std::path::PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    let links = tasks.filter(named).flat_map(|task| std::fs::read_dir(task.join("fd")).unwrap());
    let targets = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn each_worker_has_a_table_of_its_own_and_wakes_nothing_itself() {
    let (opened, ids) = channel();
    let server = PrivateServer::bind("127.0.0.1:0")
        .unwrap()
        .route("/", Echo(opened))
        .get("/health", |request| Response::text(200, format!("{}\n", request.path())))
        .every(Duration::from_millis(5), |context| {
            ACTED.fetch_or(1 << context.worker(), Ordering::Relaxed);
        })
        .limits(Limits { connections: Some(200), ..Limits::default() })
        .workers(2);
    let server = match server.start() {
        Err(error @ Error::NoPrivateTables) => return eprintln!("not tested: {error}"),
        other => other.unwrap(),
    };
    let mut clients: Vec<_> = (0..40)
        .map(|_| {
            let stream = TcpStream::connect(server.address()).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            tungstenite::client(format!("ws://{}/", server.address()), stream).unwrap().0
        })
        .collect();
    let ids: Vec<SocketId> = (0..40).map(|_| ids.recv_timeout(PATIENCE).unwrap()).collect();
    // Sockets of clients are in the table of their worker and in no other; there are 2 listeners.
    let of = |worker: u16| ids.iter().filter(|id| id.worker() == worker).count();
    assert!(of(0) > 0 && of(1) > 0);
    assert_eq!([sockets("worker-0"), sockets("worker-1")], [of(0) + 2, of(1) + 2]);
    for client in &mut clients {
        client.send(tungstenite::Message::text("x")).unwrap();
        assert_eq!(client.read().unwrap().to_text().unwrap(), "x");
    }
    while ACTED.load(Ordering::Relaxed) != 1 {
        // The first worker only.
        assert_eq!(ACTED.load(Ordering::Relaxed) & !1, 0);
        std::thread::yield_now();
    }
    server.remote().publish("all", "to all").unwrap();
    for client in &mut clients {
        assert_eq!(client.read().unwrap().to_text().unwrap(), "to all");
    }
    let remote = server.remote().clone();
    let mut woken = Vec::new();
    for id in ids.iter().cycle().take(2_000) {
        let (sent, names) = wait(remote.send_with_receipt(*id, "y").unwrap());
        assert_eq!(sent, Ok(Sent::Sent));
        woken.extend(names);
    }
    drop(clients);
    server.stop(Duration::ZERO).unwrap();
    let (gone, names) = wait(remote.send_with_receipt(ids[0], "y").unwrap());
    assert_eq!((gone, names), (Err(Gone), vec![]));
    assert!(!woken.is_empty() && woken.iter().all(|name| name == "wakers"), "{woken:?}");
    if cfg!(debug_assertions) {
        let call = || remote.call(ids[0], |_: &mut Echo, _, _| {});
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
    }
}
