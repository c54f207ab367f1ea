//! [`Method`]: what a service offers, and messages of its types.

use std::fmt;

use prost_reflect::{MessageDescriptor, MethodDescriptor};

use super::example::example;
use super::json::{self, JsonError};

/// A method of a service.
#[derive(Clone, PartialEq, Debug)]
pub struct Method(MethodDescriptor);

/// How many messages a call has in each direction.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum MethodKind {
    /// One and one.
    Unary,
    /// Any number of requests, one answer.
    ClientStream,
    /// One request, any number of answers.
    ServerStream,
    /// Any number of both, in any order.
    BidiStream,
}

impl fmt::Display for MethodKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MethodKind::Unary => "unary",
            MethodKind::ClientStream => "client stream",
            MethodKind::ServerStream => "server stream",
            MethodKind::BidiStream => "bidi stream",
        })
    }
}

impl Method {
    pub(crate) fn new(descriptor: MethodDescriptor) -> Method {
        Method(descriptor)
    }

    /// Its name without the service.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The path of its requests: `/package.Service/Method`.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/{}/{}", self.0.parent_service().full_name(), self.0.name())
    }

    /// How many messages a call has.
    #[must_use]
    pub fn kind(&self) -> MethodKind {
        match (self.0.is_client_streaming(), self.0.is_server_streaming()) {
            (false, false) => MethodKind::Unary,
            (true, false) => MethodKind::ClientStream,
            (false, true) => MethodKind::ServerStream,
            (true, true) => MethodKind::BidiStream,
        }
    }

    /// The type of requests.
    pub(crate) fn request(&self) -> MessageDescriptor {
        self.0.input()
    }

    /// The type of answers.
    pub(crate) fn answer(&self) -> MessageDescriptor {
        self.0.output()
    }

    /// The full name of the type of requests.
    #[must_use]
    pub fn request_type(&self) -> String {
        self.0.input().full_name().to_owned()
    }

    /// The full name of the type of answers.
    #[must_use]
    pub fn answer_type(&self) -> String {
        self.0.output().full_name().to_owned()
    }

    /// The bytes of a request from its JSON; empty text is a message without fields.
    ///
    /// # Errors
    /// Invalid JSON, or JSON that does not fit the type, with the place.
    pub fn request_of_json(&self, text: &str) -> Result<Vec<u8>, JsonError> {
        json::to_bytes(&self.0.input(), text)
    }

    /// An answer as JSON.
    ///
    /// # Errors
    /// Bytes that are not of the type of answers.
    pub fn answer_to_json(&self, bytes: &[u8]) -> Result<String, JsonError> {
        json::of_bytes(&self.0.output(), bytes)
    }

    /// A request as JSON.
    ///
    /// # Errors
    /// Bytes that are not of the type of requests.
    pub fn request_to_json(&self, bytes: &[u8]) -> Result<String, JsonError> {
        json::of_bytes(&self.0.input(), bytes)
    }

    /// A request as JSON, to start from.
    #[must_use]
    pub fn example(&self) -> String {
        example(&self.0.input())
    }
}
