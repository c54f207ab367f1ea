//! Bodies of scenario steps: binary, from files and multipart, as servers receive them.

use std::io::Write;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::harness::executable;
use crate::harness::recorder::{RecordedRequest, Recorder};
use crate::harness::{Scratch, skip};

/// Bytes that are not UTF-8, with what must not be taken for a template or a boundary.
const BINARY: &[u8] = b"\x89PNG\r\n\x1a\n\0\xff{{seq}}\r\n--standfast-\r\n";

fn run(server: &Recorder, name: &str, steps: &str) -> Vec<RecordedRequest> {
    let text = format!(
        "version = 1\ntarget = 'http://{}'\npasses = 2\n[[feeds]]\nname = 'people'\n\
         file = 'PEOPLE'\n[[flows]]\n{steps}",
        server.address
    );
    let people = Scratch::new(&format!("{name}.csv"), "name\nAnn\n\"Bo \"\"B\"\"\r\nX: y\"\n");
    let scenario = Scratch::new(&format!("{name}.toml"), &text.replace("PEOPLE", people.path()));
    let finished = executable::run(&["load", scenario.path()]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    server.asked()
}

#[test]
fn binary_bodies_arrive_unchanged() {
    let server = Recorder::hello();
    let file = Scratch::new("body.bin", "");
    std::fs::write(file.path(), BINARY).unwrap();
    let template = Scratch::new("body.txt", "Dear {{people.name}}");
    let steps = format!(
        "[[flows.steps]]\nurl = '/file'\nbody_file = '{}'\n\
         [[flows.steps]]\nurl = '/text'\nbody_file = '{}'\n\
         [[flows.steps]]\nurl = '/base64'\nmethod = 'PUT'\nbody_base64 = '''\n{}\n'''\n",
        file.path(),
        template.path(),
        BASE64_STANDARD.encode(BINARY)
    );
    let asked = run(&server, "binary-bodies", &steps);
    let of = |target: &'static str| asked.iter().filter(move |asked| asked.target == target);
    for asked in of("/file").chain(of("/base64")) {
        assert_eq!(asked.body, BINARY, "{asked:?}");
        assert_eq!(asked.header("content-length"), Some(BINARY.len().to_string().as_str()));
    }
    assert_eq!((of("/file").count(), of("/base64").count()), (2, 2), "{asked:?}");
    assert!(of("/base64").all(|asked| asked.method == "PUT"));
    let texts: Vec<&[u8]> = of("/text").map(|asked| asked.body.as_slice()).collect();
    assert_eq!(texts, [&b"Dear Ann"[..], b"Dear Bo \"B\"\r\nX: y"]);
}

/// Prints the parts of a form as JSON, by Python's parser of MIME.
const PARSER: &str = r#"
import sys, json, base64
from email.parser import BytesParser
from email.policy import HTTP
message = BytesParser(policy=HTTP).parsebytes(sys.stdin.buffer.read())
print(json.dumps([{
    "name": part.get_param("name", header="content-disposition"),
    "filename": part.get_filename(),
    "type": part.get("content-type"),
    "content": base64.b64encode(part.get_payload(decode=True)).decode(),
} for part in message.iter_parts()]))
"#;

fn parts(asked: &RecordedRequest) -> Option<Value> {
    let python = Command::new("python3")
        .args(["-c", PARSER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut python = python.ok()?;
    let mut input = python.stdin.take().unwrap();
    let kind = asked.header("content-type").unwrap();
    write!(input, "Content-Type: {kind}\r\n\r\n").unwrap();
    input.write_all(&asked.body).unwrap();
    drop(input);
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn multipart_forms_are_parsed_by_another_implementation() {
    let server = Recorder::hello();
    let file = Scratch::new("face.png", "");
    std::fs::write(file.path(), BINARY).unwrap();
    let steps = format!(
        "[[flows.steps]]\nurl = '/form'\nmultipart = [\n\
         {{ name = 'title', value = '{{{{people.name}}}}' }},\n\
         {{ name = 'note', value = 'ä', type = 'text/markdown' }},\n\
         {{ name = 'face', file = '{0}', filename = 'a \"b\".png', type = 'image/png' }},\n\
         {{ name = 'raw', file = '{0}' }},\n]\n",
        file.path(),
    );
    let asked = run(&server, "multipart-bodies", &steps);
    assert_eq!(asked.len(), 2, "{asked:?}");
    let kinds: Vec<&str> = asked.iter().map(|got| got.header("content-type").unwrap()).collect();
    assert!(kinds[0] != kinds[1], "each request has its own boundary: {kinds:?}");
    for (got, title) in asked.iter().zip(["Ann", "Bo \"B\"\r\nX: y"]) {
        assert_eq!(got.method, "POST");
        let kind = got.header("content-type").unwrap();
        let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
        let first = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"title\"\r\n\r\n{title}\r\n\
             --{boundary}\r\n"
        );
        assert!(got.body.starts_with(first.as_bytes()), "{got:?}");
        assert!(got.body.ends_with(format!("\r\n--{boundary}--\r\n").as_bytes()), "{got:?}");
        let Some(parts) = parts(got) else { return skip::missing("python3 is not installed") };
        let own = std::path::Path::new(file.path()).file_name().unwrap().to_str().unwrap();
        let part = |name: &str, filename: Option<&str>, kind: Option<&str>, content: &[u8]| {
            let content = BASE64_STANDARD.encode(content);
            json!({"name": name, "filename": filename, "type": kind, "content": content})
        };
        let expected = json!([
            part("title", None, None, title.as_bytes()),
            part("note", None, Some("text/markdown"), "ä".as_bytes()),
            part("face", Some("a %22b%22.png"), Some("image/png"), BINARY),
            part("raw", Some(own), Some("application/octet-stream"), BINARY),
        ]);
        assert_eq!(parts, expected);
    }
}
