//! Plain HTTP in pieces: an upload that is counted, a download that a thread writes, an answer that a thread
//! gives later, and metrics: `cargo run --release -p standfast --example pieces -- 127.0.0.1:8080`.
//!
//! Try it: `curl -T FILE http://127.0.0.1:8080/upload`, `curl http://127.0.0.1:8080/numbers/1000000 | tail -n1`,
//! `curl http://127.0.0.1:8080/prime/1000003`, `curl http://127.0.0.1:8080/metrics`.

use std::fmt::Write;
use std::sync::mpsc;

use standfast::{BodyWriter, Exchange, Gone, Http, Reply, Response, Server};

/// Longest upload, in bytes.
const UPLOAD_BYTES: u64 = 1 << 30;

/// Counts the bytes of a body without keeping them.
struct Upload {
    bytes: u64,
}

impl Exchange for Upload {
    fn data(&mut self, _: &mut Http<'_>, data: &[u8]) {
        self.bytes += data.len() as u64;
    }

    fn end(&mut self, http: &mut Http<'_>) {
        http.respond(Response::json(format!("{{\"bytes\":{}}}\n", self.bytes)));
    }
}

/// Writes numbers as fast as the client takes them.
fn count_to(last: u64, body: &BodyWriter) -> Result<(), Gone> {
    let mut lines = String::new();
    for number in 1..=last {
        let _ = writeln!(lines, "{number}");
        if lines.len() >= 16 * 1024 || number == last {
            body.wait()?;
            // There is room now, and nobody else writes.
            let _ = body.write(lines.as_bytes());
            lines.clear();
        }
    }
    Ok(())
}

/// A task of the other thread.
enum Task {
    Count(u64, BodyWriter),
    Prime(u64, Reply),
}

fn work(tasks: mpsc::Receiver<Task>) {
    for task in tasks {
        match task {
            Task::Count(last, body) => {
                if count_to(last, &body).is_ok() {
                    body.finish();
                }
            }
            Task::Prime(number, reply) => {
                let is_prime = number > 1 && !(2..number).any(|of| number % of == 0);
                reply.respond(Response::json(format!("{is_prime}\n")));
            }
        }
    }
}

fn main() -> Result<(), standfast::Error> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let (counts, tasks) = mpsc::channel();
    let primes = counts.clone();
    std::thread::spawn(move || work(tasks));
    let server = Server::bind(address)?
        .exchange("PUT", "/upload", UPLOAD_BYTES, |_| Ok(Box::new(Upload { bytes: 0 })))
        .later("GET", "/numbers/{last}", None, move |request, reply| {
            match request.param("last").and_then(|last| last.parse().ok()) {
                Some(last) => {
                    let body = reply.stream(Response::new(200), None);
                    let _ = counts.send(Task::Count(last, body));
                }
                None => reply.respond(Response::text(400, "expected a number\n")),
            }
        })
        .later("GET", "/prime/{number}", None, move |request, reply| {
            match request.param("number").and_then(|number| number.parse().ok()) {
                Some(number) => drop(primes.send(Task::Prime(number, reply))),
                None => reply.respond(Response::text(400, "expected a number\n")),
            }
        })
        .get("/metrics", |request| {
            let text = request.remote().metrics().into_bytes();
            Response::body(200, "text/plain; version=0.0.4", text)
        });
    println!("http://{}/", server.address());
    server.run()
}
