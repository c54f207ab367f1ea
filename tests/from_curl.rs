//! `standfast load from-curl`: what it prints sends what curl itself sends, held against the curl that
//! is installed here.

use crate::harness::Scratch;
use crate::harness::executable::{self, standfast};
use crate::harness::recorder::{Asked, Recorder};

#[test]
fn what_from_curl_prints_sends_what_curl_sends() {
    let server = Recorder::hello();
    let url = format!("http://{}/x", server.address);
    let curl = std::process::Command::new("curl").arg("--version").output();
    if curl.is_err() {
        assert!(std::env::var_os("CI").is_none(), "curl is not here");
        eprintln!("skipped: curl is not here");
        return;
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
        // In a URL some versions of curl write %c3, others %C3.
        let asked = |one: &Asked| (one.method.clone(), one.target.to_ascii_lowercase());
        assert_eq!(asked(ours), asked(theirs), "{text}");
        let is_form =
            theirs.header("content-type").is_some_and(|kind| kind.starts_with("multipart"));
        let plain = |asked: &Asked| {
            let text = String::from_utf8_lossy(&asked.body).into_owned();
            let mark = asked.header("content-type").and_then(|kind| kind.split("boundary=").nth(1));
            mark.map_or(text.clone(), |mark| text.replace(mark, "MARK"))
        };
        assert_eq!(plain(ours), plain(theirs), "{text}");
        for name in ["content-type", "authorization", "cookie", "referer", "x-y", "host"] {
            if name != "content-type" || !is_form {
                assert_eq!(ours.header(name), theirs.header(name), "{name}: {text}");
            }
        }
    }
}
