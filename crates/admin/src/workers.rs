//! Workers of a program: a section of the admin page.

use engine::{Counters, Remote};
use serde_json::{Value, json};

/// A figure of a worker that only the program has.
pub struct WorkerColumn {
    id: &'static str,
    label: &'static str,
    /// Whether it counts up and is shown per second.
    is_rate: bool,
}

impl WorkerColumn {
    /// A figure of now.
    #[must_use]
    pub const fn now(id: &'static str, label: &'static str) -> WorkerColumn {
        WorkerColumn { id, label, is_rate: false }
    }

    /// A counter, shown per second.
    #[must_use]
    pub const fn per_second(id: &'static str, label: &'static str) -> WorkerColumn {
        WorkerColumn { id, label, is_rate: true }
    }
}

/// The section, with these columns of the program.
#[must_use]
pub fn workers_section(own: &[WorkerColumn]) -> Value {
    let mut columns = vec![
        json!({ "id": "worker", "label": "Worker" }),
        json!({ "id": "open", "label": "Connections", "unit": "count", "bar": "capacity" }),
        json!({ "id": "capacity", "label": "Capacity", "unit": "count" }),
    ];
    columns.extend(own.iter().map(|WorkerColumn { id, label, is_rate }| {
        json!({ "id": id, "label": label, "unit": "count", "rate": is_rate })
    }));
    columns.push(json!({ "id": "queued_bytes", "label": "Send queues", "unit": "bytes" }));
    columns.push(json!({ "id": "mailbox_full", "label": "Mailbox full", "unit": "count" }));
    json!({
        "id": "workers", "title": "Workers", "kind": "table", "key": ["worker"],
        "sort": "worker", "ascending": true, "empty": "No worker has started.",
        "columns": columns,
    })
}

/// The rows: of each running worker what the engine counts, and `own`, one value for each column.
#[must_use]
pub fn worker_rows<P, const N: usize>(
    remote: &Remote<P>,
    running: impl Iterator<Item = usize>,
    columns: &[WorkerColumn; N],
    own: impl Fn(usize, &Counters) -> Option<[u64; N]>,
) -> Value {
    let all: Vec<_> = remote.counters().zip(remote.open()).collect();
    let rows = running.filter_map(|worker| {
        let (counters, (open, capacity)) = all.get(worker)?;
        let mut row = json!({
            "worker": worker,
            "open": open,
            "capacity": capacity,
            "queued_bytes": counters.queued_bytes.get(),
            "mailbox_full": counters.mailbox_full.get(),
        });
        for (column, value) in columns.iter().zip(own(worker, counters)?) {
            row[column.id] = value.into();
        }
        Some(row)
    });
    rows.collect()
}
