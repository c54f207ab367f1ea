//! The table of curl's options, and the parser of words by that table. An option that is not in the
//! table causes a warning.

use anyhow::{Context, Result, bail};

use super::request::{Data, Draft};
use super::words::Word;

/// The effect of an option on a request.
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
    ProxyUser,
    Http10,
    UnixSocket,
    Interface,
    /// Another way to say who one is than Basic.
    OtherUser,
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
    flag('0', "http1.0", What::Http10),
    long_flag("http2", What::Missing),
    long_flag("http2-prior-knowledge", What::Missing),
    long_flag("http3", What::Missing),
    long_flag("http3-only", What::Missing),
    long_flag("digest", What::OtherUser),
    long_flag("ntlm", What::OtherUser),
    long_flag("negotiate", What::OtherUser),
    long_flag("anyauth", What::OtherUser),
    flag('n', "netrc", What::Missing),
    value('c', "cookie-jar", What::Missing),
    value('K', "config", What::Missing),
    value('U', "proxy-user", What::ProxyUser),
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
    long_value("create-file-mode", What::Shown),
    long_value("etag-save", What::Shown),
    long_value("libcurl", What::Shown),
    long_value("output-dir", What::Shown),
    long_value("trace-config", What::Shown),
    flag('a', "append", What::Shown),
    long_flag("create-dirs", What::Shown),
    long_flag("fail-early", What::Shown),
    flag('l', "list-only", What::Shown),
    long_flag("no-clobber", What::Shown),
    long_flag("no-fail", What::Shown),
    long_flag("no-styled-output", What::Shown),
    long_flag("parallel-immediate", What::Shown),
    long_flag("progress-meter", What::Shown),
    long_flag("remote-name-all", What::Shown),
    flag('R', "remote-time", What::Shown),
    long_flag("remove-on-error", What::Shown),
    long_flag("skip-existing", What::Shown),
    long_flag("styled-output", What::Shown),
    flag('B', "use-ascii", What::Shown),
    long_flag("xattr", What::Shown),
    long_value("abstract-unix-socket", What::Missing),
    long_value("alt-svc", What::Missing),
    long_value("aws-sigv4", What::Missing),
    long_value("capath", What::Missing),
    value('C', "continue-at", What::Missing),
    long_value("crlfile", What::Missing),
    long_value("curves", What::Missing),
    long_value("delegation", What::Missing),
    long_value("dns-interface", What::Missing),
    long_value("dns-ipv4-addr", What::Missing),
    long_value("dns-ipv6-addr", What::Missing),
    long_value("dns-servers", What::Missing),
    long_value("doh-url", What::Missing),
    long_value("ech", What::Missing),
    long_value("egd-file", What::Missing),
    long_value("engine", What::Missing),
    long_value("etag-compare", What::Missing),
    long_value("expect100-timeout", What::Missing),
    long_value("ftp-account", What::Missing),
    long_value("ftp-alternative-to-user", What::Missing),
    long_value("ftp-method", What::Missing),
    value('P', "ftp-port", What::Missing),
    long_value("ftp-ssl-ccc-mode", What::Missing),
    long_value("happy-eyeballs-timeout-ms", What::Missing),
    long_value("haproxy-clientip", What::Missing),
    long_value("hostpubmd5", What::Missing),
    long_value("hostpubsha256", What::Missing),
    long_value("hsts", What::Missing),
    long_value("ip-tos", What::Missing),
    long_value("ipfs-gateway", What::Missing),
    long_value("keepalive-cnt", What::Missing),
    long_value("keepalive-time", What::Missing),
    long_value("key-type", What::Missing),
    long_value("krb", What::Missing),
    long_value("local-port", What::Missing),
    long_value("login-options", What::Missing),
    long_value("mail-auth", What::Missing),
    long_value("mail-from", What::Missing),
    long_value("mail-rcpt", What::Missing),
    long_value("max-filesize", What::Missing),
    long_value("netrc-file", What::Missing),
    long_value("parallel-max", What::Missing),
    long_value("pinnedpubkey", What::Missing),
    long_value("preproxy", What::Missing),
    long_value("proto", What::Missing),
    long_value("proto-default", What::Missing),
    long_value("proto-redir", What::Missing),
    long_value("proxy-cacert", What::Missing),
    long_value("proxy-capath", What::Missing),
    long_value("proxy-cert", What::Missing),
    long_value("proxy-cert-type", What::Missing),
    long_value("proxy-ciphers", What::Missing),
    long_value("proxy-crlfile", What::Missing),
    long_value("proxy-header", What::Missing),
    long_value("proxy-key", What::Missing),
    long_value("proxy-key-type", What::Missing),
    long_value("proxy-pass", What::Missing),
    long_value("proxy-pinnedpubkey", What::Missing),
    long_value("proxy-service-name", What::Missing),
    long_value("proxy-tls13-ciphers", What::Missing),
    long_value("proxy-tlsauthtype", What::Missing),
    long_value("proxy-tlspassword", What::Missing),
    long_value("proxy-tlsuser", What::Missing),
    long_value("proxy1.0", What::Missing),
    long_value("pubkey", What::Missing),
    value('Q', "quote", What::Missing),
    long_value("random-file", What::Missing),
    long_value("rate", What::Missing),
    long_value("retry-max-time", What::Missing),
    long_value("sasl-authzid", What::Missing),
    long_value("service-name", What::Missing),
    long_value("sigalgs", What::Missing),
    long_value("socks4", What::Missing),
    long_value("socks4a", What::Missing),
    long_value("socks5-gssapi-service", What::Missing),
    long_value("ssl-sessions", What::Missing),
    value('t', "telnet-option", What::Missing),
    long_value("tftp-blksize", What::Missing),
    long_value("tls13-ciphers", What::Missing),
    long_value("tlsauthtype", What::Missing),
    long_value("tlspassword", What::Missing),
    long_value("tlsuser", What::Missing),
    long_value("variable", What::Missing),
    long_value("vlan-priority", What::Missing),
    long_flag("ca-native", What::Missing),
    long_flag("cert-status", What::Missing),
    long_flag("compressed-ssh", What::Missing),
    long_flag("crlf", What::Missing),
    long_flag("disable-eprt", What::Missing),
    long_flag("disable-epsv", What::Missing),
    long_flag("disallow-username-in-url", What::Missing),
    long_flag("doh-cert-status", What::Missing),
    long_flag("doh-insecure", What::Missing),
    long_flag("false-start", What::Missing),
    long_flag("form-escape", What::Missing),
    long_flag("ftp-create-dirs", What::Missing),
    long_flag("ftp-pasv", What::Missing),
    long_flag("ftp-pret", What::Missing),
    long_flag("ftp-skip-pasv-ip", What::Missing),
    long_flag("ftp-ssl-ccc", What::Missing),
    long_flag("ftp-ssl-control", What::Missing),
    long_flag("haproxy-protocol", What::Missing),
    long_flag("http0.9", What::Missing),
    long_flag("ignore-content-length", What::Missing),
    flag('j', "junk-session-cookies", What::Missing),
    long_flag("mail-rcpt-allowfails", What::Missing),
    long_flag("metalink", What::Missing),
    long_flag("mptcp", What::Missing),
    long_flag("netrc-optional", What::Missing),
    flag(':', "next", What::Missing),
    long_flag("no-alpn", What::Missing),
    long_flag("no-npn", What::Missing),
    long_flag("no-sessionid", What::Missing),
    long_flag("ntlm-wb", What::Missing),
    long_flag("out-null", What::Missing),
    long_flag("post301", What::Missing),
    long_flag("post302", What::Missing),
    long_flag("post303", What::Missing),
    long_flag("proxy-anyauth", What::Missing),
    long_flag("proxy-basic", What::Missing),
    long_flag("proxy-ca-native", What::Missing),
    long_flag("proxy-digest", What::Missing),
    long_flag("proxy-http2", What::Missing),
    long_flag("proxy-insecure", What::Missing),
    long_flag("proxy-negotiate", What::Missing),
    long_flag("proxy-ntlm", What::Missing),
    long_flag("proxy-ssl-allow-beast", What::Missing),
    long_flag("proxy-ssl-auto-client-cert", What::Missing),
    long_flag("proxy-tlsv1", What::Missing),
    flag('p', "proxytunnel", What::Missing),
    long_flag("raw", What::Missing),
    long_flag("retry-all-errors", What::Missing),
    long_flag("retry-connrefused", What::Missing),
    long_flag("sasl-ir", What::Missing),
    long_flag("socks5-basic", What::Missing),
    long_flag("socks5-gssapi", What::Missing),
    long_flag("socks5-gssapi-nec", What::Missing),
    long_flag("ssl", What::Missing),
    long_flag("ssl-allow-beast", What::Missing),
    long_flag("ssl-auto-client-cert", What::Missing),
    long_flag("ssl-no-revoke", What::Missing),
    long_flag("ssl-reqd", What::Missing),
    long_flag("ssl-revoke-best-effort", What::Missing),
    flag('2', "sslv2", What::Missing),
    flag('3', "sslv3", What::Missing),
    long_flag("suppress-connect-headers", What::Missing),
    long_flag("tcp-fastopen", What::Missing),
    long_flag("test-event", What::Missing),
    long_flag("tftp-no-options", What::Missing),
    flag('1', "tlsv1", What::Missing),
    long_flag("tlsv1.0", What::Missing),
    long_flag("tlsv1.1", What::Missing),
    long_flag("tr-encoding", What::Missing),
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
                let value = value_of_unknown(words.as_slice(), draft.has_url());
                let and = value.map_or_else(String::new, |value| {
                    words.next();
                    format!(", and {} behind it", String::from_utf8_lossy(&value.bytes))
                });
                warnings.push(format!("line {line}: --{long} is not known and left out{and}"));
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

/// Returns the word after an unknown option if it must be its value: it is not an option, and another
/// word is the URL. A URL must not be taken for a value, nor a value for the URL.
fn value_of_unknown(words: &[Word], has_url: bool) -> Option<&Word> {
    let is_url = |word: &Word| word.bytes.windows(3).any(|three| three == b"://");
    let (next, rest) = words.split_first()?;
    let is_value = !next.bytes.starts_with(b"-") && !is_url(next);
    (is_value && (has_url || rest.iter().any(is_url))).then_some(next)
}

/// Parses combined short options, `-sSLkXPOST`. The value of the last one may be attached or follow.
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
        What::OtherUser => {
            warnings.push(format!(
                "line {line}: --{} is not supported and left out, as is the user: a password is not \
                 sent in another way than the command says",
                known.1
            ));
            draft.take(What::OtherUser, &[], line, warnings)
        }
        what => draft.take(what, argument.unwrap_or_default(), line, warnings),
    }
}

/// Returns a word as text; only bodies may be binary.
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
