//! Builds a [`Plan`] from flags: targets, requests, and how an answer is recognised.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::Endpoint;
use load::requests::{
    Accepted, AnswerChecks, Expect, HttpRequest, MessagePace, Messages, Pace, Prefix, Request,
    Requests,
};
use regex::bytes::RegexBuilder;

use super::checks;
use super::flags::unescape;
use super::grpc;
use crate::commands::load::destinations;
use crate::commands::load::flags::{Args, Bytes};

/// A run of constant requests.
#[derive(Debug)]
pub(in crate::commands::load) struct Plan {
    pub(in crate::commands::load) requests: Requests,
    /// The method of HTTP requests.
    pub(super) method: Option<String>,
    /// Bytes of a body, or of a message over TCP.
    pub(super) body_bytes: u64,
    /// One request per URL, in their order.
    pub(super) sent: Vec<Request>,
    pub(super) accepted: Accepted,
    /// Answer format of a TCP protocol; `None` for HTTP.
    pub(super) expect: Option<Expect>,
    /// What answers have to be, beside their status.
    pub(super) checks: Option<Arc<AnswerChecks>>,
    /// The call of a gRPC run.
    pub(super) call: Option<grpc::Call>,
    /// The seed of random values; `None`: another one for each run.
    pub(in crate::commands::load) seed: Option<u64>,
}

/// URL schemes for HTTP and for other protocols over TCP.
const WEB: [&str; 2] = ["http", "https"];
const TCP: [&str; 2] = ["tcp", "tls"];
const GRPC: [&str; 2] = ["grpc", "grpcs"];
const GRPC_WEB: [&str; 2] = ["grpc-web", "grpc-webs"];
const GRPC_WEB_TEXT: [&str; 2] = ["grpc-web-text", "grpc-web-texts"];

/// Returns whether the run sends requests instead of opening WebSockets, by the first URL.
pub(in crate::commands::load) fn is_meant(urls: &[String]) -> bool {
    urls.first().is_some_and(|url| has_scheme(url, &WEB) || has_scheme(url, &TCP))
        || is_grpc(urls)
        || is_grpc_web(urls)
}

/// Returns whether the requests are calls of gRPC.
pub(in crate::commands::load) fn is_grpc(urls: &[String]) -> bool {
    urls.first().is_some_and(|url| has_scheme(url, &GRPC))
}

/// Returns whether the requests are calls of gRPC-Web, of either form.
pub(in crate::commands::load) fn is_grpc_web(urls: &[String]) -> bool {
    urls.first().is_some_and(|url| has_scheme(url, &GRPC_WEB)) || is_grpc_web_text(urls)
}

fn is_grpc_web_text(urls: &[String]) -> bool {
    urls.first().is_some_and(|url| has_scheme(url, &GRPC_WEB_TEXT))
}

/// Returns whether the requests are of HTTP.
pub(in crate::commands::load) fn is_http(urls: &[String]) -> bool {
    urls.first().is_some_and(|url| has_scheme(url, &WEB))
}

fn has_scheme(url: &str, schemes: &[&str]) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| schemes.iter().any(|one| scheme.eq_ignore_ascii_case(one)))
}

/// Builds the plan.
///
/// # Errors
/// Invalid or conflicting flags.
pub(in crate::commands::load) fn plan(args: &Args) -> Result<Plan> {
    let urls = destinations::urls(args)?;
    if args.requests.streams > 1 && !args.requests.http2 && !is_grpc(&urls) {
        bail!("--streams is for HTTP/2: add --http2");
    }
    let web = is_http(&urls);
    let ways = destinations::ways(args)?;
    let calls = is_grpc(&urls) || is_grpc_web(&urls);
    let parse = |url: &String| match (web, calls) {
        (true, _) => ways.web(url),
        (_, true) if is_grpc_web_text(&urls) => ways.grpc_web_text(url),
        (_, true) if is_grpc_web(&urls) => ways.grpc_web(url),
        (_, true) => ways.grpc(url),
        _ => ways.tcp(url),
    };
    let endpoints = urls.iter().map(parse).collect::<Result<Vec<_>, _>>();
    let mut endpoints = endpoints.map_err(anyhow::Error::msg)?;
    args.tls.set(&mut endpoints)?;
    if args.requests.http2 || is_grpc(&urls) {
        for endpoint in &mut endpoints {
            endpoint.client = endpoint.client.take().map(|client| client.for_http2());
        }
    }
    destinations::check_sources(args, &endpoints)?;
    let call = if calls { Some(grpc::call(args, &urls, &endpoints)?) } else { None };
    let checks = checks::checks(args, call.as_ref())?;
    let expect = if web || calls { None } else { Some(expect(args)?) };
    let sent = match (web, calls) {
        (true, _) => http(args, &endpoints),
        (_, true) => Vec::new(),
        _ => raw(args, &endpoints)?,
    };
    let accepted = match args.requests.accept.as_slice() {
        [] => Accepted::Below400,
        statuses => Accepted::Only(statuses.iter().cloned().flatten().collect()),
    };
    let body_bytes = args.requests.data.as_ref().map_or(0, |Bytes(data)| data.len() as u64);
    let method = web.then(|| method(args).to_owned());
    let messages = call.as_ref().and_then(|call| call.messages.clone());
    let requests = requests(args, endpoints, messages);
    Ok(Plan { requests, method, body_bytes, sent, accepted, expect, checks, call, seed: None })
}

