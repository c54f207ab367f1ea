//! `standfast load from-har`: the scenario sends what the browser sent, and the rest is listed.

use serde_json::json;

use crate::harness::Scratch;
use crate::harness::executable::{self, Finished, standfast};
use crate::harness::web::{Answer, ReceivedRequest, Web};

/// A shop that redirects after the login and sets a cookie there.
fn shop(got: &ReceivedRequest) -> Answer {
    match (got.method.as_str(), got.target.as_str()) {
        ("POST", "/login") => {
            let cookie = ("Set-Cookie", "session=s-1; Path=/; HttpOnly".to_owned());
            (302, vec![cookie, ("Location", "/home".to_owned())], String::new())
        }
        _ => (200, Vec::new(), "{}".to_owned()),
    }
}

/// As Chrome writes it: pseudo headers of HTTP/2, resource types, header and cookie lists.
const CHROME: &str = r#"{
  "log": {
    "version": "1.2",
    "creator": {"name": "WebInspector", "version": "537.36"},
    "pages": [{"startedDateTime": "2026-11-02T10:00:00.000Z", "id": "page_1", "title": "x",
               "pageTimings": {"onContentLoad": 1.5, "onLoad": 2}}],
    "entries": [
      {"_initiator": {"type": "other"}, "_priority": "VeryHigh", "_resourceType": "document",
       "cache": {}, "connection": "443", "pageref": "page_1",
       "request": {"method": "GET", "url": "http://HOST/?q=a%20b#top", "httpVersion": "h2",
         "headers": [{"name": ":authority", "value": "HOST"}, {"name": ":method", "value": "GET"},
                     {"name": ":path", "value": "/?q=a%20b"}, {"name": ":scheme", "value": "http"},
                     {"name": "accept", "value": "text/html,*/*;q=0.8"},
                     {"name": "accept-encoding", "value": "gzip, deflate, br, zstd"},
                     {"name": "cookie", "value": "theme=dark; seen=1"},
                     {"name": "if-none-match", "value": "\"abc\""},
                     {"name": "user-agent", "value": "Mozilla/5.0 (X11; Linux x86_64)"}],
         "queryString": [{"name": "q", "value": "a%20b"}], "cookies": [], "headersSize": -1, "bodySize": 0},
       "response": {"status": 200, "statusText": "", "httpVersion": "h2", "headers": [], "cookies": [],
         "content": {"size": 10, "mimeType": "text/html"}, "redirectURL": "", "headersSize": -1,
         "bodySize": -1, "_transferSize": 100},
       "startedDateTime": "2026-11-02T10:00:00.000Z", "time": 12.5, "timings": {"send": 1, "wait": 1, "receive": 1}},
      {"_resourceType": "script", "cache": {}, "request": {"method": "GET", "url": "http://HOST/app",
         "httpVersion": "h2", "headers": [], "queryString": [], "cookies": [], "headersSize": -1, "bodySize": 0},
       "response": {"status": 200, "content": {"size": 1, "mimeType": "text/javascript"}, "headers": []},
       "startedDateTime": "2026-11-02T10:00:00.100Z", "time": 1},
      {"_resourceType": "xhr", "request": {"method": "GET", "url": "http://other.example/ping",
         "headers": [], "cookies": []}, "response": {"status": 200},
       "startedDateTime": "2026-11-02T10:00:00.150Z"},
      {"_resourceType": "document", "request": {"method": "POST", "url": "http://HOST/login",
         "headers": [{"name": "content-length", "value": "31"},
                     {"name": "content-type", "value": "application/x-www-form-urlencoded"},
                     {"name": "user-agent", "value": "Mozilla/5.0 (X11; Linux x86_64)"}],
         "cookies": [], "postData": {"mimeType": "application/x-www-form-urlencoded",
           "text": "name=Ann+%26+Bo&password=%7B%7Bx%7D%7D",
           "params": [{"name": "name", "value": "Ann+%26+Bo"}, {"name": "password", "value": "%7B%7Bx%7D%7D"}]}},
       "response": {"status": 302, "headers": [{"name": "location", "value": "/home"},
         {"name": "set-cookie", "value": "session=s-9; Path=/"}], "redirectURL": "/home"},
       "startedDateTime": "2026-11-02T10:00:00.250Z"},
      {"_resourceType": "document", "request": {"method": "GET", "url": "http://HOST/home", "headers": []},
       "response": {"status": 200}, "startedDateTime": "2026-11-02T10:00:00.300Z"},
      {"_resourceType": "fetch", "request": {"method": "PUT", "url": "http://HOST/api/items/7",
         "headers": [{"name": "authorization", "value": "Bearer top-secret"},
                     {"name": "content-type", "value": "application/json"},
                     {"name": "cookie", "value": "session=s-9"},
                     {"name": "user-agent", "value": "Mozilla/5.0 (X11; Linux x86_64)"}],
         "postData": {"mimeType": "application/json", "text": "{\"a\":{\"b\":\"{{tpl}} \\\"q\\\"\"}}"}},
       "response": {"status": 200, "content": {"mimeType": "application/json"}},
       "startedDateTime": "2026-11-02T12:00:00.300Z"},
      {"_resourceType": "websocket", "_webSocketMessages": [], "request": {"method": "GET",
         "url": "ws://HOST/feed", "headers": [{"name": "Upgrade", "value": "websocket"}]},
       "response": {"status": 101}, "startedDateTime": "2026-11-02T12:00:01.000Z"}
    ]
  }
}"#;

