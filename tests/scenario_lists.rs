//! Captures of several matches: later steps use one at random, by number, or their count.

use std::collections::BTreeMap;

use serde_json::json;

use crate::harness::Scratch;
use crate::harness::executable;
use crate::harness::web::Web;

const ITEMS: &str = r#"{"items":[{"id":"a/1"},{"id":null},{"id":"b&2"},{"id":3}],"few":["x"]}"#;

#[test]
fn later_steps_use_the_matches_of_a_capture() {
    let web = Web::start(|got| match got.target.as_str() {
        "/items" => (200, vec![], ITEMS.to_owned()),
        _ => (200, vec![], "<li>1</li><li>2</li>".to_owned()),
    });
    let text = format!(
        "version = 1\ntarget = 'http://{}'\nusers = 2\npasses = 100\nseed = 5\n[[flows]]\n\
         [[flows.steps]]\nurl = '/items'\n[flows.steps.capture]\n\
         ids = {{ json = '$.items[*].id', take = 'all' }}\n\
         one = {{ json = '$.items[*].id', take = 'random' }}\n\
         first = {{ json = '$.items[*].id' }}\n\
         [[flows.steps]]\nurl = '/random/{{{{url random ids}}}}'\n\
         json = {{ id = '{{{{random ids}}}}', third = '{{{{ids[2]}}}}', count = '{{{{count ids}}}}' }}\n\
         capture = {{ lines = {{ regex = '<li>(.)', take = 'all' }} }}\n\
         [[flows.steps]]\nurl = '/{{{{url one}}}}/{{{{url first}}}}/{{{{lines[1]}}}}'\n",
        web.address
    );
    let scenario = Scratch::new("lists.toml", &text);
    let finished = executable::run(&["load", scenario.path(), "--json", "-"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let (mut random, mut taken) = (BTreeMap::new(), BTreeMap::new());
    for got in web.got() {
        if let Some(id) = got.target.strip_prefix("/random/") {
            let body: serde_json::Value = serde_json::from_str(&got.body).unwrap();
            let same = body["id"].as_str().unwrap().replace('/', "%2F").replace('&', "%26");
            assert_eq!((id, &body["third"], &body["count"]), (&*same, &json!("3"), &json!("3")));
            *random.entry(id.to_owned()).or_insert(0) += 1;
        } else if let Some(id) = got.target.strip_suffix("/a%2F1/2") {
            *taken.entry(id.trim_start_matches('/').to_owned()).or_insert(0) += 1;
        } else {
            assert_eq!(got.target, "/items");
        }
    }
    for counts in [random, taken] {
        let names: Vec<&str> = counts.keys().map(String::as_str).collect();
        assert_eq!(names, ["3", "a%2F1", "b%262"]);
        // 200 draws at a third: five standard deviations are 33.
        assert!(counts.values().all(|count| (33..=100).contains(count)), "{counts:?}");
        assert_eq!(counts.values().sum::<u64>(), 200);
    }
}

#[test]
fn lists_that_are_too_short_or_too_long_fail_the_capture() {
    let long = format!("[{}]", vec!["1234567"; 6_000].join(","));
    let web = Web::start(move |got| match got.target.as_str() {
        "/few" => (200, vec![], ITEMS.to_owned()),
        "/long" => (200, vec![], long.clone()),
        _ => (200, vec![], "[]".to_owned()),
    });
    for (path, query, used, code) in [
        ("/few", "$.few[*]", "l[0]", 0),
        ("/few", "$.few[*]", "l[1]", 1),
        ("/none", "$[*]", "count l", 1),
        ("/long", "$[*]", "l[0]", 1),
        ("/long", "$[:3000]", "l[2999]", 0),
    ] {
        let text = format!(
            "version = 1\ntarget = 'http://{}'\npasses = 1\n[[flows]]\n[[flows.steps]]\n\
             url = '{path}'\ncapture = {{ l = {{ json = '{query}', take = 'all' }} }}\n\
             [[flows.steps]]\nurl = '/{{{{{used}}}}}'\n",
            web.address
        );
        let scenario = Scratch::new("short-lists.toml", &text);
        let finished = executable::run(&["load", scenario.path(), "--json", "-"]);
        assert_eq!(finished.code, Some(code), "{path} {used}: {finished:?}");
        let checks = &finished.json()["flows"][0]["steps"][0]["checks"][0];
        assert_eq!(checks["failed"], code, "{path} {used}: {checks}");
    }
}
