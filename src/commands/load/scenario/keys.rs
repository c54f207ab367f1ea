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
    name: "the top of the file",
    keys: &[
        key("version", "1", "", "of this format; required"),
        key("about", "text", "", "one line, shown at the start"),
        key("target", "URL", "", "where steps whose url is a path go; `--target` goes before it"),
        key(
            "users",
            "count",
            "1",
            "users at the same time, each with a connection of its own; `--connections` goes before it",
        ),
        key(
            "passes",
            "count",
            "",
            "how often each user goes through a flow; without it until the duration is over; not with rate",
        ),
        key(
            "duration",
            "time",
            "10s without passes",
            "nothing is sent after this time; `--duration` goes before it",
        ),
        key(
            "rate",
            "count",
            "",
            "steps per second over all users, sent when due (open model); without it each user goes on when its answer is here",
        ),
        key(
            "stages",
            "texts",
            "",
            "users that come and go, `[\"30s:100\", \"2m:100\", \"30s:0\"]`; with rate: steps per second instead",
        ),
        key(
            "think",
            "time or range",
            "0",
            "after each step that says nothing itself, `\"1s\"`, or at random `\"500ms..2s\"`",
        ),
        key(
            "warm_up",
            "time",
            "0",
            "what is due in it goes first and is counted nowhere, nor are passes begun in it; `--warm-up` goes before it",
        ),
        key("timeout", "time", "30s", "for one answer to be whole, a connect included"),
        key("keep_alive", "bool", "true", "false: a new connection for each request"),
        key(
            "cookies",
            "bool",
            "true",
            "each user keeps its cookies, at most 50 of 4 KiB (RFC 6265)",
        ),
        key("redirects", "count", "10", "followed for one step, at most 100; 0: they are answers"),
        key("seed", "count", "the time", "of all chances, so that a run can be repeated"),
        key(
            "thresholds",
            "texts",
            "",
            "what must be reached for exit code 0, as `--threshold`: `[\"p99<250ms\", \"errors<0.1%\"]`",
        ),
        key("headers", "table", "", "header lines of every step: name = template"),
        key("variables", "table", "", "fixed values for templates: name = text"),
        key("connect", "table", "", "[connect], how connections are made"),
        key("group", "table", "", "[group], users who send to each other"),
        key("feeds", "tables", "", "[[feeds]], values from files"),
        key("flows", "tables", "", "[[flows]], what users do; at least one"),
        key("rounds", "tables", "", "[[rounds]], the whole run once for each"),
        key(
            "load",
            "table",
            "",
            "[load], alone beside version and about: a run of WebSockets, whose keys are flags of `load` with `_` for `-`",
        ),
    ],
};

pub(super) const CONNECT: Section = Section {
    name: "[connect]",
    keys: &[
        key("sources", "texts", "the kernel's choice", "addresses of this machine to connect from"),
        key(
            "resolve",
            "texts",
            "",
            "`\"HOST:PORT:ADDRESS\"`: where a name leads, as curl's --resolve",
        ),
        key(
            "proxy",
            "URL",
            "",
            "an HTTP proxy, `http://[USER:PASSWORD@]HOST:PORT`: asked in the place of servers, and by CONNECT for tunnels where TLS is spoken and for sockets",
        ),
        key("unix_socket", "file", "", "connect to this UNIX socket, whatever the host"),
        key(
            "connect_timeout",
            "time",
            "the timeout",
            "for a connect, with the proxy's answer and the handshake of TLS",
        ),
        key(
            "ca",
            "file",
            "the machine's",
            "believe servers with a certificate of an authority in this PEM file",
        ),
        key("insecure", "bool", "false", "believe any certificate: for tests"),
        key("cert", "file", "", "a certificate to show to servers that ask for one, PEM; with key"),
        key("key", "file", "", "its key, PEM"),
        key(
            "compression",
            "text",
            "off",
            "`shared` offers permessage-deflate on sockets, each message by itself, as `--compression`",
        ),
        key(
            "compress_above",
            "size",
            "1KiB",
            "bytes from which on a message is compressed; with compression",
        ),
    ],
};

