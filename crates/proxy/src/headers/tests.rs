//! Tests of the heads that are passed on.

use wire::http::{EMPTY_HEADER, parse_request, parse_response};

use super::*;

fn passed(head: &str, identity: &ClientIdentity) -> String {
    changed(head, identity, &RequestChanges::default())
}

fn changed(head: &str, identity: &ClientIdentity, changes: &RequestChanges<'_>) -> String {
    let head = head.replace('\n', "\r\n");
    let mut headers = [EMPTY_HEADER; 40];
    let request = parse_request(head.as_bytes(), &mut headers).unwrap();
    let mut out = Vec::new();
    encode_request(&mut out, &request, false, Framing::Counted, identity, changes);
    String::from_utf8(out).unwrap().replace("\r\n", "\n")
}

fn stranger() -> ClientIdentity {
    ClientIdentity { peer: Some([192, 0, 2, 1].into()), ..ClientIdentity::default() }
}

#[test]
fn hop_by_hop_headers_are_removed_and_the_rest_keeps_its_order() {
    let head = "GET /a?b=c HTTP/1.1\nHost: h\nA: 1\nconnection: close, B\nb: 2\nTE: trailers\n\
                Keep-Alive: 5\nUpgrade: h2c\nHTTP2-Settings: x\nC: 3\n\n";
    assert_eq!(
        passed(head, &stranger()),
        "GET /a?b=c HTTP/1.1\nHost: h\nA: 1\nC: 3\nX-Forwarded-For: 192.0.2.1\n\
         X-Forwarded-Proto: http\nX-Forwarded-Host: h\n\n"
    );
}

#[test]
fn a_header_is_removed_by_its_full_name() {
    let mut head =
        b"POST /Expect:1 HTTP/1.1\r\nExpect-CT: 1\r\nEXPECT: 100-continue\r\nA: Expect: 2\r\n\r\n"
            .to_vec();
    remove_header(&mut head, "Expect");
    assert_eq!(head, b"POST /Expect:1 HTTP/1.1\r\nExpect-CT: 1\r\nA: Expect: 2\r\n\r\n");
    let before = head.clone();
    remove_header(&mut head, "Expect");
    assert_eq!(head, before);
}

#[test]
fn a_client_can_neither_remove_nor_forge_identity_headers() {
    let head = "GET / HTTP/1.1\nHost: h\nConnection: x-forwarded-for, X-Forwarded-Proto, host\n\
                X-Forwarded-For: 1.1.1.1\nx-forwarded-for: 2.2.2.2\nX_Forwarded_For: 3.3.3.3\n\
                X-Forwarded-Proto: https\nForwarded: for=4.4.4.4\nX-Real-Ip: 5.5.5.5\n\n";
    let identity = ClientIdentity { forwarded: true, ..stranger() };
    assert_eq!(
        passed(head, &identity),
        "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\n\
         X-Forwarded-Host: h\nForwarded: for=192.0.2.1;proto=http;host=\"h\"\n\n"
    );
}

#[test]
fn headers_of_a_trusted_proxy_are_kept_and_extended() {
    let head = "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1.1.1.1\nX-Forwarded-Proto: https\n\
                X-Forwarded-Host: outer\n\n";
    let client = Some([1, 1, 1, 1].into());
    let trusted = Some(ForwardedBy::XForwardedFor);
    let identity = ClientIdentity { trusted, client, ..stranger() };
    assert_eq!(
        passed(head, &identity),
        "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1.1.1.1, 192.0.2.1\n\
         X-Forwarded-Proto: https\nX-Forwarded-Host: outer\n\n"
    );
    // With a PROXY header only the client's address is known.
    let by_header = passed("GET / HTTP/1.1\nHost: h\n\n", &identity);
    assert!(by_header.contains("X-Forwarded-For: 1.1.1.1\n"), "{by_header}");
}

