//! Bodies of requests in a scenario file: text, files, base64, JSON, forms and multipart forms.

use std::io::Read;
use std::path::Path;

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use load::scenario::{Template, TemplateContext};

use super::keys::PART;
use super::steps::Reader;
use super::tables::{Located, Table};

/// Keys of bodies; a step has at most one.
pub(super) const BODY_KEYS: [&str; 6] =
    ["body", "body_file", "body_base64", "json", "form", "multipart"];
/// Size limit of the files of one body, in bytes.
const BODY_BYTES_MAX: u64 = 16 << 20;

impl Reader<'_> {
    /// Returns the body, and its content type if it is known.
    pub(super) fn body(
        &self,
        table: &Table<'_>,
    ) -> Result<(Option<Template>, Option<&'static str>)> {
        let mut keys = BODY_KEYS.into_iter().filter(|key| table.has(key));
        let (key, more) = (keys.next(), keys.next());
        if more.is_some() {
            let what =
                format!("a step has only one body: expected one of {}", BODY_KEYS.join(", "));
            return Err(table.doc.wrong(table.at, what));
        }
        let compiled = |located: &Located| self.template(table, located, TemplateContext::Body);
        let (body, kind) = match key {
            None => return Ok((None, None)),
            Some("body_file") => (self.body_of_file(table)?, None),
            Some("body_base64") => {
                let decoded = table.parsed("body_base64", |text| {
                    let compact: String = text.split_ascii_whitespace().collect();
                    BASE64_STANDARD.decode(compact).map_err(|error| format!("not base64: {error}"))
                })?;
                (Template::of_bytes(&decoded.unwrap_or_default()), None)
            }
            Some("json") => {
                let (mut value, at) = table.json("json")?.unwrap_or_default();
                each_text(&mut value, &|text| escaped(text, "json", |part| part.to_owned()));
                (compiled(&Located { text: value.to_string(), at })?, Some("application/json"))
            }
            Some("form") => {
                let pairs = table.pairs("form")?;
                let one = |text: &str| escaped(text, "url", form_encoded);
                let pairs = pairs.iter().map(|(k, v)| format!("{}={}", one(&k.text), one(&v.text)));
                let text = pairs.collect::<Vec<_>>().join("&");
                let form = compiled(&Located { text, at: table.at })?;
                (form, Some("application/x-www-form-urlencoded"))
            }
            Some("multipart") => {
                (self.multipart(table)?, Some("multipart/form-data; boundary={{boundary}}"))
            }
            Some(_) => (compiled(&table.required("body")?)?, None),
        };
        Ok((Some(body), kind))
    }

    /// A file of text is a template; another one is sent as it is.
    fn body_of_file(&self, table: &Table<'_>) -> Result<Template> {
        let file = table.required("body_file")?;
        let bytes = self.read_file(table, &file, BODY_BYTES_MAX)?;
        match String::from_utf8(bytes) {
            Ok(text) => self.template(table, &Located { text, at: file.at }, TemplateContext::Body),
            Err(binary) => Ok(Template::of_bytes(binary.as_bytes())),
        }
    }

    /// Reads a multipart form (RFC 7578).
    fn multipart(&self, table: &Table<'_>) -> Result<Template> {
        let mut left = BODY_BYTES_MAX;
        let mut parts = Vec::new();
        let text =
            |text: String, at| self.template(table, &Located { text, at }, TemplateContext::Body);
        for part in table.tables("multipart", &PART)? {
            let at = part.at;
            let name = disposition(&part, part.required("name")?)?;
            let (value, file) = (part.text("value")?, part.text("file")?);
            let filename = part.text("filename")?;
            let filename = filename.map(|filename| disposition(&part, filename)).transpose()?;
            let kind = part.parsed("type", |kind| match kind.split_once('/') {
                Some((_, rest)) if !rest.is_empty() && !kind.contains(char::is_control) => {
                    Ok(kind.to_owned())
                }
                _ => Err("expected a media type such as image/png".to_owned()),
            })?;
            let (content, filename, kind) = match (value, file) {
                (Some(value), None) => {
                    (self.template(&part, &value, TemplateContext::Body)?, filename, kind)
                }
                (None, Some(file)) => {
                    let bytes = self.read_file(&part, &file, left)?;
                    left = left.saturating_sub(bytes.len() as u64);
                    let own = Path::new(&file.text).file_name().map(|own| Located {
                        text: own.to_string_lossy().into_owned(),
                        at: file.at,
                    });
                    let own = own.map(|own| disposition(&part, own)).transpose()?;
                    let kind = kind.unwrap_or_else(|| "application/octet-stream".to_owned());
                    (Template::of_bytes(&bytes), filename.or(own), Some(kind))
                }
                _ => return Err(part.doc.wrong(at, "a part needs one of value and file")),
            };
            let mut head =
                format!("--{{{{boundary}}}}\r\nContent-Disposition: form-data; name=\"{name}\"");
            if let Some(filename) = filename {
                head += &format!("; filename=\"{filename}\"");
            }
            if let Some(kind) = kind {
                head += &format!("\r\nContent-Type: {kind}");
            }
            parts.extend([text(head + "\r\n\r\n", at)?, content, text("\r\n".to_owned(), at)?]);
        }
        if parts.is_empty() {
            return Err(table.doc.wrong(table.at, "multipart needs at least one part"));
        }
        parts.push(text("--{{boundary}}--\r\n".to_owned(), table.at)?);
        Ok(Template::joined(parts))
    }

    /// Reads a file of at most `most` bytes, relative to the scenario.
    fn read_file(&self, table: &Table<'_>, file: &Located, most: u64) -> Result<Vec<u8>> {
        let path = self.folder.join(&file.text);
        let wrong = |what: String| table.doc.wrong(file.at, format!("{}: {what}", path.display()));
        let mut bytes = Vec::new();
        // Limits the read instead of checking the length, which a device does not have.
        load::files::admit(&path)
            .and_then(|()| std::fs::File::open(&path))
            .and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
            .map_err(|error| wrong(error.to_string()))?;
        if bytes.len() as u64 > most {
            let most = BODY_BYTES_MAX >> 20;
            return Err(wrong(format!("the files of a body have more than {most} MiB")));
        }
        Ok(bytes)
    }
}

