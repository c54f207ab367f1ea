//! The order of routes, without Node.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

#[path = "../src/router.rs"]
mod router;

use router::Router;

/// All routes that fit, in order.
fn all(router: &Router, method: &str, path: &str) -> Vec<u32> {
    let mut spans = Vec::new();
    (0..10).map_while(|skip| router.find(method, path, skip, &mut spans)).collect()
}

#[test]
fn text_is_preferred_to_parameters_and_those_to_the_rest() {
    let mut router = Router::default();
    router.add(None, "/*", 0, false);
    router.add(Some("GET"), "/*", 1, false);
    router.add(Some("GET"), "/:name", 2, false);
    router.add(Some("GET"), "/a", 3, false);
    router.add(Some("GET"), "/a/:x/b", 4, false);
    assert_eq!(all(&router, "GET", "/a"), [3, 2, 1, 0]);
    assert_eq!(all(&router, "POST", "/a"), [0]);
    assert_eq!(all(&router, "GET", "/"), [1, 0]);
    assert_eq!(all(&router, "GET", "/a/z/b"), [4, 1, 0]);
    assert_eq!(all(&router, "GET", "/a/"), [1, 0]);
}

#[test]
fn upgrades_come_before_plain_routes_of_the_same_pattern() {
    let mut router = Router::default();
    router.add(Some("GET"), "/x", 0, false);
    router.add(Some("GET"), "/x", 1, true);
    assert_eq!(all(&router, "GET", "/x"), [1, 0]);
}

#[test]
fn a_route_replaces_one_of_the_same_pattern_without_parameters() {
    let mut router = Router::default();
    for (route, upgrades) in [(0, false), (1, true), (2, true), (3, false)] {
        router.add(Some("GET"), "/x", route, upgrades);
        router.add(Some("GET"), "/:x", 10 + route, upgrades);
    }
    assert_eq!(all(&router, "GET", "/x"), [2, 3, 11, 12, 10, 13]);
}

#[test]
fn parameters_are_where_they_are_in_the_path() {
    let mut router = Router::default();
    router.add(Some("GET"), "/u/:id/p/:post", 7, false);
    let mut spans = Vec::new();
    let path = "/u/42/p/abc";
    assert_eq!(router.find("GET", path, 0, &mut spans), Some(7));
    let values: Vec<_> = spans.iter().map(|&(a, b)| &path[a as usize..b as usize]).collect();
    assert_eq!(values, ["42", "abc"]);
    assert_eq!(router.find("GET", "/u//p/abc", 0, &mut spans), None);
    assert_eq!(router.find("GET", "/u/1/p/2/3", 0, &mut spans), None);
}

#[test]
fn a_rest_needs_a_segment_even_an_empty_one() {
    let mut router = Router::default();
    router.add(Some("GET"), "/files/*", 1, false);
    assert_eq!(all(&router, "GET", "/files/"), [1]);
    assert_eq!(all(&router, "GET", "/files/a/b"), [1]);
    assert_eq!(all(&router, "GET", "/files"), [0; 0]);
}
