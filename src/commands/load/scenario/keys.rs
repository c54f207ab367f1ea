//! Every key of a `load` scenario file, version 1, with its type, default and meaning. The parser
//! refuses other keys, and the reference in `docs/load/scenarios.md` is generated from this list.

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

pub(super) const STEP: Section = Section {
    name: "[[flows.steps]]",
    keys: &[
        key("name", "text", "the action", "name in the summary"),
        key(
            "tags",
            "table",
            "",
            "labels for thresholds: `tags = { type = \"api\" }` for `p95{type:api}<1s`",
        ),
        key("method", "text", "GET, with a body POST", "request method"),
        key(
            "url",
            "template",
            "",
            "HTTP request: a path at the target, or a full URL with a fixed host",
        ),
        key(
            "parallel",
            "tables",
            "",
            "[[flows.steps.parallel]], requests sent at the same time; the step then has only `tags`, `think`, `once`, `when`, `for_each`, `repeat` and `on_failure`",
        ),
        key("headers", "table", "", "headers: name = template; override those of the top level"),
        key("body", "template", "", "request body"),
        key(
            "body_file",
            "file",
            "",
            "request body from a file, relative to the scenario, at most 16 MiB; a template if it is UTF-8, otherwise sent unchanged",
        ),
        key("body_base64", "text", "", "request body of these bytes, in base64"),
        key("json", "table", "", "JSON body; templates in its strings are escaped"),
        key("form", "table", "", "form body of name=value pairs; templates are percent-encoded"),
        key("multipart", "tables", "", "[[flows.steps.multipart]], multipart/form-data body"),
        key(
            "grpc",
            "text",
            "",
            "gRPC call: `package.Service/Method` at the target, or `grpc://HOST:PORT/package.Service/Method`; over HTTP/2, beside requests with `http2` in [connect]; `grpc-web://` and `grpc-web-text://` over HTTP/1.1",
        ),
        key(
            "message",
            "table or template",
            "{}",
            "with grpc: the message as a table, or as JSON; templates in strings are escaped. For methods that take a stream, a list of them",
        ),
        key(
            "metadata",
            "table",
            "",
            "with grpc: name = template, in addition to the headers of the top level; values of names ending in -bin in base64",
        ),
        key("basic", "template", "", "`USER:PASSWORD` for Basic authentication"),
        key("bearer", "template", "", "token for `Authorization: Bearer`"),
        key("connect", "template", "", "opens a WebSocket: a path, ws:// or wss:// URL"),
        key("protocols", "texts", "", "with connect: subprotocols to offer"),
        key(
            "hold",
            "bool",
            "false",
            "with connect, cable: the socket stays open over passes, and the step is skipped until it has ended",
        ),
        key(
            "socket",
            "text",
            "",
            "name of the socket of this step, at most 16; without it the one without a name",
        ),
        key("cable", "template", "", "opens an Action Cable connection and waits for the welcome"),
        key("send", "template", "", "sends a message on the socket"),
        key("binary", "bool", "false", "with send: a binary message"),
        key(
            "receive",
            "table",
            "",
            "[flows.steps.receive], waits for a message; alone, or after the step's message",
        ),
        key("ping", "true or template", "", "sends a ping and waits for its pong"),
        key("close", "true", "", "closes the socket and waits for the server's close frame"),
        key(
            "subscribe",
            "table or text",
            "",
            "subscribes with an Action Cable identifier and waits for the confirmation",
        ),
        key(
            "unsubscribe",
            "true, table or text",
            "",
            "unsubscribes; true: from the last subscription",
        ),
        key("perform", "table", "", "performs an action: data for the channel"),
        key("whisper", "table", "", "whispers: data for the other clients on the stream"),
        key(
            "channel",
            "table or text",
            "last subscription",
            "with perform, whisper: the identifier",
        ),
        key(
            "meet",
            "true",
            "",
            "waits until the whole group has arrived; the user receives from then on",
        ),
        key(
            "stay",
            "true",
            "",
            "stops sending and receives until no user of the group sends; then the user is done",
        ),
        key("each", "bool", "false", "in a group: repeats the step for every receiver, `{{to}}`"),
        key("repeat", "count", "1", "number of repetitions"),
        key(
            "when",
            "text",
            "",
            "the step is made only if this is true: `\"{{role}} == 'admin'\"`, with `==`, `!=`, `<`, `>`, `contains` or `exists`",
        ),
        key(
            "for_each",
            "list or text",
            "",
            "repeats the step for each value of a list, row of `FEED.COLUMN`, value of a captured list, or element of a captured JSON array: `{{item}}`; at most 10000",
        ),
        key(
            "within",
            "time",
            "timeout",
            "time limit of this step; of a gRPC call also its deadline, `grpc-timeout`",
        ),
        key("think", "time or range", "the top level's", "think time after this step"),
        key(
            "once",
            "bool",
            "false",
            "only in the user's first pass, as a login; repeated if it failed",
        ),
        key("on_failure", "text", "the top level's", "as at the top level"),
        key(
            "capture",
            "table",
            "",
            "[flows.steps.capture], values to keep from the answer: NAME = { header, json or regex }",
        ),
        key("checks", "tables", "", "[[flows.steps.checks]], conditions on the answer"),
    ],
};

