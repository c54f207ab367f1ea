//! Refusals by cause, each with the flag that would admit what was refused: rows of the admin page.

use engine::{Closed, Refusal, Totals};
use serde_json::{Value, json};

/// A row: what was refused, how often, and what would admit it. `None` if it has not occurred.
#[must_use]
pub fn cause(name: &str, what: &str, count: u64, hint: &str) -> Option<Value> {
    (count > 0).then(|| json!({ "cause": name, "what": what, "count": count, "hint": hint }))
}

/// The section that shows these rows.
#[must_use]
pub fn causes_section(id: &str, title: &str, what: &str, hint: &str, empty: &str) -> Value {
    json!({
        "id": id, "title": title, "kind": "table", "key": ["cause"],
        "sort": "count", "empty": empty,
        "columns": [
            { "id": "what", "label": what, "wrap": true },
            { "id": "count", "label": "Count", "unit": "count" },
            { "id": "count", "as": "recent", "label": "Per s", "unit": "count", "rate": true },
            { "id": "hint", "label": hint, "wrap": true },
        ],
    })
}

/// The rows of what the engine refuses.
#[must_use]
pub fn engine_causes(totals: &Totals) -> Vec<Value> {
    let refused = Refusal::ALL.iter().zip(&totals.refused).filter_map(|(refusal, count)| {
        let (what, hint) = refusal_text(*refusal)?;
        cause(refusal.name(), what, *count, hint)
    });
    let closed = Closed::ALL.iter().zip(&totals.closed).filter_map(|(why, count)| {
        let (what, hint) = match why {
            Closed::HandshakeTimeout => {
                ("Request heads that were not complete in time", "--handshake-timeout")
            }
            Closed::TlsFailed => (
                "Failed TLS handshakes",
                "Clients need the scheme https or wss and must trust the certificate; --tls-min, \
                 --tls-client-ca",
            ),
            _ => return None,
        };
        cause(why.name(), what, *count, hint)
    });
    let full = cause(
        "accept_full",
        "Times that accepting stopped at the connection limit",
        totals.accept_full,
        "--max-connections; standfast doctor says what limits this machine",
    );
    let late = cause(
        "bodies_late",
        "Request bodies that were not complete in time",
        totals.bodies_late,
        "--handshake-timeout",
    );
    refused.chain(closed).chain(full).chain(late).collect()
}

/// What was refused and the flag; `None` if only one program refuses it.
fn refusal_text(refusal: Refusal) -> Option<(&'static str, &'static str)> {
    Some(match refusal {
        Refusal::Handshakes => ("The oldest of too many incomplete requests", "--max-handshakes"),
        Refusal::ConnectRate => ("Too many connects in a second", "--connect-rate"),
        Refusal::PerAddress => (
            "Too many connections from one address",
            "--max-per-address; behind a proxy also --trusted-proxy",
        ),
        Refusal::PerAddressRate => (
            "Too many connects from one address in a second",
            "--per-address-rate; behind a proxy also --trusted-proxy",
        ),
        Refusal::MemoryLimit => ("The process was above its memory limit", "--memory-limit"),
        Refusal::PolledBytes => return None,
        Refusal::Connections => (
            "The oldest incomplete request at the connection limit",
            "--max-connections; standfast doctor says what limits this machine",
        ),
    })
}
