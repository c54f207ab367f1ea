//! The table of curl's options, and the parser of words by that table. An option that is not in the
//! table causes a warning.

use anyhow::{Context, Result, bail};

use super::request::{Data, Draft};
use super::words::Word;

/// The effect of an option on a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
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
    /// An authentication scheme other than Basic.
    OtherAuth,
    /// Affects only the output of curl, not the request.
    OutputOnly,
    /// Requests what is the default here.
    Default,
    /// Changes the request in curl, but is not supported here.
    Unsupported,
}

/// Short name, long name, whether it takes a value, and its effect.
struct OptionSpec(Option<char>, &'static str, bool, Kind);

const fn flag(short: char, long: &'static str, kind: Kind) -> OptionSpec {
    OptionSpec(Some(short), long, false, kind)
}
const fn value(short: char, long: &'static str, kind: Kind) -> OptionSpec {
    OptionSpec(Some(short), long, true, kind)
}
const fn long_flag(long: &'static str, kind: Kind) -> OptionSpec {
    OptionSpec(None, long, false, kind)
}
const fn long_value(long: &'static str, kind: Kind) -> OptionSpec {
    OptionSpec(None, long, true, kind)
}

const TABLE: &[OptionSpec] = &[
    long_value("url", Kind::Url),
    value('X', "request", Kind::Method),
    flag('I', "head", Kind::Head),
    flag('G', "get", Kind::Get),
    value('H', "header", Kind::Header),
    value('d', "data", Kind::Data(Data::Text)),
    long_value("data-ascii", Kind::Data(Data::Text)),
    long_value("data-raw", Kind::Data(Data::Raw)),
    long_value("data-binary", Kind::Data(Data::Binary)),
    long_value("data-urlencode", Kind::Data(Data::UrlEncode)),
    long_value("json", Kind::Data(Data::Json)),
    value('F', "form", Kind::Form),
    long_value("form-string", Kind::FormString),
    long_value("url-query", Kind::UrlQuery),
    value('T', "upload-file", Kind::Upload),
    value('b', "cookie", Kind::Cookie),
    value('u', "user", Kind::User),
    long_flag("basic", Kind::Default),
    long_value("oauth2-bearer", Kind::Bearer),
    value('A', "user-agent", Kind::Agent),
    value('e', "referer", Kind::Referer),
    value('r', "range", Kind::Range),
    long_flag("compressed", Kind::Compressed),
    flag('L', "location", Kind::Location),
    long_flag("location-trusted", Kind::Location),
    long_value("max-redirs", Kind::MaxRedirects),
    value('m', "max-time", Kind::MaxTime),
    long_value("connect-timeout", Kind::ConnectTimeout),
    flag('k', "insecure", Kind::Insecure),
    long_value("cacert", Kind::Ca),
    value('E', "cert", Kind::Cert),
    long_value("key", Kind::Key),
    long_value("resolve", Kind::Resolve),
    value('x', "proxy", Kind::Proxy),
    long_value("unix-socket", Kind::UnixSocket),
    long_value("interface", Kind::Interface),
    long_flag("http1.1", Kind::Default),
    long_flag("no-keepalive", Kind::OutputOnly),
    long_flag("keepalive", Kind::OutputOnly),
    long_flag("tcp-nodelay", Kind::Default),
    flag('N', "no-buffer", Kind::OutputOnly),
    flag('s', "silent", Kind::OutputOnly),
    flag('S', "show-error", Kind::OutputOnly),
    flag('v', "verbose", Kind::OutputOnly),
    flag('i', "include", Kind::OutputOnly),
    long_flag("show-headers", Kind::OutputOnly),
    flag('f', "fail", Kind::OutputOnly),
    long_flag("fail-with-body", Kind::OutputOnly),
    flag('#', "progress-bar", Kind::OutputOnly),
    long_flag("no-progress-meter", Kind::OutputOnly),
    flag('O', "remote-name", Kind::OutputOnly),
    flag('J', "remote-header-name", Kind::OutputOnly),
    flag('q', "disable", Kind::OutputOnly),
    flag('g', "globoff", Kind::Default),
    flag('M', "manual", Kind::OutputOnly),
    value('o', "output", Kind::OutputOnly),
    value('D', "dump-header", Kind::OutputOnly),
    value('w', "write-out", Kind::OutputOnly),
    long_value("stderr", Kind::OutputOnly),
    long_value("trace", Kind::OutputOnly),
    long_value("trace-ascii", Kind::OutputOnly),
    long_flag("trace-time", Kind::OutputOnly),
    flag('0', "http1.0", Kind::Http10),
    long_flag("http2", Kind::Unsupported),
    long_flag("http2-prior-knowledge", Kind::Unsupported),
    long_flag("http3", Kind::Unsupported),
    long_flag("http3-only", Kind::Unsupported),
    long_flag("digest", Kind::OtherAuth),
    long_flag("ntlm", Kind::OtherAuth),
    long_flag("negotiate", Kind::OtherAuth),
    long_flag("anyauth", Kind::OtherAuth),
    flag('n', "netrc", Kind::Unsupported),
    value('c', "cookie-jar", Kind::Unsupported),
    value('K', "config", Kind::Unsupported),
    value('U', "proxy-user", Kind::ProxyUser),
    long_value("noproxy", Kind::Unsupported),
    long_value("socks5", Kind::Unsupported),
    long_value("socks5-hostname", Kind::Unsupported),
    long_value("connect-to", Kind::Unsupported),
    long_value("limit-rate", Kind::Unsupported),
    long_value("retry", Kind::Unsupported),
    long_value("retry-delay", Kind::Unsupported),
    long_value("request-target", Kind::Unsupported),
    long_value("ciphers", Kind::Unsupported),
    long_value("tls-max", Kind::Unsupported),
    long_flag("tlsv1.2", Kind::Unsupported),
    long_flag("tlsv1.3", Kind::Unsupported),
    long_value("cert-type", Kind::Unsupported),
    long_value("pass", Kind::Unsupported),
    long_flag("path-as-is", Kind::Default),
    flag('4', "ipv4", Kind::Unsupported),
    flag('6', "ipv6", Kind::Unsupported),
    value('z', "time-cond", Kind::Unsupported),
    value('y', "speed-time", Kind::Unsupported),
    value('Y', "speed-limit", Kind::Unsupported),
    flag('Z', "parallel", Kind::Unsupported),
    long_value("create-file-mode", Kind::OutputOnly),
    long_value("etag-save", Kind::OutputOnly),
    long_value("libcurl", Kind::OutputOnly),
    long_value("output-dir", Kind::OutputOnly),
    long_value("trace-config", Kind::OutputOnly),
    flag('a', "append", Kind::OutputOnly),
    long_flag("create-dirs", Kind::OutputOnly),
    long_flag("fail-early", Kind::OutputOnly),
    flag('l', "list-only", Kind::OutputOnly),
    long_flag("no-clobber", Kind::OutputOnly),
    long_flag("no-fail", Kind::OutputOnly),
    long_flag("no-styled-output", Kind::OutputOnly),
    long_flag("parallel-immediate", Kind::OutputOnly),
    long_flag("progress-meter", Kind::OutputOnly),
    long_flag("remote-name-all", Kind::OutputOnly),
    flag('R', "remote-time", Kind::OutputOnly),
    long_flag("remove-on-error", Kind::OutputOnly),
    long_flag("skip-existing", Kind::OutputOnly),
    long_flag("styled-output", Kind::OutputOnly),
    flag('B', "use-ascii", Kind::OutputOnly),
    long_flag("xattr", Kind::OutputOnly),
    long_value("abstract-unix-socket", Kind::Unsupported),
    long_value("alt-svc", Kind::Unsupported),
    long_value("aws-sigv4", Kind::Unsupported),
    long_value("capath", Kind::Unsupported),
    value('C', "continue-at", Kind::Unsupported),
    long_value("crlfile", Kind::Unsupported),
    long_value("curves", Kind::Unsupported),
    long_value("delegation", Kind::Unsupported),
    long_value("dns-interface", Kind::Unsupported),
    long_value("dns-ipv4-addr", Kind::Unsupported),
    long_value("dns-ipv6-addr", Kind::Unsupported),
    long_value("dns-servers", Kind::Unsupported),
    long_value("doh-url", Kind::Unsupported),
    long_value("ech", Kind::Unsupported),
    long_value("egd-file", Kind::Unsupported),
    long_value("engine", Kind::Unsupported),
    long_value("etag-compare", Kind::Unsupported),
    long_value("expect100-timeout", Kind::Unsupported),
    long_value("ftp-account", Kind::Unsupported),
    long_value("ftp-alternative-to-user", Kind::Unsupported),
    long_value("ftp-method", Kind::Unsupported),
    value('P', "ftp-port", Kind::Unsupported),
    long_value("ftp-ssl-ccc-mode", Kind::Unsupported),
    long_value("happy-eyeballs-timeout-ms", Kind::Unsupported),
    long_value("haproxy-clientip", Kind::Unsupported),
    long_value("hostpubmd5", Kind::Unsupported),
    long_value("hostpubsha256", Kind::Unsupported),
    long_value("hsts", Kind::Unsupported),
    long_value("ip-tos", Kind::Unsupported),
    long_value("ipfs-gateway", Kind::Unsupported),
    long_value("keepalive-cnt", Kind::Unsupported),
    long_value("keepalive-time", Kind::Unsupported),
    long_value("key-type", Kind::Unsupported),
    long_value("krb", Kind::Unsupported),
    long_value("local-port", Kind::Unsupported),
    long_value("login-options", Kind::Unsupported),
    long_value("mail-auth", Kind::Unsupported),
    long_value("mail-from", Kind::Unsupported),
    long_value("mail-rcpt", Kind::Unsupported),
    long_value("max-filesize", Kind::Unsupported),
    long_value("netrc-file", Kind::Unsupported),
    long_value("parallel-max", Kind::Unsupported),
    long_value("pinnedpubkey", Kind::Unsupported),
    long_value("preproxy", Kind::Unsupported),
    long_value("proto", Kind::Unsupported),
    long_value("proto-default", Kind::Unsupported),
    long_value("proto-redir", Kind::Unsupported),
    long_value("proxy-cacert", Kind::Unsupported),
    long_value("proxy-capath", Kind::Unsupported),
    long_value("proxy-cert", Kind::Unsupported),
    long_value("proxy-cert-type", Kind::Unsupported),
    long_value("proxy-ciphers", Kind::Unsupported),
    long_value("proxy-crlfile", Kind::Unsupported),
    long_value("proxy-header", Kind::Unsupported),
    long_value("proxy-key", Kind::Unsupported),
    long_value("proxy-key-type", Kind::Unsupported),
    long_value("proxy-pass", Kind::Unsupported),
    long_value("proxy-pinnedpubkey", Kind::Unsupported),
    long_value("proxy-service-name", Kind::Unsupported),
    long_value("proxy-tls13-ciphers", Kind::Unsupported),
    long_value("proxy-tlsauthtype", Kind::Unsupported),
    long_value("proxy-tlspassword", Kind::Unsupported),
    long_value("proxy-tlsuser", Kind::Unsupported),
    long_value("proxy1.0", Kind::Unsupported),
    long_value("pubkey", Kind::Unsupported),
    value('Q', "quote", Kind::Unsupported),
    long_value("random-file", Kind::Unsupported),
    long_value("rate", Kind::Unsupported),
    long_value("retry-max-time", Kind::Unsupported),
    long_value("sasl-authzid", Kind::Unsupported),
    long_value("service-name", Kind::Unsupported),
    long_value("sigalgs", Kind::Unsupported),
    long_value("socks4", Kind::Unsupported),
    long_value("socks4a", Kind::Unsupported),
    long_value("socks5-gssapi-service", Kind::Unsupported),
    long_value("ssl-sessions", Kind::Unsupported),
    value('t', "telnet-option", Kind::Unsupported),
    long_value("tftp-blksize", Kind::Unsupported),
    long_value("tls13-ciphers", Kind::Unsupported),
    long_value("tlsauthtype", Kind::Unsupported),
    long_value("tlspassword", Kind::Unsupported),
    long_value("tlsuser", Kind::Unsupported),
    long_value("variable", Kind::Unsupported),
    long_value("vlan-priority", Kind::Unsupported),
    long_flag("ca-native", Kind::Unsupported),
    long_flag("cert-status", Kind::Unsupported),
    long_flag("compressed-ssh", Kind::Unsupported),
    long_flag("crlf", Kind::Unsupported),
    long_flag("disable-eprt", Kind::Unsupported),
    long_flag("disable-epsv", Kind::Unsupported),
    long_flag("disallow-username-in-url", Kind::Unsupported),
    long_flag("doh-cert-status", Kind::Unsupported),
    long_flag("doh-insecure", Kind::Unsupported),
    long_flag("false-start", Kind::Unsupported),
    long_flag("form-escape", Kind::Unsupported),
    long_flag("ftp-create-dirs", Kind::Unsupported),
    long_flag("ftp-pasv", Kind::Unsupported),
    long_flag("ftp-pret", Kind::Unsupported),
    long_flag("ftp-skip-pasv-ip", Kind::Unsupported),
    long_flag("ftp-ssl-ccc", Kind::Unsupported),
    long_flag("ftp-ssl-control", Kind::Unsupported),
    long_flag("haproxy-protocol", Kind::Unsupported),
    long_flag("http0.9", Kind::Unsupported),
    long_flag("ignore-content-length", Kind::Unsupported),
    flag('j', "junk-session-cookies", Kind::Unsupported),
    long_flag("mail-rcpt-allowfails", Kind::Unsupported),
    long_flag("metalink", Kind::Unsupported),
    long_flag("mptcp", Kind::Unsupported),
    long_flag("netrc-optional", Kind::Unsupported),
    flag(':', "next", Kind::Unsupported),
    long_flag("no-alpn", Kind::Unsupported),
    long_flag("no-npn", Kind::Unsupported),
    long_flag("no-sessionid", Kind::Unsupported),
    long_flag("ntlm-wb", Kind::Unsupported),
    long_flag("out-null", Kind::Unsupported),
    long_flag("post301", Kind::Unsupported),
    long_flag("post302", Kind::Unsupported),
    long_flag("post303", Kind::Unsupported),
    long_flag("proxy-anyauth", Kind::Unsupported),
    long_flag("proxy-basic", Kind::Unsupported),
    long_flag("proxy-ca-native", Kind::Unsupported),
    long_flag("proxy-digest", Kind::Unsupported),
    long_flag("proxy-http2", Kind::Unsupported),
    long_flag("proxy-insecure", Kind::Unsupported),
    long_flag("proxy-negotiate", Kind::Unsupported),
    long_flag("proxy-ntlm", Kind::Unsupported),
    long_flag("proxy-ssl-allow-beast", Kind::Unsupported),
    long_flag("proxy-ssl-auto-client-cert", Kind::Unsupported),
    long_flag("proxy-tlsv1", Kind::Unsupported),
    flag('p', "proxytunnel", Kind::Unsupported),
    long_flag("raw", Kind::Unsupported),
    long_flag("retry-all-errors", Kind::Unsupported),
    long_flag("retry-connrefused", Kind::Unsupported),
    long_flag("sasl-ir", Kind::Unsupported),
    long_flag("socks5-basic", Kind::Unsupported),
    long_flag("socks5-gssapi", Kind::Unsupported),
    long_flag("socks5-gssapi-nec", Kind::Unsupported),
    long_flag("ssl", Kind::Unsupported),
    long_flag("ssl-allow-beast", Kind::Unsupported),
    long_flag("ssl-auto-client-cert", Kind::Unsupported),
    long_flag("ssl-no-revoke", Kind::Unsupported),
    long_flag("ssl-reqd", Kind::Unsupported),
    long_flag("ssl-revoke-best-effort", Kind::Unsupported),
    flag('2', "sslv2", Kind::Unsupported),
    flag('3', "sslv3", Kind::Unsupported),
    long_flag("suppress-connect-headers", Kind::Unsupported),
    long_flag("tcp-fastopen", Kind::Unsupported),
    long_flag("test-event", Kind::Unsupported),
    long_flag("tftp-no-options", Kind::Unsupported),
    flag('1', "tlsv1", Kind::Unsupported),
    long_flag("tlsv1.0", Kind::Unsupported),
    long_flag("tlsv1.1", Kind::Unsupported),
    long_flag("tr-encoding", Kind::Unsupported),
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
            draft.apply(Kind::Url, &word.bytes, line, warnings)?;
            continue;
        }
        if word.bytes == b"--" {
            only_urls = true;
            continue;
        }
        if let Some(long) = text()?.strip_prefix("--") {
            let Some(spec) = TABLE.iter().find(|spec| spec.1 == long) else {
                let value = value_of_unknown(words.as_slice(), draft.has_url());
                let and = value.map_or_else(String::new, |value| {
                    words.next();
                    format!(", with its value {}", String::from_utf8_lossy(&value.bytes))
                });
                warnings.push(format!("line {line}: unknown option --{long} ignored{and}"));
                continue;
            };
            let argument = if spec.2 { Some(following(&mut words, long, line)?) } else { None };
            apply(spec, argument, line, draft, warnings)?;
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
        let Some(spec) = TABLE.iter().find(|spec| spec.0 == Some(letter)) else {
            warnings.push(format!("line {line}: unknown option -{letter} ignored"));
            continue;
        };
        if !spec.2 {
            apply(spec, None, line, draft, warnings)?;
            continue;
        }
        let glued = word.bytes.get(at..).unwrap_or_default();
        let argument = match glued {
            [] => following(words, spec.1, line)?,
            glued => glued,
        };
        return apply(spec, Some(argument), line, draft, warnings);
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
    spec: &OptionSpec,
    argument: Option<&[u8]>,
    line: usize,
    draft: &mut Draft<'_>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    match spec.3 {
        Kind::OutputOnly | Kind::Default => Ok(()),
        Kind::Unsupported => {
            warnings.push(format!("line {line}: unsupported option --{} ignored", spec.1));
            Ok(())
        }
        Kind::OtherAuth => {
            warnings.push(format!(
                "line {line}: unsupported option --{} ignored, and the user with it: a password is \
                 never sent by another scheme",
                spec.1
            ));
            draft.apply(Kind::OtherAuth, &[], line, warnings)
        }
        kind => draft.apply(kind, argument.unwrap_or_default(), line, warnings),
    }
}

/// Returns a word as text; only bodies may be binary.
fn text(word: &Word) -> Result<&str> {
    match std::str::from_utf8(&word.bytes) {
        Ok(text) => Ok(text),
        Err(_) => bail!("line {}: the option is not UTF-8", word.line),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn options_in_the_table_are_unique() {
        let (mut shorts, mut longs) = (BTreeSet::new(), BTreeSet::new());
        for spec in TABLE {
            assert!(longs.insert(spec.1), "--{}", spec.1);
            assert!(spec.0.is_none_or(|short| shorts.insert(short)), "-{:?}", spec.0);
        }
    }
}
