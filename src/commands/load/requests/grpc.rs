//! `standfast load grpc://…`: from flags to a run of calls.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use load::Endpoint;
use load::grpc::{
    Encoding, HEALTH_SERVICE, MessageTemplate, MessageTemplateError, Method, MethodKind, Schema,
    Variant, encode_timeout, limits, metadata,
};
use load::requests::{HttpRequest, MessageCheck, MessagePace, Messages, Request};
use load::scenario::{BadTemplate, Names};

use crate::commands::load::flags::{Args, Bytes, Compression};
use crate::commands::load::grpc::{Target, health, schema};
use crate::units;

/// Flags of calls.
#[derive(clap::Args, Debug)]
pub(in crate::commands::load) struct CallFlags {
    /// Time between two messages of a stream, on schedule [default: each is sent as soon as flow control
    /// allows it, with --echo when the last was answered]
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration)]
    message_every: Option<Duration>,

    /// Run only if the server's health check (grpc.health.v1) says SERVING; =SERVICE asks for one service
    #[arg(long, value_name = "SERVICE", num_args = 0..=1, require_equals = true,
        default_missing_value = "")]
    health: Option<String>,
}

/// A call that is repeated.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    /// The head of a call to each target, as in HTTP/1.1.
    pub(super) heads: Vec<Vec<u8>>,
    /// The message, or those of a stream.
    pub(super) templates: Vec<MessageTemplate>,
    pub(super) kind: MethodKind,
    /// Of methods with streams.
    pub(super) messages: Option<Messages>,
    pub(super) message_bytes_max: usize,
    pub(super) variant: Variant,
}

impl Call {
    /// Calls that begin with these bytes.
    pub(super) fn requests(&self, framed: &[u8]) -> Vec<Request> {
        let call = |(number, head): (u8, &Vec<u8>)| {
            Request::raw(number, [head.as_slice(), framed].concat()).constant()
        };
        (0..=u8::MAX).zip(&self.heads).map(call).collect()
    }

    /// Whether exactly one message answers a call.
    pub(super) fn has_one_answer(&self) -> bool {
        matches!(self.kind, MethodKind::Unary | MethodKind::ClientStream)
    }
}

