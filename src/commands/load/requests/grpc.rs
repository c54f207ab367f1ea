//! `standfast load grpc://…`: from flags to a run of calls.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use load::Endpoint;
use load::grpc::{
    MessageTemplate, MessageTemplateError, Method, MethodKind, encode, encode_timeout, limits,
    metadata,
};
use load::requests::{HttpRequest, Request};
use load::scenario::{BadTemplate, Names};

use super::config::is_grpc_web;
use crate::commands::load::flags::{Args, Bytes};
use crate::commands::load::grpc::{Target, schema};

/// A call that is repeated.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    /// The head of a call to each target, as in HTTP/1.1.
    pub(super) heads: Vec<Vec<u8>>,
    pub(super) message: MessageTemplate,
    /// Exactly one message answers it.
    pub(super) unary: bool,
    pub(super) message_bytes_max: usize,
    /// gRPC-Web over HTTP/1.1.
    pub(super) is_web: bool,
}

impl Call {
    /// The calls of a constant message.
    pub(super) fn constant(&self) -> Vec<Request> {
        let message = self.message.constant().unwrap_or_default();
        let mut framed = Vec::new();
        // A message of more than 4 GiB is refused by the template.
        let _ = encode(message, &mut framed);
        let call = |(number, head): (u8, &Vec<u8>)| {
            Request::raw(number, [head.as_slice(), &framed].concat()).constant()
        };
        (0..=u8::MAX).zip(&self.heads).map(call).collect()
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
    let scheme = if endpoint.tls { "grpcs" } else { "grpc" };
    let is_web = is_grpc_web(urls);
    let port = if is_web && !has_port(&endpoint.host) { default_port(endpoint) } else { "" };
    let target = Target::new(&format!("{scheme}://{}{port}", endpoint.host), &args.tls)?;
    let found = schema(&args.grpc, Some(&target), &headers);
    let found = found.with_context(|| match is_web && !args.grpc.has_files() {
        true => "gRPC-Web has no reflection: give --proto FILE or --protoset FILE",
        false => "types of messages",
    });
    let Some(schema) = found? else {
        bail!("interrupted while {target} was asked for the types of its messages")
    };
    let method = schema.method(path)?;
    let unary = unary(&method)?;
    let text = match &args.requests.data {
        None => "{}",
        Some(Bytes(data)) => std::str::from_utf8(data).context("--data is not UTF-8")?,
    };
    let message = MessageTemplate::compile(&method, text, &Names::default());
    let message = message.map_err(|why| anyhow::anyhow!("--data: {}", because(why)))?;
    let closes = is_web && args.requests.new_connections;
    let head =
        |endpoint: &Endpoint| head(endpoint, &method, &headers, args.timeout, (is_web, closes));
    let heads = endpoints.iter().map(head).collect();
    Ok(Call { method, heads, message, unary, message_bytes_max: limits::MESSAGE_BYTES, is_web })
}

/// Why a message cannot be made.
fn because(why: MessageTemplateError) -> String {
    match why {
        MessageTemplateError::Json(why) => why.to_string(),
        MessageTemplateError::Template(BadTemplate::Invalid(why)) => why,
        MessageTemplateError::Template(BadTemplate::Unknown { name, known }) => {
            format!("unknown placeholder {{{{{name}}}}}: expected one of {}", known.join(", "))
        }
    }
}

/// Whether one message answers a call of a method.
fn unary(method: &Method) -> Result<bool> {
    match method.kind() {
        MethodKind::Unary => Ok(true),
        MethodKind::ServerStream => Ok(false),
        kind => bail!(
            "{} is a {kind}: calls that send several messages are not supported yet",
            method.path()
        ),
    }
}

/// The head of a call, of gRPC-Web and so with its `Connection: close` or not. The deadline is that of
/// `--timeout`, if it was given.
pub(in crate::commands) fn head(
    endpoint: &Endpoint,
    method: &Method,
    metadata: &[(String, String)],
    timeout: Option<Duration>,
    (is_web, close): (bool, bool),
) -> Vec<u8> {
    let own: &[(&str, &str)] = match is_web {
        true => {
            &[("content-type", WEB), ("accept", WEB), ("x-grpc-web", "1"), ("user-agent", AGENT)]
        }
        false => &[("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", AGENT)],
    };
    let own = own.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
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

/// Whether a host of a URL has a port.
fn has_port(host: &str) -> bool {
    host.rsplit_once(']').map_or(host, |(_, rest)| rest).contains(':')
}

fn default_port(endpoint: &Endpoint) -> &'static str {
    if endpoint.tls { ":443" } else { ":80" }
}

const WEB: &str = "application/grpc-web+proto";
const AGENT: &str = concat!("grpc-standfast/", env!("CARGO_PKG_VERSION"));