#[test]
fn other_forwarding_headers_pass_only_from_a_trusted_proxy() {
    let head = "GET / HTTP/1.1\nHost: h\nX-Forwarded-Ssl: on\nx-forwarded-scheme: https\n\
                X_Forwarded_Port: 443\nX-Forwarded-Prefix: /a\nX-Forwarded: 1\n\n";
    let by = |trusted| passed(head, &ClientIdentity { trusted, ..stranger() });
    let ours = "X-Forwarded-For: 192.0.2.1\nX-Forwarded-Proto: http\nX-Forwarded-Host: h\n\n";
    for strange in [by(None), by(Some(ForwardedBy::Forwarded))] {
        assert_eq!(strange, format!("GET / HTTP/1.1\nHost: h\nX-Forwarded: 1\n{ours}"));
    }
    let trusted = by(Some(ForwardedBy::XForwardedFor));
    for kept in ["Ssl: on", "scheme: https", "Port: 443", "Prefix: /a"] {
        assert!(trusted.contains(kept), "{kept} in {trusted}");
    }
}

#[test]
fn only_the_configured_header_of_a_trusted_proxy_is_trusted() {
    let head = "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 6.6.6.6\nX-Real-IP: 6.6.6.6\n\
                X-Forwarded-Proto: ftp\nX-Forwarded-Host: evil\n\
                Forwarded: for=1.1.1.1;proto=https\n\n";
    let client = Some([1, 1, 1, 1].into());
    let trusted = Some(ForwardedBy::Forwarded);
    let identity = ClientIdentity { trusted, client, forwarded: true, ..stranger() };
    assert_eq!(
        passed(head, &identity),
        "GET / HTTP/1.1\nHost: h\nX-Forwarded-For: 1.1.1.1\nX-Forwarded-Proto: https\n\
         X-Forwarded-Host: h\n\
         Forwarded: for=1.1.1.1;proto=https, for=192.0.2.1;proto=http;host=\"h\"\n\n"
    );
    let trusted = Some(ForwardedBy::XForwardedFor);
    let by_x = passed(head, &ClientIdentity { trusted, client: None, ..identity });
    assert!(by_x.contains("X-Forwarded-For: 6.6.6.6, 192.0.2.1\n"), "{by_x}");
    assert!(by_x.contains("\nForwarded: for=192.0.2.1;proto=http;host=\"h\"\n"), "{by_x}");
    assert!(!by_x.contains("1.1.1.1") && !by_x.contains("X-Real-IP"), "{by_x}");
}

fn rules(list: &[&str]) -> Vec<HeaderRule> {
    list.iter().map(|rule| rule.parse().unwrap()).collect()
}

#[test]
fn x_real_ip_is_the_client_and_never_what_a_stranger_sends() {
    let head = "GET / HTTP/1.1\nHost: h\nX-Real-IP: 6.6.6.6\nx_real_ip: 7.7.7.7\n\n";
    let by = |identity: ClientIdentity| passed(head, &ClientIdentity { real_ip: true, ..identity });
    let lines = |head: &str| -> Vec<String> {
        let is = |line: &&str| line.to_ascii_lowercase().replace('_', "-").contains("real-ip");
        head.lines().filter(is).map(str::to_owned).collect()
    };
    assert_eq!(lines(&by(stranger())), ["X-Real-IP: 192.0.2.1"]);
    let trusted = Some(ForwardedBy::XForwardedFor);
    let behind = ClientIdentity { trusted, client: Some([1, 1, 1, 1].into()), ..stranger() };
    assert_eq!(lines(&by(behind)), ["X-Real-IP: 1.1.1.1"]);
    // A trusted proxy is trusted in its header only.
    assert_eq!(lines(&by(ClientIdentity { client: None, ..behind })), ["X-Real-IP: 192.0.2.1"]);
    assert!(lines(&by(ClientIdentity::default())).is_empty());
    assert!(lines(&passed(head, &behind)).is_empty());
}

