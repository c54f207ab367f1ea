//! The HTML report of a proof: its figures as rows of a [`Report`].

use std::time::Duration;

use capacity::{Bytes, Count};

use super::plan::Plan;
use super::result::{Mark, ProcessResult, Proof, ServerResult};
use crate::commands::fleet::whole::Fleet;
use crate::commands::load as load_command;
use crate::report::{Report, Rows, Table, Tile};
use crate::units::format_duration;

/// Returns the report of a proof.
pub(super) fn report<'a>(proof: &'a Proof, plan: &Plan) -> Report<'a> {
    let connections = &proof.connections;
    let title = match &proof.scenario {
        Some(scenario) => format!("Scenario {scenario}"),
        None => "Proof on this machine".to_owned(),
    };
    Report {
        title,
        verdict: (proof.verdict, proof.held()),
        result: format!(
            "{} of {} WebSockets open after {:.0} s",
            Count(connections.open),
            Count(connections.requested),
            proof.hold_seconds
        ),
        reasons: &proof.reasons,
        scope: None,
        tiles: tiles(proof),
        timings: proof.timings.clone(),
        figures: figures(proof),
        bars: Vec::new(),
        timeline: None,
        tables: tables(proof),
        configuration: configuration(proof, plan),
        series: &proof.series,
        machine: &proof.machine,
        command: proof.command.clone(),
    }
}

fn tables(proof: &Proof) -> Vec<Table> {
    let memory = Table {
        title: "Memory by number of sockets",
        heads: vec!["sockets", "server", "client", "kernel, both ends"],
        rows: proof.marks.iter().map(mark).collect(),
        texts: &[],
    };
    let agents = proof.fleet.as_ref().map(Fleet::table);
    let servers = servers(proof);
    [memory].into_iter().chain(servers).chain(agents).collect()
}

/// The servers of agents; `None` without.
pub(super) fn servers(proof: &Proof) -> Option<Table> {
    (!proof.servers.is_empty()).then(|| Table {
        title: "Servers",
        heads: vec!["server", "address", "sockets", "resident", "per socket", "CPU"],
        rows: proof.servers.iter().map(server).collect(),
        texts: &[1],
    })
}

