//! Log sinks that fail or block: the log loses lines, and nothing else happens.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat};
use rustix::process::Signal;
use serde_json::json;

use crate::harness::executable::{self, Running, standfast};
use crate::harness::server::Server;
use crate::harness::skip;
use crate::harness::socket::{Socket, TEXT, upgrade};
use crate::harness::{Scratch, eventually};

const LISTENERS: [&str; 5] = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-json"];
/// The pool of these proxies has a long name, so that few lines fill the log.
const POOL_CHARS: usize = 4_000;

fn serve() -> Command {
    standfast(&[&["serve", "--echo", "--workers", "1"][..], &LISTENERS].concat())
}

fn proxy(more: &[&str]) -> Command {
    let fixed = ["proxy", "--workers", "1"];
    standfast(&[&fixed[..], &LISTENERS, more].concat())
}

/// A pipe whose buffer is full, and with how many bytes.
fn full_pipe() -> (PipeReader, PipeWriter, usize) {
    let (reader, mut writer) = io::pipe().unwrap();
    let filled = fill(&mut writer);
    (reader, writer, filled)
}

fn fill(writer: &mut PipeWriter) -> usize {
    let flags = fcntl_getfl(&*writer).unwrap();
    fcntl_setfl(&*writer, flags | OFlags::NONBLOCK).unwrap();
    let mut filled = 0;
    while let Ok(count) = writer.write(&[b'x'; 4096]) {
        filled += count;
    }
    fcntl_setfl(&*writer, flags).unwrap();
    filled
}

fn closed_pipe() -> PipeWriter {
    io::pipe().unwrap().1
}

fn full_device() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// A FIFO that is removed after its test.
struct Fifo(PathBuf);