#[test]
fn rules_set_and_remove_headers_of_requests() {
    let rules = rules(&[
        "X-User: u-$remote_addr",
        "Cookie:",
        "X-Forwarded-For:",
        "X-Forwarded-Proto: https",
    ]);
    let variables = Variables { remote_addr: stranger().address(), ..Variables::default() };
    let changes = RequestChanges { rules: &rules, variables, sends_id: false };
    let head = "GET / HTTP/1.1\nHost: h\nConnection: X-User\nX-USER: root\nx_user: root\nCookie: a\n\
                cookie: b\nA: 1\n\n";
    assert_eq!(
        changed(head, &stranger(), &changes),
        "GET / HTTP/1.1\nHost: h\nA: 1\nX-Forwarded-Host: h\nX-User: u-192.0.2.1\n\
         X-Forwarded-Proto: https\n\n"
    );
}

#[test]
fn a_request_id_replaces_what_the_client_sent() {
    let variables = Variables { request_id: Some("01"), ..Variables::default() };
    let head = "GET / HTTP/1.1\nHost: h\nX-Request-Id: a\nx_request_id: b\n\n";
    let with = |rules: &[HeaderRule], sends_id| {
        changed(head, &stranger(), &RequestChanges { rules, variables, sends_id })
    };
    let lines = |head: String| -> Vec<String> {
        head.lines().filter(|line| line.contains("equest")).map(str::to_owned).collect()
    };
    assert_eq!(lines(with(&[], true)), ["X-Request-Id: 01"]);
    assert_eq!(lines(with(&[], false)), ["X-Request-Id: a", "x_request_id: b"]);
    assert_eq!(lines(with(&rules(&["X-Request-Id: x$request_id"]), true)), ["X-Request-Id: x01"]);
    assert!(lines(with(&rules(&["X-Request-Id:"]), true)).is_empty());
}

#[test]
fn rules_set_and_remove_headers_of_responses() {
    let rules = rules(&["Server:", "Strict-Transport-Security: max-age=1"]);
    let variables = Variables { request_id: Some("01"), ..Variables::default() };
    let lines = answer_lines(&rules, true, &variables);
    let changes = AnswerChanges { rules: &rules, sends_id: true, lines: &lines };
    let head = b"HTTP/1.1 200 OK\r\nServer: s\r\nX-Request-Id: a\r\nA: b\r\n\r\n";
    let mut headers = [EMPTY_HEADER; 10];
    let answer = parse_response(head, &mut headers).unwrap();
    let mut out = Vec::new();
    encode_answer(&mut out, &answer, Framing::Counted, &changes);
    assert_eq!(
        String::from_utf8(out).unwrap().replace("\r\n", "\n"),
        "HTTP/1.1 200 OK\nA: b\nX-Request-Id: 01\nStrict-Transport-Security: max-age=1\n"
    );
}

#[test]
fn an_absolute_url_becomes_a_path_and_a_host() {
    let request =
        passed("GET http://real/x?y HTTP/1.1\nHost: other\n\n", &ClientIdentity::default());
    assert!(request.starts_with("GET /x?y HTTP/1.1\nHost: real\n"), "{request}");
    assert!(request.contains("X-Forwarded-Host: real\n") && !request.contains("other"));
}

#[test]
fn options_for_a_server_stays_options_star() {
    for (received, passed_on) in [
        ("OPTIONS *", "OPTIONS *"),
        ("OPTIONS http://real", "OPTIONS *"),
        ("OPTIONS http://real:8080", "OPTIONS *"),
        ("OPTIONS http://real/", "OPTIONS /"),
        ("OPTIONS http://real?a", "OPTIONS /?a"),
        ("GET http://real", "GET /"),
    ] {
        let request = passed(&format!("{received} HTTP/1.1\nHost: real\n\n"), &stranger());
        assert!(request.starts_with(&format!("{passed_on} HTTP/1.1\n")), "{received}: {request}");
    }
}

