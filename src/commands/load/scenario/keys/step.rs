//! The keys of a step, and of what it contains.

use super::{Section, key};

pub(in crate::commands::load::scenario) const STEP: Section = Section {
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
            "stream",
            "text",
            "",
            "opens a gRPC call that stays open for the steps after it: as `grpc`, of a method with streams; over HTTP/2",
        ),
        key(
            "message",
            "table or template",
            "{}",
            "with grpc: the message as a table, or as JSON; templates in strings are escaped. For methods that take a stream, a list of them. With stream: the message of a method that takes one",
        ),
        key(
            "metadata",
            "table",
            "",
            "with grpc, stream: name = template, in addition to the headers of the top level; values of names ending in -bin in base64",
        ),
        key("basic", "template", "", "`USER:PASSWORD` for Basic authentication"),
        key("bearer", "template", "", "token for `Authorization: Bearer`"),
        key("connect", "template", "", "opens a WebSocket: a path, ws:// or wss:// URL"),
        key("protocols", "texts", "", "with connect: subprotocols to offer"),
        key(
            "hold",
            "bool",
            "false",
            "with connect, cable, stream: the socket or call stays open over passes, and the step is skipped until it has ended",
        ),
        key(
            "socket",
            "text",
            "",
            "name of the socket or open call of this step, at most 16; without it the one without a name",
        ),
        key("cable", "template", "", "opens an Action Cable connection and waits for the welcome"),
        key(
            "send",
            "template or table",
            "",
            "sends a message on the socket; on a call as `message`, one",
        ),
        key("binary", "bool", "false", "with send: a binary message"),
        key(
            "receive",
            "table",
            "",
            "[flows.steps.receive], waits for a message; alone, or after the step's message",
        ),
        key("ping", "true or template", "", "sends a ping and waits for its pong"),
        key(
            "close",
            "true",
            "",
            "closes the socket and waits for the server's close frame; ends our side of a call and waits for its status",
        ),
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

pub(in crate::commands::load::scenario) const PARALLEL: Section = Section {
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

pub(in crate::commands::load::scenario) const PART: Section = Section {
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

pub(in crate::commands::load::scenario) const RECEIVE: Section = Section {
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

pub(in crate::commands::load::scenario) const CAPTURE: Section = Section {
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

pub(in crate::commands::load::scenario) const CHECK: Section = Section {
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