fn requests(args: &Args, endpoints: Vec<Endpoint>, messages: Option<Messages>) -> Requests {
    let flags = &args.requests;
    let pace = match (args.rate, args.stages.as_slice(), flags.rates.as_slice()) {
        (Some(rate), ..) => Pace::Rate(rate),
        (None, [], []) => Pace::Closed,
        (None, [], rates) => Pace::Rates(rates.to_vec()),
        (None, stages, _) => Pace::Users(stages.to_vec()),
    };
    let staged = matches!(pace, Pace::Users(_) | Pace::Rates(_));
    // A stream without a number of messages or a time lasts as long as the run.
    let lasts =
        messages.as_ref().is_some_and(|of| of.sends && of.per_call.is_none() && of.hold.is_none());
    let bounded = staged || flags.requests.is_some() && !lasts;
    let highest = args.stages.iter().map(|stage| stage.connections).max();
    let streams = u64::from(flags.streams);
    let users = highest.unwrap_or(args.connections.saturating_mul(streams)).max(1);
    let duration = args.duration.or((!bounded).then_some(Duration::from_secs(10)));
    let usual = Duration::from_secs(30);
    let longer = messages.as_ref().map_or(Duration::ZERO, |of| match of.per_call {
        // The time of a number of messages.
        Some(number) => match of.pace {
            MessagePace::Every(interval) => interval.saturating_mul(number),
            MessagePace::Answered => of.late_after.saturating_mul(number),
            MessagePace::Flow => Duration::ZERO,
        },
        None => {
            let whole = duration.or(highest_time(&pace)).unwrap_or_default();
            of.hold.unwrap_or(whole.saturating_add(args.warm_up))
        }
    });
    Requests {
        messages,
        pace,
        duration,
        requests: flags.requests,
        warm_up: args.warm_up,
        connect_timeout: args.connect_timeout,
        timeout: args.timeout.unwrap_or(usual.saturating_add(longer)),
        new_connections: flags.new_connections,
        pipeline: flags.pipeline,
        redirects: flags.redirects,
        sources: args.source.clone(),
        force: args.force,
        streams: (flags.http2 || is_grpc(&args.urls)).then_some(flags.streams),
        ..Requests::new(endpoints, users)
    }
}

/// The time of all stages.
fn highest_time(pace: &Pace) -> Option<Duration> {
    let stages = pace.stages();
    (!stages.is_empty()).then(|| stages.iter().map(|stage| stage.time).sum())
}

fn http(args: &Args, endpoints: &[Endpoint]) -> Vec<Request> {
    let flags = &args.requests;
    let body = flags.data.as_ref().map(|Bytes(data)| &data[..]);
    let method = method(args);
    let numbered = (0..=u8::MAX).zip(endpoints);
    let request = |(number, endpoint): (u8, &Endpoint)| {
        let http = HttpRequest {
            method,
            target: &endpoint.path,
            host: &endpoint.host,
            headers: &args.header,
            body: body.unwrap_or_default(),
            close: flags.new_connections,
        };
        let request = Request::to(number, endpoint, &http);
        if flags.http10 { request.as_http10() } else { request.constant() }
    };
    numbered.map(request).collect()
}

fn method(args: &Args) -> &str {
    let default = if args.requests.data.is_some() { "POST" } else { "GET" };
    args.requests.method.as_deref().unwrap_or(default)
}

