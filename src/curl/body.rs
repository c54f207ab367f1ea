//! Bodies as curl makes them: `-d` joined by `&`, percent-encoding, multipart forms (RFC 7578).

use anyhow::{Context, Result};

use super::Files;
use super::request::Data;

/// Boundary between the parts of a form. It must not occur in them, so it is as long as curl's; it is
/// constant, so that a run can be repeated to the byte.
const BOUNDARY: &str = "------------------------5ta2nd7fa1st9c0d3";

/// Returns the value of `-d` or a similar option as bytes.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn data(kind: Data, value: &[u8], files: &Files, line: usize) -> Result<Vec<u8>> {
    let file = |value: &[u8]| match value.strip_prefix(b"@") {
        Some(name) => files.read(&String::from_utf8_lossy(name), line).map(Some),
        None => Ok(None),
    };
    Ok(match kind {
        Data::Raw => value.to_vec(),
        Data::Binary | Data::Json => file(value)?.unwrap_or_else(|| value.to_vec()),
        // As curl, removes line ends and zeros from files, but not from literal text.
        Data::Text => match file(value)? {
            Some(mut read) => {
                read.retain(|byte| !matches!(byte, b'\r' | b'\n' | 0));
                read
            }
            None => value.to_vec(),
        },
        Data::UrlEncode => url_encoded(value, files, line)?,
    })
}

/// Encodes what follows the sign in `text`, `=text`, `name=text`, `@file` and `name@file`.
fn url_encoded(value: &[u8], files: &Files, line: usize) -> Result<Vec<u8>> {
    let at = |sign: u8| value.iter().position(|byte| *byte == sign);
    // As in curl, @ is the sign only without =.
    let Some(at) = at(b'=').or_else(|| at(b'@')) else {
        return Ok(percent_encoded(value));
    };
    let (name, rest) = value.split_at(at);
    let (sign, rest) = rest.split_at(1);
    let content = match sign {
        b"@" => files.read(&String::from_utf8_lossy(rest), line)?,
        _ => rest.to_vec(),
    };
    let mut encoded = name.to_vec();
    if !name.is_empty() {
        encoded.push(b'=');
    }
    encoded.extend(percent_encoded(&content));
    Ok(encoded)
}

/// Percent-encodes all but the unreserved characters of RFC 3986 section 2.3; a space becomes +.
fn percent_encoded(bytes: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte);
        } else if byte == b' ' {
            encoded.push(b'+');
        } else {
            encoded.extend(format!("%{byte:02X}").into_bytes());
        }
    }
    encoded
}

/// One part of a form.
#[derive(Debug)]
pub(super) struct Part {
    name: String,
    filename: Option<String>,
    content_type: Option<String>,
    content: Vec<u8>,
}

impl Part {
    /// Parses `name=text`, `name=@file` or `name=<file`, optionally followed by `;type=` and
    /// `;filename=`.
    ///
    /// # Errors
    /// Another syntax, or a file that cannot be read.
    pub(super) fn parse(value: &[u8], files: &Files, line: usize) -> Result<Part> {
        let (name, value) = named(value, line)?;
        let is_file = value.starts_with(b"@") || value.starts_with(b"<");
        let mut pieces = value.split(|&byte| byte == b';');
        let first = pieces.next().unwrap_or_default();
        let (mut content_type, mut filename) = (None, None);
        let mut content = first.to_vec();
        for piece in pieces {
            let text = String::from_utf8_lossy(piece);
            let text = text.trim();
            if let Some(of) = text.strip_prefix("type=") {
                content_type = Some(unquoted(of));
            } else if let Some(of) = text.strip_prefix("filename=") {
                filename = Some(unquoted(of));
            } else {
                content.push(b';');
                content.extend(piece);
            }
        }
        if is_file {
            let path = unquoted(&String::from_utf8_lossy(content.get(1..).unwrap_or_default()));
            if content.first() == Some(&b'@') {
                let last = path.rsplit('/').next().unwrap_or_default();
                filename.get_or_insert_with(|| last.to_owned());
                content_type.get_or_insert_with(|| type_of(&path).to_owned());
            }
            content = files.read(&path, line)?;
        }
        Ok(Part { name, filename, content_type, content })
    }

    /// Parses `--form-string`, whose value is always text.
    ///
    /// # Errors
    /// No name.
    pub(super) fn text(value: &[u8], line: usize) -> Result<Part> {
        let (name, content) = named(value, line)?;
        Ok(Part { name, filename: None, content_type: None, content: content.to_vec() })
    }
}

fn named(value: &[u8], line: usize) -> Result<(String, &[u8])> {
    let at = value.iter().position(|&byte| byte == b'=');
    let at =
        at.with_context(|| format!("line {line}: invalid -F: expected name=value or name=@file"))?;
    let (name, rest) = value.split_at(at);
    Ok((String::from_utf8_lossy(name).into_owned(), rest.get(1..).unwrap_or_default()))
}

fn unquoted(text: &str) -> String {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.unwrap_or(text).to_owned()
}

/// Returns the type that curl guesses from the file extension.
fn type_of(path: &str) -> &'static str {
    let end = path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    match end.as_str() {
        "gif" => "image/gif",
        "jpg" | "jpeg" => "image/jpeg",
        "png" => "image/png",
        "svg" => "image/svg+xml",
        "txt" => "text/plain",
        "htm" | "html" => "text/html",
        "pdf" => "application/pdf",
        "xml" => "application/xml",
        _ => "application/octet-stream",
    }
}

/// Returns the body of a form and its content type.
pub(super) fn multipart(parts: &[Part]) -> (Vec<u8>, String) {
    let mut body = Vec::new();
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "%22");
    for part in parts {
        let mut head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{}\"",
            quoted(&part.name)
        );
        if let Some(filename) = &part.filename {
            head += &format!("; filename=\"{}\"", quoted(filename));
        }
        if let Some(content_type) = &part.content_type {
            head += &format!("\r\nContent-Type: {content_type}");
        }
        head += "\r\n\r\n";
        body.extend(head.into_bytes());
        body.extend(&part.content);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{BOUNDARY}--\r\n").into_bytes());
    (body, format!("multipart/form-data; boundary={BOUNDARY}"))
}