impl Fifo {
    fn new(name: &str) -> Fifo {
        let name = format!("{}-{name}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        Fifo(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn reader(&self) -> File {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
        OpenOptions::new().read(true).custom_flags(flags).open(&self.0).unwrap()
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A file system of 64 KiB, full but for a page.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn full(name: &str) -> Option<Tmpfs> {
        let name = format!("{}-{name}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&folder);
        if !mount.output().is_ok_and(|done| done.status.success()) {
            let _ = fs::remove_dir(&folder);
            skip::unsupported("mounting a tmpfs is not permitted");
            return None;
        }
        let tmpfs = Tmpfs(folder);
        tmpfs.fill();
        Some(tmpfs)
    }

    fn fill(&self) {
        let mut file = File::create(self.0.join("ballast")).unwrap();
        while file.write(&[0; 4096]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.0.join("log")
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
        let _ = fs::remove_dir(&self.0);
    }
}

fn metric(server: &Server, name: &str) -> f64 {
    server.metrics()[&format!("standfast_{name}_total")]
}

fn assert_ends(mut server: Server) {
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

/// Starts `serve` with this log, checks that it serves beside failing log lines and ends on SIGTERM.
fn assert_serves(mut command: Command, stderr: impl Into<Stdio>) {
    command.stderr(stderr);
    let server = Server::run(command);
    let mut socket = Socket::open(server.listen, "/echo");
    server.signal(Signal::HUP);
    eventually("a write has failed", || metric(&server, "log_errors") > 0.0);
    server.signal(Signal::HUP);
    let refused = upgrade("/echo", &[("Origin", "https://elsewhere.example")]);
    let mut other = Socket::connect(server.listen);
    other.send(refused.as_bytes());
    assert_eq!(other.response().status, 403);
    socket.send_frame(TEXT, b"still here");
    assert_eq!(socket.frame().unwrap().payload, b"still here");
    drop(socket);
    assert_ends(server);
}

#[test]
fn a_server_outlives_its_log() {
    assert_serves(serve(), full_device());
    assert_serves(serve(), closed_pipe());
    let upstream = ["--upstream", "127.0.0.1:9"];
    for stderr in [Stdio::from(full_device()), closed_pipe().into()] {
        let mut command = proxy(&upstream);
        command.stderr(stderr);
        let server = Server::run(command);
        eventually("a write has failed", || metric(&server, "log_errors") > 0.0);
        let mut socket = Socket::connect(server.listen);
        socket.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(socket.response().status, 502);
        server.signal(Signal::HUP);
        assert_ends(server);
    }
}

#[test]
fn a_file_size_limit_costs_log_lines_only() {
    let log = Scratch::new("limited.log", "");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 0 && exec \"$0\" \"$@\""]).arg(executable::path());
    command.args(["serve", "--echo", "--workers", "1"]).args(LISTENERS);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    assert_serves(command, OpenOptions::new().append(true).open(log.path()).unwrap());
}

#[test]
fn a_log_on_a_full_file_system_goes_on_when_there_is_space() {
    let Some(tmpfs) = Tmpfs::full("full") else { return };
    let mut command = serve();
    let file = OpenOptions::new().create(true).append(true).open(tmpfs.file()).unwrap();
    command.stderr(file);
    let server = Server::run(command);
    eventually("a write has failed", || metric(&server, "log_errors") > 0.0);
    server.signal(Signal::HUP);
    tmpfs.empty();
    let text = || fs::read_to_string(tmpfs.file()).unwrap();
    eventually("the log is written", || text().contains("log works again: 0 lines lost: No space"));
    eventually("nothing is lost", || {
        text().contains("listening on") && text().contains("configuration reloaded")
    });
    assert_ends(server);
    assert!(text().ends_with('\n') && text().contains("draining"), "{}", text());
}

/// A proxy whose operators can log long lines.
fn proxy_of_long_lines() -> (Command, Scratch) {
    let pool = "p".repeat(POOL_CHARS);
    let config = format!("[pool.{pool}]\nupstreams = ['127.0.0.1:9']\n");
    let config = Scratch::new("long-lines.toml", &config);
    (proxy(&["--config", config.path(), "--admin-key", "operators"]), config)
}

fn log_a_long_line(server: &Server) {
    let resume = json!({ "action": "resume", "upstream": "127.0.0.1:9" });
    assert_eq!(server.admin_post("/api/upstreams", &resume.to_string()).status, 200);
}

#[test]
fn a_blocked_log_loses_lines_and_says_how_many() {
    let (mut reader, writer, filled) = full_pipe();
    let (mut command, _config) = proxy_of_long_lines();
    command.stderr(writer);
    let server = Server::run(command);
    eventually("lines are lost", || {
        log_a_long_line(&server);
        metric(&server, "log_dropped") >= 3.0
    });
    let lost = metric(&server, "log_dropped");
    assert_eq!(metric(&server, "log_errors"), 0.0);
    reader.read_exact(&mut vec![0; filled]).unwrap();
    let text = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&text);
    let reading = thread::spawn(move || {
        for line in BufReader::new(reader).lines() {
            *sink.lock().unwrap() += &(line.unwrap() + "\n");
        }
    });
    let text = || text.lock().unwrap().clone();
    let report = format!("log works again: {lost} lines lost: standard error was blocked\n");
    eventually("the loss is logged", || text().contains(&report));
    assert_ends(server);
    reading.join().unwrap();
    assert!(text().contains("draining"), "the last lines are written");
}

#[test]
fn a_blocked_log_does_not_delay_the_end() {
    for mut command in [serve(), proxy(&["--upstream", "127.0.0.1:9"])] {
        let (reader, writer, _) = full_pipe();
        command.stderr(writer);
        let server = Server::run(command);
        server.signal(Signal::HUP);
        assert_ends(server);
        drop(reader);
    }
}

#[test]
fn an_error_at_start_has_its_exit_code_though_it_cannot_be_printed() {
    let (reader, stuck, _) = full_pipe();
    for stderr in [Stdio::from(full_device()), closed_pipe().into(), stuck.into()] {
        let mut command = standfast(&["serve", "--listen", "192.0.2.1:1", "--admin", "off"]);
        command.stderr(stderr);
        let mut running = Running(command.spawn().unwrap());
        assert_eq!(running.wait().code(), Some(2));
    }
    drop(reader);
}

/// Sends requests in batches that the proxy answers itself, until `count` have been answered.
fn ask(server: &Server, count: usize) {
    const AT_ONCE: usize = 100;
    let mut socket = Socket::connect(server.listen);
    let request = b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n".repeat(AT_ONCE);
    for _ in 0..count / AT_ONCE {
        socket.send(&request);
        for _ in 0..AT_ONCE {
            assert_eq!(socket.response().status, 404);
        }
    }
}

/// A proxy without a route for the requests of [`ask`].
fn proxy_with_access_log(path: &str) -> (Command, Scratch) {
    let text = "[pool.a]\nupstreams = ['127.0.0.1:9']\n[[route]]\nhost = 'x.example'\npool = 'a'\n";
    let config = Scratch::new("sinks.toml", text);
    (proxy(&["--access-log", path, "--config", config.path()]), config)
}

/// More requests than the access log queues.
const TOO_MANY: usize = 10_000;

#[test]
fn access_log_lines_lost_are_counted_and_logged() {
    for (sink, why) in [("/dev/full", "No space"), ("fifo", "no process reads")] {
        let fifo = Fifo::new("unread");
        let path = if sink == "fifo" { fifo.path() } else { sink };
        let (command, _config) = proxy_with_access_log(path);
        let server = Server::run(command);
        ask(&server, TOO_MANY);
        assert!(metric(&server, "access_log_dropped") > 0.0);
        eventually("the failure is counted", || metric(&server, "access_log_errors") > 0.0);
        eventually("both are logged", || {
            let log = server.log();
            log.contains("access log lines lost: ") && log.contains(why)
        });
        assert_ends(server);
    }
}

#[test]
fn an_access_log_goes_on_when_its_fifo_is_read() {
    let fifo = Fifo::new("slow");
    let (command, _config) = proxy_with_access_log(fifo.path());
    let server = Server::run(command);
    ask(&server, 100);
    eventually("nobody reads", || server.log().contains("no process reads this FIFO"));
    let mut reader = fifo.reader();
    let mut text = String::new();
    eventually("every line arrives", || {
        let _ = reader.read_to_string(&mut text);
        text.lines().count() == 100
    });
    eventually("it is logged", || server.log().contains("access log works again"));
    assert_eq!(metric(&server, "access_log_dropped"), 0.0);
    // Now it is open and read no more; the end does not wait for it.
    ask(&server, TOO_MANY);
    eventually("lines are lost", || metric(&server, "access_log_dropped") > 0.0);
    assert_ends(server);
}

#[test]
fn the_reader_of_a_fifo_sees_its_end_only_with_the_proxy() {
    let fifo = Fifo::new("read");
    let (path, (command, _config)) = (fifo.0.clone(), proxy_with_access_log(fifo.path()));
    let reading = thread::spawn(move || fs::read_to_string(path).unwrap());
    let server = Server::run(command);
    ask(&server, 100);
    server.signal(Signal::HUP);
    eventually("it is reopened", || server.log().contains("configuration reloaded"));
    ask(&server, 100);
    assert_ends(server);
    assert_eq!(reading.join().unwrap().lines().count(), 200);
}

#[test]
fn an_access_log_to_a_blocked_standard_output_does_not_delay_the_end() {
    let (command, _config) = proxy_with_access_log("-");
    let (reader, writer) = io::pipe().unwrap();
    let mut full = writer.try_clone().unwrap();
    let mut command = command;
    command.stdout(writer).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    drop(command);
    let mut line = Vec::new();
    let mut reader = reader;
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        line.extend(byte);
    }
    let ready: serde_json::Value = serde_json::from_slice(&line).unwrap();
    fill(&mut full);
    let listen = ready["listen"].as_str().unwrap().parse().unwrap();
    let mut socket = Socket::connect(listen);
    socket.send(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n");
    assert_eq!(socket.response().status, 404);
    let pid = rustix::process::Pid::from_child(&running.0);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn the_last_lines_of_an_access_log_are_written_at_the_end() {
    let log = Scratch::new("last.log", "");
    let (command, _config) = proxy_with_access_log(log.path());
    let server = Server::run(command);
    ask(&server, 1_000);
    assert_ends(server);
    assert_eq!(fs::read_to_string(log.path()).unwrap().lines().count(), 1_000);
}

#[test]
fn load_outlives_its_rows() {
    let server = Server::start(&[]);
    let url = format!("ws://{}/echo", server.listen);
    let flags =
        ["load", &url, "--connections", "5", "--hold", "2s", "--metrics", "0", "--json", "-"];
    let (reader, stuck, _) = full_pipe();
    for stderr in [Stdio::from(full_device()), closed_pipe().into(), stuck.into()] {
        let mut command = standfast(&flags);
        command.stderr(stderr);
        let mut running = Running(command.spawn().unwrap());
        let mut json = String::new();
        running.0.stdout.take().unwrap().read_to_string(&mut json).unwrap();
        assert_eq!(running.wait().code(), Some(0));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["connections"]["open"], 5, "{json}");
    }
    drop(reader);
}

#[test]
fn a_long_host_or_origin_is_cut_in_the_log() {
    let server = Server::start(&["--public"]);
    let long = "ä".repeat(150) + &"b".repeat(3_000);
    for (name, value) in
        [("Origin", format!("https://{long}")), ("Host", format!("{}.example", "h".repeat(3_000)))]
    {
        let mut socket = Socket::connect(server.listen);
        socket.send(upgrade("/echo", &[(name, &value)]).as_bytes());
        assert!([403, 421].contains(&socket.response().status));
        let shown: String = value.chars().take(200).collect();
        let event = name.to_lowercase();
        let line = format!("{event} refused: {shown}…");
        eventually("the refusal is logged", || server.log().contains(&format!("{event} refused")));
        let log = server.log();
        assert!(log.contains(&line), "{log}");
        assert!(!log.contains(&value), "{log}");
    }
}

#[test]
fn a_long_host_is_cut_in_the_access_log() {
    let log = Scratch::new("host.log", "");
    let (command, _config) = proxy_with_access_log(log.path());
    let server = Server::run(command);
    let mut socket = Socket::connect(server.listen);
    let host = "h".repeat(5_000);
    socket.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    assert_eq!(socket.response().status, 404);
    let text = || fs::read_to_string(log.path()).unwrap();
    eventually("the line is written", || text().ends_with('\n'));
    let line: serde_json::Value = serde_json::from_str(&text()).unwrap();
    assert_eq!(line["host"].as_str(), host.get(..200));
}