pub(super) const FEED: Section = Section {
    name: "[[feeds]]",
    keys: &[
        key("name", "text", "", "templates say `{{NAME.COLUMN}}`; required"),
        key(
            "file",
            "file",
            "",
            "CSV whose first line names the columns, or `.jsonl`: an object a line; from the scenario's folder; at most 256 MiB; required",
        ),
        key(
            "order",
            "text",
            "sequential",
            "which row a pass gets: `sequential` (the next, over all users), `random`, `per-user` (always the same)",
        ),
        key(
            "at_end",
            "text",
            "again",
            "after the last row of a sequential feed: `again` from the first, or users `stop`",
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
            "who sends to whom: `1:1` (the first to the second), `1:N` (the first to the others), `N:1` (the others to the first), `N:N`; required",
        ),
        key("size", "count", "2 with 1:1", "users of a group: users 0 to size - 1 are the first"),
        key(
            "own",
            "bool",
            "false",
            "senders who receive get their own messages too, as in a topic",
        ),
        key("late", "time", "1s", "a receipt later than this after its sending is late"),
        key(
            "quiet",
            "time",
            "2s",
            "when all is sent and nothing has come for so long, what is missing is lost",
        ),
    ],
};

pub(super) const FLOW: Section = Section {
    name: "[[flows]]",
    keys: &[
        key("name", "text", "its number", "in the summary"),
        key(
            "weight",
            "count",
            "1",
            "how often a pass takes this flow, compared with the others; 0: never",
        ),
        key(
            "role",
            "text",
            "all users",
            "with a group: `sender`, `receiver` or `both`, whose flow it is",
        ),
        key("rate", "count", "", "messages a second of each user in it, sent when due"),
        key("steps", "tables", "", "[[flows.steps]], one after another; at most 64 in all flows"),
    ],
};

pub(super) const STEP: Section = Section {
    name: "[[flows.steps]]",
    keys: &[
        key("name", "text", "what it does", "in the summary"),
        key("method", "text", "GET, with a body POST", "of the request"),
        key(
            "url",
            "template",
            "",
            "a request of HTTP: a path at the target, or a whole URL whose host is fixed",
        ),
        key("headers", "table", "", "header lines: name = template; before those of the top"),
        key("body", "template", "", "what is sent, as it is"),
        key("body_file", "file", "", "the same from a file, from the scenario's folder"),
        key("json", "table", "", "a body of JSON; templates in its texts are escaped"),
        key("form", "table", "", "a body of name=value pairs; templates are percent-encoded"),
        key("basic", "template", "", "`USER:PASSWORD` for Basic authentication"),
        key("bearer", "template", "", "a token for `Authorization: Bearer`"),
        key("connect", "template", "", "opens a WebSocket: a path, ws:// or wss://"),
        key("protocols", "texts", "", "with connect: subprotocols that are offered"),
        key("cable", "template", "", "opens one to Action Cable, and is welcomed"),
        key("send", "template", "", "a message on the socket"),
        key("binary", "bool", "false", "with send: it is bytes, not text"),
        key(
            "receive",
            "table",
            "",
            "[flows.steps.receive], a message that is awaited; alone, or after what the step sends",
        ),
        key("ping", "true or template", "", "sends a ping, and waits for its pong"),
        key("close", "true", "", "ends the socket, and waits for the server's close frame"),
        key(
            "subscribe",
            "table or text",
            "",
            "an identifier of Action Cable; waits until it is confirmed",
        ),
        key("unsubscribe", "true, table or text", "", "ends it; true: the one subscribed to last"),
        key("perform", "table", "", "data for the channel's application"),
        key("whisper", "table", "", "data for the others on the stream, past the application"),
        key(
            "channel",
            "table or text",
            "subscribed to last",
            "with perform, whisper: the identifier",
        ),
        key(
            "meet",
            "true",
            "",
            "waits until all of the user's group are there; it receives from then on",
        ),
        key(
            "stay",
            "true",
            "",
            "sends no more, and receives until nobody in the group sends; the user is done",
        ),
        key("each", "bool", "false", "in a group: the same for every receiver in turn, `{{to}}`"),
        key("repeat", "count", "1", "how often it is done in a row"),
        key("within", "time", "timeout", "for this step alone"),
        key("think", "time or range", "the top's", "after this step"),
        key(
            "once",
            "bool",
            "false",
            "a user does it in its first pass only, as a login; again if it failed",
        ),
        key(
            "capture",
            "table",
            "",
            "[flows.steps.capture], what is kept of the answer: NAME = { header, json or regex }",
        ),
        key("checks", "tables", "", "[[flows.steps.checks]], what the answer must be like"),
    ],
};

