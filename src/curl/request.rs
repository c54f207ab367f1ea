//! [`Request`]: the request of a curl command; [`Draft`] builds it option by option.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Files;
use super::body::{self, Part};
use super::cookies::{self, Cookie};
use super::options::Kind;

/// Default User-Agent.
const AGENT: &str = concat!("standfast/", env!("CARGO_PKG_VERSION"));
/// Default Accept.
const ANYTHING: &str = "*/*";

/// Default of `--max-redirs` with `-L`.
const REDIRECTS: u32 = 50;

/// A complete request.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Request {
    /// The line of its command.
    pub(crate) line: usize,
    pub(crate) method: String,
    /// Includes the scheme.
    pub(crate) url: String,
    /// In the order of the command; names are not empty.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<Vec<u8>>,
    /// Redirects to follow.
    pub(crate) redirects: u32,
    pub(crate) timeout: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) insecure: bool,
    pub(crate) ca: Option<String>,
    pub(crate) cert: Option<String>,
    pub(crate) key: Option<String>,
    /// HOST:PORT:ADDRESS.
    pub(crate) resolve: Vec<String>,
    /// `http://[USER:PASSWORD@]HOST:PORT`, or with another scheme.
    pub(crate) proxy: Option<String>,
    /// Whether to use HTTP/1.0.
    pub(crate) http10: bool,
    pub(crate) unix_socket: Option<String>,
    /// An address of this machine to connect from.
    pub(crate) source: Option<String>,
}

impl Request {
    /// Returns a GET without options.
    pub(crate) fn get(url: &str) -> Request {
        Request {
            line: 0,
            method: "GET".to_owned(),
            url: url.to_owned(),
            headers: Vec::new(),
            body: None,
            redirects: 0,
            timeout: None,
            connect_timeout: None,
            insecure: false,
            ca: None,
            cert: None,
            key: None,
            resolve: Vec::new(),
            proxy: None,
            http10: false,
            unix_socket: None,
            source: None,
        }
    }
}

/// Encoding of the value of `-d` and similar options.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Data {
    Text,
    Raw,
    Binary,
    UrlEncode,
    Json,
}

/// A command whose options are being read.
pub(super) struct Draft<'a> {
    files: &'a Files,
    url: Option<String>,
    method: Option<String>,
    head: bool,
    get: bool,
    json: bool,
    /// Headers of `-H`. They override those that other options make.
    headers: Vec<(String, String)>,
    made: Vec<(String, String)>,
    /// Names of headers to leave out.
    without: Vec<String>,
    cookies: Vec<String>,
    /// Cookies from files.
    jar: Vec<Cookie>,
    /// Whether an authentication scheme other than Basic was requested.
    is_other_auth: bool,
    data: Option<Vec<u8>>,
    query: Vec<String>,
    parts: Vec<Part>,
    upload: Option<Vec<u8>>,
    location: bool,
    redirects: u32,
    proxy: Option<String>,
    proxy_user: Option<String>,
    request: Request,
}

