//! [`Response`]: a complete HTTP answer.

use std::borrow::Cow;

use crate::{InvalidHeader, header};

/// A complete HTTP answer: to a plain request, or one that refuses a WebSocket.
#[derive(Clone, Debug)]
pub struct Response(pub(crate) engine::Response);

impl Response {
    /// An answer without a body.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Response::body(status, "text/plain; charset=utf-8", Vec::new())
    }

    /// A short text for people; it should end with a line feed.
    #[must_use]
    pub fn text(status: u16, text: impl Into<Cow<'static, str>>) -> Self {
        Response(engine::Response::text(status, text))
    }

    /// A page, with status 200.
    #[must_use]
    pub fn html(page: impl Into<Cow<'static, str>>) -> Self {
        let mut response = Response::text(200, page);
        response.0.content_type = "text/html; charset=utf-8";
        response
    }

    /// A JSON document, with status 200.
    #[must_use]
    pub fn json(document: impl Into<Cow<'static, str>>) -> Self {
        let mut response = Response::text(200, document);
        response.0.content_type = "application/json";
        response
    }

    /// Any body.
    #[must_use]
    pub fn body(
        status: u16,
        content_type: &'static str,
        body: impl Into<Cow<'static, [u8]>>,
    ) -> Self {
        let mut response = engine::Response::text(status, "");
        (response.content_type, response.body) = (content_type, body.into());
        Response(response)
    }

    /// Adds a header. Control characters in a value, such as line breaks, become spaces. A header whose name
    /// is invalid or that the server sets itself ([`InvalidHeader`]) is left out; to learn about that use
    /// [`Response::try_header`]. Content-Type is that of the constructor.
    #[must_use]
    pub fn header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (name, value) = (name.into(), value.into());
        if header::check(&name, "").is_ok() {
            self.0.headers.push((name, value));
        }
        self
    }

    /// As [`Response::header`], for what comes from outside.
    ///
    /// # Errors
    /// [`InvalidHeader`]: a line break, or a header that the server sets itself.
    pub fn try_header(
        self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Result<Self, InvalidHeader> {
        let (name, value) = (name.into(), value.into());
        header::check(&name, &value)?;
        Ok(self.header(name, value))
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status
    }
}
