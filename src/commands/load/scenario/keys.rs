//! Every key of a `load` scenario file, version 1, with its type, default and meaning. The parser
//! refuses other keys, and the reference in `docs/load/scenarios.md` is generated from this list.

mod step;

pub(super) use self::step::{CAPTURE, CHECK, PARALLEL, PART, RECEIVE, STEP};

/// A table of the file.
#[derive(Debug)]
pub(super) struct Section {
    /// The name in the file.
    pub(super) name: &'static str,
    pub(super) keys: &'static [Key],
}

/// A key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// The type, such as `time`.
    pub(super) kind: &'static str,
    /// Empty if there is no default.
    pub(super) default: &'static str,
    pub(super) meaning: &'static str,
}

const fn key(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { name, kind, default, meaning }
}

pub(super) const TOP: Section = Section {
    name: "top level",
    keys: &[
        key("version", "1", "", "version of this format; required"),
        key("about", "text", "", "description in one line, shown at the start"),
        key(
            "target",
            "URL",
            "",
            "base URL for steps whose url is a path; overridden by `--target`",
        ),
        key(
            "users",
            "count",
            "1",
            "concurrent users, with a connection to each host that they use; overridden by `--connections`",
        ),
        key(
            "passes",
            "count",
            "",
            "iterations of a flow per user; default: until the duration ends; not with rate",
        ),
        key(
            "duration",
            "time",
            "10s without passes",
            "time after which nothing more is sent; overridden by `--duration`",
        ),
        key(
            "rate",
            "count",
            "",
            "steps per second over all users, sent on schedule (open model); without it each user continues when its answer has arrived",
        ),
        key(
            "arrival_rate",
            "count",
            "",
            "passes begun per second over all users, on schedule (open model); a pass that is due while none of the `users` is free is dropped; not with rate or passes",
        ),
        key(
            "stages",
            "texts",
            "",
            "ramp of the number of users, `[\"30s:100\", \"2m:100\", \"30s:0\"]`; with rate: of steps per second; with arrival_rate: of passes per second",
        ),
        key(
            "think",
            "time or range",
            "0",
            "think time after each step without its own, `\"1s\"`, or a random time from `\"500ms..2s\"`",
        ),
        key(
            "warm_up",
            "time",
            "0",
            "steps due in this time are not counted, nor are passes begun in it; overridden by `--warm-up`",
        ),
        key(
            "on_failure",
            "text",
            "end_pass",
            "after a failed step: `end_pass`, and the user begins another pass, or `continue` with the next step",
        ),
        key("timeout", "time", "30s", "time limit for a complete answer, including the connect"),
        key("keep_alive", "bool", "true", "false: a new connection for each request"),
        key(
            "cookies",
            "bool",
            "true",
            "cookie jar per user, at most 50 cookies of 4 KiB (RFC 6265)",
        ),
        key(
            "redirects",
            "count",
            "10",
            "redirects to follow per step, at most 100; 0: a redirect is an answer",
        ),
        key("seed", "count", "the time", "seed of all random choices, to repeat a run"),
        key(
            "thresholds",
            "texts",
            "",
            "conditions for exit code 0, as `--threshold`: `[\"p99<250ms\", \"errors{step:login}<1%\"]`",
        ),
        key("headers", "table", "", "headers of every step: name = template"),
        key("variables", "table", "", "constants for templates: name = text"),
        key("connect", "table", "", "[connect], connection settings"),
        key("grpc", "table", "", "[grpc], where the types of gRPC messages come from"),
        key("group", "table", "", "[group], users that send to each other"),
        key("feeds", "tables", "", "[[feeds]], values from files"),
        key(
            "setup",
            "table",
            "",
            "[setup], steps of one user before all others, which can use its captures",
        ),
        key("teardown", "table", "", "[teardown], steps of one user after all others"),
        key("flows", "tables", "", "[[flows]], what users do; at least one"),
        key("rounds", "tables", "", "[[rounds]], repeats the whole run for each"),
        key(
            "load",
            "table",
            "",
            "[load], only beside version and about: a WebSocket run whose keys are the flags of `load` with `_` for `-`",
        ),
    ],
};

pub(super) const CONNECT: Section = Section {
    name: "[connect]",
    keys: &[
        key("sources", "texts", "chosen by the kernel", "local addresses to connect from"),
        key(
            "resolve",
            "texts",
            "",
            "`\"HOST:PORT:ADDRESS\"`: resolves without DNS, as curl's --resolve",
        ),
        key(
            "proxy",
            "URL",
            "",
            "HTTP proxy, `http://[USER:PASSWORD@]HOST:PORT`; TLS and sockets use a CONNECT tunnel",
        ),
        key("unix_socket", "file", "", "connect to this UNIX socket instead of the host"),
        key(
            "connect_timeout",
            "time",
            "timeout",
            "time limit for a connect, including the proxy's answer and the TLS handshake",
        ),
        key("http2", "bool", "false", "HTTP/2 as with `load --http2`, for sockets, too"),
        key(
            "streams",
            "count",
            "1",
            "with http2: users that share a connection to each host, at most 100,000",
        ),
        key(
            "connections_per_host",
            "count",
            "6, with http2 64",
            "requests of a `parallel` step that a user sends to one host at the same time, at most 64; further ones wait",
        ),
        key(
            "hosts_per_user",
            "count",
            "6",
            "hosts to which a user keeps connections, at most 64; beyond that it closes the one used longest ago",
        ),
        key("ca", "file", "the system's", "PEM file with the certificate authorities to trust"),
        key("insecure", "bool", "false", "accept any certificate; for tests only"),
        key("cert", "file", "", "client certificate, PEM; with key"),
        key("key", "file", "", "key of the client certificate, PEM"),
        key(
            "compression",
            "text",
            "off",
            "`shared` offers permessage-deflate on sockets and compresses each message separately, as `--compression`",
        ),
        key(
            "compress_above",
            "size",
            "1KiB",
            "size from which messages are compressed; with compression",
        ),
    ],
};