impl<'a> Draft<'a> {
    pub(super) fn new(line: usize, files: &'a Files) -> Draft<'a> {
        Draft {
            files,
            url: None,
            method: None,
            head: false,
            get: false,
            json: false,
            headers: Vec::new(),
            made: vec![
                ("User-Agent".to_owned(), AGENT.to_owned()),
                ("Accept".to_owned(), ANYTHING.to_owned()),
            ],
            without: Vec::new(),
            cookies: Vec::new(),
            jar: Vec::new(),
            is_other_auth: false,
            data: None,
            query: Vec::new(),
            parts: Vec::new(),
            upload: None,
            location: false,
            redirects: REDIRECTS,
            proxy: None,
            proxy_user: None,
            request: Request { line, ..Request::get("") },
        }
    }

    /// Returns whether the command has a URL so far.
    pub(super) fn has_url(&self) -> bool {
        self.url.is_some()
    }

    /// Applies an option with its value; empty if it takes none.
    ///
    /// # Errors
    /// An invalid value, by line.
    pub(super) fn apply(
        &mut self,
        kind: Kind,
        value: &[u8],
        line: usize,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        match kind {
            Kind::Data(kind) => return self.add_data(kind, value, line),
            Kind::Form => {
                self.parts.push(Part::parse(value, self.files, line, warnings)?);
                return Ok(());
            }
            Kind::FormString => {
                self.parts.push(Part::text(value, line)?);
                return Ok(());
            }
            _ => {}
        }
        let text =
            std::str::from_utf8(value).ok().filter(|text| !text.contains(['\r', '\n', '\0']));
        let text = text.with_context(|| {
            format!("line {line}: {kind:?}: invalid value: expected one line of UTF-8")
        })?;
        let owned = || Some(text.to_owned());
        match kind {
            Kind::Url => self.add_url(text, line, warnings),
            Kind::Method => self.method = owned(),
            Kind::Head => self.head = true,
            Kind::Get => self.get = true,
            Kind::Header => match text.strip_prefix('@') {
                Some(file) => {
                    let read = self.files.read(file, line)?;
                    let lines = String::from_utf8_lossy(&read);
                    let lines = lines.lines().filter(|header| !header.trim().is_empty());
                    lines.for_each(|header| self.add_header(header, line, warnings));
                }
                None => self.add_header(text, line, warnings),
            },
            Kind::OtherAuth => self.is_other_auth = true,
            Kind::UrlQuery => {
                // A value after + is not encoded.
                let query = match text.strip_prefix('+') {
                    Some(plain) => plain.as_bytes().to_vec(),
                    None => body::data(Data::UrlEncode, value, self.files, line)?,
                };
                self.query.push(String::from_utf8_lossy(&query).into_owned());
            }
            Kind::Upload => self.upload = Some(self.files.read(text, line)?),
            Kind::Cookie if text.contains('=') => self.cookies.push(text.to_owned()),
            Kind::Cookie => match self.files.read(text, line) {
                Ok(read) => self.jar.extend(cookies::read(&String::from_utf8_lossy(&read))),
                // As curl, which continues without.
                Err(error) => warnings.push(format!("{error:#}: its cookies are not sent")),
            },
            Kind::User => {
                let user = if text.contains(':') { text.to_owned() } else { format!("{text}:") };
                self.make("Authorization", format!("Basic {}", STANDARD.encode(user)));
            }
            Kind::Bearer => self.make("Authorization", format!("Bearer {text}")),
            // An empty value removes the header.
            Kind::Agent if text.is_empty() => self.made.retain(|(name, _)| name != "User-Agent"),
            Kind::Agent => self.make("User-Agent", text.to_owned()),
            Kind::Referer => {
                self.make("Referer", text.trim_end_matches(";auto").to_owned());
            }
            Kind::Range => self.make("Range", format!("bytes={text}")),
            Kind::Compressed => {
                self.make("Accept-Encoding", "deflate, gzip, br, zstd".to_owned());
            }
            Kind::Location => self.location = true,
            Kind::MaxRedirects => {
                let count: i64 =
                    text.parse().with_context(|| format!("line {line}: --max-redirs {text}"))?;
                self.redirects = u32::try_from(count).unwrap_or(REDIRECTS);
            }
            // 0 is no limit.
            Kind::MaxTime => {
                self.request.timeout = Some(seconds(text, line)?).filter(|time| !time.is_zero());
            }
            Kind::ConnectTimeout => {
                self.request.connect_timeout =
                    Some(seconds(text, line)?).filter(|time| !time.is_zero());
            }
            Kind::Insecure => self.request.insecure = true,
            Kind::Ca => self.request.ca = owned(),
            Kind::Cert => self.request.cert = owned(),
            Kind::Key => self.request.key = owned(),
            Kind::Resolve => self.request.resolve.push(text.to_owned()),
            Kind::Proxy => self.proxy = owned(),
            Kind::ProxyUser => self.proxy_user = owned(),
            Kind::Http10 => self.request.http10 = true,
            Kind::UnixSocket => self.request.unix_socket = owned(),
            Kind::Interface => self.request.source = owned(),
            Kind::Data(_) | Kind::Form | Kind::FormString => {}
            Kind::OutputOnly | Kind::Default | Kind::Unsupported => {}
        }
        Ok(())
    }

    fn add_data(&mut self, kind: Data, value: &[u8], line: usize) -> Result<()> {
        let bytes = body::data(kind, value, self.files, line)?;
        self.json |= kind == Data::Json;
        match &mut self.data {
            Some(data) => {
                // Several --json values are concatenated.
                if kind != Data::Json {
                    data.push(b'&');
                }
                data.extend(bytes);
            }
            None => self.data = Some(bytes),
        }
        Ok(())
    }

    fn add_url(&mut self, text: &str, line: usize, warnings: &mut Vec<String>) {
        if let Some(first) = &self.url {
            warnings.push(format!("line {line}: a second URL, {text}, beside {first}: left out"));
        } else {
            self.url = Some(text.to_owned());
        }
    }

    fn add_header(&mut self, text: &str, line: usize, warnings: &mut Vec<String>) {
        if let Some(name) = text.strip_suffix(';').filter(|name| !name.contains(':')) {
            return self.headers.push((name.trim().to_owned(), String::new()));
        }
        let Some((name, value)) = text.split_once(':') else {
            return warnings.push(format!("line {line}: -H {text:?} is no header line: left out"));
        };
        let (name, value) = (name.trim(), value.trim());
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(token) {
            // HTTP/2's :authority and its like are copied by some browsers.
            return warnings.push(format!("line {line}: -H {text:?} is no header line: left out"));
        }
        match value {
            "" => self.without.push(name.to_owned()),
            value => self.headers.push((name.to_owned(), value.to_owned())),
        }
    }

    fn make(&mut self, name: &str, value: String) {
        self.made.retain(|(other, _)| other != name);
        self.made.push((name.to_owned(), value));
    }

    /// # Errors
    /// No URL, or options that exclude each other.
    pub(super) fn finish(mut self, warnings: &mut Vec<String>) -> Result<Request> {
        let line = self.request.line;
        let url = self.url.take();
        let url = url.filter(|url| !url.is_empty());
        let url = url.with_context(|| format!("line {line}: the command has no URL"))?;
        let url = self.with_user(&if url.contains("://") { url } else { format!("http://{url}") });
        if url.contains(['{', '[']) && !url.contains("://[") {
            warnings.push(format!("line {line}: {url}: {{ and [ are used literally, as with -g"));
        }
        let mut body = self.body(line)?;
        let url = self.with_query(&url, &mut body);
        let method = self.method.take().unwrap_or_else(|| {
            let by_options =
                [(self.head, "HEAD"), (self.upload.is_some(), "PUT"), (body.is_some(), "POST")];
            let found = by_options.into_iter().find(|(is, _)| *is);
            found.map_or("GET", |(_, method)| method).to_owned()
        });
        let jar = self.jar.iter().filter(|cookie| cookie.matches(&url));
        self.cookies.extend(jar.map(Cookie::pair));
        if self.is_other_auth {
            self.made.retain(|(name, said)| name != "Authorization" || !said.starts_with("Basic "));
        }
        if !self.cookies.is_empty() {
            self.make("Cookie", self.cookies.join("; "));
        }
        let given: Vec<String> =
            self.headers.iter().map(|(name, _)| name.clone()).chain(self.without).collect();
        let is_given = |name: &str| given.iter().any(|given| given.eq_ignore_ascii_case(name));
        let mut headers = self.headers;
        headers.extend(self.made.into_iter().filter(|(name, _)| !is_given(name)));
        self.request.proxy = self.proxy.map(|url| proxy(&url, self.proxy_user.as_deref()));
        let redirects = if self.location { self.redirects } else { 0 };
        Ok(Request { method, url, headers, body, redirects, ..self.request })
    }

    /// Returns the body and sets its headers.
    fn body(&mut self, line: usize) -> Result<Option<Vec<u8>>> {
        if !self.parts.is_empty() {
            if self.data.is_some() {
                bail!("line {line}: -F and -d exclude each other: a request has one body");
            }
            let (body, content_type) = body::multipart(&self.parts);
            self.make("Content-Type", content_type);
            return Ok(Some(body));
        }
        if self.json {
            self.make("Content-Type", "application/json".to_owned());
            self.make("Accept", "application/json".to_owned());
        } else if self.data.is_some() && !self.get {
            self.make("Content-Type", "application/x-www-form-urlencoded".to_owned());
        }
        Ok(self.data.take().or(self.upload.clone()))
    }

    /// Adds the data of `-G` and `--url-query` to the query of the URL.
    fn with_query(&mut self, url: &str, body: &mut Option<Vec<u8>>) -> String {
        let mut query = std::mem::take(&mut self.query);
        if self.get
            && let Some(data) = body.take()
        {
            query.insert(0, String::from_utf8_lossy(&data).into_owned());
        }
        let (base, fragment) =
            url.split_once('#').map_or((url, None), |(url, rest)| (url, Some(rest)));
        let mut url = base.to_owned();
        for part in query {
            url.push(if url.contains('?') { '&' } else { '?' });
            url += &part;
        }
        fragment.into_iter().for_each(|fragment| url += &format!("#{fragment}"));
        url
    }

    /// Turns the user in `http://user:password@host/` into Basic authentication, as `-u` does.
    fn with_user(&mut self, url: &str) -> String {
        let split = || {
            let (scheme, rest) = url.split_once("://")?;
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let (user, host) = authority.rsplit_once('@')?;
            Some((user.to_owned(), format!("{scheme}://{host}{path}")))
        };
        let Some((user, url)) = split() else { return url.to_owned() };
        if !self.made.iter().any(|(name, _)| name == "Authorization") {
            let user = if user.contains(':') { user } else { format!("{user}:") };
            self.make(
                "Authorization",
                format!("Basic {}", STANDARD.encode(percent_decoded(&user))),
            );
        }
        url
    }
}

/// Completes a proxy as curl does: with a scheme, a port and the user of `-U`.
fn proxy(url: &str, user: Option<&str>) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let rest = rest.trim_end_matches('/');
    let (within, host) = match rest.rsplit_once('@') {
        Some((pair, host)) => (Some(pair.to_owned()), host),
        None => (None, rest),
    };
    let named = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
    let port = if named.contains(':') { "" } else { ":1080" };
    let apart = user.map(|user| {
        let (name, word) = user.split_once(':').unwrap_or((user, ""));
        format!("{}:{}", percent_encoded(name), percent_encoded(word))
    });
    let pair = apart.or(within).map(|pair| format!("{pair}@")).unwrap_or_default();
    format!("{scheme}://{pair}{host}{port}")
}

fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |out, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            out + &char::from(byte).to_string()
        }
        _ => out + &format!("%{byte:02X}"),
    })
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        if let Some(value) = value.filter(|_| byte == b'%') {
            rest = behind.get(2..).unwrap_or_default();
            decoded.push(value);
        } else {
            rest = behind;
            decoded.push(byte);
        }
    }
    decoded
}

fn seconds(text: &str, line: usize) -> Result<Duration> {
    let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds.with_context(|| {
        format!("line {line}: invalid time {text:?}: expected a number of seconds")
    })
}
