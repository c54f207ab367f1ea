//! `standfast load from-har FILE`: a browser's recording as a scenario, with the requests as steps in the
//! order in which they were sent, and the pauses between them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use load::scenario::STEPS_MAX;

use super::draft::{Body, Draft, Step, literal, name_steps, set_target};
use super::har::{Entry, PostData};
use super::url::{Url, decoded, escaped_target, percent_encoded, split, without_fragment};
use super::{Output, finish, har, read};
use crate::units;

/// Size limit of a recording, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Headers that the client sets itself, or that belong to a browser's cache or connection.
const CLIENT_HEADERS: [&str; 15] = [
    "host",
    "content-length",
    "connection",
    "cookie",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "transfer-encoding",
    "te",
    "upgrade",
    "http2-settings",
    "if-none-match",
    "if-modified-since",
    "cache-control",
    "pragma",
];
/// Headers whose values are secrets.
const SECRET_HEADERS: [&str; 6] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-auth-token",
    "x-access-token",
    "x-amz-security-token",
];
/// Header of the requests with which browsers ask for permission.
const PREFLIGHT: &str = "access-control-request-method";
/// Codings that captures and checks can decode.
const CODINGS: &str = "gzip, deflate";
/// Endings of paths that are static assets, and their media types.
const ASSETS: [&str; 24] = [
    ".js",
    ".mjs",
    ".css",
    ".map",
    ".png",
    ".jpg",
    ".jpeg",
    ".gif",
    ".webp",
    ".avif",
    ".svg",
    ".ico",
    ".bmp",
    ".woff",
    ".woff2",
    ".ttf",
    ".otf",
    ".eot",
    ".mp3",
    ".mp4",
    ".webm",
    ".ogg",
    ".wasm",
    ".webmanifest",
];
const ASSET_TYPES: [&str; 8] = [
    "image/",
    "font/",
    "audio/",
    "video/",
    "text/css",
    "text/javascript",
    "application/javascript",
    "application/x-javascript",
];

/// Convert a browser's HAR recording to a scenario
#[derive(clap::Args, Debug)]
pub(in crate::commands::load) struct Args {
    /// HAR 1.2 file, as browsers save it from their network panel; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    output: Output,

    /// Only requests to this host; may be repeated
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,

    /// Keep images, styles, scripts, fonts and media
    #[arg(long)]
    assets: bool,

    /// No think times
    #[arg(long, conflicts_with = "max_think")]
    no_think: bool,

    /// Maximum think time
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    max_think: Duration,
}

/// Runs the command. Notes go to standard error.
///
/// # Errors
/// A file that cannot be read, is not a HAR file, or has no request that can be converted.
pub(in crate::commands::load) fn run(args: &Args) -> Result<ExitCode> {
    let shown = args.file.display().to_string();
    let entries = har::parse(&read(&args.file, FILE_BYTES_MAX)?, &shown)?;
    let (draft, notes) = convert(&entries, args, &shown)?;
    finish(&draft, &notes, &args.output)
}

/// Returns the scenario, and notes on what was left out and what has to be filled in.
fn convert(entries: &[Entry], args: &Args, shown: &str) -> Result<(Draft, Vec<String>)> {
    let mut converter = Converter::new(args);
    // Recorders write entries as they end; users begin them in order.
    let mut ordered: Vec<(usize, &Entry)> = entries.iter().enumerate().collect();
    let time = |entry: &Entry| har::milliseconds(&entry.started);
    ordered.sort_by_key(|(number, entry)| (time(entry).unwrap_or(i64::MAX), *number));
    for (number, entry) in ordered {
        if let Err(why) = converter.entry(entry) {
            let url: String = entry.request.url.chars().take(100).collect();
            converter.notes.push(format!(
                "left out: entry {}, {} {url}: {why}",
                number + 1,
                entry.request.method
            ));
        }
    }
    let Converter { mut draft, mut notes, secrets, .. } = converter;
    if draft.steps.is_empty() {
        notes.iter().for_each(|note| crate::output::note(note));
        bail!("{shown}: no request to convert: see --host and --assets");
    }
    for secret in &secrets {
        let (name, what, steps) = (&secret.name, &secret.what, &secret.steps);
        let steps: Vec<String> = steps.iter().map(usize::to_string).collect();
        let steps = steps.join(", ");
        notes.push(format!("secret: set the environment variable {name}: {what} of step {steps}"));
    }
    draft.comments.push("Converted from a HAR recording by standfast load from-har.".to_owned());
    if !secrets.is_empty() {
        let names: Vec<&str> = secrets.iter().map(|secret| secret.name.as_str()).collect();
        draft
            .comments
            .push(format!("Secrets are read from the environment: {}.", names.join(", ")));
    }
    set_target(&mut draft);
    draft.top.push(("users", "1".to_owned()));
    draft.top.push(("passes", "1".to_owned()));
    name_steps(&mut draft.steps);
    Ok((draft, notes))
}

