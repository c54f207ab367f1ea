//! Stress over RADIUS: each user sends Access-Requests one after another, with the values that
//! go-stress-testing has compiled in unless flags give others.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use capacity::Count;
use load::radius::{
    ACCESS_ACCEPT, ACCESS_CHALLENGE, ACCESS_REJECT, AccessRequest, Radius, RadiusCounts, RadiusEnd,
    RadiusResult, drive,
};

use super::flags::{Args, is_true};
use super::live_stats::{LiveStats, NO_ANSWER};
use super::table::{Table, causes};
use super::{Document, Wait, code, write};
use crate::output;

/// The port of RADIUS (RFC 2865 section 3).
const PORT: u16 = 1_812;

pub(super) fn run(args: &Args, url: &str) -> Result<ExitCode> {
    let (server, realm) = parse(url)?;
    let user = realm.map_or_else(|| args.user.clone(), |realm| format!("{}@{realm}", args.user));
    let request = AccessRequest::new(&user, &args.password, &args.secret, &args.nas);
    let radius = Radius {
        server: resolve(server)?,
        users: args.users,
        each: args.duration().is_none().then_some(args.each),
        duration: args.duration(),
        timeout: args.request_timeout(),
        threads: args.cores(),
        request: request.map_err(anyhow::Error::msg)?,
    };
    let stats = LiveStats::default();
    let mut table = Table::new(args.users, stats.clone(), args.quiet());
    let (debug, own) = (is_true(&args.debug), stats.clone());
    let observer = || {
        let stats = own.worker();
        move |result: &RadiusResult| {
            let code = match result.end {
                RadiusEnd::Answered(code) => u16::from(code),
                _ => NO_ANSWER,
            };
            let is_ok = result.end == RadiusEnd::Answered(ACCESS_ACCEPT);
            stats.add(is_ok, code, u64::from(result.bytes), result.took_ns, result.is_first);
            if debug {
                output::note(&shown(result.end));
            }
        }
    };
    let mut wait = Wait::new(args);
    let ended = drive(&radius, observer, |elapsed| table.second(elapsed), |time| wait.wait(time))
        .with_context(|| format!("radius://{}", radius.server))?;
    let elapsed = std::time::Duration::from_secs_f64(ended.seconds);
    let stress = table.end(elapsed, ended.latency.as_ref(), &why(&ended.radius, &ended.unreached));
    write(args, &Document { stress: &stress, run: &ended })?;
    let interrupted = ended.interrupted && wait.by_user;
    Ok(code(stress.failed == 0 && stress.ok > 0 && ended.unreached.is_none(), interrupted))
}

/// The text of a result for -d.
fn shown(end: RadiusEnd) -> String {
    match end {
        RadiusEnd::Answered(ACCESS_ACCEPT) => "2 Access-Accept".to_owned(),
        RadiusEnd::Answered(ACCESS_REJECT) => "3 Access-Reject".to_owned(),
        RadiusEnd::Answered(ACCESS_CHALLENGE) => "11 Access-Challenge".to_owned(),
        RadiusEnd::Answered(code) => format!("{code} unknown code"),
        RadiusEnd::Timeout => "timeout: no verified answer".to_owned(),
        RadiusEnd::Refused => "connection refused".to_owned(),
        RadiusEnd::Unsent => "not sent".to_owned(),
    }
}

/// Host, port and realm of `radius://HOST:PORT@REALM`; without a port it is 1812.
fn parse(url: &str) -> Result<(&str, Option<&str>)> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (server, realm) = match rest.split_once('@') {
        Some((server, realm)) => (server, Some(realm)),
        None => (rest.trim_end_matches('/'), None),
    };
    if server.is_empty() || server.contains('/') || realm.is_some_and(str::is_empty) {
        bail!("invalid URL {url:?}: expected radius://HOST:PORT or radius://HOST:PORT@REALM");
    }
    Ok((server, realm))
}

fn resolve(server: &str) -> Result<SocketAddr> {
    let has_port = server.rsplit_once(':').is_some_and(|(host, port)| {
        port.bytes().all(|byte| byte.is_ascii_digit())
            && (!host.contains(':') || host.ends_with(']'))
    });
    let found = match has_port {
        true => server.to_socket_addrs(),
        false => (server.trim_matches(['[', ']']), PORT).to_socket_addrs(),
    };
    let mut found = found.with_context(|| format!("cannot resolve {server}"))?;
    found.next().with_context(|| format!("{server} has no address"))
}

/// Lines on requests without Access-Accept, and on datagrams that were sent again or discarded.
fn why(counts: &RadiusCounts, unreached: &Option<String>) -> Vec<String> {
    let named = |all: &[(&str, u64)]| -> BTreeMap<String, u64> {
        let all = all.iter().filter(|(_, count)| *count > 0);
        all.map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    let failed = named(&[
        ("access_reject", counts.rejected),
        ("access_challenge", counts.challenged),
        ("unknown_code", counts.other_codes),
        ("timeout", counts.timeouts),
        ("connection_refused", counts.refused),
        ("unsent", counts.unsent),
    ]);
    let discarded = named(&[
        ("unverified", counts.unverified),
        ("malformed", counts.malformed),
        ("unexpected", counts.unexpected),
    ]);
    let mut why: Vec<String> = unreached.iter().map(|why| format!("fell short: {why}")).collect();
    why.extend(causes("failed by", &failed));
    let lines = [
        ("datagrams sent again, without an answer within a second", counts.retransmissions),
        ("not counted: requests without an answer when the run ended", counts.unfinished),
    ];
    let lines = lines.iter().filter(|(_, count)| *count > 0);
    why.extend(lines.map(|(what, count)| format!("{what}: {}", Count(*count))));
    why.extend(causes("discarded answers", &discarded));
    if counts.unverified > 0 {
        why.push("unverified answers are made with another secret: give that of the server with --secret".into());
    }
    if counts.timeouts > 0 && counts.datagrams_received == 0 {
        why.push(
            "nothing was answered: RADIUS servers ignore clients that they do not know, and requests with a wrong \
             secret (--secret)"
                .into(),
        );
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_server_port_and_realm() {
        for (url, server, realm) in [
            ("radius://127.0.0.1:1812", "127.0.0.1:1812", None),
            ("radius://127.0.0.1:1812@example.org", "127.0.0.1:1812", Some("example.org")),
            ("radius://[::1]/", "[::1]", None),
        ] {
            assert_eq!(parse(url).unwrap(), (server, realm), "{url}");
        }
        for url in ["radius://", "radius://a:1@", "radius://@realm", "radius://a/b"] {
            assert!(
                parse(url).unwrap_err().to_string().contains("radius://HOST:PORT@REALM"),
                "{url}"
            );
        }
        for (server, address) in [
            ("127.0.0.1", "127.0.0.1:1812"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("[::1]", "[::1]:1812"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(resolve(server).unwrap().to_string(), address);
        }
    }

    #[test]
    fn lines_name_what_to_do() {
        let counts = RadiusCounts {
            timeouts: 2,
            retransmissions: 5,
            unverified: 7,
            datagrams_received: 7,
            ..RadiusCounts::default()
        };
        let text = why(&counts, &None).join("\n");
        for part in ["timeout 2", "within a second: 5", "unverified 7", "--secret"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let silent = RadiusCounts { timeouts: 1, ..RadiusCounts::default() };
        assert!(why(&silent, &None).join("\n").contains("do not know"), "{silent:?}");
    }
}
