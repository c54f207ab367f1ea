//! The opening handshake, both roles: the RFC's example, every refusal, and bad inputs that broke
//! other servers (BI-nn).

use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, vec};

use super::*;
use crate::Violation;
use crate::http::{EMPTY_HEADER, MAX_HEADERS, parse_request, parse_response};

const KEY: &[u8; 24] = b"dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &[u8; 28] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// The contents of a handshake: key, origin, subprotocols.
type Accepted = (Vec<u8>, Option<Vec<u8>>, Vec<String>);

fn check(head: &str) -> Result<Option<Accepted>, Violation> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let request = parse_request(head.as_bytes(), &mut headers)?;
    Ok(check_upgrade(&request)?.map(|upgrade| {
        let protocols = upgrade.protocols().map(String::from).collect();
        (upgrade.key.to_vec(), upgrade.origin.map(<[u8]>::to_vec), protocols)
    }))
}

/// A valid handshake with one line left out and others added.
fn request(without: &str, lines: &str) -> String {
    let good = "GET /chat HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
    let kept =
        good.split_inclusive('\n').filter(|line| !line.starts_with(without) || without.is_empty());
    format!("{}{lines}\r\n", kept.collect::<String>())
}

fn refusal(without: &str, lines: &str) -> Option<Violation> {
    check(&request(without, lines)).err()
}

