//! What is installed with the executable: completions and manual pages, generated from its flags. And
//! that the published package has every file it is built from.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::executable;

const COMMANDS: [&str; 6] = ["serve", "load", "prove", "doctor", "stress", "plan"];

#[test]
fn completions_contain_every_command_and_its_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let finished = executable::run(&["completions", shell]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        for word in COMMANDS.into_iter().chain(["connections", "heartbeat", "max-message"]) {
            assert!(finished.stdout.contains(word), "{shell} completions lack {word}");
        }
    }
    let finished = executable::run(&["completions", "cmd.exe"]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("bash"), "the error lists the shells: {}", finished.stderr);
}

#[test]
fn bash_completes_a_flag() {
    let script = executable::run(&["completions", "bash"]).stdout;
    let ask = "COMP_WORDS=(standfast prove --conn); COMP_CWORD=2\n\
               _standfast standfast --conn prove; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash").args(["--norc", "-c", &format!("{script}\n{ask}")]).output();
    let output = bash.expect("bash starts");
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(answer.lines().any(|line| line == "--connections"), "{answer} {output:?}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = std::env::temp_dir().join(format!("standfast-man-{}", std::process::id()));
    let finished = executable::run(&["man", folder.to_str().expect("a plain path")]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    for command in COMMANDS {
        let page = fs::read_to_string(folder.join(format!("standfast-{command}.1")));
        let page = page.unwrap_or_else(|error| panic!("no page for {command}: {error}"));
        assert!(page.contains(".SH OPTIONS"), "{page}");
    }
    let prove = fs::read_to_string(folder.join("standfast-prove.1")).expect("checked above");
    assert!(prove.contains(r"\-\-connections"), "{prove}");
    fs::remove_dir_all(&folder).expect("the folder exists");
}

#[test]
fn package_contains_every_included_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["package", "--list", "--allow-dirty", "--offline", "--package", "standfast-cli"]);
    let output = cargo.current_dir(root).stderr(Stdio::inherit()).output().expect("cargo starts");
    let listed = String::from_utf8(output.stdout).expect("names of files are text");
    let mut included = 0;
    for file in listed.lines().filter(|file| file.starts_with("src/") && file.ends_with(".rs")) {
        let text = fs::read_to_string(root.join(file)).expect("listed files exist");
        let folder = Path::new(file).parent().expect("the file is in src");
        for path in text.split("include_str!(\"").skip(1).filter_map(|rest| rest.split('"').next())
        {
            let wanted =
                fs::canonicalize(root.join(folder).join(path)).expect("an included file exists");
            let wanted = wanted
                .strip_prefix(root)
                .expect("it is in the repository")
                .to_str()
                .expect("plain");
            assert!(listed.lines().any(|line| line == wanted), "{wanted} is not in the package");
            included += 1;
        }
    }
    assert!(included >= 4, "found only {included} included files");
}
