//! curl's options: one table of those that mean something to a request, and the reading of words
//! by it. What stands in no list is warned of by name.

use anyhow::{Context, Result, bail};

use super::request::{Data, Draft};
use super::words::Word;

/// What an option is to a request. Those with a value say so in the table.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    Url,
    Method,
    Head,
    Get,
    Header,
    Data(Data),
    Form,
    FormString,
    UrlQuery,
    Upload,
    Cookie,
    User,
    Bearer,
    Agent,
    Referer,
    Range,
    Compressed,
    Location,
    MaxRedirects,
    MaxTime,
    ConnectTimeout,
    Insecure,
    Ca,
    Cert,
    Key,
    Resolve,
    Proxy,
    UnixSocket,
    Interface,
    /// Says how curl shows or names what it gets, and changes no request.
    Shown,
    /// Is the way it is done here anyway.
    AsIs,
    /// Would change the request, and does not here.
    Missing,
}

struct Known(Option<char>, &'static str, bool, What);

const fn flag(short: char, long: &'static str, what: What) -> Known {
    Known(Some(short), long, false, what)
}
const fn value(short: char, long: &'static str, what: What) -> Known {
    Known(Some(short), long, true, what)
}
const fn long_flag(long: &'static str, what: What) -> Known {
    Known(None, long, false, what)
}
const fn long_value(long: &'static str, what: What) -> Known {
    Known(None, long, true, what)
}

const TABLE: &[Known] = &[
    long_value("url", What::Url),
    value('X', "request", What::Method),
    flag('I', "head", What::Head),
    flag('G', "get", What::Get),
    value('H', "header", What::Header),
    value('d', "data", What::Data(Data::Text)),
    long_value("data-ascii", What::Data(Data::Text)),
    long_value("data-raw", What::Data(Data::Raw)),
    long_value("data-binary", What::Data(Data::Binary)),
    long_value("data-urlencode", What::Data(Data::UrlEncode)),
    long_value("json", What::Data(Data::Json)),
    value('F', "form", What::Form),
    long_value("form-string", What::FormString),
    long_value("url-query", What::UrlQuery),
    value('T', "upload-file", What::Upload),
    value('b', "cookie", What::Cookie),
    value('u', "user", What::User),
    long_flag("basic", What::AsIs),
    long_value("oauth2-bearer", What::Bearer),
    value('A', "user-agent", What::Agent),
    value('e', "referer", What::Referer),
    value('r', "range", What::Range),
    long_flag("compressed", What::Compressed),
    flag('L', "location", What::Location),
    long_flag("location-trusted", What::Location),
    long_value("max-redirs", What::MaxRedirects),
    value('m', "max-time", What::MaxTime),
    long_value("connect-timeout", What::ConnectTimeout),
    flag('k', "insecure", What::Insecure),
    long_value("cacert", What::Ca),
    value('E', "cert", What::Cert),
    long_value("key", What::Key),
    long_value("resolve", What::Resolve),
    value('x', "proxy", What::Proxy),
    long_value("unix-socket", What::UnixSocket),
    long_value("interface", What::Interface),
    long_flag("http1.1", What::AsIs),
    long_flag("no-keepalive", What::Shown),
    long_flag("keepalive", What::Shown),
    long_flag("tcp-nodelay", What::AsIs),
    flag('N', "no-buffer", What::Shown),
    flag('s', "silent", What::Shown),
    flag('S', "show-error", What::Shown),
    flag('v', "verbose", What::Shown),
    flag('i', "include", What::Shown),
    long_flag("show-headers", What::Shown),
    flag('f', "fail", What::Shown),
    long_flag("fail-with-body", What::Shown),
    flag('#', "progress-bar", What::Shown),
    long_flag("no-progress-meter", What::Shown),
    flag('O', "remote-name", What::Shown),
    flag('J', "remote-header-name", What::Shown),
    flag('q', "disable", What::Shown),
    flag('g', "globoff", What::AsIs),
    flag('M', "manual", What::Shown),
    value('o', "output", What::Shown),
    value('D', "dump-header", What::Shown),
    value('w', "write-out", What::Shown),
    long_value("stderr", What::Shown),
    long_value("trace", What::Shown),
    long_value("trace-ascii", What::Shown),
    long_flag("trace-time", What::Shown),
    flag('0', "http1.0", What::Missing),
    long_flag("http2", What::Missing),
    long_flag("http2-prior-knowledge", What::Missing),
    long_flag("http3", What::Missing),
    long_flag("http3-only", What::Missing),
    long_flag("digest", What::Missing),
    long_flag("ntlm", What::Missing),
    long_flag("negotiate", What::Missing),
    long_flag("anyauth", What::Missing),
    flag('n', "netrc", What::Missing),
    value('c', "cookie-jar", What::Missing),
    value('K', "config", What::Missing),
    value('U', "proxy-user", What::Missing),
    long_value("noproxy", What::Missing),
    long_value("socks5", What::Missing),
    long_value("socks5-hostname", What::Missing),
    long_value("connect-to", What::Missing),
    long_value("limit-rate", What::Missing),
    long_value("retry", What::Missing),
    long_value("retry-delay", What::Missing),
    long_value("request-target", What::Missing),
    long_value("ciphers", What::Missing),
    long_value("tls-max", What::Missing),
    long_flag("tlsv1.2", What::Missing),
    long_flag("tlsv1.3", What::Missing),
    long_value("cert-type", What::Missing),
    long_value("pass", What::Missing),
    long_flag("path-as-is", What::AsIs),
    flag('4', "ipv4", What::Missing),
    flag('6', "ipv6", What::Missing),
    value('z', "time-cond", What::Missing),
    value('y', "speed-time", What::Missing),
    value('Y', "speed-limit", What::Missing),
    flag('Z', "parallel", What::Missing),
];

/// Reads the words after `curl` into `draft`.
///
/// # Errors
/// An option without its value, or one that cannot be used, by line.
pub(super) fn read(
    words: &[Word],
    draft: &mut Draft<'_>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let mut words = words.iter();
    let mut only_urls = false;
    while let Some(word) = words.next() {
        let line = word.line;
        let text = || text(word);
        if only_urls || !word.bytes.starts_with(b"-") || word.bytes == b"-" {
            draft.take(What::Url, &word.bytes, line, warnings)?;
            continue;
        }
        if word.bytes == b"--" {
            only_urls = true;
            continue;
        }
        if let Some(long) = text()?.strip_prefix("--") {
            let Some(known) = TABLE.iter().find(|known| known.1 == long) else {
                // Whether it has a value cannot be known; a URL must not be taken for one.
                warnings.push(format!("line {line}: --{long} is not known and left out"));
                continue;
            };
            let argument = if known.2 { Some(following(&mut words, long, line)?) } else { None };
            apply(known, argument, line, draft, warnings)?;
            continue;
        }
        short(word, &mut words, draft, warnings)?;
    }
    Ok(())
}

/// `-sSLkXPOST`: flags in a row, the last of which may have its value glued or following.
fn short<'a>(
    word: &Word,
    words: &mut impl Iterator<Item = &'a Word>,
    draft: &mut Draft<'_>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let line = word.line;
    let mut at = 1;
    while let Some(&letter) = word.bytes.get(at) {
        at += 1;
        let letter = char::from(letter);
        let Some(known) = TABLE.iter().find(|known| known.0 == Some(letter)) else {
            warnings.push(format!("line {line}: -{letter} is not known and left out"));
            continue;
        };
        if !known.2 {
            apply(known, None, line, draft, warnings)?;
            continue;
        }
        let glued = word.bytes.get(at..).unwrap_or_default();
        let argument = match glued {
            [] => following(words, known.1, line)?,
            glued => glued,
        };
        return apply(known, Some(argument), line, draft, warnings);
    }
    Ok(())
}

fn following<'a>(
    words: &mut impl Iterator<Item = &'a Word>,
    name: &str,
    line: usize,
) -> Result<&'a [u8]> {
    let word = words.next().with_context(|| format!("line {line}: --{name} has no value"))?;
    Ok(&word.bytes)
}

fn apply(
    known: &Known,
    argument: Option<&[u8]>,
    line: usize,
    draft: &mut Draft<'_>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    match known.3 {
        What::Shown | What::AsIs => Ok(()),
        What::Missing => {
            warnings.push(format!("line {line}: --{} is not supported and left out", known.1));
            Ok(())
        }
        what => draft.take(what, argument.unwrap_or_default(), line, warnings),
    }
}

/// Everything but a body is text.
fn text(word: &Word) -> Result<&str> {
    match std::str::from_utf8(&word.bytes) {
        Ok(text) => Ok(text),
        Err(_) => bail!("line {}: an option is no text", word.line),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_option_stands_twice_in_the_table() {
        let (mut shorts, mut longs) = (BTreeSet::new(), BTreeSet::new());
        for known in TABLE {
            assert!(longs.insert(known.1), "--{}", known.1);
            assert!(known.0.is_none_or(|short| shorts.insert(short)), "-{:?}", known.0);
        }
    }
}
