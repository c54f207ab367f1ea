//! The million: `standfast prove` with a million sockets, and its report judged against limits.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Context;
use super::report::{self, Target};

const SOCKETS: usize = 1_000_000;
const OPEN_SECONDS_PER_MILLION: f64 = 45.0;
const FIXED_BYTES: f64 = 32.0 * 1024.0 * 1024.0;
const BYTES_PER_SOCKET: f64 = 128.0;

/// Runs `prove` with its screen shown. Returns whether the targets were met.
pub(super) fn run(bench: &Context) -> Result<bool> {
    let sockets = bench.connections.unwrap_or(SOCKETS);
    let hold = format!("{}s", bench.seconds.unwrap_or(30.0).ceil());
    println!("\n=== million: prove --connections {sockets} --hold {hold}");
    fs::create_dir_all(&bench.out)?;
    let file = bench.out.join("prove.json");
    // A result of an earlier run must not be mistaken for this run's.
    if file.exists() {
        fs::remove_file(&file)?;
    }
    // The result repeats its own command line, which should name no path of this machine.
    let program = fs::canonicalize(bench.tools.standfast())?;
    let status = Command::new(program)
        .args(["prove", "--connections", &sockets.to_string(), "--hold", &hold])
        .args(["--json", "prove.json"])
        .current_dir(&bench.out)
        .status()
        .context("cannot start prove")?;
    let text =
        fs::read_to_string(&file).with_context(|| format!("prove wrote no JSON ({status})"))?;
    let proved: Value = serde_json::from_str(&text)?;
    fs::remove_file(&file)?;

    let targets = targets(&proved, sockets as f64)?;
    let settings = json!({ "sockets": sockets, "hold": hold, "exit": status.code() });
    report::finish(&bench.out, "million", settings, proved, &targets)
}

fn targets(proved: &Value, sockets: f64) -> Result<Vec<Target>> {
    let get = |pointer: &str| {
        proved.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("no {pointer}"))
    };
    let closed = proved["closed"].as_object().context("no /closed")?;
    let closed = closed.values().filter_map(Value::as_u64).sum::<u64>() as f64;
    let budget = FIXED_BYTES + BYTES_PER_SOCKET * sockets;
    let open_seconds = OPEN_SECONDS_PER_MILLION * (sockets / SOCKETS as f64);
    let wrong = get("/broadcast/lost")? + get("/broadcast/duplicated")?;
    Ok(vec![
        Target::at_least("open at the end of the hold", get("/connections/open")?, sockets),
        Target::at_most("failed", get("/connections/failed")?, 0.0),
        Target::at_most("seconds to open", get("/connections/seconds")?, open_seconds),
        Target::at_most("closed meanwhile", closed, 0.0),
        Target::at_most("serve, resident bytes", get("/server/rss_bytes")?, budget),
        Target::at_most("load, resident bytes", get("/client/rss_bytes")?, budget),
        Target::at_least("broadcast received", get("/broadcast/received")?, sockets),
        Target::at_most("broadcast lost or doubled", wrong, 0.0),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_message_or_socket_falls_short() {
        let held = json!({
            "connections": { "open": 1000, "failed": 0, "seconds": 0.02 },
            "closed": { "idle_timeout": 0 },
            "server": { "rss_bytes": 9_000_000 }, "client": { "rss_bytes": 9_000_000 },
            "broadcast": { "received": 1000, "lost": 0, "duplicated": 0 },
        });
        let short = |proved: &Value| {
            targets(proved, 1000.0).unwrap().iter().filter(|target| !target.is_met()).count()
        };
        assert_eq!(short(&held), 0);
        for (pointer, value) in [
            ("/connections/open", 999),
            ("/connections/failed", 1),
            ("/closed/idle_timeout", 1),
            ("/broadcast/lost", 1),
            ("/broadcast/received", 999),
            ("/server/rss_bytes", 34_000_000),
        ] {
            let mut proved = held.clone();
            *proved.pointer_mut(pointer).unwrap() = json!(value);
            assert_eq!(short(&proved), 1, "{pointer}");
        }
    }
}
