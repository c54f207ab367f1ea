//! [`Table`]: which route a request is for.

use std::sync::Arc;

use engine::Answer;

use crate::pattern::Pattern;
use crate::{Exchange, Reply, Request, Response};

/// A function that answers a plain request at once.
pub(crate) type Respond = Arc<dyn Fn(&Request<'_>) -> Response + Send + Sync>;
/// What lets another thread answer it.
pub(crate) type Ask = Arc<dyn Fn(&Request<'_>, Reply) + Send + Sync>;
/// What begins an exchange.
pub(crate) type Begin =
    Arc<dyn Fn(&Request<'_>) -> Result<Box<dyn Exchange>, Response> + Send + Sync>;

/// What answers a plain request.
pub(crate) enum Service {
    Now(Respond),
    Later(Ask),
    Exchange(Begin),
}

pub(crate) struct Entry {
    pub(crate) pattern: Pattern,
    pub(crate) target: Target,
}

pub(crate) enum Target {
    /// The route of WebSockets with this index.
    Socket(usize),
    Http {
        method: Box<str>,
        /// Longest body; `None` if it reads none.
        body_bytes: Option<u64>,
        service: Service,
    },
}

/// The routes of a server, those that are tried first in front.
#[derive(Default)]
pub(crate) struct Table(Vec<Entry>);

impl Table {
    /// # Errors
    /// A pattern that is invalid, or has the same form as another, for people.
    pub(crate) fn add(&mut self, path: &str, target: Target) -> Result<(), String> {
        let pattern = Pattern::parse(path)?;
        let same = |other: &Entry| match (&other.target, &target) {
            (Target::Socket(_), Target::Socket(_)) => true,
            (Target::Http { method: one, .. }, Target::Http { method: other, .. }) => one == other,
            _ => false,
        };
        if self.0.iter().any(|other| other.pattern.is_same(&pattern) && same(other)) {
            return Err(format!("two routes for \"{path}\": expected one"));
        }
        self.0.push(Entry { pattern, target });
        Ok(())
    }

    /// Brings the routes into the order in which they are tried.
    pub(crate) fn sort(&mut self) {
        self.0.sort_by(|one, other| one.pattern.compare(&other.pattern));
    }

    /// The route of WebSockets for a path, by its index.
    pub(crate) fn socket(&self, path: &str) -> Option<(&Pattern, usize)> {
        self.0.iter().find_map(|entry| match entry.target {
            Target::Socket(index) if entry.pattern.matches(path) => Some((&entry.pattern, index)),
            _ => None,
        })
    }

    /// Where the route for a plain request is in the table, or the answer if there is none.
    pub(crate) fn http(&self, method: &str, path: &str) -> Result<usize, Answer> {
        let mut allowed: Vec<&str> = Vec::new();
        let mut socket = false;
        for (index, entry) in self.0.iter().enumerate() {
            if !entry.pattern.matches(path) {
                continue;
            }
            match &entry.target {
                Target::Socket(_) => socket = true,
                Target::Http { method: own, .. } => {
                    if **own == *method || **own == *"GET" && method == "HEAD" {
                        return Ok(index);
                    }
                    allowed.push(own);
                    if **own == *"GET" {
                        allowed.push("HEAD");
                    }
                }
            }
        }
        if !allowed.is_empty() {
            let response = match method {
                "OPTIONS" => Response::new(204),
                _ => Response::text(405, "This path does not have that method.\n"),
            };
            allowed.push("OPTIONS");
            return Err(Answer::Respond(response.header("Allow", allowed.join(", ")).0));
        }
        // The engine answers a request that is no handshake with 426.
        let missing = || Answer::Respond(Response::text(404, "There is nothing at this path.\n").0);
        Err(if socket { Answer::Upgrade(None) } else { missing() })
    }

    pub(crate) fn entry(&self, index: usize) -> Option<&Entry> {
        self.0.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(method: &str) -> Target {
        let service = Service::Now(Arc::new(|_| Response::new(204)));
        Target::Http { method: method.into(), body_bytes: None, service }
    }

    fn status(answer: Answer) -> u16 {
        match answer {
            Answer::Respond(response) => response.status,
            Answer::Upgrade(None) => 426,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_method_and_the_most_specific_path_decide() {
        let mut table = Table::default();
        table.add("/{any}", http("GET")).unwrap();
        table.add("/a", http("GET")).unwrap();
        table.add("/a", http("POST")).unwrap();
        table.add("/ws", Target::Socket(0)).unwrap();
        table.sort();
        let at = |method, path| table.http(method, path).map_err(status);
        let exact = at("GET", "/a").unwrap();
        assert_ne!(exact, at("GET", "/b").unwrap());
        assert_eq!(at("HEAD", "/a"), Ok(exact));
        assert_ne!(at("POST", "/a").unwrap(), exact);
        assert_eq!((at("PUT", "/a"), at("GET", "/a/b")), (Err(405), Err(404)));
        assert_eq!(at("OPTIONS", "/a"), Err(204));
        assert!(table.socket("/ws").is_some() && table.socket("/a").is_none());
        assert!(table.add("/a", http("GET")).unwrap_err().contains("/a"));
        assert!(table.add("/{other}", http("GET")).is_err());
    }

    #[test]
    fn a_plain_request_for_a_websocket_is_told_so() {
        let mut table = Table::default();
        table.add("/ws", Target::Socket(0)).unwrap();
        assert_eq!(table.http("GET", "/ws").map_err(status), Err(426));
    }
}