fn raw(args: &Args, endpoints: &[Endpoint]) -> Result<Vec<Request>> {
    let flags = &args.requests;
    let Some(Bytes(data)) = &flags.data else {
        bail!("missing --data: tcp:// needs the bytes to send, such as --data 'PING\\r\\n'");
    };
    let bytes = unescape(data).map_err(|error| anyhow::anyhow!("--data: {error}"))?;
    let numbers = (0..=u8::MAX).take(endpoints.len());
    Ok(numbers.map(|number| Request::raw(number, bytes.clone())).collect())
}

fn expect(args: &Args) -> Result<Expect> {
    let flags = &args.requests;
    if let Some(Bytes(bytes)) = &flags.expect {
        if bytes.is_empty() {
            bail!("invalid --expect: expected at least one byte");
        }
        return Ok(Expect::Bytes(bytes.clone()));
    }
    if let Some(regex) = &flags.expect_regex {
        // Answers are bytes: \d and . match bytes, not characters.
        let built = RegexBuilder::new(regex).unicode(false).build();
        let regex = built.with_context(|| format!("--expect-regex {regex:?}"))?;
        if regex.is_match(b"") {
            bail!("invalid --expect-regex: it matches the empty string");
        }
        return Ok(Expect::Regex(regex));
    }
    let Some(length) = &flags.expect_length else { return Ok(Expect::Anything) };
    let wrong = || {
        format!(
            "invalid --expect-length {length}: expected a number such as 100, or u8, u16be, u32le+"
        )
    };
    if let Ok(bytes @ 1..) = length.parse() {
        return Ok(Expect::Length(bytes));
    }
    let (name, counts_itself) =
        length.strip_suffix('+').map_or((length.as_str(), false), |name| (name, true));
    let (bytes, little_endian) = match name {
        "u8" => (1, false),
        "u16be" => (2, false),
        "u16le" => (2, true),
        "u32be" => (4, false),
        "u32le" => (4, true),
        "u64be" => (8, false),
        "u64le" => (8, true),
        _ => bail!(wrong()),
    };
    Ok(Expect::Prefix(Prefix { bytes, little_endian, counts_itself }))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};
    use load::Route;

    use super::*;
    use crate::commands::load::modes;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        _args: Args,
    }

    fn read(line: &str) -> Result<Plan> {
        let words = std::iter::once("load").chain(line.split(' '));
        let matches = Command::command().try_get_matches_from(words)?;
        let args = Args::from_arg_matches(&matches)?;
        modes::check(&matches, modes::of(&args))?;
        plan(&args)
    }

    #[test]
    fn a_url_alone_sends_gets_for_ten_seconds() {
        let plan = read("http://127.0.0.1:1/a?b").unwrap();
        let Requests { connections, duration, requests, timeout, .. } = plan.requests;
        assert_eq!((connections, duration), (100, Some(Duration::from_secs(10))));
        assert_eq!((requests, timeout), (None, Duration::from_secs(30)));
        let expected = "GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n";
        assert_eq!(std::str::from_utf8(plan.sent[0].bytes()), Ok(expected));
    }

    #[test]
    fn every_flag_takes_effect() {
        let plan = read(
            "http://127.0.0.{1..2}:1 -X PUT -d x -H A:b --requests 1M --rate 5k --warm-up 1s \
             --timeout 2s --new-connections --redirects 3 --accept 200,404 --connections 7",
        );
        let plan = plan.unwrap();
        let requests = &plan.requests;
        assert_eq!((requests.requests, requests.duration), (Some(1_000_000), None));
        assert_eq!((&requests.pace, requests.connections), (&Pace::Rate(5_000), 7));
        assert_eq!(
            (requests.warm_up, requests.timeout),
            (Duration::from_secs(1), Duration::from_secs(2))
        );
        assert!(requests.new_connections && requests.redirects == 3);
        assert_eq!(plan.accepted, Accepted::Only(vec![200, 404]));
        assert_eq!((plan.sent.len(), plan.sent[1].endpoint()), (2, 1));
        let text = std::str::from_utf8(plan.sent[1].bytes()).unwrap();
        assert!(text.starts_with("PUT / HTTP/1.1\r\nHost: 127.0.0.2:1\r\nA: b\r\n"), "{text}");
        assert!(text.ends_with("Content-Length: 1\r\nConnection: close\r\n\r\nx"), "{text}");
        let staged = read("http://127.0.0.1:1 --stages 1s:5,1s:50,0:0 --pipeline 4").unwrap();
        assert_eq!((staged.requests.connections, staged.requests.pipeline), (50, 4));
        assert_eq!(staged.requests.over_after(), Some(Duration::from_secs(2)));
        let rates = read("https://127.0.0.1:1 --rates 1s:5k --insecure").unwrap();
        assert!(matches!(rates.requests.pace, Pace::Rates(rates) if rates.len() == 1));
        let old = read("http://127.0.0.1:1 --http1.0 --connect-timeout 3s").unwrap();
        assert!(old.sent[0].bytes().starts_with(b"GET / HTTP/1.0\r\n"));
        assert_eq!(old.requests.connect_timeout, Some(Duration::from_secs(3)));
    }

    #[test]
    fn connect_flags_take_effect() {
        let of = |line: &str| read(line).unwrap().requests.endpoints.remove(0);
        let led = of("https://a.test:81 --resolve a.test:81:127.0.0.9 --insecure");
        assert_eq!(
            (led.address.to_string().as_str(), led.host.as_str()),
            ("127.0.0.9:81", "a.test:81")
        );
        let proxied = of("http://a.test/ --proxy http://u:p@127.0.0.1:3128");
        assert!(matches!(proxied.route, Route::Forward(_)) && proxied.address.port() == 3128);
        let file = of("http://a.test/ --unix-socket /run/x");
        assert!(matches!(file.route, Route::Unix(path) if path.ends_with("x")));
        assert!(matches!(of("http://nowhere.invalid/").route, Route::Unresolved(_)), "no error");
        let requests = read("http://a.test/b --proxy http://127.0.0.1:3128").unwrap();
        assert!(
            requests.sent[0].bytes().starts_with(b"GET http://a.test/b HTTP/1.1\r\nHost: a.test")
        );
        let secure = of("http://127.0.0.1:1 --redirects 3 --insecure");
        assert!(secure.options.tls.is_some(), "a redirect may lead to TLS");
    }

    #[test]
    fn flags_define_where_a_tcp_answer_ends() {
        let line = |flags: &str| format!("tcp://127.0.0.1:1 --data PING\\r\\n {flags}");
        let plan = read(&line("--expect +PONG\\r\\n")).unwrap();
        assert_eq!(plan.sent[0].bytes(), b"PING\r\n");
        assert!(matches!(plan.expect, Some(Expect::Bytes(bytes)) if bytes == b"+PONG\r\n"));
        let of = |flags: &str| read(&line(flags)).unwrap().expect.unwrap();
        assert!(matches!(of("--expect-length 10"), Expect::Length(10)));
        let prefix = Prefix { bytes: 4, little_endian: true, counts_itself: true };
        assert!(matches!(of("--expect-length u32le+"), Expect::Prefix(one) if one == prefix));
        assert!(matches!(of("--expect-regex OK$"), Expect::Regex(_)));
        assert!(matches!(of("--timeout 1s"), Expect::Anything));
    }

    #[test]
    fn invalid_flags_are_named() {
        for (line, named) in [
            ("http://127.0.0.1:1 ws://127.0.0.1:1", "http://"),
            ("http://127.0.0.1:1 --expect x", "--expect"),
            ("http://127.0.0.1:1 -X A(B", "method"),
            ("http://127.0.0.1:1 --insecure", "TLS"),
            ("http://127.0.0.1:1 --proxy socks5://127.0.0.1:1", "http://"),
            ("http://127.0.0.1:1 --resolve a:1", "HOST:PORT:ADDRESS"),
            ("http://127.0.0.1:1 --unix-socket a --proxy b:1", "cannot be used with"),
            ("tcp://127.0.0.1:1 --data x --http1.0", "--http1.0"),
            ("tcp://127.0.0.1 --data x", "port"),
            ("tcp://127.0.0.1:1", "--data"),
            ("tcp://127.0.0.1:1 --data x -H A:b", "--header"),
            ("tcp://127.0.0.1:1 --data \\q", "--data"),
            ("tcp://127.0.0.1:1 --data x --expect-length many", "u16be"),
            ("tcp://127.0.0.1:1 --data x --expect-regex (", "--expect-regex"),
            ("tcp://127.0.0.1:1 --data x --expect-regex a*", "--expect-regex"),
        ] {
            let error = format!("{:#}", read(line).unwrap_err());
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
