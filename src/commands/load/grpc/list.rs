//! `standfast load grpc-list`: the services and methods of a server or of files, each method with a command to
//! start from.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::builder::ValueParser;
use load::grpc::{Method, Schema, metadata};
use load::{ConnectOptions, Resolve};

use super::target::Target;
use super::{SchemaFlags, schema};
use crate::output;
use crate::tls::ClientFlags;

/// List the services and methods of a gRPC server, with example commands
#[derive(clap::Args, Debug)]
#[command(mut_arg("tls_resume", |arg| arg.hide(true)))]
#[command(mut_arg("sni", |arg| arg.help("Server name to send (SNI) and to verify")))]
pub(crate) struct Args {
    /// Server with reflection: HOST:PORT, grpc:// or, with TLS, grpcs://
    #[arg(value_name = "HOST:PORT")]
    server: Option<String>,
    #[command(flatten)]
    schema: SchemaFlags,
    /// Metadata to send: 'authorization: Bearer …'
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = ValueParser::new(header))]
    header: Vec<(String, String)>,
    /// Connect to this UNIX socket instead of the host
    #[arg(long, value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Address without DNS: HOST:PORT:ADDRESS
    #[arg(long, value_name = "ENTRY", value_parser = Resolve::parse)]
    resolve: Vec<Resolve>,
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
    let server = args.server.as_deref();
    let options = ConnectOptions {
        unix_socket: args.unix_socket.as_deref().map(Arc::from),
        resolve: args.resolve.clone(),
        ..ConnectOptions::default()
    };
    let target = server.map(|text| Target::by(text, &args.tls, &Arc::new(options)));
    let target = target.transpose()?;
    let Some(schema) = schema(&args.schema, target.as_ref(), &args.header)? else {
        return Ok(ExitCode::from(130));
    };
    let mut words = args.schema.words();
    words.extend(args.tls.words());
    let file = args.unix_socket.iter().map(|file| ("--unix-socket", file.display().to_string()));
    let entries = args.resolve.iter().map(|entry| ("--resolve", entry_text(entry)));
    words.extend(file.chain(entries).flat_map(|(flag, value)| [flag.to_owned(), value]));
    let url = match &target {
        Some(target) => format!("{}://{target}", target.scheme()),
        None => "grpc://HOST:PORT".to_owned(),
    };
    output::print(&text(&schema, &url, &words))?;
    Ok(ExitCode::SUCCESS)
}

/// An entry of `--resolve` as it was typed.
fn entry_text(Resolve { host, port, address }: &Resolve) -> String {
    format!("{host}:{port}:{address}")
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
