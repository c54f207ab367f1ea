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
    /// `;filename=`. Values in quotes may contain `;`.
    ///
    /// # Errors
    /// Another syntax, or a file that cannot be read.
    pub(super) fn parse(
        value: &[u8],
        files: &Files,
        line: usize,
        warnings: &mut Vec<String>,
    ) -> Result<Part> {
        let (name, value) = named(value, line)?;
        let (sign, value) = match value.split_first() {
            Some((sign @ (b'@' | b'<'), value)) => (Some(*sign), value),
            _ => (None, value),
        };
        let (mut content, mut rest) = word(value);
        let (mut content_type, mut filename): (Option<String>, Option<String>) = (None, None);
        let mut is_of_type = false;
        while let Some(next) = rest.strip_prefix(b";") {
            let was_of_type = std::mem::take(&mut is_of_type);
            if let Some(of) = next.trim_ascii_start().strip_prefix(b"filename=") {
                let (of, behind) = word(of);
                (filename, rest) = (Some(text(&of)), behind);
                continue;
            }
            let (piece, behind) = next.split_at(end(next));
            rest = behind;
            let piece = text(piece.trim_ascii_end());
            match (piece.trim_start().strip_prefix("type="), &mut content_type) {
                (Some(of), _) => {
                    content_type = Some(of.trim().to_owned());
                    is_of_type = true;
                }
                // A parameter of the type, such as charset.
                (None, Some(content_type)) if was_of_type => {
                    *content_type += &format!(";{piece}");
                    is_of_type = true;
                }
                _ => {
                    warnings.push(format!("line {line}: -F {name}: unknown part {piece:?} ignored"))
                }
            }
        }
        if let Some(sign) = sign {
            let path = text(&content);
            if sign == b'@' {
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
    Ok((text(name), rest.get(1..).unwrap_or_default()))
}

/// Splits a value from the `;` behind it. Quotes are removed with the backslashes before `"` and `\\` in
/// them, and what follows the closing one is ignored; without quotes blanks around the value are.
fn word(value: &[u8]) -> (Vec<u8>, &[u8]) {
    let value = value.trim_ascii_start();
    if let Some(quoted) = value.strip_prefix(b"\"") {
        let (mut word, mut at) = (Vec::new(), 0);
        while let Some(&byte) = quoted.get(at) {
            let escaped = quoted.get(at + 1).filter(|next| byte == b'\\' && b"\\\"".contains(next));
            match escaped {
                Some(escaped) => word.push(*escaped),
                None if byte == b'"' => {
                    let rest = quoted.get(at + 1..).unwrap_or_default();
                    return (word, rest.get(end(rest)..).unwrap_or_default());
                }
                None => word.push(byte),
            }
            at += 1 + usize::from(escaped.is_some());
        }
        // The quote is never closed, and so is part of the value.
    }
    let (word, rest) = value.split_at(end(value));
    (word.trim_ascii_end().to_vec(), rest)
}

/// Returns the position of the next `;`, or the end.
fn end(value: &[u8]) -> usize {
    value.iter().position(|byte| *byte == b';').unwrap_or(value.len())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
    let quoted = |text: &str| text.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A");
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