fn configuration(proof: &Proof, plan: &Plan) -> Rows {
    let every = |time: Duration| {
        if time.is_zero() { "none".to_owned() } else { format!("every {}", format_duration(time)) }
    };
    let messages = plan.messages.map_or("none".to_owned(), |messages| {
        format!("{} bytes every {}", messages.size, format_duration(messages.every))
    });
    let mut rows = vec![
        ("sockets", Count(proof.connections.requested).to_string()),
        ("opened", load_command::connect_flag(plan.connect)),
        ("held for", format_duration(plan.hold)),
        ("heartbeats", every(plan.heartbeat)),
        ("messages per socket", messages),
        ("broadcasts", Count(plan.broadcasts.into()).to_string()),
    ];
    if !plan.serve.is_empty() {
        rows.push(("additional serve flags", plan.serve.join(" ")));
    }
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the figures to look at first.
fn tiles(proof: &Proof) -> Vec<Tile> {
    let c = &proof.connections;
    let rate = format!("{}/s", Count(c.per_second.round() as u64));
    let ended: u64 = proof.closed.values().sum();
    let each = |process: &ProcessResult| {
        process.rss_bytes_per_connection.map_or("?".to_owned(), |bytes| format!("{bytes:.0} B"))
    };
    let mut tiles = vec![
        Tile::new("Open", Count(c.open).to_string(), format!("of {}", Count(c.requested))),
        Tile::new("Connect rate", rate, format!("in {:.1} s", c.seconds)),
        Tile::bad("Failed or closed", c.failed + ended, "connections"),
        Tile::new("Server memory", each(&proof.server), "per socket"),
    ];
    if let Some(bytes) = proof.kernel_bytes_per_socket {
        tiles.push(Tile::new("Kernel memory", Bytes(bytes as u64).to_string(), "per socket"));
    }
    if let Some(b) = proof.broadcast.as_ref().filter(|b| b.expected > 0) {
        let of = format!("of {} deliveries", Count(b.expected));
        tiles.push(Tile::bad("Lost", b.lost, of));
    }
    tiles
}

fn figures(proof: &Proof) -> Rows {
    let c = &proof.connections;
    let cpu = |process: &ProcessResult| {
        process.cpu_seconds.map_or("unknown".to_owned(), |seconds| format!("{seconds:.1} s"))
    };
    let mut rows = vec![
        ("opened in", format!("{:.1} s, {} per second", c.seconds, Count(c.per_second as u64))),
        ("failed to open", causes(c.failed, &proof.connect_errors)),
        ("closed before the end", causes(proof.closed.values().sum(), &proof.closed)),
        ("server, resident", resident(&proof.server)),
        ("server, CPU", cpu(&proof.server)),
        ("client, resident", resident(&proof.client)),
        ("client, CPU", cpu(&proof.client)),
        (
            "kernel",
            proof.kernel_bytes_per_socket.map_or("unknown or implausible".to_owned(), |bytes| {
                format!("{} per socket, two sockets per connection", Bytes(bytes as u64))
            }),
        ),
        (
            "whole machine",
            proof.system_bytes.map_or("unknown".to_owned(), |bytes| format!("+{}", Bytes(bytes))),
        ),
    ];
    if let Some(h) = proof.heartbeats.as_ref().filter(|h| h.sent > 0) {
        let answered = format!("{} of {} answered", Count(h.received), Count(h.sent));
        rows.push(("heartbeats", answered));
    }
    if let Some(m) = &proof.messages {
        rows.push(("messages", format!("{} of {} echoed", Count(m.received), Count(m.sent))));
        rows.push((
            "messages lost, duplicated, corrupted",
            format!("{}, {}, {}", Count(m.lost), Count(m.duplicated), Count(m.corrupted)),
        ));
    }
    if let Some(b) = proof.broadcast.as_ref().filter(|b| b.expected > 0) {
        rows.push((
            "broadcast",
            format!("{} of {} delivered", Count(b.received), Count(b.expected)),
        ));
        rows.push((
            "deliveries lost, duplicated",
            format!("{}, {}", Count(b.lost), Count(b.duplicated)),
        ));
    }
    if let Some(link) = &proof.link {
        rows.push(("link, each way", format!("{} Mbit/s, {:.0} ms", link.megabits, link.delay_ms)));
        for (name, way) in [("to the server", link.to_server), ("to the clients", link.to_clients)]
        {
            let passed =
                format!("{} passed, {} packets dropped", Bytes(way.bytes), Count(way.dropped));
            rows.push((name, passed));
        }
    }
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn causes(all: u64, by_cause: &std::collections::BTreeMap<String, u64>) -> String {
    let named: Vec<_> =
        by_cause.iter().map(|(cause, count)| format!("{cause} {}", Count(*count))).collect();
    if named.is_empty() {
        Count(all).to_string()
    } else {
        format!("{} ({})", Count(all), named.join(", "))
    }
}

fn resident(process: &ProcessResult) -> String {
    match (process.rss_bytes, process.rss_bytes_per_connection) {
        (Some(all), Some(each)) => format!("{}, {each:.0} B per socket", Bytes(all)),
        (Some(all), None) => Bytes(all).to_string(),
        (None, _) => "unknown".to_owned(),
    }
}

fn mark(mark: &Mark) -> Vec<String> {
    let [server, client, kernel] = mark.memory().map(known);
    vec![Count(mark.connections).to_string(), server, client, kernel]
}

fn known(bytes: Option<u64>) -> String {
    bytes.map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string())
}

/// The servers of agents.
fn server(server: &ServerResult) -> Vec<String> {
    let unknown = || "unknown".to_owned();
    vec![
        server.name.clone(),
        server.address.map_or_else(unknown, |address| address.to_string()),
        server.connections.map_or_else(unknown, |connections| Count(connections).to_string()),
        known(server.rss_bytes),
        server.rss_bytes_per_connection.map_or_else(unknown, |bytes| format!("{bytes:.0} B")),
        server.cpu_seconds.map_or_else(unknown, |seconds| format!("{seconds:.1} s")),
    ]
}