/// Reads the types and the message of the call that the URLs name.
///
/// # Errors
/// No such method, JSON that does not fit, or a server that does not say what its types are.
pub(super) fn call(args: &Args, urls: &[String], endpoints: &[Endpoint]) -> Result<Call> {
    let headers = args.header.iter().map(|(name, value)| metadata(name, value));
    let headers: Vec<(String, String)> =
        headers.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
    let (Some(url), Some(endpoint)) = (urls.first(), endpoints.first()) else {
        bail!("missing URL: expected grpc://HOST:PORT/package.Service/Method");
    };
    let path = endpoint.path.as_str();
    if endpoints.iter().any(|other| other.path != path) {
        bail!("all URLs must have the same method: a run repeats one call");
    }
    if path.trim_matches('/').is_empty() {
        bail!(
            "missing method in {url:?}: expected grpc://HOST:PORT/package.Service/Method; standfast \
             load grpc-list {} shows what there is",
            endpoint.host
        );
    }
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let variant = Variant::of_scheme(scheme).unwrap_or_default();
    let is_web = variant.is_web();
    let target = Target::of(endpoint, &args.tls)?;
    if let Some(service) = &args.call.health {
        for endpoint in endpoints {
            let target = Target::of(endpoint, &args.tls)?;
            health::check(&target, &headers, service)?;
        }
    }
    let is_health = path.trim_start_matches('/').starts_with(HEALTH_SERVICE);
    let built_in = (is_health && !args.grpc.has_files()).then(Schema::health).transpose()?;
    let found = match built_in {
        Some(schema) => Ok(Some(schema)),
        None => schema(&args.grpc, Some(&target), &headers),
    };
    let found = found.with_context(|| match is_web && !args.grpc.has_files() {
        true => "gRPC-Web has no reflection: give --proto FILE or --protoset FILE",
        false => "types of messages",
    });
    let Some(schema) = found? else {
        bail!("interrupted while {target} was asked for the types of its messages")
    };
    let method = schema.method(path)?;
    let kind = method.kind();
    let text = match &args.requests.data {
        None => "{}",
        Some(Bytes(data)) => std::str::from_utf8(data).context("--data is not UTF-8")?,
    };
    let sends = matches!(kind, MethodKind::ClientStream | MethodKind::BidiStream);
    if !sends && text.trim_start().starts_with('[') {
        bail!(
            "--data: {} is a {kind} method, which takes one message, {{…}}: a list is for methods that take a stream",
            method.path()
        );
    }
    if text.trim_start().starts_with('[') && !text.trim_end().ends_with(']') {
        bail!("--data: the list of messages has no end: expected ] behind the last one");
    }
    let texts = if sends { split_messages(text) } else { vec![text] };
    let compile = |(number, text): (usize, &&str)| {
        let template = MessageTemplate::compile(&method, text, &Names::default());
        let template = template.map_err(|why| match texts.len() {
            1 => anyhow!("--data: {}", because(why)),
            _ => anyhow!("--data, message {}: {}", number + 1, because(why)),
        })?;
        let is_compressed = matches!(args.compression, Compression::Gzip);
        Ok(if is_compressed { template.compressed() } else { template })
    };
    let templates = texts.iter().enumerate().map(compile).collect::<Result<Vec<_>>>()?;
    let is_checked = !args.requests.check.is_empty() || !args.requests.accept.is_empty();
    if sends && is_web {
        bail!(
            "{} is a {kind}: gRPC-Web has methods that take one message only; call it with grpc://",
            method.path()
        );
    }
    if sends && is_checked {
        bail!(
            "{} is a {kind}: --check and --accept are for methods that take one message",
            method.path()
        );
    }
    if is_checked && kind != MethodKind::Unary {
        let held = [("--messages", args.messages.is_some()), ("--hold", args.hold.is_some())];
        if let Some((flag, _)) = held.into_iter().find(|(_, is)| *is) {
            bail!("{flag} and --check or --accept exclude each other: those are for whole answers");
        }
    }
    let messages = messages(args, &method, &templates)?.filter(|_| !is_checked);
    let is_gzip = matches!(args.compression, Compression::Gzip);
    let gzip = is_gzip.then_some(("grpc-encoding", "gzip"));
    // The bodies of answers that are checked, and those of gRPC-Web, are not decompressed.
    let accepts = !is_web && args.requests.check.is_empty() && args.requests.accept.is_empty();
    let accepted = accepts.then_some(("grpc-accept-encoding", Encoding::ACCEPTED));
    let encodings = accepted.into_iter().chain(gzip);
    let encodings = encodings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let fields: Vec<_> = encodings.chain(headers).collect();
    let closes = is_web && args.requests.new_connections;
    let head =
        |endpoint: &Endpoint| head(endpoint, &method, &fields, args.timeout, (variant, closes));
    let heads = endpoints.iter().map(head).collect();
    let message_bytes_max = limits::MESSAGE_BYTES;
    Ok(Call { method, heads, templates, kind, messages, message_bytes_max, variant })
}

/// How the messages of a call are sent and checked; `None` of unary calls.
///
/// # Errors
/// Flags that the kind of method has no use for.
fn messages(
    args: &Args,
    method: &Method,
    templates: &[MessageTemplate],
) -> Result<Option<Messages>> {
    let kind = method.kind();
    let sends = matches!(kind, MethodKind::ClientStream | MethodKind::BidiStream);
    let interval = args.call.message_every;
    let unused = [
        ("--echo", args.echo && kind != MethodKind::BidiStream, "bidi streams"),
        ("--message-every", interval.is_some() && !sends, "client and bidi streams"),
        ("--messages", args.messages.is_some() && kind == MethodKind::Unary, "streams"),
        ("--hold", args.hold.is_some() && kind == MethodKind::Unary, "streams"),
    ];
    if let Some((flag, _, of)) = unused.into_iter().find(|(_, is, _)| *is) {
        bail!("{flag} is for {of}: {} is a {kind} method", method.path());
    }
    if kind == MethodKind::Unary {
        return Ok(None);
    }
    let given = args.messages.map(u32::try_from).transpose();
    let given = given.context("--messages: expected at most 4294967295")?;
    let hold = args.hold.filter(|hold| !hold.is_zero());
    let is_stamped = templates.iter().any(MessageTemplate::is_stamped);
    // A stream with a pace lasts as long as the run.
    let lasts = args.echo || interval.is_some() || hold.is_some();
    let own = u32::try_from(templates.len()).unwrap_or(u32::MAX);
    Ok(Some(Messages {
        sends,
        per_call: given.or((sends && !lasts).then_some(own)),
        hold,
        pace: match interval {
            Some(interval) => MessagePace::Every(interval),
            None if args.echo => MessagePace::Answered,
            None => MessagePace::Flow,
        },
        check: match kind {
            MethodKind::BidiStream if is_stamped => MessageCheck::Stamp,
            MethodKind::BidiStream if args.echo => MessageCheck::Order,
            _ => MessageCheck::None,
        },
        late_after: args.late_after,
    }))
}

