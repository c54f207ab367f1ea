//! `standfast load from-curl FILE`: converts curl commands to commands of `standfast load` that send the
//! same request.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use load::Proxy;

use crate::curl::{self, Request};
use crate::output;
use crate::units;

/// Maximum of `load --redirects`.
const REDIRECTS_MAX: u32 = 100;

/// Convert a file of curl commands to commands of standfast load
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// File with curl commands, such as from a browser's "Copy as cURL"; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs the command. Warnings go to standard error.
///
/// # Errors
/// A file that cannot be read or has no curl command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let commands = curl::read(&args.file)?;
    commands.warnings.iter().for_each(|warning| output::note(warning));
    for request in &commands.requests {
        let (line, warnings) = command(request);
        warnings
            .iter()
            .for_each(|warning| output::note(&format!("line {}: {warning}", request.line)));
        output::print(&format!("{line}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the command, and warnings on what it leaves out.
fn command(request: &Request) -> (String, Vec<String>) {
    let mut words = vec!["standfast".to_owned(), "load".to_owned(), request.url.clone()];
    let mut warnings = Vec::new();
    let mut add = |flag: &str, value: &str| match value.strip_prefix('-') {
        // The value would be parsed as a flag.
        Some(_) => words.push(format!("{flag}={value}")),
        None => words.extend([flag.to_owned(), value.to_owned()]),
    };
    let implied = if request.body.is_some() { "POST" } else { "GET" };
    if request.method != implied {
        add("--method", &request.method);
    }
    for (name, value) in &request.headers {
        add("--header", &format!("{name}: {value}"));
    }
    match request.body.as_deref().map(std::str::from_utf8) {
        Some(Ok(text)) if !text.starts_with('@') && !text.contains('\0') => add("--data", text),
        Some(_) => warnings.push(
            "the body cannot be written on a command line: save it to a file and add --data @FILE"
                .to_owned(),
        ),
        None => {}
    }
    if request.redirects > 0 {
        add("--redirects", &request.redirects.min(REDIRECTS_MAX).to_string());
    }
    if let Some(timeout) = request.timeout {
        add("--timeout", &units::format_duration(timeout));
    }
    let files = [("--ca", &request.ca), ("--cert", &request.cert), ("--key", &request.key)];
    files
        .iter()
        .filter_map(|(flag, file)| Some((flag, file.as_ref()?)))
        .for_each(|(flag, file)| add(flag, file));
    if request.cert.is_some() && request.key.is_none() {
        // Without --key the key is in the certificate's file.
        request.cert.iter().for_each(|file| add("--key", file));
    }
    if let Some(timeout) = request.connect_timeout {
        add("--connect-timeout", &units::format_duration(timeout));
    }
    request.resolve.iter().for_each(|entry| add("--resolve", entry));
    request.unix_socket.iter().for_each(|file| add("--unix-socket", file));
    match request.proxy.as_deref().map(|proxy| (proxy, Proxy::parse(proxy))) {
        Some((proxy, Ok(_))) => add("--proxy", proxy),
        Some((_, Err(error))) => warnings.push(format!("-x ignored: {error}")),
        None => {}
    }
    match request.source.as_deref().map(curl::source) {
        Some(Ok(source)) => add("--source", &source.to_string()),
        Some(Err(error)) => warnings.push(format!("ignored: {error}")),
        None => {}
    }
    if request.insecure && request.url.starts_with("https:") {
        words.push("--insecure".to_owned());
    }
    if request.http10 {
        words.push("--http1.0".to_owned());
    }
    (words.iter().map(|word| output::quoted(word)).collect::<Vec<_>>().join(" "), warnings)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns the command without the default headers of curl.
    fn of(text: &str) -> (String, Vec<String>) {
        let (line, warnings) = command(&curl::parse(text, Path::new("")).unwrap().requests[0]);
        let own = concat!("standfast/", env!("CARGO_PKG_VERSION"));
        let defaults = format!(" --header 'User-Agent: {own}' --header 'Accept: */*'");
        assert!(line.contains(&defaults), "{line}");
        (line.replacen(&defaults, "", 1), warnings)
    }

    #[test]
    fn curl_command_becomes_a_load_command() {
        let (line, warnings) = of("curl -kL -X PUT -d 'it'\\''s' -m 2 https://a/x -H 'A: b'");
        assert_eq!(warnings, Vec::<String>::new());
        assert_eq!(
            line,
            "standfast load https://a/x --method PUT --header 'A: b' \
             --header 'Content-Type: application/x-www-form-urlencoded' --data 'it'\\''s' --redirects 50 \
             --timeout 2s --insecure"
        );
        assert_eq!(of("curl http://a/").0, "standfast load http://a/");
        assert_eq!(of("curl -I http://a/").0, "standfast load http://a/ --method HEAD");
        for (options, flags) in [
            ("-x u:p@h:1", "--proxy http://u:p@h:1"),
            ("--unix-socket /s", "--unix-socket /s"),
            ("--resolve a:80:127.0.0.1", "--resolve a:80:127.0.0.1"),
            ("--connect-timeout 1.5", "--connect-timeout 1500ms"),
            ("--interface 127.0.0.2", "--source 127.0.0.2"),
            ("-E c.pem", "--cert c.pem --key c.pem"),
            ("-0", "--http1.0"),
        ] {
            let (line, warnings) = of(&format!("curl {options} http://a/"));
            assert_eq!((line, warnings.len()), (format!("standfast load http://a/ {flags}"), 0));
        }
    }

    #[test]
    fn options_without_a_flag_cause_warnings() {
        for (text, named) in [
            ("curl -x socks5://p http://a/", "-x"),
            ("curl --interface eth0 http://a/", "--interface eth0"),
            ("curl --data-raw @x http://a/", "--data @FILE"),
            ("curl --data-raw $'\\xff' http://a/", "--data @FILE"),
        ] {
            let (line, warnings) = of(text);
            assert!(
                warnings.concat().contains(named) && !line.contains(named),
                "{line}: {warnings:?}"
            );
        }
    }
}
