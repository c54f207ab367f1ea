//! The paths under `/api/` that the listener leaves to the program. `openapi.json` describes them all, and a
//! test compares it with this table.

use admin::{ApiRequest, Reply};

use super::Control;

/// The description of all paths, in OpenAPI 3.1.
const OPENAPI: &str = include_str!("openapi.json");

/// Answers a request, given the part of its path that stands for the name in braces.
type Answer = fn(&Control, &str, &ApiRequest<'_>) -> Reply;

/// Each path and what answers it; a name in braces is what is between the text before and after it.
const PATHS: [(&str, Answer); 6] = [
    ("/api/topics", |control, _, request| control.top_topics(request)),
    ("/api/connections/{id}", Control::connection),
    ("/api/history/{topic}", Control::topic_history),
    ("/api/presence/{topic}/users", Control::presence),
    ("/api/cluster", |control, _, request| control.cluster(request)),
    ("/api/openapi.json", |_, _, request| openapi(request)),
];

/// The paths.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    PATHS.into_iter().map(|(path, _)| path)
}

/// Answers a request; `None` if there is no such path.
pub(super) fn answer(control: &Control, request: &ApiRequest<'_>) -> Option<Reply> {
    PATHS.into_iter().find_map(|(path, answer)| {
        let name = match path.split_once('{') {
            Some((before, rest)) => {
                let after = rest.split_once('}').map_or("", |(_, after)| after);
                request.path.strip_prefix(before)?.strip_suffix(after)?
            }
            None => (request.path == path).then_some("")?,
        };
        Some(answer(control, name, request))
    })
}

fn openapi(request: &ApiRequest<'_>) -> Reply {
    if request.method != "GET" {
        return Reply::error(405, "method_not_allowed", "expected GET /api/openapi.json");
    }
    Reply { status: 200, content_type: "application/json", body: OPENAPI.as_bytes().to_vec() }
}
