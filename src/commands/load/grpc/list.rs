//! `standfast load grpc-list`: the services and methods of a server or of files, each method with a command to
//! start from.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::builder::ValueParser;
use load::grpc::{Method, Schema, metadata};

use super::target::Target;
use super::{SchemaFlags, schema};
use crate::output;
use crate::tls::ClientFlags;

/// List the services and methods of a gRPC server, with example commands
#[derive(clap::Args, Debug)]
#[command(mut_arg("tls_resume", |arg| arg.hide(true)))]
pub(crate) struct Args {
    /// Server with reflection: HOST:PORT, grpc:// or, with TLS, grpcs://
    #[arg(value_name = "HOST:PORT")]
    server: Option<String>,
    #[command(flatten)]
    schema: SchemaFlags,
    /// Metadata to send: 'authorization: Bearer …'
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = ValueParser::new(header))]
    header: Vec<(String, String)>,
    #[command(flatten)]
    tls: ClientFlags,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected 'name: value'")?;
    metadata(name.trim(), value)
}

/// Runs the command. Exit code 130: interrupted.
///
/// # Errors
/// Files or a server that do not say what there is.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let target = args.server.as_deref().map(|text| Target::new(text, &args.tls)).transpose()?;
    let Some(schema) = schema(&args.schema, target.as_ref(), &args.header)? else {
        return Ok(ExitCode::from(130));
    };
    let mut words = args.schema.words();
    words.extend(args.tls.words());
    let url = match &target {
        Some(target) => format!("{}://{target}", target.scheme()),
        None => "grpc://HOST:PORT".to_owned(),
    };
    output::print(&text(&schema, &url, &words))?;
    Ok(ExitCode::SUCCESS)
}

/// The services; `words` are the flags that a run needs, too.
fn text(schema: &Schema, url: &str, words: &[String]) -> String {
    let mut text = String::new();
    for service in schema.services() {
        let separator = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{separator}{}", service.name());
        let mut is_empty = true;
        for method in service.methods() {
            is_empty = false;
            let (name, kind) = (method.name(), method.kind());
            let (request, answer) = (method.request_type(), method.answer_type());
            let _ = writeln!(text, "  {name}  {kind}  {request} → {answer}");
            let _ = writeln!(text, "    {}", command(&method, url, words));
        }
        if is_empty {
            text.push_str("  no methods\n");
        }
    }
    if text.is_empty() { "no services\n".to_owned() } else { text }
}

/// A run with an example of a request.
fn command(method: &Method, url: &str, words: &[String]) -> String {
    let url = format!("{url}{}", method.path());
    let example = method.example();
    let mut all = vec!["standfast".to_owned(), "load".to_owned(), url];
    if example != "{}" && !example.is_empty() {
        all.extend(["-d".to_owned(), example]);
    }
    all.extend_from_slice(words);
    all.iter().map(|word| output::quoted(word)).collect::<Vec<_>>().join(" ")
}
