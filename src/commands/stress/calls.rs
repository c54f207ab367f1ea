//! Stress over gRPC: each user calls a method on its own connection. `grpc://HOST:PORT` is the example that
//! go-stress-testing has compiled in; with a path it is any method whose types are known.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use load::ConnectOptions;
use load::grpc::{
    Method, MethodKind, PREFIX_BYTES, ReplyType, Schema, Variant, encode, limits, metadata,
};
use load::requests::{Answer, Grpc, Request, Times};
use serde_json::json;

use super::flags::Args;
use super::live_stats::{NO_ANSWER, UNREADABLE};
use super::requests::{BODY_BYTES_MAX, Judge, config, drive};
use super::verify::Check;
use crate::commands::load::{SchemaFlags, Target, call_head, schema, warn_unresolved};
use crate::{output, tls};

/// The service of go-stress-testing. The fork's is in the package `protobuf`.
const EXAMPLE: &str = "service ApiServer { rpc HelloWorld (Request) returns (Response); }
message Request { string userName = 1; }
message Response { int32 code = 1; string msg = 2; string data = 3; }";
/// Success in its answer.
const GOOD: i64 = 200;

pub(super) fn run(args: &Args, url: &str) -> Result<ExitCode> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("grpc", url));
    let scheme = if scheme.eq_ignore_ascii_case("grpcs") { "grpcs" } else { "grpc" };
    let mut endpoint =
        ConnectOptions::direct().grpc(&format!("{scheme}://{rest}")).map_err(anyhow::Error::msg)?;
    let is_example = endpoint.path.trim_matches('/').is_empty();
    let headers = super::headers(args);
    let headers = headers.iter().map(|(name, value)| metadata(name, value));
    let headers: Vec<(String, String)> =
        headers.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
    let mut notes = Vec::new();
    super::skip_certificate_checks(std::slice::from_mut(&mut endpoint), &mut notes)?;
    endpoint.client = endpoint.client.take().map(|client| client.for_http2());
    let (method, message) = match is_example {
        true => example(args)?,
        false => {
            let flags = tls::ClientFlags::of_files(endpoint.tls, None, None, None);
            let target = Target::of(&endpoint, &flags)?;
            let types = SchemaFlags::of_files(args.proto.clone(), Vec::new(), None);
            let Some(schema) = schema(&types, Some(&target), &headers)? else {
                bail!("interrupted while {target} was asked for the types of its messages")
            };
            (schema.method(&endpoint.path)?, args.data.clone().unwrap_or_default())
        }
    };
    let is_unary = match method.kind() {
        MethodKind::Unary => true,
        MethodKind::ServerStream => false,
        kind => bail!("{} is a {kind}: expected a method that takes one message", method.path()),
    };
    let message = method.request_of_json(&message).context("-data")?;
    let default = if is_example { "json" } else { "statusCode" };
    let check = Check::of_calls(args.verify.as_deref(), default, args.code.unwrap_or(GOOD))?;
    if args.code.is_some() && !check.wants_body() {
        notes.push("-code has no effect over grpc without -v json: the status is OK".to_owned());
    }
    warn_unresolved(std::slice::from_ref(&endpoint), "calls");
    notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    // As in go-stress-testing: a deadline only if it is given.
    let is_limited = args.request_time_given();
    let deadline = is_limited.then(|| args.request_timeout());
    let mut call = call_head(&endpoint, &method, &headers, deadline, (Variant::Http2, false));
    encode(&message, &mut call)?;
    let mut config = config(args, vec![endpoint], &[])?;
    // Each user has a connection for all its calls.
    (config.streams, config.new_connections, config.redirects) = (Some(1), false, 0);
    let reply = ReplyType::of(&method);
    let driver = move || Grpc::new(is_unary, limits::MESSAGE_BYTES).expecting(reply.clone());
    drive(args, &config, vec![Request::raw(0, call).constant()], driver, Calls { method, check })
}

