//! Tests of the parser on commands as people paste them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

fn one(text: &str) -> Request {
    let commands = parse(text, Path::new("")).unwrap();
    assert_eq!(commands.warnings, Vec::<String>::new(), "{text}");
    assert_eq!(commands.requests.len(), 1, "{text}");
    commands.requests.into_iter().next().unwrap()
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    let mut found = request.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
    let first = found.next();
    assert!(found.next().is_none(), "{name} twice: {request:?}");
    first.map(|(_, value)| value.as_str())
}

fn body(request: &Request) -> &str {
    std::str::from_utf8(request.body.as_deref().unwrap_or_default()).unwrap()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("standfast-curl-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, content: &[u8]) {
        fs::write(self.0.join(name), content).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn command_copied_from_a_browser_is_parsed() {
    let request = one("curl 'https://example.com/a?b=c&d=e' \\\n  -H 'accept: */*' \\\r\n  \
         -H 'content-type: application/json' \\\n  -b 'one=1; two=2' \\\n  \
         --data-raw $'{\"text\":\"it\\'s\\u0021\\n\\ud83d\\ude00\\x41\\101\"}' \\\n  --compressed\n");
    assert_eq!(
        (request.method.as_str(), request.url.as_str()),
        ("POST", "https://example.com/a?b=c&d=e")
    );
    assert_eq!(body(&request), "{\"text\":\"it's!\n😀AA\"}");
    assert_eq!(header(&request, "content-type"), Some("application/json"), "case does not matter");
    assert_eq!(header(&request, "cookie"), Some("one=1; two=2"));
    assert_eq!(header(&request, "accept-encoding"), Some("deflate, gzip, br, zstd"));
}

#[test]
fn command_exported_by_postman_is_parsed() {
    let request = one(
        "curl --location --request PUT \"http://a/b\" --header \"X-A: 1 \\\"2\\\"\" --data 'x=1'",
    );
    assert_eq!((request.method.as_str(), request.url.as_str()), ("PUT", "http://a/b"));
    assert_eq!(header(&request, "x-a"), Some("1 \"2\""));
    assert_eq!((body(&request), request.redirects), ("x=1", 50));
    assert_eq!(header(&request, "content-type"), Some("application/x-www-form-urlencoded"));
}

#[test]
fn combined_short_options_are_parsed() {
    let request = one("$ curl -sSLkXPATCH -m2.5 -HA:b -d1 -d 2 a.example:81/x");
    assert_eq!((request.method.as_str(), request.url.as_str()), ("PATCH", "http://a.example:81/x"));
    assert!(request.insecure && request.redirects == 50);
    assert_eq!(request.timeout, Some(Duration::from_millis(2_500)));
    assert_eq!((body(&request), header(&request, "a")), ("1&2", Some("b")));
}

#[test]
fn every_supported_option_changes_the_request() {
    let plain = one("curl http://a/");
    assert_eq!((plain.method.as_str(), plain.body.as_ref()), ("GET", None));
    let own = concat!("standfast/", env!("CARGO_PKG_VERSION"));
    let defaults = [("User-Agent", own), ("Accept", "*/*")];
    let defaults = defaults.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(plain.headers, defaults, "as curl, with our own User-Agent");
    for (option, changed) in [
        ("-X DELETE", Request { method: "DELETE".into(), ..plain.clone() }),
        ("-I", Request { method: "HEAD".into(), ..plain.clone() }),
        ("-L", Request { redirects: 50, ..plain.clone() }),
        ("-L --max-redirs 3", Request { redirects: 3, ..plain.clone() }),
        ("-k", Request { insecure: true, ..plain.clone() }),
        ("-m 3", Request { timeout: Some(Duration::from_secs(3)), ..plain.clone() }),
        (
            "--connect-timeout 3",
            Request { connect_timeout: Some(Duration::from_secs(3)), ..plain.clone() },
        ),
        ("--cacert ca.pem", Request { ca: Some("ca.pem".into()), ..plain.clone() }),
        ("-E c.pem", Request { cert: Some("c.pem".into()), ..plain.clone() }),
        ("--key k.pem", Request { key: Some("k.pem".into()), ..plain.clone() }),
        (
            "--resolve a:80:127.0.0.1",
            Request { resolve: vec!["a:80:127.0.0.1".into()], ..plain.clone() },
        ),
        ("-x http://p:1", Request { proxy: Some("http://p:1".into()), ..plain.clone() }),
        ("-x p", Request { proxy: Some("http://p:1080".into()), ..plain.clone() }),
        (
            "-U 'a:b@c' -x http://x:y@p:1/",
            Request { proxy: Some("http://a:b%40c@p:1".into()), ..plain.clone() },
        ),
        ("-0", Request { http10: true, ..plain.clone() }),
        ("--unix-socket /s", Request { unix_socket: Some("/s".into()), ..plain.clone() }),
        ("--interface 127.0.0.2", Request { source: Some("127.0.0.2".into()), ..plain.clone() }),
        ("--url-query 'q=1 2'", Request { url: "http://a/?q=1+2".into(), ..plain.clone() }),
        (
            "-G -d x=1 --data-urlencode 'y=ä &'",
            Request { url: "http://a/?x=1&y=%C3%A4+%26".into(), ..plain.clone() },
        ),
    ] {
        assert_eq!(one(&format!("curl {option} http://a/")), changed, "{option}");
    }
    for (option, name, value) in [
        ("-H 'A: b'", "A", "b"),
        ("-H 'A;'", "A", ""),
        ("-b a=1 -b b=2", "Cookie", "a=1; b=2"),
        ("-u me:word", "Authorization", "Basic bWU6d29yZA=="),
        ("--oauth2-bearer t", "Authorization", "Bearer t"),
        ("-A me/1", "User-Agent", "me/1"),
        ("-e http://b/", "Referer", "http://b/"),
        ("-r 0-9", "Range", "bytes=0-9"),
        ("--compressed", "Accept-Encoding", "deflate, gzip, br, zstd"),
    ] {
        let request = one(&format!("curl {option} --url http://a/"));
        assert_eq!(header(&request, name), Some(value), "{option}");
        let more = if option.starts_with("-A") { 1 } else { 2 };
        assert_eq!(request.headers.len(), 1 + more, "{option}");
    }
    let in_url = one("curl http://me:w%3Ard@a/x");
    assert_eq!(
        (in_url.url.as_str(), header(&in_url, "authorization")),
        ("http://a/x", Some("Basic bWU6dzpyZA=="))
    );
    for (option, name, value) in [
        ("-H 'Accept:'", "Accept", None),
        ("-H 'accept;'", "Accept", Some("")),
        ("-H 'ACCEPT: text/x'", "Accept", Some("text/x")),
        ("-H 'User-Agent:'", "User-Agent", None),
        ("-A me -A ''", "User-Agent", None),
        ("-A me -H 'User-Agent: you'", "User-Agent", Some("you")),
    ] {
        let request = one(&format!("curl {option} http://a/"));
        assert_eq!(header(&request, name), value, "{option}");
        assert_eq!(request.headers.len(), 1 + usize::from(value.is_some()), "{option}");
    }
    let without = one("curl -d x -H 'Content-Type:' -H Accept: -H User-Agent: http://a/");
    assert_eq!(without.headers, [], "a name without a value removes the header");
    let json = one(r#"curl --json '{"a":' --json '1}' http://a/"#);
    assert_eq!(
        (body(&json), header(&json, "content-type")),
        (r#"{"a":1}"#, Some("application/json"))
    );
    assert_eq!(header(&json, "accept"), Some("application/json"));
}

#[test]
fn option_values_are_read_from_files() {
    let folder = Folder::new("files");
    folder.file("f", b"a\r\nb\0c");
    folder.file("p.png", b"\x89PNG");
    let read = |options: &str| {
        let commands = parse(&format!("curl {options} http://a/"), &folder.0).unwrap();
        commands.requests.into_iter().next().unwrap()
    };
    let sent = |options: &str| read(options).body.unwrap();
    assert_eq!(sent("-d @f"), b"abc");
    assert_eq!(sent("--data-binary @f"), b"a\r\nb\0c");
    assert_eq!(sent("--data-raw @f"), b"@f");
    assert_eq!(sent("--data-urlencode n@f"), b"n=a%0D%0Ab%00c");
    let upload = read("-T f");
    assert_eq!((upload.method.as_str(), upload.body.as_deref()), ("PUT", Some(&b"a\r\nb\0c"[..])));
    let form = read("-F a=1 -F 'b=@p.png;filename=x.png' -F 'c=<f;type=text/x' --form-string d=@e");
    let (text, kind) = (
        String::from_utf8_lossy(form.body.as_deref().unwrap()).into_owned(),
        header(&form, "content-type"),
    );
    let boundary =
        kind.and_then(|kind| kind.strip_prefix("multipart/form-data; boundary=")).unwrap();
    let parts: Vec<&str> = text.split(&format!("--{boundary}")).collect();
    assert_eq!(parts.len(), 6, "{text}");
    assert!(parts[1].ends_with("name=\"a\"\r\n\r\n1\r\n"), "{}", parts[1]);
    assert!(
        parts[2].contains("name=\"b\"; filename=\"x.png\"\r\nContent-Type: image/png\r\n\r\n"),
        "{}",
        parts[2]
    );
    assert!(parts[3].contains("name=\"c\"\r\nContent-Type: text/x\r\n\r\na\r\nb"), "{}", parts[3]);
    assert!(parts[4].ends_with("name=\"d\"\r\n\r\n@e\r\n") && parts[5] == "--\r\n", "{text}");
    let error = parse("curl -d @missing http://a/", &folder.0).unwrap_err();
    assert!(format!("{error:#}").contains("missing"), "{error:#}");
}

/// As in the manual of curl, which puts values that contain `;` in quotes.
#[test]
fn quotes_in_forms_are_read_as_curl_reads_them() {
    let part = |form: &str| {
        let command = format!("curl -F '{form}' http://a/");
        let commands = parse(&command, Path::new("")).unwrap();
        let sent = body(&commands.requests[0]).to_owned();
        let part = sent.split("\r\n").skip(1).collect::<Vec<_>>().join("|");
        let end = part.rfind("|--").unwrap();
        (part[..end].replace("Content-Disposition: form-data; ", ""), commands.warnings.len())
    };
    for (form, sent) in [
        (r#"name="Jane Doe""#, r#"name="name"||Jane Doe"#),
        (r#"name="Jane \"J\" \\ \Doe""#, r#"name="name"||Jane "J" \ \Doe"#),
        (r#"a="red; green";type=text/x-own"#, r#"name="a"|Content-Type: text/x-own||red; green"#),
        (
            r#"a=b;type=text/plain; charset=utf-8;filename="x;y \"z\".txt""#,
            r#"name="a"; filename="x;y %22z%22.txt"|Content-Type: text/plain; charset=utf-8||b"#,
        ),
        (r#"a= b ;filename=c\d "#, r#"name="a"; filename="c\d"||b"#),
        (r#"a="b" behind;type=text/x"#, r#"name="a"|Content-Type: text/x||b"#),
        (r#"a="never closed"#, r#"name="a"||"never closed"#),
        (r#"a=x "y""#, r#"name="a"||x "y""#),
    ] {
        assert_eq!(part(form), (sent.to_owned(), 0), "{form}");
    }
    assert_eq!(part("a=b;c"), (r#"name="a"||b"#.to_owned(), 1), "with a warning, as in curl");
    let folder = Folder::new("quotes");
    folder.file("a;b.txt", b"content");
    let command = r#"curl -F 'f=@"a;b.txt";filename="c.txt"' http://a/"#;
    let commands = parse(command, &folder.0).unwrap();
    let sent = body(&commands.requests[0]);
    assert!(
        sent.contains("filename=\"c.txt\"\r\nContent-Type: text/plain\r\n\r\ncontent"),
        "{sent}"
    );
}

#[test]
fn a_file_may_have_several_commands() {
    let text = "# two of them\ncurl http://a/1; curl http://a/2 && curl http://a/3\n\n\
                curl http://a/4 --next http://a/5\n";
    let commands = parse(text, Path::new("")).unwrap();
    let urls: Vec<&str> = commands.requests.iter().map(|request| request.url.as_str()).collect();
    assert_eq!(urls, ["http://a/1", "http://a/2", "http://a/3", "http://a/4", "http://a/5"]);
    let lines: Vec<usize> = commands.requests.iter().map(|request| request.line).collect();
    assert_eq!(lines, [2, 2, 2, 4, 4]);
}

#[test]
fn unsupported_parts_cause_warnings_with_their_line() {
    for (text, named) in [
        ("curl --frobnicate http://a/", "--frobnicate"),
        ("curl -! http://a/", "-!"),
        ("curl --http2 http://a/", "--http2"),
        ("curl -b jar.txt http://a/", "jar.txt"),
        ("curl http://a/ http://b/", "http://b/"),
        ("curl -H 'no header' http://a/", "no header"),
        ("curl -H ':authority: a' http://a/", ":authority"),
        ("curl http://a/$ID", "not a shell"),
        ("curl http://a/ | jq .", "|"),
        ("curl ^\"http://a/^\"", "bash"),
        ("wget http://b/\ncurl http://a/", "wget"),
        ("curl 'http://a/[1-3]'", "-g"),
    ] {
        let commands = parse(text, Path::new("")).unwrap();
        let warnings = commands.warnings.join("\n");
        assert!(warnings.contains(named) && warnings.starts_with("line 1: "), "{text}: {warnings}");
        assert!(commands.requests[0].url.starts_with("http://a/"), "{text}: {commands:?}");
    }
}

#[test]
fn errors_name_the_line() {
    for (text, named) in [
        ("", "no curl command"),
        ("wget http://a/", "no curl command"),
        ("\ncurl -H", "line 2: --header has no value"),
        ("curl -k", "line 1: the command has no URL"),
        ("curl 'http://a/", "line 1: the quote '"),
        ("curl\nx \"", "line 2: the quote \""),
        ("curl $'x", "line 1: the quote $'"),
        ("curl -m soon http://a/", "soon"),
        ("curl -F nothing http://a/", "name=value"),
        ("curl -F a=b -d c http://a/", "one body"),
        ("curl -H $'A: b\\r\\nC: d' http://a/", "expected one line"),
    ] {
        let error = format!("{:#}", parse(text, Path::new("")).unwrap_err());
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn value_of_an_option_is_never_taken_for_the_url() {
    for command in [
        "curl --proto '=https' --tlsv1.2 -sSf https://127.0.0.1/install",
        "curl --retry-max-time 60 https://127.0.0.1/install",
        "curl -C 0 https://127.0.0.1/install",
        "curl --of-tomorrow 60 https://127.0.0.1/install",
        "curl https://127.0.0.1/install --of-tomorrow 60",
    ] {
        let commands = parse(command, Path::new("")).unwrap();
        assert_eq!(commands.requests[0].url, "https://127.0.0.1/install", "{command}");
        assert_eq!(
            commands.warnings.len(),
            1 + usize::from(command.contains("proto")),
            "{command}"
        );
    }
    for (command, url) in [
        ("curl --of-tomorrow http://a/", "http://a/"),
        ("curl --of-tomorrow a.example", "http://a.example"),
    ] {
        let commands = parse(command, Path::new("")).unwrap();
        assert_eq!(commands.requests[0].url, url, "{:?}", commands.warnings);
    }
}

#[test]
fn equals_sign_has_precedence_over_at_sign() {
    assert_eq!(body(&one("curl http://a/ --data-urlencode a@b=c")), "a@b=c");
}

#[test]
fn endless_file_is_refused() {
    let error =
        parse("curl http://a/ --data-binary @/dev/zero", Path::new("")).unwrap_err().to_string();
    assert!(error.contains("is larger than"), "{error}");
}

#[test]
fn headers_and_cookies_are_read_from_files() {
    let folder = Folder::new("headers");
    folder.file("h.txt", b"X-A: 1\r\n\nX-B: 2\n");
    folder.file(
        "jar.txt",
        b"# Netscape HTTP Cookie File\n\
          .a.test\tTRUE\t/\tFALSE\t0\twide\t1\n\
          a.test\tFALSE\t/in\tFALSE\t4102444800\tdeep\t2\n\
          #HttpOnly_a.test\tFALSE\t/\tTRUE\t0\tsafe\t3\n\
          b.test\tTRUE\t/\tFALSE\t0\tother\t4\n\
          a.test\tFALSE\t/\tFALSE\t1\told\t5\n",
    );
    folder.file("sent.txt", b"HTTP/1.1 200 OK\r\nSet-Cookie: s=6; Path=/\r\n");
    let cookies = |rest: &str| {
        let commands = parse(&format!("curl -H @h.txt -b jar.txt {rest}"), &folder.0).unwrap();
        assert!(commands.warnings.is_empty(), "{:?}", commands.warnings);
        let request = commands.requests.into_iter().next().unwrap();
        assert_eq!((header(&request, "x-a"), header(&request, "x-b")), (Some("1"), Some("2")));
        header(&request, "cookie").map(str::to_owned)
    };
    assert_eq!(cookies("http://a.test/").as_deref(), Some("wide=1"));
    assert_eq!(cookies("http://www.A.test:80/").as_deref(), Some("wide=1"));
    assert_eq!(cookies("https://a.test/in/x").as_deref(), Some("wide=1; deep=2; safe=3"));
    assert_eq!(
        cookies("http://a.test/inner -b sent.txt -b x=y").as_deref(),
        Some("x=y; wide=1; s=6")
    );
    assert_eq!(cookies("http://xa.test/"), None);
    let missing = parse("curl -b nowhere.txt http://a/", &folder.0).unwrap();
    assert!(missing.warnings[0].contains("nowhere.txt"), "{:?}", missing.warnings);
    assert!(parse("curl -H @nowhere.txt http://a/", &folder.0).is_err());
}

#[test]
fn password_is_not_sent_by_another_scheme() {
    for scheme in ["--digest", "--ntlm", "--negotiate", "--anyauth"] {
        for user in ["-u me:word http://a/", "http://me:word@a/"] {
            let commands =
                parse(&format!("curl {scheme} {user}"), std::path::Path::new(".")).unwrap();
            assert_eq!(header(&commands.requests[0], "authorization"), None, "{scheme} {user}");
            assert!(commands.warnings[0].contains(scheme), "{:?}", commands.warnings);
        }
    }
    let own = "curl --digest -u me:word -H 'Authorization: Bearer x' http://a/";
    let own = parse(own, std::path::Path::new(".")).unwrap();
    assert_eq!(header(&own.requests[0], "authorization"), Some("Bearer x"));
}

#[test]
fn empty_user_agent_removes_the_header() {
    for option in ["-A ''", "--user-agent ''", "-H 'User-Agent:'"] {
        assert_eq!(
            header(&one(&format!("curl {option} http://a/")), "user-agent"),
            None,
            "{option}"
        );
    }
}
