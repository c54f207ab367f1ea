//! The flags of listeners with TLS beside plain ones, and of the redirect to https.

use anyhow::{Result, bail};
use engine::HttpsRedirect;
use serve::{Address, PlainPath};

use crate::running::LISTENERS;

/// The flags, which every server has.
#[derive(clap::Args, Debug)]
pub(crate) struct TlsListenerFlags {
    /// Address and port for clients with TLS, or unix:/PATH; needs --tls-cert. Repeatable
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = LISTENERS)]
    listen_tls: Vec<Address>,
    /// Redirect requests without TLS to https (308), at the port of --listen-tls, or at PORT where
    /// clients reach it by another one
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "PORT",
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        value_parser = redirect, help_heading = LISTENERS)]
    redirect_https: Redirect,
    /// Paths that are not redirected; one with / at its end covers what is below it. Repeatable
    #[arg(long, value_name = "PATH", value_delimiter = ',', help_heading = LISTENERS,
        default_value = "/.well-known/acme-challenge/,/health,/ready")]
    redirect_except: Vec<PlainPath>,
}

/// Whether plain requests are redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Redirect {
    Off,
    /// To the port of the first listener with TLS.
    ToListener,
    ToPort(u16),
}

impl TlsListenerFlags {
    /// Splits the listeners into those without and those with TLS. `has_tls`: there is a certificate.
    pub(crate) fn split(
        &self,
        listen: &[Address],
        has_tls: bool,
    ) -> Result<(Vec<Address>, Vec<Address>)> {
        if !self.listen_tls.is_empty() && !has_tls {
            bail!("--listen-tls needs a certificate: add --tls-cert and --tls-key");
        }
        let (listen, with_tls) = (listen.to_vec(), self.listen_tls.clone());
        let (plain, tls) =
            if has_tls && with_tls.is_empty() { (with_tls, listen) } else { (listen, with_tls) };
        let any_tcp = |addresses: &[Address]| {
            addresses.iter().any(|address| matches!(address, Address::Tcp(_)))
        };
        match self.redirect_https {
            Redirect::ToListener if !any_tcp(&tls) => bail!(
                "--redirect-https has no port to redirect to: add --listen-tls ADDRESS:PORT, or use \
                 --redirect-https=PORT"
            ),
            Redirect::ToListener | Redirect::ToPort(_) if !any_tcp(&plain) => bail!(
                "--redirect-https has no requests to redirect: all listeners have TLS, or are UNIX \
                 sockets. Put the addresses with TLS into --listen-tls and those without into --listen"
            ),
            _ => Ok((plain, tls)),
        }
    }

    /// The redirect to https, if it is on.
    pub(crate) fn redirect(&self) -> Option<HttpsRedirect> {
        let port = match self.redirect_https {
            Redirect::Off => return None,
            Redirect::ToListener => None,
            Redirect::ToPort(port) => Some(port),
        };
        Some(HttpsRedirect { port, except: self.redirect_except.clone() })
    }
}

fn redirect(text: &str) -> Result<Redirect, String> {
    match text {
        "true" => Ok(Redirect::ToListener),
        "false" => Ok(Redirect::Off),
        _ => match text.parse() {
            Ok(port @ 1..) => Ok(Redirect::ToPort(port)),
            _ => Err("expected a port, true or false".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(listen_tls: &[&str], redirect_https: Redirect) -> TlsListenerFlags {
        let listen_tls = listen_tls.iter().map(|text| text.parse().unwrap()).collect();
        TlsListenerFlags { listen_tls, redirect_https, redirect_except: Vec::new() }
    }

    #[test]
    fn a_certificate_is_for_the_tls_listeners_or_else_for_all() {
        let [a, b]: [Address; 2] = ["127.0.0.1:80", "127.0.0.1:443"].map(|a| a.parse().unwrap());
        let listen = [a.clone()];
        let (none, both) = (flags(&[], Redirect::Off), flags(&["127.0.0.1:443"], Redirect::Off));
        assert_eq!(none.split(&listen, false).unwrap(), (vec![a.clone()], vec![]));
        assert_eq!(none.split(&listen, true).unwrap(), (vec![], vec![a.clone()]));
        assert_eq!(both.split(&listen, true).unwrap(), (vec![a], vec![b.clone()]));
        assert_eq!(both.split(&[], true).unwrap(), (vec![], vec![b]));
        let error = both.split(&listen, false).unwrap_err().to_string();
        assert!(error.contains("--tls-cert"), "{error}");
    }

    #[test]
    fn a_redirect_needs_requests_and_a_port() {
        let plain: [Address; 1] = ["127.0.0.1:80".parse().unwrap()];
        let error = |flags: TlsListenerFlags, plain: &[Address], has_tls| {
            flags.split(plain, has_tls).unwrap_err().to_string()
        };
        let on = || Redirect::ToListener;
        assert!(error(flags(&[], on()), &plain, false).contains("no port"));
        assert!(error(flags(&[], on()), &plain, true).contains("all listeners have TLS"));
        assert!(error(flags(&["unix:/run/a"], on()), &plain, true).contains("no port"));
        assert!(flags(&["127.0.0.1:443"], on()).split(&plain, true).is_ok());
        assert!(flags(&[], Redirect::ToPort(443)).split(&plain, false).is_ok(), "TLS elsewhere");
    }

    #[test]
    fn a_redirect_is_a_switch_or_a_port() {
        assert_eq!(redirect("8443"), Ok(Redirect::ToPort(8443)));
        assert_eq!(
            (redirect("true"), redirect("false")),
            (Ok(Redirect::ToListener), Ok(Redirect::Off))
        );
        for invalid in ["0", "65536", "yes", ""] {
            assert!(redirect(invalid).is_err(), "{invalid}");
        }
    }
}
