//! [`Fault`]: why an upstream failed, for logs and operators.

use std::fmt;
use std::io;

use engine::Closed;

/// Why an upstream failed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Connection refused.
    Refused,
    /// The connect timed out.
    Unreached,
    /// The connect failed, with the error number if it is known.
    Connect(Option<i32>),
    /// The TLS handshake failed.
    Tls,
    /// It closed the connection before its response.
    Broken,
    /// It sent no response in time.
    Silent,
    /// Its response was invalid.
    BadAnswer,
}

impl Fault {
    /// The fault of a connection that was closed before the response.
    pub(crate) fn of(why: Closed) -> Fault {
        match why {
            Closed::ConnectRefused => Fault::Refused,
            Closed::ConnectTimeout | Closed::HandshakeTimeout => Fault::Unreached,
            Closed::ConnectFailed => Fault::Connect(None),
            Closed::TlsFailed => Fault::Tls,
            _ => Fault::Broken,
        }
    }

    /// The fault of a connect that failed at once.
    pub(crate) fn of_connect(error: &io::Error) -> Fault {
        match Fault::of(Closed::from_connect_error(error)) {
            Fault::Connect(_) => Fault::Connect(error.raw_os_error()),
            fault => fault,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Connect(Some(number)) => {
                let error = io::Error::from_raw_os_error(*number);
                return write!(f, "cannot connect: {error}");
            }
            Fault::Refused => "connection refused",
            Fault::Unreached => "connect timed out",
            Fault::Connect(None) => "cannot connect",
            Fault::Tls => {
                "TLS failed: the upstream does not use TLS, or a certificate or name was rejected \
                 (check tls_ca, tls_name, tls_cert)"
            }
            Fault::Broken => "connection closed before the response",
            Fault::Silent => "no response in time",
            Fault::BadAnswer => "invalid HTTP or handshake response",
        })
    }
}