/// A value that is not written to the scenario.
struct Secret {
    value: String,
    /// The environment variable that has it.
    name: String,
    what: String,
    steps: Vec<usize>,
}

struct Converter<'a> {
    args: &'a Args,
    draft: Draft,
    notes: Vec<String>,
    secrets: Vec<Secret>,
    /// Cookies that responses have set so far, by host and name.
    set: BTreeSet<(String, String)>,
    /// When the last step began, in milliseconds.
    before_ms: Option<i64>,
    /// Where redirects lead to that were not followed yet.
    redirects: Vec<String>,
}

impl<'a> Converter<'a> {
    fn new(args: &'a Args) -> Converter<'a> {
        Converter {
            args,
            draft: Draft::default(),
            notes: Vec::new(),
            secrets: Vec::new(),
            set: BTreeSet::new(),
            before_ms: None,
            redirects: Vec::new(),
        }
    }

    /// Adds the step of an entry, or returns why there is none.
    fn entry(&mut self, entry: &Entry) -> Result<(), String> {
        let request = &entry.request;
        let url = split(&request.url).ok_or("not an http:// or https:// URL")?;
        let hosts = &self.args.host;
        let is_meant = |host: &String| {
            host.eq_ignore_ascii_case(url.host) || host.eq_ignore_ascii_case(url.name())
        };
        if !hosts.is_empty() && !hosts.iter().any(is_meant) {
            return Err("another host".to_owned());
        }
        if !self.args.assets && is_asset(entry, url.path()) {
            return Err("static asset (see --assets)".to_owned());
        }
        if entry.response.status == 101 || is_header(entry, "upgrade", "websocket") {
            return Err("WebSocket: add a step with connect".to_owned());
        }
        if entry.request.headers.iter().any(|one| one.name.eq_ignore_ascii_case(PREFLIGHT)) {
            return Err("CORS preflight, which only browsers send".to_owned());
        }
        if let Some(at) = self.redirects.iter().position(|to| to == without_fragment(&request.url))
        {
            self.redirects.remove(at);
            self.keep_cookies(entry, url.name());
            self.expect_redirect(entry, &url);
            return Err("follows a redirect, as the scenario's users do".to_owned());
        }
        if request.method == "CONNECT" || !is_method(&request.method) {
            return Err(format!("method {:?} is not supported", request.method));
        }
        if !url.host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte)) {
            return Err("the host is not supported".to_owned());
        }
        if self.draft.steps.len() >= STEPS_MAX {
            return Err(format!("a scenario has at most {STEPS_MAX} steps"));
        }
        self.think(entry);
        let step = self.step(entry, &url)?;
        self.draft.steps.push(step);
        self.keep_cookies(entry, url.name());
        self.expect_redirect(entry, &url);
        Ok(())
    }

    /// Notes where a redirect leads to, as the users of the scenario follow it.
    fn expect_redirect(&mut self, entry: &Entry, url: &Url<'_>) {
        if !matches!(entry.response.status, 301 | 302 | 303 | 307 | 308) {
            return;
        }
        let is_location = |one: &&har::Pair| one.name.eq_ignore_ascii_case("location");
        let header = entry.response.headers.iter().find(is_location);
        let location = header.map_or(entry.response.redirect.as_str(), |header| &header.value);
        let location = without_fragment(location);
        let to = if location.contains("://") {
            location.to_owned()
        } else if let Some(rest) = location.strip_prefix("//") {
            format!("{}://{rest}", url.scheme)
        } else if location.starts_with('/') {
            format!("{}{location}", url.origin())
        } else {
            let folder = url.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{}{folder}/{location}", url.origin())
        };
        if !location.is_empty() && self.redirects.len() < STEPS_MAX {
            self.redirects.push(to);
        }
    }

    fn step(&mut self, entry: &Entry, url: &Url<'_>) -> Result<Step, String> {
        let request = &entry.request;
        let number = self.draft.steps.len() + 1;
        let mut headers = Vec::new();
        for header in &request.headers {
            let name = header.name.to_ascii_lowercase();
            let is_own = name.starts_with(':') || CLIENT_HEADERS.contains(&name.as_str());
            let is_repeated =
                headers.iter().any(|(one, _): &(String, String)| one.eq_ignore_ascii_case(&name));
            if is_own || is_repeated || !is_token(&name) {
                continue;
            }
            let value = if SECRET_HEADERS.contains(&name.as_str()) {
                self.secret(&header.value, &name, format!("header {}", header.name), number)
            } else if name == "accept-encoding" {
                CODINGS.to_owned()
            } else {
                let value = header.value.chars().filter(|char| !char.is_control());
                literal(&value.collect::<String>())
            };
            if matches!(name.as_str(), "x-csrf-token" | "x-xsrf-token") {
                let what =
                    format!("step {number}: {} is that of the recording: capture it", header.name);
                self.notes.push(what);
            }
            headers.push((header.name.clone(), value));
        }
        if let Some(cookies) = self.unset_cookies(entry, url.name(), number) {
            headers.push(("Cookie".to_owned(), cookies));
        }
        let body = request.body.as_ref().and_then(|body| self.body(body, &mut headers, number));
        let path = escaped_target(url.target());
        Ok(Step {
            name: String::new(),
            method: request.method.clone(),
            url: format!("{}{path}", url.origin()),
            headers,
            body,
            ..Step::default()
        })
    }

    fn body(
        &mut self,
        body: &PostData,
        headers: &mut Vec<(String, String)>,
        number: usize,
    ) -> Option<Body> {
        let essence = body.kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let text = body.text.as_deref().unwrap_or_default();
        let has_secret = |name: &str| name.to_ascii_lowercase().contains("password");
        if has_secret(text) || body.params.iter().any(|param| has_secret(&param.name)) {
            self.notes
                .push(format!("step {number}: the body contains a password of the recording"));
        }
        let is_type = |(name, _): &(String, String)| name.eq_ignore_ascii_case("content-type");
        let state_type = |headers: &mut Vec<(String, String)>| {
            if !body.kind.is_empty() && !headers.iter().any(is_type) {
                headers.push(("Content-Type".to_owned(), literal(&body.kind)));
            }
        };
        if body.encoding.as_deref() == Some("base64") {
            let compact: String = text.split_ascii_whitespace().collect();
            if BASE64_STANDARD.decode(&compact).is_ok() {
                state_type(headers);
                return Some(Body::Base64(compact));
            }
            self.notes.push(format!("step {number}: the body is not base64: left out"));
            return None;
        }
        if essence == "application/x-www-form-urlencoded" {
            let of_text = || {
                let pairs = text.split('&').filter(|pair| !pair.is_empty());
                let pairs = pairs.map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    Some((decoded(name)?, decoded(value)?))
                });
                pairs.collect::<Option<Vec<_>>>().unwrap_or_default()
            };
            let of_params = || {
                let params = body.params.iter();
                params.map(|param| (param.name.clone(), param.value.clone())).collect()
            };
            let pairs = if text.is_empty() { of_params() } else { of_text() };
            let names: BTreeSet<&String> = pairs.iter().map(|(name, _)| name).collect();
            if names.len() == pairs.len() && !pairs.is_empty() {
                // The key `form` sets it.
                headers.retain(|header| !is_type(header));
                let escaped = pairs.iter().map(|(name, value)| (literal(name), literal(value)));
                return Some(Body::Form(escaped.collect()));
            }
            if text.is_empty() && !pairs.is_empty() {
                state_type(headers);
                let one = |text: &str| percent_encoded(text, |byte| b"-._~".contains(&byte));
                let pairs =
                    pairs.iter().map(|(name, value)| format!("{}={}", one(name), one(value)));
                return Some(Body::Text(pairs.collect::<Vec<_>>().join("&")));
            }
        }
        if !text.is_empty() {
            state_type(headers);
            if text.contains('\u{fffd}') {
                self.notes.push(format!(
                    "step {number}: the recording has not kept all bytes of the body"
                ));
            }
            return Some(Body::Text(literal(text)));
        }
        if !body.params.is_empty() {
            let files = body.params.iter().filter_map(|param| param.file.as_deref());
            let files: Vec<&str> = files.collect();
            let what = if files.is_empty() {
                String::new()
            } else {
                format!(" with {}", files.join(", "))
            };
            self.notes
                .push(format!("step {number}: {essence}{what} was not recorded: add multipart"));
            headers.retain(|header| !is_type(header));
        }
        None
    }

    /// Returns a template for a secret: an environment variable.
    fn secret(&mut self, value: &str, name: &str, what: String, step: usize) -> String {
        let base = name.trim_start_matches("x-").replace('-', "_").to_ascii_uppercase();
        let scheme = value.split_once(' ').map(|(scheme, _)| scheme);
        let scheme = scheme.filter(|scheme| name == "authorization" && is_token(scheme));
        let bare = scheme.and_then(|scheme| value.get(scheme.len() + 1..)).unwrap_or(value);
        let known =
            self.secrets.iter_mut().find(|secret| secret.value == bare && secret.what == what);
        let variable = if let Some(known) = known {
            known.steps.push(step);
            known.name.clone()
        } else {
            let taken = |name: &String| self.secrets.iter().any(|secret| secret.name == *name);
            let numbered = (2..).map(|number| format!("{base}_{number}"));
            let name = std::iter::once(base.clone()).chain(numbered).find(|name| !taken(name));
            let name = name.unwrap_or(base);
            let (value, steps) = (bare.to_owned(), vec![step]);
            self.secrets.push(Secret { value, name: name.clone(), what, steps });
            name
        };
        let scheme = scheme.map(|scheme| format!("{scheme} ")).unwrap_or_default();
        format!("{scheme}{{{{env {variable}}}}}")
    }

    /// Cookies of a request that no response of the recording has set: a placeholder for them.
    fn unset_cookies(&mut self, entry: &Entry, host: &str, step: usize) -> Option<String> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for header in
            entry.request.headers.iter().filter(|one| one.name.eq_ignore_ascii_case("cookie"))
        {
            pairs.extend(header.value.split(';').filter_map(|pair| {
                let (name, value) = pair.trim().split_once('=')?;
                Some((name.to_owned(), value.to_owned()))
            }));
        }
        if pairs.is_empty() {
            let cookies = entry.request.cookies.iter();
            pairs = cookies.map(|cookie| (cookie.name.clone(), cookie.value.clone())).collect();
        }
        pairs.retain(|(name, _)| {
            !self.set.iter().any(|(of, known)| known == name && is_within(host, of))
        });
        if pairs.is_empty() {
            return None;
        }
        let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
        let what =
            format!("the cookies {} (NAME=VALUE; …), which no response sets,", names.join(", "));
        let value: Vec<String> =
            pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Some(self.secret(&value.join("; "), "cookie", what, step))
    }

    fn keep_cookies(&mut self, entry: &Entry, host: &str) {
        for header in &entry.response.headers {
            if header.name.eq_ignore_ascii_case("set-cookie") {
                // Firefox joins several by line breaks.
                for line in header.value.lines() {
                    let name = line.split(['=', ';']).next().unwrap_or_default().trim();
                    let domain = line.split(';').skip(1).find_map(|attribute| {
                        let (name, value) = attribute.trim().split_once('=')?;
                        name.eq_ignore_ascii_case("domain").then(|| value.trim_start_matches('.'))
                    });
                    let domain = domain.unwrap_or(host).to_ascii_lowercase();
                    self.set.insert((domain, name.to_owned()));
                }
            }
        }
        for cookie in &entry.response.cookies {
            self.set.insert((host.to_ascii_lowercase(), cookie.name.clone()));
        }
    }

    /// Gives the last step the pause until this entry began.
    fn think(&mut self, entry: &Entry) {
        let Some(now_ms) = har::milliseconds(&entry.started) else { return };
        let before_ms = self.before_ms.replace(now_ms);
        if self.args.no_think {
            return;
        }
        let most_ms = u64::try_from(self.args.max_think.as_millis()).unwrap_or(u64::MAX);
        if let (Some(before_ms), Some(last)) = (before_ms, self.draft.steps.last_mut()) {
            last.think_ms = u64::try_from(now_ms - before_ms).unwrap_or(0).min(most_ms);
        }
    }
}

fn is_asset(entry: &Entry, path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    let kind = entry.response.content.kind.as_deref().unwrap_or_default().to_ascii_lowercase();
    let is_type = |resource: &String| {
        matches!(
            resource.as_str(),
            "script" | "stylesheet" | "image" | "font" | "media" | "manifest"
        )
    };
    entry.request.method == "GET"
        && (ASSETS.iter().any(|ending| path.ends_with(ending))
            || ASSET_TYPES.iter().any(|asset| kind.starts_with(asset))
            || entry.resource.as_ref().is_some_and(is_type))
}

fn is_header(entry: &Entry, name: &str, value: &str) -> bool {
    let mut headers = entry.request.headers.iter();
    headers.any(|one| one.name.eq_ignore_ascii_case(name) && one.value.eq_ignore_ascii_case(value))
}

/// Whether cookies of a domain are sent to a host.
fn is_within(host: &str, domain: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

fn is_method(method: &str) -> bool {
    !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase())
}

fn is_token(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}