pub(super) const RECEIVE: Section = Section {
    name: "[flows.steps.receive]",
    keys: &[
        key("text", "template", "", "the message is this"),
        key("contains", "template", "", "this is in it"),
        key("json", "JSONPath", "", "it finds something that is not null"),
        key("regex", "pattern", "", "it matches in the message"),
        key("is", "text, number, bool", "", "with json or regex: the value is this"),
        key("matches", "pattern", "", "with json or regex: it matches in the value"),
    ],
};

pub(super) const CAPTURE: Section = Section {
    name: "[flows.steps.capture]",
    keys: &[
        key("header", "text", "", "the value of this header line"),
        key("json", "JSONPath", "", "what it finds first in the body (RFC 9535)"),
        key("regex", "pattern", "", "the first match in the body: its first group, or the whole"),
    ],
};

pub(super) const CHECK: Section = Section {
    name: "[[flows.steps.checks]]",
    keys: &[
        key("name", "text", "what it says", "in the summary"),
        key(
            "status",
            "text or number",
            "",
            "`200`, `\"2xx\"`, `\"200-204, 404\"`; with it statuses from 400 on are no failure of their own",
        ),
        key("header", "text", "", "there is such a header line"),
        key("json", "JSONPath", "", "it finds something that is not null"),
        key("regex", "pattern", "", "it matches in the body"),
        key("is", "text, number, bool", "", "with header, json or regex: the value is this"),
        key("matches", "pattern", "", "with header, json or regex: it matches in the value"),
        key("size", "bound", "", "bytes of the body: `\"<64KiB\"`, `\">0\"`, `\"=20\"`"),
        key("latency", "bound", "", "from when it was due until it was whole: `\"<250ms\"`"),
    ],
};

pub(super) const ROUND: Section = Section {
    name: "[[rounds]]",
    keys: &[
        key("users", "count", "the top's", "as at the top"),
        key("passes", "count", "the top's", "as at the top"),
        key("duration", "time", "the top's", "as at the top"),
        key("rate", "count", "the top's", "as at the top"),
        key("keep_alive", "bool", "the top's", "as at the top"),
        key("beside", "number", "", "what another measured, per second: shown beside ours"),
    ],
};

/// All sections, in the order of the reference.
pub(super) const SECTIONS: [&Section; 10] =
    [&TOP, &CONNECT, &GROUP, &FEED, &FLOW, &STEP, &RECEIVE, &CAPTURE, &CHECK, &ROUND];

/// Returns the reference as Markdown tables.
pub(super) fn reference() -> String {
    let mut text = String::new();
    for Section { name, keys } in SECTIONS {
        let name = if name.starts_with('[') { format!("`{name}`") } else { (*name).to_owned() };
        text += &format!("### {name}\n\n| key | kind | default | meaning |\n|---|---|---|---|\n");
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
    fn the_reference_says_what_the_code_does() {
        let docs = include_str!("../../../../docs/load/scenarios.md");
        let kept = docs
            .split_once("<!-- keys -->\n")
            .and_then(|(_, rest)| rest.split_once("<!-- end of keys -->").map(|(kept, _)| kept));
        let (kept, wanted) = (kept.unwrap_or_default().trim(), reference());
        let command = "standfast load init --keys";
        assert!(kept == wanted.trim(), "docs/load/scenarios.md is not what {command} prints");
    }
}