#[test]
fn rfc_6455_1_3_example() {
    let head = "GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Origin: http://example.com\r\nSec-WebSocket-Protocol: chat, superchat\r\n\
        Sec-WebSocket-Version: 13\r\n\r\n";
    let protocols = vec!["chat".to_string(), "superchat".to_string()];
    let expected = (KEY.to_vec(), Some(b"http://example.com".to_vec()), protocols);
    assert_eq!(check(head), Ok(Some(expected)));
    assert_eq!(&accept_key(KEY), ACCEPT);
    assert_eq!(&encode_key(*b"the sample nonce"), KEY);
    let mut out = vec![];
    encode_upgrade_response(&mut out, ACCEPT, Some("chat"), None);
    let expected = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
        Sec-WebSocket-Protocol: chat\r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn ordinary_requests_are_not_handshakes() {
    assert_eq!(check("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"), Ok(None));
    assert_eq!(check(&request("Upgrade", "Upgrade: h2c\r\n")), Ok(None));
    assert_eq!(check(&request("Upgrade", "Upgrade: notwebsocket\r\n")), Ok(None));
    assert_eq!(check("GET / HTTP/1.0\r\n\r\n"), Ok(None));
}

#[test]
fn lists_are_read_in_any_case_and_over_many_lines() {
    let good =
        |without, lines: &str| assert!(matches!(check(&request(without, lines)), Ok(Some(_))));
    good("Upgrade", "upgrade: h2c, WebSocket\r\n");
    good("Upgrade", "Upgrade: h2c\r\nUPGRADE: websocket\r\n");
    good("Connection", "Connection: keep-alive, Upgrade\r\n");
    good("Connection", "Connection: keep-alive\r\nconnection:upgrade\r\n");
    good("", "Sec-WebSocket-Version: 13\r\n");
    good("", "Content-Length: 0\r\n");
}

#[test]
fn invalid_handshakes_are_refused() {
    let refused = [
        ("Connection", "", Violation::UpgradeConnection),
        ("Connection", "Connection: keep-alive\r\n", Violation::UpgradeConnection),
        ("Sec-WebSocket-Version", "", Violation::UpgradeVersion),
        ("Sec-WebSocket-Version", "Sec-WebSocket-Version: 8\r\n", Violation::UpgradeVersion),
        ("Sec-WebSocket-Version", "Sec-WebSocket-Version: 013\r\n", Violation::UpgradeVersion),
        ("Sec-WebSocket-Version", "Sec-WebSocket-Version: 8, 13\r\n", Violation::UpgradeVersion),
        ("", "Sec-WebSocket-Version: 8\r\n", Violation::UpgradeVersion),
        (
            "Sec-WebSocket-Version",
            "Sec-WebSocket-Version: 8\r\nSec-WebSocket-Version: 13\r\n",
            Violation::UpgradeVersion,
        ),
        ("Connection", "User-Agent: upgrade\r\n", Violation::UpgradeConnection),
        ("", "Content-Length: 1\r\n", Violation::UpgradeBody),
        ("", "Transfer-Encoding: chunked\r\n", Violation::UpgradeBody),
        ("", "Sec-WebSocket-Protocol: a b\r\n", Violation::UpgradeBadProtocol),
        (
            "",
            "Sec-WebSocket-Protocol: a, b\r\nSec-WebSocket-Protocol: \"c\"\r\n",
            Violation::UpgradeBadProtocol,
        ),
        ("Host", "", Violation::MissingHost),
    ];
    for (without, lines, violation) in refused {
        assert_eq!(refusal(without, lines), Some(violation), "{without} {lines}");
    }
    let post = request("", "").replace("GET", "POST");
    assert_eq!(check(&post), Err(Violation::UpgradeMethod));
    let lower = request("", "").replace("GET", "get");
    assert_eq!(check(&lower), Err(Violation::UpgradeMethod));
    let old = request("", "").replace("HTTP/1.1", "HTTP/1.0");
    assert_eq!(check(&old), Err(Violation::UpgradeHttp10));
}

#[test]
fn headers_with_names_as_long_as_those_of_a_handshake_are_ignored() {
    let others = "Accept: a\r\nCookie: b\r\nReferer: c\r\nUser-Agent: d\r\n\
        If-Modified-Since: e\r\nSec-WebSocket-Another: f\r\nSec-WebSocket-Whatever: g h\r\n";
    let expected = (KEY.to_vec(), None, vec![]);
    assert_eq!(check(&request("", others)), Ok(Some(expected)));
    assert_eq!(check(&request("Upgrade", "Referer: websocket\r\n")), Ok(None));
    // The first Origin counts.
    let origins = format!("{others}Origin: http://a\r\nOrigin: http://b\r\n");
    let (_, origin, _) = check(&request("", &origins)).unwrap().unwrap();
    assert_eq!(origin.as_deref(), Some(&b"http://a"[..]));
}

#[test]
fn compression_is_negotiated_by_both_sides() {
    let deflate = |lines: &str| {
        let head = request("", lines);
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let request = parse_request(head.as_bytes(), &mut headers).unwrap();
        check_upgrade(&request).unwrap().unwrap().deflate(true)
    };
    assert_eq!(deflate(""), Ok(None));
    assert_eq!(deflate("Sec-WebSocket-Extensions: x\r\n"), Ok(None));
    assert_eq!(deflate("Sec-WebSocket-Extensions: =\r\n"), Err(Violation::UpgradeBadExtension));
    let lines = "sec-websocket-extensions: x\r\nX: y\r\n\
        Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=10\r\n";
    assert_eq!(deflate(lines).unwrap().unwrap().server_bits(), 10);

    let mut out = vec![];
    encode_upgrade_request(&mut out, "x", "/", KEY, &[], true, []);
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let offer = parse_request(&out, &mut headers).unwrap();
    assert_eq!(offer.header("sec-websocket-extensions"), Some(Deflate::OFFER.as_bytes()));
    let agreed = check_upgrade(&offer).unwrap().unwrap().deflate(false).unwrap().unwrap();
    let mut answer = vec![];
    encode_upgrade_response(&mut answer, ACCEPT, None, Some(&agreed));
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(&answer, &mut headers).unwrap();
    let switched = UpgradeAccepted { protocol: None, deflate: Some(agreed) };
    assert_eq!(check_upgrade_response(&response, KEY, &[], true), Ok(switched));
    let not_offered = check_upgrade_response(&response, KEY, &[], false);
    assert_eq!(not_offered, Err(Violation::UnofferedExtension));

    let twice = String::from_utf8(answer).unwrap().replace(
        "Sec-WebSocket-Extensions: ",
        "Sec-WebSocket-Extensions:\r\nSec-WebSocket-Extensions: permessage-deflate; \
         server_no_context_takeover\r\nSec-WebSocket-Extensions: ",
    );
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(twice.as_bytes(), &mut headers).unwrap();
    let refused = check_upgrade_response(&response, KEY, &[], true);
    assert_eq!(refused, Err(Violation::UnofferedExtension));
    let empty_line_after = twice.replace("Extensions:\r\n", "Nothing:\r\n").replace(
        "permessage-deflate; server_no_context_takeover\r\nSec-WebSocket-Extensions: ",
        "permessage-deflate; server_no_context_takeover\r\nSec-WebSocket-Extensions:\r\nX: ",
    );
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let response = parse_response(empty_line_after.as_bytes(), &mut headers).unwrap();
    let switched = check_upgrade_response(&response, KEY, &[], true).unwrap();
    assert!(switched.deflate.is_some(), "an empty line after the answer takes nothing back");
}

#[test]
fn bi_14_missing_and_forwarded_headers() {
    assert_eq!(check(&request("Upgrade", "")), Ok(None));
    assert_eq!(refusal("Sec-WebSocket-Key", ""), Some(Violation::UpgradeMissingKey));
    let forwarded = request("", "X-Forwarded-For:\r\nX-Forwarded-For: ,\r\nX-Forwarded-For: a\r\n");
    assert!(matches!(check(&forwarded), Ok(Some(_))));
    let many = request("", &"a: b\r\n".repeat(2000));
    assert_eq!(check(&many), Err(Violation::TooManyHeaders));
}

#[test]
fn bi_15_protocol_and_extension_lists() {
    let protocols = |lines: &str| check(&request("", lines)).unwrap().unwrap().2;
    let blanks = format!("Sec-WebSocket-Protocol: a,{}b,,\t,\r\n", " ".repeat(15_000));
    assert_eq!(protocols(&blanks), ["a", "b"]);
    let only_blanks = format!("Sec-WebSocket-Protocol: {}\r\n", " ".repeat(15_000));
    assert!(protocols(&only_blanks).is_empty());
    let lines = "Sec-WebSocket-Protocol: a\r\nX: b\r\nsec-websocket-protocol: c , constructor\r\n";
    assert_eq!(protocols(lines), ["a", "c", "constructor"]);
    // Not read at all, hence declined, whatever it contains.
    for value in [
        "x; y=\"",
        "x; y=\"\\\"\\",
        "permessage-deflate; server_max_window_bits=099",
        ",,;=",
        "__proto__",
    ] {
        assert!(protocols(&format!("Sec-WebSocket-Extensions: {value}\r\n")).is_empty());
    }
    let offers = format!("Sec-WebSocket-Extensions: {}\r\n", "a,".repeat(7000));
    assert!(protocols(&offers).is_empty());
}

#[test]
fn bi_16_keys() {
    let bad = [
        "",
        "dGhlIHNhbXBsZSBub25jZQ=",
        "dGhlIHNhbXBsZSBub25jZQ===",
        "dGhlIHNhbXBsZSBub25jZQAA",
        "dGhlIHNhbXBsZSBub25j====",
        "dGhlIHNhbXBsZSBub25j Q==",
        "dGhlIHNhbXBsZSBub25j-Q==",
        "dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ==",
        "dGhlIHNhbXBsZSBub25jZQ==,",
        "Zm9v",
    ];
    for key in bad {
        let found = refusal("Sec-WebSocket-Key", &format!("Sec-WebSocket-Key: {key}\r\n"));
        assert_eq!(found, Some(Violation::UpgradeBadKey), "{key}");
    }
    let again = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert_eq!(refusal("", again), Some(Violation::UpgradeDuplicateKey));
}

#[test]
fn bi_19_smuggling_by_a_handshake() {
    let length = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(refusal("", length), Some(Violation::LengthAndTransferEncoding));
    assert_eq!(refusal("Upgrade", "Upgrade : websocket\r\n"), Some(Violation::SpaceBeforeColon));
    assert_eq!(refusal("Upgrade", "Upgrade:\r\n websocket\r\n"), Some(Violation::FoldedHeader));
    assert_eq!(refusal("", "X: \0\r\n"), Some(Violation::ControlCharacter));
}

#[test]
fn a_client_and_a_server_complete_the_handshake() {
    for offered in [&[][..], &["v1"], &["v2", "v1"]] {
        let mut out = vec![];
        encode_upgrade_request(
            &mut out,
            "x:80",
            "/a?b",
            KEY,
            offered,
            false,
            [("Origin", "http://x")],
        );
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let request = parse_request(&out, &mut headers).unwrap();
        assert_eq!((request.target, request.header("host")), ("/a?b", Some(&b"x:80"[..])));
        let upgrade = check_upgrade(&request).unwrap().unwrap();
        assert_eq!(upgrade.protocols().collect::<Vec<_>>(), offered);
        assert_eq!(upgrade.origin, Some(&b"http://x"[..]));
        let chosen = upgrade.offers("v1").then_some("v1");
        assert_eq!(chosen.is_some(), !offered.is_empty());

        let mut answer = vec![];
        encode_upgrade_response(&mut answer, &accept_key(upgrade.key), chosen, None);
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let response = parse_response(&answer, &mut headers).unwrap();
        let switched = UpgradeAccepted { protocol: chosen, deflate: None };
        assert_eq!(check_upgrade_response(&response, KEY, offered, false), Ok(switched));
    }
}

#[test]
fn a_client_refuses_invalid_responses() {
    let good = "HTTP/1.1 101 S\r\nUpgrade: WebSocket\r\nConnection: x, upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
    let check = |head: &str| {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let head = format!("{head}\r\n");
        let response = parse_response(head.as_bytes(), &mut headers)?;
        check_upgrade_response(&response, KEY, &["v1"], false)
            .map(|switched| switched.protocol.map(String::from))
    };
    let with = |line: &str| check(&format!("{good}{line}\r\n"));
    let without = |name: &str| check(&good.replace(&format!("{name}:"), "X:"));
    assert_eq!(check(good), Ok(None));
    assert_eq!(with("Sec-WebSocket-Protocol: v1"), Ok(Some("v1".into())));
    assert_eq!(with("Sec-WebSocket-Extensions:"), Ok(None));
    assert_eq!(with("Sec-WebSocket-Protocol: V1"), Err(Violation::UnofferedProtocol));
    assert_eq!(with("Sec-WebSocket-Protocol: v1, v1"), Err(Violation::UnofferedProtocol));
    assert_eq!(with("Sec-WebSocket-Protocol:"), Err(Violation::UnofferedProtocol));
    let twice = "Sec-WebSocket-Protocol: v1\r\nSec-WebSocket-Protocol: v1";
    assert_eq!(with(twice), Err(Violation::UnofferedProtocol));
    let deflate = "Sec-WebSocket-Extensions: permessage-deflate";
    assert_eq!(with(deflate), Err(Violation::UnofferedExtension));
    assert_eq!(with("Sec-WebSocket-Accept: x"), Err(Violation::WrongAccept));
    let again = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
    assert_eq!(with(again), Err(Violation::WrongAccept));
    assert_eq!(without("Upgrade"), Err(Violation::SwitchedWithoutUpgrade));
    assert_eq!(without("Connection"), Err(Violation::SwitchedWithoutConnection));
    assert_eq!(without("Sec-WebSocket-Accept"), Err(Violation::WrongAccept));
    let lower = good.replace("s3pPLM", "s3pplm");
    assert_eq!(check(&lower), Err(Violation::WrongAccept));
    for status in ["200", "426", "302", "503"] {
        assert_eq!(check(&good.replace("101", status)), Err(Violation::NotSwitched));
    }
}

#[test]
fn every_refusal_is_a_complete_response() {
    for &violation in Violation::ALL {
        let mut out = vec![];
        encode_refusal(&mut out, violation);
        let end = out.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let (head, body) = out.split_at(end);
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let response = parse_response(head, &mut headers).unwrap();
        assert_eq!(response.status, violation.http_status());
        assert!(!response.reason.is_empty(), "{violation:?} has no reason phrase");
        assert!(response.header_list_contains("connection", "close"));
        let length = response.header("content-length").unwrap();
        assert_eq!(length, body.len().to_string().as_bytes());
        assert!(String::from_utf8_lossy(body).contains(&violation.to_string()));
        let version = response.header("sec-websocket-version");
        assert_eq!(version.is_some(), violation == Violation::UpgradeVersion);
        assert_eq!(response.header("allow").is_some(), violation == Violation::UpgradeMethod);
        // RFC 9110 15.5.22: a 426 has Upgrade, and Connection names it (7.8).
        let upgrades = response.header_list_contains("upgrade", "websocket");
        assert_eq!(upgrades, violation == Violation::UpgradeVersion);
        assert_eq!(response.header_list_contains("connection", "upgrade"), upgrades);
    }
}
