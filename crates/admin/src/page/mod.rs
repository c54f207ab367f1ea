//! The admin page at `/`: one document without any other resource. It has no data of the program; that
//! comes by `/api/live`, with the key.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use axum::response::IntoResponse;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// The beginning of every page of the program, up to the title: encoding, viewport, colour schemes, icon.
pub const HEAD: &str = include_str!("head.html");
const DOCUMENT: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 4] = [
    include_str!("format.js"),
    include_str!("chart.js"),
    include_str!("sections.js"),
    include_str!("page.js"),
];

struct Page {
    html: Bytes,
    policy: HeaderValue,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let script = format!("'use strict';\n{}", SCRIPTS.concat());
    let html = DOCUMENT.replace("{head}", HEAD);
    let html = html.replace("{style}", STYLE).replace("{script}", &script);
    let policy = policy(STYLE, &script);
    // It is ASCII: hashes in base64 and keywords.
    let policy = HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("sandbox"));
    Page { html: html.into(), policy }
});

/// The Content-Security-Policy: only the document's own script and style run, it connects to its own
/// origin only, and no text becomes markup.
fn policy(style: &str, script: &str) -> String {
    let hash = |text: &str| BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash(script),
        hash(style)
    )
}

/// The page as a response.
pub(crate) fn response() -> Response<Body> {
    let page = &*PAGE;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, page.policy.clone()),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, page.html.clone()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_admits_the_script_and_the_style_of_the_document_and_no_other() {
        let html = std::str::from_utf8(&PAGE.html).unwrap();
        let policy = PAGE.policy.to_str().unwrap();
        for (open, close) in [("<script>", "</script>"), ("<style>", "</style>")] {
            assert_eq!(html.matches(open).count(), 1, "one {open}");
            let begin = html.find(open).unwrap() + open.len();
            let inside = &html[begin..begin + html[begin..].find(close).unwrap()];
            let hash = BASE64_STANDARD.encode(digest(&SHA256, inside.as_bytes()));
            assert!(policy.contains(&format!("'sha256-{hash}'")), "{open}: {policy}");
        }
        for part in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{part}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
    }

    #[test]
    fn the_document_names_no_other_resource() {
        let html = std::str::from_utf8(&PAGE.html).unwrap();
        for part in ["http:", "https:", "src=", "@import", "url(", " style=", "innerHTML"] {
            let found = html.find(part).map(|at| &html[at..(at + 60).min(html.len())]);
            // The namespace of SVG is a name.
            let named = found.is_some_and(|found| found.starts_with("http://www.w3.org/2000/svg"));
            assert!(found.is_none() || named, "{found:?}");
        }
    }
}
