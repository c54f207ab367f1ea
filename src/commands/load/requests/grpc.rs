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
    let target = Target::new(&format!("{scheme}://{}", endpoint.host), &args.tls)?;
    let Some(schema) = schema(&args.grpc, Some(&target), &headers)? else {
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
    let head = |endpoint: &Endpoint| head(endpoint, &method, &headers, args.timeout);
    let heads = endpoints.iter().map(head).collect();
    Ok(Call { method, heads, message, unary, message_bytes_max: limits::MESSAGE_BYTES })
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

/// The head of a call. The deadline is that of `--timeout`, if it was given.
pub(in crate::commands) fn head(
    endpoint: &Endpoint,
    method: &Method,
    metadata: &[(String, String)],
    timeout: Option<Duration>,
) -> Vec<u8> {
    let own = [("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", AGENT)];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let deadline = timeout.map(|time| ("grpc-timeout".to_owned(), encode_timeout(time)));
    let headers: Vec<(String, String)> =
        own.into_iter().chain(deadline).chain(metadata.iter().cloned()).collect();
    let path = method.path();
    // Without a body there is no Content-Length, which gRPC does not use.
    let http = HttpRequest {
        method: "CALL",
        target: &path,
        host: &endpoint.host,
        headers: &headers,
        body: &[],
        close: false,
    };
    let bytes = Request::http(0, &http).bytes().to_vec();
    // POST would have a Content-Length of 0.
    [b"POST", bytes.get(4..).unwrap_or_default()].concat()
}

const AGENT: &str = concat!("grpc-standfast/", env!("CARGO_PKG_VERSION"));