/// Escapes the name of a field or file as browsers do (WHATWG, multipart/form-data encoding algorithm).
fn disposition(table: &Table<'_>, name: Located) -> Result<String> {
    if name.text.contains("{{") {
        // A value with a quote or a line break would not be escaped.
        return Err(table.doc.wrong(name.at, "names of a multipart body cannot have templates"));
    }
    Ok(name.text.replace('\r', "%0D").replace('\n', "%0A").replace('"', "%22"))
}

/// Applies `change` to every text in a value.
pub(super) fn each_text(value: &mut serde_json::Value, change: &impl Fn(&str) -> String) {
    match value {
        serde_json::Value::String(text) => *text = change(text),
        serde_json::Value::Array(values) => values.iter_mut().for_each(|v| each_text(v, change)),
        serde_json::Value::Object(pairs) => pairs.values_mut().for_each(|v| each_text(v, change)),
        _ => {}
    }
}

/// Rewrites `{{x}}` as `{{FUNCTION x}}`, and applies `literal` to the text between templates.
pub(super) fn escaped(text: &str, function: &str, literal: impl Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((inside, after)) = after.split_once("}}") else { break };
        out += &literal(before);
        out += &format!("{{{{{function} {}}}}}", inside.trim());
        rest = after;
    }
    out + &literal(rest)
}

fn form_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |out, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            out + &char::from(byte).to_string()
        }
        _ => out + &format!("%{byte:02X}"),
    })
}