pub(super) const PARALLEL: Section = Section {
    name: "[[flows.steps.parallel]]",
    keys: &[
        key("name", "text", "the request", "name in the summary"),
        key("tags", "table", "", "labels for thresholds, in addition to those of the step"),
        key("method", "text", "GET, with a body POST", "request method"),
        key(
            "url",
            "template",
            "",
            "a path at the target, or a full URL with a fixed host; this or grpc is required",
        ),
        key("grpc", "text", "", "as in [[flows.steps]]"),
        key("message", "table or template", "{}", "as in [[flows.steps]]"),
        key("metadata", "table", "", "as in [[flows.steps]]"),
        key("headers", "table", "", "as in [[flows.steps]]"),
        key("body", "template", "", "as in [[flows.steps]]"),
        key("body_file", "file", "", "as in [[flows.steps]]"),
        key("body_base64", "text", "", "as in [[flows.steps]]"),
        key("json", "table", "", "as in [[flows.steps]]"),
        key("form", "table", "", "as in [[flows.steps]]"),
        key("multipart", "tables", "", "as in [[flows.steps]]"),
        key("basic", "template", "", "as in [[flows.steps]]"),
        key("bearer", "template", "", "as in [[flows.steps]]"),
        key("within", "time", "timeout", "time limit of this request, from when it is sent"),
        key("capture", "table", "", "as in [[flows.steps]]; known from the next step on"),
        key("checks", "tables", "", "as in [[flows.steps]]"),
    ],
};

pub(super) const PART: Section = Section {
    name: "[[flows.steps.multipart]]",
    keys: &[
        key("name", "text", "", "name of the field; required"),
        key("value", "template", "", "value of the field"),
        key(
            "file",
            "file",
            "",
            "file to send instead of a value, relative to the scenario, unchanged; at most 16 MiB in one body",
        ),
        key("filename", "text", "that of `file`", "name of the file"),
        key("type", "media type", "with file application/octet-stream", "Content-Type of the part"),
    ],
};

pub(super) const RECEIVE: Section = Section {
    name: "[flows.steps.receive]",
    keys: &[
        key("text", "template", "", "the message equals this"),
        key("contains", "template", "", "the message contains this"),
        key("json", "JSONPath", "", "matches a value that is not null"),
        key("regex", "pattern", "", "matches in the message"),
        key("is", "text, number, bool", "", "with json or regex: the value equals this"),
        key("matches", "pattern", "", "with json or regex: matches in the value"),
    ],
};

pub(super) const CAPTURE: Section = Section {
    name: "[flows.steps.capture]",
    keys: &[
        key("header", "text", "", "value of this header"),
        key("json", "JSONPath", "", "first match in the body (RFC 9535)"),
        key("regex", "pattern", "", "first match in the body: its first group, or the whole match"),
        key(
            "take",
            "text",
            "first",
            "of several matches: the `first`, one at `random`, or `all` as a list",
        ),
    ],
};

pub(super) const CHECK: Section = Section {
    name: "[[flows.steps.checks]]",
    keys: &[
        key("name", "text", "the condition", "name in the summary"),
        key(
            "status",
            "text or number",
            "",
            "`200`, `\"2xx\"`, `\"200-204, 404\"`; with it a status of 400 or more is not a failure by itself. Of a gRPC call `\"OK\"`, `\"OK, NOT_FOUND\"`",
        ),
        key("header", "text", "", "the header is present"),
        key(
            "json",
            "JSONPath",
            "",
            "matches a value that is not null; of a gRPC call in the JSON of its message, or in the list of those of a stream",
        ),
        key("regex", "pattern", "", "matches in the body"),
        key("is", "text, number, bool", "", "with header, json or regex: the value equals this"),
        key("matches", "pattern", "", "with header, json or regex: matches in the value"),
        key("size", "bound", "", "body size in bytes: `\"<64KiB\"`, `\">0\"`, `\"=20\"`"),
        key(
            "latency",
            "bound",
            "",
            "latency from the due time to the complete answer: `\"<250ms\"`",
        ),
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
