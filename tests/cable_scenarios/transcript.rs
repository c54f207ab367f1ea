//! The lines of a transcript. Each is a step, except `app` lines, which say what the application answers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// One line.
#[derive(Debug)]
pub(super) enum Step {
    /// `app CALL EXPECTED => ANSWER`: the first such call whose body has at least EXPECTED.
    App { call: String, expected: Value, answer: Value },
    /// `N connects {"path": …, "headers": …, "protocol": …}`.
    Connects(usize, Value),
    /// `N says COMMAND`.
    Says(usize, Value),
    /// `N hears MESSAGE`: the next one has at least these fields.
    Hears(usize, Value),
    /// `N hears-all [MESSAGE, …]`: the next ones in any order.
    HearsAll(usize, Vec<Value>),
    /// `N hears-ping`: a ping whose time is later than that of the one before, if there was one.
    HearsPing(usize),
    /// `N hears-nothing`: nothing has come that no line names.
    HearsNothing(usize),
    /// `N closed CODE`: the server closes it.
    Closed(usize, u16),
    /// `N leaves`: it disappears.
    Leaves(usize),
    /// `broadcast {"stream": …, "data": …}`, or `{"command": …}`.
    Broadcast(Value),
    /// `subscriptions N`: so many are there, soon.
    Subscriptions(u32),
    /// `stored N`: so many sessions can be resumed, soon.
    Stored(u32),
    /// `called N`: so many `app` lines were used, soon.
    Called(usize),
    /// `restart`.
    Restart,
    /// `next-second`: later broadcasts are after the time of `%second`.
    NextSecond,
}

impl Step {
    /// Parses lines, in which `$NAME` stands for a text of JSON; empty ones and those with `#` are for
    /// readers.
    pub(super) fn parse_all(script: &str, texts: &BTreeMap<String, String>) -> Vec<Step> {
        let mut script = script.to_owned();
        // Longer names first: one may begin with another.
        for (name, text) in texts.iter().rev() {
            script = script.replace(&format!("${name}"), &json!(text).to_string());
        }
        let lines = script.lines().map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(Step::parse).collect()
    }

    fn parse(line: &str) -> Step {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        match first {
            "app" => {
                let (call, rest) = rest.split_once(' ').expect("a call and what is expected");
                let (expected, answer) = rest.split_once(" => ").expect("an answer");
                let call = call.to_owned();
                Step::App { call, expected: json(expected), answer: json(answer) }
            }
            "broadcast" => Step::Broadcast(json(rest)),
            "subscriptions" => Step::Subscriptions(rest.parse().expect("a number")),
            "stored" => Step::Stored(rest.parse().expect("a number")),
            "called" => Step::Called(rest.parse().expect("a number")),
            "restart" => Step::Restart,
            "next-second" => Step::NextSecond,
            client => {
                let client = client.parse().unwrap_or_else(|_| panic!("unknown step: {line}"));
                let (verb, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                Step::of_client(client, verb, rest)
            }
        }
    }

    fn of_client(client: usize, verb: &str, rest: &str) -> Step {
        match verb {
            "connects" => Step::Connects(client, json(if rest.is_empty() { "{}" } else { rest })),
            "says" => Step::Says(client, json(rest)),
            "hears" => Step::Hears(client, json(rest)),
            "hears-all" => {
                let all = json(rest);
                Step::HearsAll(client, all.as_array().expect("an array").clone())
            }
            "hears-ping" => Step::HearsPing(client),
            "hears-nothing" => Step::HearsNothing(client),
            "closed" => Step::Closed(client, rest.parse().expect("a close code")),
            "leaves" => Step::Leaves(client),
            _ => panic!("unknown step: {client} {verb} {rest}"),
        }
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
