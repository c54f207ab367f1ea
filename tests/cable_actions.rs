//! `perform` in scenarios, against a channel of Rails' Action Cable on Puma.

use serde_json::{Value, json};

use crate::harness::rails::Rails;
use crate::scenario_flows::run;

const FLOW: &str = "
version = 1
target = 'http://HOST'
users = 3
passes = 4
[[flows]]
[[flows.steps]]
cable = '/cable'
once = true
[[flows.steps]]
subscribe = { channel = 'NewsChannel', stream_name = 'news-{{user}}' }
once = true
[[flows.steps]]
name = 'ask'
perform = { action = 'echo', text = { answer = 'to {{user}}, {{pass}}', of = 'a \"channel\"' } }
receive = { contains = 'to {{user}}, {{pass}}' }
checks = [{ json = '$.of', is = 'a \"channel\"' }]
capture = { heard = { json = '$.answer' } }
[[flows.steps]]
name = 'again'
perform = { action = 'echo', text = 'once more {{heard}}' }
receive = { contains = 'once more to {{user}}, {{pass}}' }
";

fn steps(document: &Value) -> Vec<Value> {
    document["flows"][0]["steps"].as_array().unwrap().clone()
}

#[test]
fn perform_sends_an_action_and_receives_its_answer() {
    let Some(rails) = Rails::start() else { return };
    let host = rails.address.to_string();
    let (_, document) = run(&FLOW.replace("HOST", &host), 0);
    let steps_of = steps(&document);
    let results: Vec<_> =
        steps_of.iter().map(|step| (&step["requests"], &step["failed"])).collect();
    let [three, twelve, none] = [json!(3), json!(12), json!(0)];
    let expected = [(&three, &none), (&three, &none), (&twelve, &none), (&twelve, &none)];
    assert_eq!(results, expected, "{document}");
    // One check and one capture.
    for check in steps_of[2]["checks"].as_array().unwrap() {
        assert_eq!((&check["passed"], &check["failed"]), (&twelve, &none), "{document}");
    }
    assert_eq!(document["sockets"]["received"], 24, "each is answered exactly once: {document}");
    assert_eq!(steps_of[2]["latency"]["count"], 12, "{document}");
    // An unknown action of the channel gets no answer.
    let text = FLOW.replace("HOST", &host).replace("action = 'echo'", "action = 'shout'");
    let text = text.replace("passes = 4", "passes = 1\ntimeout = '300ms'");
    let (_, document) = run(&text, 1);
    assert_eq!(steps(&document)[2]["errors"], json!({"timeout": 3}), "{document}");
    assert_eq!(document["sockets"]["received"], 0, "{document}");
}