#[test]
fn only_websocket_of_several_protocols_is_offered_to_an_upstream() {
    let head = "GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: h2c, WebSocket\r\nUpgrade: TLS/1.0\r\n\
                Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    let mut headers = [EMPTY_HEADER; 10];
    let request = parse_request(head.as_bytes(), &mut headers).unwrap();
    let mut out = Vec::new();
    let none = RequestChanges::default();
    encode_request(&mut out, &request, true, Framing::Counted, &stranger(), &none);
    let out = String::from_utf8(out).unwrap();
    let lines = out.lines().filter(|line| line.to_ascii_lowercase().contains("upgrade"));
    assert_eq!(lines.collect::<Vec<_>>(), ["Upgrade: websocket", "Connection: Upgrade"]);
    assert!(!out.contains("h2c") && !out.contains("HTTP2") && !out.contains("TLS/"), "{out}");
}

#[test]
fn a_response_keeps_its_end_to_end_headers() {
    let head = "HTTP/1.1 426 Nope\nConnection: upgrade, set-x\nUpgrade: websocket\nSet-X: 1\n\
                Content-Length: 0\nContent-Length: 0\nSet-Cookie: a\nSet-Cookie: b\n\n";
    let head = head.replace('\n', "\r\n");
    let mut headers = [EMPTY_HEADER; 10];
    let answer = parse_response(head.as_bytes(), &mut headers).unwrap();
    let mut out = Vec::new();
    encode_answer(&mut out, &answer, Framing::Counted, &AnswerChanges::default());
    assert_eq!(
        String::from_utf8(out).unwrap().replace("\r\n", "\n"),
        "HTTP/1.1 426 Nope\nUpgrade: websocket\nContent-Length: 0\nSet-Cookie: a\nSet-Cookie: b\n"
    );
}

#[test]
fn the_reason_phrase_is_passed_on_unchanged() {
    for (received, passed) in [
        ("HTTP/1.1 404 Nope", "HTTP/1.1 404 Nope"),
        ("HTTP/1.0 200 All is\twell, really", "HTTP/1.1 200 All is\twell, really"),
        ("HTTP/1.1 299 ", "HTTP/1.1 299 "),
        // The space is part of the status line even without a reason (RFC 9112 section 4).
        ("HTTP/1.1 404", "HTTP/1.1 404 "),
    ] {
        let head = format!("{received}\r\n\r\n");
        let mut headers = [EMPTY_HEADER; 4];
        let answer = parse_response(head.as_bytes(), &mut headers).unwrap();
        let mut out = Vec::new();
        encode_answer(&mut out, &answer, Framing::Counted, &AnswerChanges::default());
        assert_eq!(String::from_utf8(out).unwrap(), format!("{passed}\r\n"));
    }
    let mut headers = [EMPTY_HEADER; 4];
    let foreign = b"HTTP/1.1 404 Unauff\xc3\xadndbar\r\n\r\n";
    let answer = parse_response(foreign, &mut headers).unwrap();
    let mut out = Vec::new();
    encode_answer(&mut out, &answer, Framing::Counted, &AnswerChanges::default());
    assert_eq!(out, b"HTTP/1.1 404 \r\n");
    let mut headers = [EMPTY_HEADER; 4];
    let broken = parse_response(b"HTTP/1.1 404 No\0pe\r\n\r\n", &mut headers);
    assert!(broken.is_err(), "a reason with control characters is rejected");
}

#[test]
fn a_status_without_a_body_has_no_content_length() {
    for (status, lengths) in [(101, 0), (103, 0), (204, 0), (200, 1), (304, 1)] {
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 7\r\nA: b\r\n\r\n");
        let mut headers = [EMPTY_HEADER; 4];
        let answer = parse_response(head.as_bytes(), &mut headers).unwrap();
        let mut out = Vec::new();
        encode_answer(&mut out, &answer, Framing::Counted, &AnswerChanges::default());
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out.matches("Content-Length").count(), lengths, "{out}");
        assert!(out.contains("A: b\r\n"));
    }
}