pub(super) const GRPC: Section = Section {
    name: "[grpc]",
    keys: &[
        key(
            "proto",
            "files",
            "",
            "`.proto` files, relative to the scenario; without proto and protoset each server is asked by reflection",
        ),
        key(
            "proto_path",
            "files",
            "the folders of the files",
            "folders where their imports begin, relative to the scenario",
        ),
        key("protoset", "file", "", "descriptor set of protoc or buf, relative to the scenario"),
    ],
};

pub(super) const FEED: Section = Section {
    name: "[[feeds]]",
    keys: &[
        key("name", "text", "", "used in templates as `{{NAME.COLUMN}}`; required"),
        key(
            "file",
            "file",
            "",
            "CSV file whose first line names the columns, or `.jsonl` with one object per line; relative to the scenario; at most 256 MiB; required",
        ),
        key(
            "order",
            "text",
            "sequential",
            "row of a pass: `sequential` (the next, over all users), `random`, `per-user` (always the same)",
        ),
        key(
            "at_end",
            "text",
            "again",
            "after the last row of a sequential feed: `again` starts at the first row, `stop` stops the users",
        ),
    ],
};

pub(super) const GROUP: Section = Section {
    name: "[group]",
    keys: &[
        key(
            "kind",
            "text",
            "",
            "senders and receivers: `1:1` (the first to the second), `1:N` (the first to the others), `N:1` (the others to the first), `N:N`; required",
        ),
        key(
            "size",
            "count",
            "2 with 1:1",
            "users per group; users 0 to size - 1 are the first group",
        ),
        key("own", "bool", "false", "senders also receive their own messages, as in a topic"),
        key("late", "time", "1s", "a message received later than this counts as late"),
        key(
            "quiet",
            "time",
            "2s",
            "time without any receipt after the last message, after which missing messages count as lost",
        ),
    ],
};

pub(super) const FLOW: Section = Section {
    name: "[[flows]]",
    keys: &[
        key("name", "text", "its number", "name in the summary"),
        key("weight", "count", "1", "relative probability that a pass takes this flow; 0: never"),
        key(
            "role",
            "text",
            "all users",
            "with a group: the users of this flow, `sender`, `receiver` or `both`",
        ),
        key("rate", "count", "", "messages per second per user, sent on schedule"),
        key(
            "users",
            "count",
            "",
            "users of this flow alone, in addition to those of the top level, which do not take it; not with weight, role, stages or rate",
        ),
        key(
            "arrival_rate",
            "count",
            "",
            "passes begun per second by these users, as at the top level; without it each begins when the user's last one ended",
        ),
        key("start", "time", "0", "when these users begin, from the end of the warm-up"),
        key("steps", "tables", "", "[[flows.steps]], executed in order; at most 64 over all flows"),
    ],
};

pub(super) const FIXTURE: Section = Section {
    name: "[setup], [teardown]",
    keys: &[
        key(
            "steps",
            "tables",
            "",
            "[[setup.steps]], [[teardown.steps]]: as [[flows.steps]], each made once, not in any figure; required",
        ),
        key("timeout", "time", "60s", "time limit of all its steps together"),
    ],
};

pub(super) const ROUND: Section = Section {
    name: "[[rounds]]",
    keys: &[
        key("users", "count", "the top level's", "as at the top level"),
        key("passes", "count", "the top level's", "as at the top level"),
        key("duration", "time", "the top level's", "as at the top level"),
        key("rate", "count", "the top level's", "as at the top level"),
        key("arrival_rate", "count", "the top level's", "as at the top level"),
        key("keep_alive", "bool", "the top level's", "as at the top level"),
        key("beside", "number", "", "reference figure per second, shown beside the result"),
    ],
};

/// All sections, in the order of the reference.
pub(super) const SECTIONS: [&Section; 14] = [
    &TOP, &CONNECT, &GRPC, &GROUP, &FEED, &FIXTURE, &FLOW, &STEP, &PARALLEL, &PART, &RECEIVE,
    &CAPTURE, &CHECK, &ROUND,
];

/// Returns the reference as Markdown tables.
pub(super) fn reference() -> String {
    let mut text = String::new();
    for Section { name, keys } in SECTIONS {
        let name = if name.starts_with('[') { format!("`{name}`") } else { (*name).to_owned() };
        text += &format!("### {name}\n\n| key | type | default | meaning |\n|---|---|---|---|\n");
        for Key { name, kind, default, meaning } in *keys {
            text += &format!("| `{name}` | {kind} | {default} | {meaning} |\n");
        }
        text.push('\n');
    }
    text += "### Templates\n\n| `{{…}}` | is |\n|---|---|\n";
    for (function, meaning) in load::scenario::FUNCTIONS {
        text += &format!("| `{function}` | {meaning} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_matches_the_code() {
        let docs = include_str!("../../../../docs/load/scenarios.md");
        let kept = docs
            .split_once("<!-- keys -->\n")
            .and_then(|(_, rest)| rest.split_once("<!-- end of keys -->").map(|(kept, _)| kept));
        let (kept, wanted) = (kept.unwrap_or_default().trim(), reference());
        let command = "standfast load init --keys";
        assert!(
            kept == wanted.trim(),
            "docs/load/scenarios.md differs from the output of `{command}`"
        );
    }
}