fn convert(har: &str, name: &str, more: &[&str]) -> Finished {
    let file = Scratch::new(name, har);
    executable::run(&[&["load", "from-har", file.path()], more].concat())
}

#[test]
fn recording_of_chrome_becomes_the_requests_of_a_user() {
    let web = Web::start(shop);
    let har = CHROME.replace("HOST", &web.address.to_string());
    let host = web.address.to_string();
    let converted = convert(&har, "chrome.har", &["--host", &host, "--max-think", "20ms"]);
    assert_eq!(converted.code, Some(0), "{converted:?}");
    for note in [
        "left out: entry 2, GET http://HOST/app: static asset",
        "left out: entry 3, GET http://other.example/ping: another host",
        "left out: entry 5, GET http://HOST/home: follows a redirect",
        "left out: entry 7, GET ws://HOST/feed: not an http",
        "secret: set the environment variable AUTHORIZATION: header authorization of step 3",
        "secret: set the environment variable COOKIE: the cookies theme, seen",
        "step 2: the body contains a password",
    ] {
        let note = note.replace("HOST", &host);
        assert!(converted.stderr.contains(&note), "{note}: {}", converted.stderr);
    }
    for secret in ["top-secret", "dark", "s-9", "AUTHORIZATION="] {
        assert!(!converted.stdout.contains(secret), "{secret}: {}", converted.stdout);
    }
    assert!(converted.stdout.contains("think = \"20ms\""), "capped: {}", converted.stdout);
    let scenario = Scratch::new("from-chrome.toml", &converted.stdout);
    // Without the secrets nothing is sent.
    let without = executable::run(&["load", scenario.path()]);
    assert_eq!(without.code, Some(2), "{without:?}");
    assert!(without.stderr.contains("COOKIE is not set"), "{without:?}");
    let mut command = standfast(&["load", scenario.path(), "--json", "-"]);
    command.env("AUTHORIZATION", "other").env("COOKIE", "theme=light");
    let (finished, document) = executable::run_command(command).with_json();
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let steps = document["flows"][0]["steps"].as_array().unwrap();
    let names: Vec<&str> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["GET /", "POST /login", "PUT /api/items/7"]);
    let got = web.got();
    let lines: Vec<String> =
        got.iter().map(|got| format!("{} {}", got.method, got.target)).collect();
    assert_eq!(lines, ["GET /?q=a%20b", "POST /login", "GET /home", "PUT /api/items/7"]);
    let [first, login, home, item] = &got[..] else { panic!("{got:?}") };
    assert_eq!(first.header("accept-encoding"), Some("gzip, deflate"));
    assert_eq!(first.header("cookie"), Some("theme=light"));
    assert_eq!(first.header("accept"), Some("text/html,*/*;q=0.8"));
    assert_eq!(first.header("if-none-match"), None);
    assert!(got.iter().all(|got| got.header("user-agent") == first.header("user-agent")));
    assert_eq!(login.body, "name=Ann%20%26%20Bo&password=%7B%7Bx%7D%7D");
    assert_eq!(login.header("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(home.header("cookie"), Some("session=s-1"), "of the jar");
    assert_eq!(item.header("cookie"), Some("session=s-1"), "of the jar, not of the recording");
    assert_eq!(item.header("authorization"), Some("Bearer other"));
    assert_eq!(item.body, "{\"a\":{\"b\":\"{{tpl}} \\\"q\\\"\"}}");
    assert_eq!(item.header("content-type"), Some("application/json"));
}

/// As Firefox writes it: a byte order mark, HTTP/1.1 headers, cookies as a list, local times.
const FIREFOX: &str = r#"{"log": {"version": "1.2", "creator": {"name": "Firefox", "version": "145.0"},
  "browser": {"name": "Firefox", "version": "145.0"}, "pages": [], "entries": [
  {"startedDateTime": "2026-11-02T11:00:01.500+01:00", "request": {"bodySize": 0, "method": "DELETE",
     "url": "http://HOST/a|b?x={y}&\u00e4", "httpVersion": "HTTP/1.1",
     "headers": [{"name": "Host", "value": "HOST"}, {"name": "Connection", "value": "keep-alive"},
                 {"name": "X-Api-Key", "value": "k-1"}],
     "cookies": [{"name": "id", "value": "7"}], "queryString": [], "headersSize": 10},
   "response": {"status": 204, "headers": [], "cookies": [], "content": {"mimeType": "text/plain", "size": 0},
     "redirectURL": ""}, "cache": {}, "timings": {}, "time": 5, "_securityState": "insecure"},
  {"startedDateTime": "2026-11-02T10:00:00.000Z", "request": {"method": "POST", "url": "http://HOST/upload",
     "headers": [{"name": "Host", "value": "HOST"}, {"name": "Content-Length", "value": "5"}],
     "postData": {"mimeType": "application/octet-stream", "params": [], "encoding": "base64", "text": "AP8B\nAg=="}},
   "response": {"status": 200, "cookies": [{"name": "id", "value": "7"}]}},
  {"startedDateTime": "2026-11-02T10:00:01.000Z", "request": {"method": "POST", "url": "http://HOST/tags",
     "headers": [], "postData": {"mimeType": "application/x-www-form-urlencoded",
       "params": [{"name": "t", "value": "a b"}, {"name": "t", "value": "c"}]}},
   "response": {"status": 200}},
  {"startedDateTime": "2026-11-02T10:00:02.000Z", "request": {"method": "OPTIONS", "url": "http://HOST/tags",
     "headers": [{"name": "Access-Control-Request-Method", "value": "POST"}]}, "response": {"status": 200}}
]}}"#;

