//! `standfast load from-curl`: the printed command sends the same request as the installed curl.

use std::collections::BTreeSet;

use crate::harness::executable::{self, standfast};
use crate::harness::recorder::{RecordedRequest, Recorder};
use crate::harness::{Scratch, skip};

#[test]
fn printed_command_sends_the_same_request_as_curl() {
    let server = Recorder::hello();
    let url = format!("http://{}/x", server.address);
    let curl = std::process::Command::new("curl").arg("--version").output();
    if curl.is_err() {
        return skip::missing("curl is not installed");
    }
    for options in [
        "",
        "-X DELETE",
        "-I",
        "-d a=1 -d 'b=2 3'",
        "--data-urlencode 'q=ä &' --data-urlencode ' x'",
        "-G -d a=1 --data-urlencode 'b=ü'",
        r#"--json '{"a":1}'"#,
        "-u me:word",
        "-A me/1 -e http://b/ -b 'a=1; b=2' -H 'X-Y: it'\\''s'",
        "--data-raw $'a\\n\\u00e4\\x41'",
        "-F 'a=1'",
        "-H 'Accept:'",
        "-H 'Accept;'",
        "-H 'accept: text/html, */*;q=0.1'",
        "-H 'User-Agent:'",
        "-A ''",
        "-A me -H 'user-agent: you' --compressed",
    ] {
        let text = format!("curl -s {options} {url}");
        let file = Scratch::new("from-curl.txt", &text);
        let shell = std::process::Command::new("bash").args(["-c", &text]).output().unwrap();
        assert!(shell.status.success(), "{text}: {shell:?}");
        let printed = executable::run(&["load", "from-curl", file.path()]);
        assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""), "{text}");
        let line = printed.stdout.trim().strip_prefix("standfast ").unwrap().to_owned();
        let ours = format!("exec \"$0\" {line} --requests 1 --connections 1 --plain");
        let program = standfast(&[]).get_program().to_owned();
        let ran = std::process::Command::new("bash").args(["-c", &ours]).arg(program).output();
        let ran = ran.unwrap();
        assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
        let asked = server.asked();
        let [.., theirs, ours] = asked.as_slice() else { panic!("{asked:?}") };
        // Versions of curl differ in the case of percent-encoding.
        let asked = |one: &RecordedRequest| (one.method.clone(), one.target.to_ascii_lowercase());
        assert_eq!(asked(ours), asked(theirs), "{text}");
        let is_form =
            theirs.header("content-type").is_some_and(|kind| kind.starts_with("multipart"));
        let plain = |asked: &RecordedRequest| {
            let text = String::from_utf8_lossy(&asked.body).into_owned();
            let mark = asked.header("content-type").and_then(|kind| kind.split("boundary=").nth(1));
            mark.map_or(text.clone(), |mark| text.replace(mark, "MARK"))
        };
        assert_eq!(plain(ours), plain(theirs), "{text}");
        // The same headers with the same values, except the boundary of a form, the default User-Agent
        // and the supported codings.
        let names = |asked: &RecordedRequest| {
            asked.headers.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>()
        };
        assert_eq!(names(ours), names(theirs), "{text}");
        for (name, value) in &theirs.headers {
            let is_own = is_form && name.starts_with("content-")
                || name == "user-agent" && value.starts_with("curl/")
                || name == "accept-encoding";
            if !is_own {
                assert_eq!(ours.header(name), Some(value.as_str()), "{name}: {text}");
            }
        }
        let agent = ours.header("user-agent");
        let own = theirs.header("user-agent").is_some_and(|agent| agent.starts_with("curl/"));
        assert_eq!(own, agent.is_some_and(|agent| agent.starts_with("standfast/")), "{text}");
    }
}