/// The messages of a stream: the elements of a JSON array, which may have placeholders, or one.
pub(in crate::commands::load) fn split_messages(text: &str) -> Vec<&str> {
    let Some(inside) = text.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']')) else {
        return vec![text];
    };
    let (mut messages, mut begin, mut depth) = (Vec::new(), 0, 0_usize);
    let (mut in_string, mut is_escaped) = (false, false);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                messages.push(inside.get(begin..at).unwrap_or_default());
                begin = at + 1;
            }
            _ => {}
        }
    }
    messages.push(inside.get(begin..).unwrap_or_default());
    messages
}

/// Placeholders that need the lists, names or groups of a scenario.
const OF_SCENARIOS: [&str; 12] = [
    "boundary",
    "group",
    "member",
    "to",
    "to NAME.COLUMN",
    "NAME[N]",
    "random NAME",
    "count NAME",
    "item",
    "url NAME",
    "json NAME",
    "pass",
];

/// Why a message cannot be made.
fn because(why: MessageTemplateError) -> String {
    match why {
        MessageTemplateError::Json(why) => why.to_string(),
        MessageTemplateError::Template(BadTemplate::Invalid(why)) => why,
        MessageTemplateError::Template(BadTemplate::Unknown { name, known }) => {
            let known: Vec<String> =
                known.into_iter().filter(|one| !OF_SCENARIOS.contains(&one.as_str())).collect();
            format!(
                "unknown placeholder {{{{{name}}}}}: expected one of {}; a scenario has more",
                known.join(", ")
            )
        }
    }
}

/// The head of a call in this form, with `Connection: close` or not. The deadline is that of
/// `--timeout`, if it was given.
pub(in crate::commands) fn head(
    endpoint: &Endpoint,
    method: &Method,
    metadata: &[(String, String)],
    timeout: Option<Duration>,
    (variant, close): (Variant, bool),
) -> Vec<u8> {
    let own = variant
        .headers()
        .iter()
        .chain(&[("user-agent", AGENT)])
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let deadline = timeout.map(|time| ("grpc-timeout".to_owned(), encode_timeout(time)));
    let headers: Vec<(String, String)> =
        own.chain(deadline).chain(metadata.iter().cloned()).collect();
    let path = method.path();
    // Without a body there is no Content-Length, which gRPC does not use and the driver of gRPC-Web adds.
    let http = HttpRequest {
        method: "CALL",
        target: &path,
        host: &endpoint.host,
        headers: &headers,
        body: &[],
        close,
    };
    let bytes = Request::to(0, endpoint, &http).bytes().to_vec();
    // POST would have a Content-Length of 0.
    [b"POST", bytes.get(4..).unwrap_or_default()].concat()
}

const AGENT: &str = concat!("grpc-standfast/", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_stream_are_the_elements_of_an_array() {
        for (text, messages) in [
            (r#"{"a":1}"#, vec![r#"{"a":1}"#]),
            (r#" [{"a":[1,2]},{"b":"x,]\"{"}] "#, vec![r#"{"a":[1,2]}"#, r#"{"b":"x,]\"{"}"#]),
            (r#"[{"n":{{seq}}},{}]"#, vec![r#"{"n":{{seq}}}"#, "{}"]),
            (r#"[{"n":"{{random_int 1 6}}"}]"#, vec![r#"{"n":"{{random_int 1 6}}"}"#]),
            ("[]", vec![""]),
        ] {
            assert_eq!(split_messages(text), messages, "{text}");
        }
    }
}
