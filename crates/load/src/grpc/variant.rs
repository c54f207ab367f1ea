//! [`Variant`]: the forms in which calls are sent.

/// A form of gRPC.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Variant {
    /// Over HTTP/2.
    #[default]
    Http2,
    /// gRPC-Web over HTTP/1.1.
    Web,
    /// The same in Base64.
    WebText,
}

impl Variant {
    /// The form that the scheme of a URL stands for; `None` if it is none of gRPC.
    #[must_use]
    pub fn of_scheme(scheme: &str) -> Option<Variant> {
        Some(match scheme.to_ascii_lowercase().as_str() {
            "grpc" | "grpcs" => Variant::Http2,
            "grpc-web" | "grpc-webs" => Variant::Web,
            "grpc-web-text" | "grpc-web-texts" => Variant::WebText,
            _ => return None,
        })
    }

    /// Whether it is one of gRPC-Web.
    #[must_use]
    pub fn is_web(self) -> bool {
        self != Variant::Http2
    }

    /// The header fields that calls must have.
    #[must_use]
    pub fn headers(self) -> &'static [(&'static str, &'static str)] {
        const WEB: &str = "application/grpc-web+proto";
        const TEXT: &str = "application/grpc-web-text+proto";
        match self {
            Variant::Http2 => &[("te", "trailers"), ("content-type", "application/grpc")],
            Variant::Web => &[("content-type", WEB), ("accept", WEB), ("x-grpc-web", "1")],
            Variant::WebText => &[("content-type", TEXT), ("accept", TEXT), ("x-grpc-web", "1")],
        }
    }
}
