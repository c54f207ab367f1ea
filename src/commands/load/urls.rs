//! URLs as they are typed. `{1..4}` expands to each number, at any place in the URL, so
//! `ws://127.0.0.{1..2}:{9000..9003}/echo` is eight URLs; an address with a port is that of an HTTP server.

use std::convert::Infallible;

/// Adds what `8080`, `:8080/path` and `localhost:8080` leave out, as curl does. Without a port it may be a file or a
/// misspelt scenario, and stays as it is.
pub(super) fn complete(text: &str) -> Result<String, Infallible> {
    let (address, path) = text.split_at(text.find('/').unwrap_or(text.len()));
    let (host, port) = address.rsplit_once(':').unwrap_or(("", address));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]{}".contains(&byte);
    let is_port = port.parse::<u16>().is_ok() || first_range(port).is_some();
    if text.contains("://") || !is_port || !host.bytes().all(is_host) {
        return Ok(text.to_owned());
    }
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    let path = if path.is_empty() { "/" } else { path };
    Ok(format!("http://{host}:{port}{path}"))
}

/// Expands the ranges of `url`, to at most `most` URLs.
///
/// # Errors
/// An invalid range, or too many URLs.
pub(super) fn expand(url: &str, most: usize) -> Result<Vec<String>, String> {
    let Some((before, range, after)) = first_range(url) else { return Ok(vec![url.to_owned()]) };
    let wrong = || format!("invalid range in {url:?}: expected {{1..4}}");
    let (first, last) = range.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(wrong());
    }
    let many = || format!("{url:?} expands to more than {most} URLs");
    if (last - first) as usize >= most {
        return Err(many());
    }
    // The rest may contain another range.
    let tails = expand(after, most)?;
    let urls: Vec<String> = (first..=last)
        .flat_map(|number| tails.iter().map(move |tail| format!("{before}{number}{tail}")))
        .collect();
    if urls.len() > most { Err(many()) } else { Ok(urls) }
}

/// Splits the URL at its first range. Braces without dots belong to the URL, as in the
/// `?filter={"a":1}` that browsers copy.
fn first_range(url: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let open = from + url.get(from..)?.find('{')?;
        let inside = url.get(open + 1..)?;
        let close = inside.find(['{', '}']).filter(|at| inside.as_bytes().get(*at) == Some(&b'}'));
        let range = inside.get(..close.unwrap_or(0))?;
        let is_range = range.contains("..") || is_numbers(range);
        if is_range {
            return Some((url.get(..open)?, range, inside.get(range.len() + 1..)?));
        }
        from = open + 1;
    }
}

/// Returns whether the text looks like a mistyped range, such as `1-3`.
fn is_numbers(text: &str) -> bool {
    let of_numbers = |byte: u8| byte.is_ascii_digit() || byte == b'-';
    text.contains('-') && text.bytes().all(of_numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_multiply_and_the_last_varies_fastest() {
        let urls = expand("ws://127.0.0.{1..2}:{9000..9001}/x", 256).unwrap();
        let expected = [
            "ws://127.0.0.1:9000/x",
            "ws://127.0.0.1:9001/x",
            "ws://127.0.0.2:9000/x",
            "ws://127.0.0.2:9001/x",
        ];
        assert_eq!(urls, expected);
        assert_eq!(expand("ws://a/", 256).unwrap(), ["ws://a/"]);
    }

    #[test]
    fn an_address_with_a_port_is_that_of_an_http_server() {
        for (typed, url) in [
            ("8080", "http://127.0.0.1:8080/"),
            (":8080", "http://127.0.0.1:8080/"),
            (":8080/health?a=1", "http://127.0.0.1:8080/health?a=1"),
            ("localhost:8080", "http://localhost:8080/"),
            ("[::1]:8080/x", "http://[::1]:8080/x"),
            ("127.0.0.{1..2}:{9000..9001}", "http://127.0.0.{1..2}:{9000..9001}/"),
        ] {
            assert_eq!(complete(typed).unwrap(), url);
        }
        let others = ["", "ws://a:1/", "HTTP://a:1", "localhost", "a/b:80", "a.toml", "99999"];
        for other in others.into_iter().chain(["go-stress-http", "a:http", "user@a:80", "a b:1"]) {
            assert_eq!(complete(other).unwrap(), other);
        }
    }

    #[test]
    fn braces_of_a_query_are_kept() {
        for url in
            ["http://a/?f={%22a%22:1}", "http://a/{id}/{", "http://a/?f={{1}}", "http://a/}{"]
        {
            assert_eq!(expand(url, 256).unwrap(), [url]);
        }
        let urls = expand("http://a:{1..2}/?f={\"x\":{}}", 256).unwrap();
        assert_eq!(urls, ["http://a:1/?f={\"x\":{}}", "http://a:2/?f={\"x\":{}}"]);
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for url in ["ws://a:{1-3}/", "ws://a:{3..1}/", "ws://a:{..}/", "ws://{1..}/"] {
            assert!(expand(url, 256).unwrap_err().contains("{1..4}"), "{url}");
        }
        assert!(expand("ws://{0..15}:{0..16}/", 256).unwrap_err().contains("256"));
        assert!(expand("ws://a:{0..4294967295}/", 256).unwrap_err().contains("256"));
    }
}
