//! [`HttpsRedirect`]: the answer to a plain request that is to be made over https.

use wire::http::{PlainPath, Request};

use crate::{ConnId, Core, Handler, Response, Sys};

/// The redirect of plain requests to https.
#[derive(Clone, Debug, Default)]
pub struct HttpsRedirect {
    /// The port to redirect to. Default: that of the first TCP listener with TLS.
    pub port: Option<u16>,
    /// Paths that are not redirected.
    pub except: Vec<PlainPath>,
}

impl HttpsRedirect {
    /// The answer to a request that came neither over TLS nor through a trusted proxy that reports
    /// TLS: 308, or 400 if it names no usable host. `None` for any other request, for an excepted
    /// path, for CONNECT, which has no URL, and on UNIX sockets: their clients are programs of this
    /// machine, such as a proxy that ends TLS. `listener_port` is that of the listener with TLS.
    #[must_use]
    pub fn answer<S: Sys, H: Handler>(
        &self,
        core: &Core<S, H>,
        id: ConnId,
        request: &Request<'_, '_>,
        listener_port: Option<u16>,
    ) -> Option<Response> {
        let port = self.port.or(listener_port)?;
        let path = request.path();
        let stays = request.method == "CONNECT"
            || core.came_over_tls(id, request)
            || self.except.iter().any(|plain| plain.covers(path))
            || core.came_by_unix_socket(id);
        if stays {
            return None;
        }
        // A client that asked for a WebSocket may have sent frames already, which are no requests.
        let closes = |response| Response { close: true, ..response };
        Some(closes(match request.https_url(port) {
            Some(url) => {
                let headers = vec![("Location".into(), url.into())];
                Response { headers, ..Response::text(308, "This server is at https.\n") }
            }
            None => Response::text(400, "This request names no host to redirect it to.\n"),
        }))
    }
}