#[test]
fn recording_of_firefox_is_converted_in_the_order_of_its_times() {
    let recorder = crate::harness::recorder::Recorder::hello();
    let host = recorder.address.to_string();
    let har = format!("\u{feff}{}", FIREFOX.replace("HOST", &host));
    let output = Scratch::new("from-firefox.toml", "");
    let refused = convert(&har, "firefox.har", &["--output", output.path()]);
    assert_eq!(refused.code, Some(2), "an existing file is not overwritten: {refused:?}");
    std::fs::remove_file(output.path()).unwrap();
    let converted = convert(&har, "firefox.har", &["--no-think", "--output", output.path()]);
    assert_eq!((converted.code, converted.stdout.as_str()), (Some(0), ""), "{converted:?}");
    assert!(converted.stderr.contains("CORS preflight"), "{}", converted.stderr);
    assert!(converted.stderr.contains("API_KEY"), "{}", converted.stderr);
    let text = std::fs::read_to_string(output.path()).unwrap();
    assert!(!text.contains("think") && !text.contains("k-1"), "{text}");
    let mut command = standfast(&["load", output.path()]);
    command.env("API_KEY", "k-2");
    let finished = executable::run_command(command);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let asked = recorder.asked();
    let lines: Vec<String> =
        asked.iter().map(|got| format!("{} {}", got.method, got.target)).collect();
    assert_eq!(lines, ["POST /upload", "POST /tags", "DELETE /a%7Cb?x=%7By%7D&%C3%A4"]);
    assert_eq!(asked[0].body, [0, 255, 1, 2]);
    assert_eq!(asked[1].body, b"t=a%20b&t=c");
    assert_eq!(asked[1].header("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(asked[2].header("x-api-key"), Some("k-2"));
    assert_eq!(asked[2].header("cookie"), None, "the response set it: the jar has it");
}

#[test]
fn recordings_that_cannot_be_converted_are_refused_with_the_place() {
    let entry = |request: serde_json::Value| {
        json!({"log": {"entries": [{"request": request}]}}).to_string()
    };
    for (har, parts) in [
        ("{\n\"log\": [}".to_owned(), &["line 2 column"][..]),
        (
            "{\"log\": {\"entries\": [{\"request\": {\"url\": \"x\"}}]}}".to_owned(),
            &["method", "line 1"],
        ),
        ("{}".to_owned(), &["log", "line 1"]),
        ("{\"log\": {\"entries\": []}}".to_owned(), &["no request to convert", "--host"]),
        (entry(json!({"method": "GET", "url": "ftp://a/"})), &["entry 1", "http://", "no request"]),
        (entry(json!({"method": "GET", "url": "http://u:p@a/"})), &["host is not supported"]),
        (entry(json!({"method": "get", "url": "http://a/"})), &["method \"get\""]),
        (entry(json!({"method": "GET", "url": "http://a/x.PNG"})), &["static asset"]),
    ] {
        let refused = convert(&har, "bad.har", &[]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{har}: {refused:?}");
        let complete = parts.iter().all(|part| refused.stderr.contains(part));
        assert!(complete, "{har}: {}", refused.stderr);
    }
    let missing = executable::run(&["load", "from-har", "no-such.har"]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("no-such.har"), "{missing:?}");
}