/// The method of go-stress-testing and its message, as JSON: the name of a user.
fn example(args: &Args) -> Result<(Method, String)> {
    let package = if args.fork() { "package protobuf;\n" } else { "" };
    let path = if args.fork() { "/protobuf.ApiServer/HelloWorld" } else { "/ApiServer/HelloWorld" };
    if !args.proto.is_empty() {
        bail!(
            "--proto is for a method of your own: give -u grpc://HOST:PORT/package.Service/Method"
        );
    }
    let schema = Schema::of_source(&format!("syntax = \"proto3\";\n{package}{EXAMPLE}"))?;
    let name = args.data.clone().unwrap_or_default();
    Ok((schema.method(path)?, json!({ "userName": name }).to_string()))
}

/// Decides about the answers of a method.
#[derive(Clone)]
struct Calls {
    method: Method,
    check: Check,
}

impl Calls {
    /// The messages of an answer, as JSON; `None` for one that is not of the type, or not kept.
    fn messages(&self, body: &[u8]) -> Vec<Option<String>> {
        let (mut rest, mut messages) = (body, Vec::new());
        while let Some((prefix, behind)) = rest.split_first_chunk::<PREFIX_BYTES>() {
            let [flag, length @ ..] = *prefix;
            let message = behind.split_at_checked(u32::from_be_bytes(length) as usize);
            let Some((message, next)) = message.filter(|_| flag == 0) else { break };
            messages.push(self.method.answer_to_json(message).ok());
            rest = next;
        }
        if !rest.is_empty() {
            messages.push(None);
        }
        messages
    }
}

impl Judge for Calls {
    fn wants_body(&self) -> bool {
        self.check.wants_body()
    }

    fn result(&self, answer: &Answer<'_>) -> (bool, u16) {
        match answer.outcome {
            Err(failure) if failure.is_bad_grpc_answer() => (false, UNREADABLE),
            Err(failure) => (false, failure.grpc_status().unwrap_or(NO_ANSWER)),
            Ok(_) if !self.wants_body() => self.check.call(None),
            Ok(_) if answer.is_cut && answer.body.len() >= BODY_BYTES_MAX => (false, UNREADABLE),
            Ok(_) => {
                let messages = self.messages(answer.body);
                let judged = messages.iter().map(|message| self.check.call(message.as_deref()));
                // The first that is not good; a stream may have no message.
                judged.fold((true, GOOD as u16), |all, one| if all.0 { one } else { all })
            }
        }
    }

    /// Until the whole call has ended, as in go-stress-testing.
    fn took_ns(&self, answer: &Answer<'_>) -> u64 {
        let Times { begun_ns, done_ns, .. } = answer.times;
        done_ns.saturating_sub(begun_ns)
    }

    fn text(&self, answer: &Answer<'_>) -> String {
        let messages = self.messages(answer.body).into_iter();
        messages
            .map(|message| message.unwrap_or_else(|| "?".to_owned()))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Calls {
        let schema = Schema::of_source(&format!("syntax = \"proto3\";\n{EXAMPLE}")).unwrap();
        let method = schema.method("/ApiServer/HelloWorld").unwrap();
        Calls { method, check: Check::Json(GOOD) }
    }

    #[test]
    fn messages_of_an_answer_are_read_one_by_one() {
        let good = b"\0\0\0\0\x03\x08\xc8\x01";
        let calls = calls();
        assert_eq!(calls.messages(good), [Some("{\"code\":200}".to_owned())]);
        let two = [&good[..], &good[..], &[0, 0]].concat();
        assert_eq!(calls.messages(&two).iter().filter(|one| one.is_some()).count(), 2);
        assert_eq!(calls.messages(&two).len(), 3, "a truncated one is one that cannot be read");
        let answer = |body| Answer {
            outcome: Ok(0),
            head: &[],
            body,
            is_cut: false,
            body_bytes: 0,
            is_warm_up: false,
            times: Times::default(),
        };
        assert_eq!(calls.result(&answer(good)), (true, 200));
        assert_eq!(calls.result(&answer(&two)), (false, UNREADABLE));
        assert_eq!(calls.result(&answer(b"\0\0\0\0\x02\x08\x05")), (false, 5));
    }
}
