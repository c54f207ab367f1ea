//! Scenario files: valid ones are parsed, errors name the line and the key.

use super::*;

const STEP: &str = "[[flows]]\n[[flows.steps]]\nurl = '/'\n";

fn parse(text: &str) -> Result<Experiment> {
    Experiment::parse(text, "x.toml", Path::new("."), &Overrides::default())
}

fn wrong(text: &str) -> String {
    format!("{:#}", parse(text).unwrap_err())
}

#[test]
fn errors_name_the_line_the_key_and_the_nearest_known_key() {
    let top = "version = 1\ntarget = 'http://127.0.0.1:1'\n";
    let in_step = |more: &str| format!("{top}{STEP}{more}");
    for (text, parts) in [
        (STEP.to_owned(), &["version", "needs"][..]),
        ("version = 2".to_owned(), &["line 1", "version 2", "expected 1"]),
        ("version = ".to_owned(), &["x.toml", "1"]),
        (format!("{top}usres = 5\n{STEP}"), &["x.toml, line 3", "no key usres", "mean users?"]),
        (format!("{top}users = 'many'\n{STEP}"), &["line 3", "users", "10k"]),
        (format!("{top}stages = ['30s:1', 'x']\n{STEP}"), &["line 3", "stages", "30s:10k"]),
        (format!("{top}thresholds = ['p98<1s']\n{STEP}"), &["line 3", "p999"]),
        (
            format!("{top}[connect]\nporxy = 'x'\n{STEP}"),
            &["line 4", "[connect] has no key porxy", "proxy"],
        ),
        (format!("{top}[connect]\nproxy = 'https://a'\n{STEP}"), &["line 4", "invalid HTTP proxy"]),
        (
            format!("{top}[connect]\nproxy = 'a:1'\nunix_socket = 'b'\n{STEP}"),
            &["line 3", "exclude each other"],
        ),
        (format!("{top}[connect]\nresolve = ['a:1']\n{STEP}"), &["line 4", "HOST:PORT:ADDRESS"]),
        (format!("{top}[connect]\ncert = 'a.pem'\n{STEP}"), &["line 3", "set together"]),
        (
            format!("{top}[[feeds]]\nname = 'a'\nfile = 'nothing.csv'\n{STEP}"),
            &["line 5", "nothing.csv"],
        ),
        (format!("version = 1\n{STEP}"), &["line 4", "no target"]),
        (top.to_owned(), &["[[flows]]"]),
        (format!("{top}[[flows]]\nweigth = 2\n"), &["line 4", "weigth", "weight"]),
        (format!("{top}[[flows]]\n"), &["line 3", "a step that is not once"]),
        (in_step("once = true"), &["line 3", "once"]),
        (in_step("hedaers = {}"), &["line 6", "hedaers", "headers"]),
        (in_step("method = 'get'"), &["line 6", "method", "GET"]),
        (in_step("think = '5'"), &["line 6", "think", "500ms"]),
        (in_step("body = '{{seqq}}'"), &["line 6", "{{seqq}}", "{{seq}}"]),
        (in_step("body = '{{seq'"), &["line 6", "not closed"]),
        (in_step("body = 'a'\njson = {}"), &["line 4", "one body"]),
        (in_step("tags = { step = 'a' }"), &["line 6", "cannot be named step"]),
        (in_step("tags = { 'a:b' = 'a' }"), &["line 6", "invalid tag"]),
        (in_step("body_base64 = 'a!'"), &["line 6", "base64"]),
        (in_step("body_file = 'no-such-file'"), &["line 6", "no-such-file"]),
        (in_step("multipart = []"), &["line 4", "at least one part"]),
        (in_step("multipart = [{ value = 'a' }]"), &["line 6", "needs name"]),
        (in_step("multipart = [{ name = 'a' }]"), &["line 6", "one of value and file"]),
        (in_step("multipart = [{ name = '{{seq}}', value = 'a' }]"), &["line 6", "templates"]),
        (in_step("multipart = [{ name = 'a', value = 'a', type = 'png' }]"), &["line 6", "image/png"]),
        (
            in_step("headers = { content-type = 'a/b' }\nmultipart = [{ name = 'a', value = 'b' }]"),
            &["line 6", "Content-Type", "boundary"],
        ),
        (in_step("headers = { 'a b' = 'c' }"), &["line 6", "name of a header"]),
        (in_step("headers = { a = \"b\\nc\" }"), &["line 6", "is not allowed here"]),
        (in_step("capture = { a = { jsno = '$.a' } }"), &["line 6", "jsno", "json"]),
        (in_step("capture = { a = { json = 'a' } }"), &["line 6", "JSONPath"]),
        (in_step("capture = { a = { json = '$.a', take = 'last' } }"), &["line 6", "random or all"]),
        (in_step("capture = { a = { header = 'a', take = 'all' } }"), &["line 6", "json or regex"]),
        (
            in_step(
                "capture = { a = { json = '$.a', take = 'all' } }\n[[flows.steps]]\nurl = '/{{a}}'",
            ),
            &["line 8", "a is a list", "{{random a}}"],
        ),
        (
            in_step(
                "capture = { a = { json = '$.a', take = 'all' } }\n[[flows.steps]]\nurl = '/'\n\
                 capture = { a = { json = '$.a' } }",
            ),
            &["line 9", "as a list and as a single value"],
        ),
        (in_step("capture = { a = {} }"), &["line 6", "header, json or regex"]),
        (in_step("capture = { a = { json = '$.a', header = 'a' } }"), &["line 6", "not two"]),
        (in_step("[[flows.steps.checks]]\nstauts = 200"), &["line 7", "stauts", "status"]),
        (in_step("[[flows.steps.checks]]\nstatus = 'ok'"), &["line 7", "2xx"]),
        (in_step("[[flows.steps.checks]]\nsize = '64'"), &["line 7", "bound"]),
        (in_step("[[flows.steps.checks]]\nlatency = '<5'"), &["line 7", "500ms"]),
        (in_step("[[flows.steps.checks]]\nregex = '('"), &["line 7", "regular expression"]),
        (in_step("[[flows.steps.checks]]\nis = 'a'"), &["line 6", "need header"]),
        (in_step("send = 'a'"), &["line 4", "one thing", "url and send exclude"]),
        (in_step("receive = {}"), &["line 4", "receive cannot be combined"]),
        (in_step("[[flows.steps]]"), &["line 6", "needs one of", "connect", "receive"]),
        (in_step("[[flows.steps]]\nsend = 'a'"), &["line 6", "no socket", "connect"]),
        (in_step("[[flows.steps]]\nconnect = '/a'\nbody = 'a'"), &["line 6", "body", "connect"]),
        (in_step("[[flows.steps]]\nconnect = 'tcp://a'"), &["line 7", "wss://"]),
        (
            in_step("[[flows.steps]]\nconnect = '/'\n[[flows.steps]]\nsubscribe = { a = 'b' }"),
            &["line 8", "cable"],
        ),
        (
            in_step("[[flows.steps]]\ncable = '/'\n[[flows.steps]]\nperform = { a = 'b' }"),
            &["line 8", "no channel"],
        ),
        (
            in_step("[[flows.steps]]\nconnect = '/'\n[[flows.steps]]\nreceive = { txet = 'a' }"),
            &["line 9", "txet", "text"],
        ),
        (
            in_step("[[flows.steps]]\nconnect = '/'\n[[flows.steps]]\nreceive = { is = 'a' }"),
            &["line 9", "json or regex"],
        ),
        (in_step("[[flows.steps]]\nmeet = true"), &["meet", "[group]"]),
        (in_step("repeat = 0"), &["line 6", "repeat"]),
        (format!("{top}[[flows]]\nrole = 'boss'\n"), &["line 4", "sender, receiver or both"]),
        (format!("{top}[group]\nkind = '2:2'\n{STEP}"), &["line 4", "1:N"]),
        (format!("{top}[group]\nkind = 'N:N'\n{STEP}"), &["line 3", "size"]),
        (format!("{top}[group]\nkind = '1:1'\nsize = 3\n{STEP}"), &["line 3", "2 users"]),
        (format!("{top}[group]\nkind = '1:1'\n{STEP}"), &["{{stamp}}"]),
        (format!("{top}users = 2\n[group]\nkind = '1:1'\n{STEP}body = '{{{{stamp}}}}'\n"), &["meet"]),
        (
            format!(
                "{top}users = 3\n[group]\nkind = '1:1'\n{STEP}body = '{{{{stamp}}}}'\n[[flows.steps]]\nmeet = true\n"
            ),
            &["3 users", "groups of 2"],
        ),
        (
            format!(
                "{top}users = 2\n[group]\nkind = '1:1'\n[[flows]]\nrole = 'sender'\n[[flows.steps]]\nurl = '/'\nbody = '{{{{stamp}}}}'\n[[flows.steps]]\nmeet = true\n"
            ),
            &["no flow", "receiver"],
        ),
        (
            format!(
                "{top}users = 4k\n[group]\nkind = 'N:N'\nsize = 2000\n{STEP}body = '{{{{stamp}}}}'\n[[flows.steps]]\nmeet = true\n"
            )
            .replace("4k", "'4k'"),
            &["8000000 pairs", "smaller"],
        ),
        (in_step("[[flows.steps.checks]]\nstatus = 200\nsize = '>1'"), &["line 6", "one of"]),
        (in_step("[[rounds]]\nusers = 0"), &["line 7", "at least 1"]),
        (in_step("[[rounds]]\nrate = 5\npasses = 2"), &["line 6", "rate and passes"]),
        (in_step("[[flows.steps]]\nulr = '/'"), &["ulr", "did you mean url?"]),
        (in_step("[[flows.steps]]\nurl = 'http://{{seq}}/'"), &["line 7", "host must be fixed"]),
        (in_step("[[flows.steps]]\nurl = '/a b'"), &["line 7", "is not allowed here"]),
    ] {
        let error = wrong(&text);
        assert!(parts.iter().all(|part| error.contains(part)), "{text}\n{error}");
    }
}

#[test]
fn error_for_a_scenario_of_prove_names_that_command() {
    let error = wrong("version = 1\nconnections = '1k'\nhold = '5s'\n");
    assert!(error.contains("standfast prove x.toml"), "{error}");
}

#[test]
fn capture_is_known_in_later_steps_of_its_flow() {
    let top =
        "version = 1\ntarget = 'http://127.0.0.1:1'\n[[flows]]\n[[flows.steps]]\nurl = '/a'\n";
    let capture = "capture = { id = { header = 'X-Id' } }\n";
    let uses = "[[flows.steps]]\nurl = '/b/{{id}}'\n";
    let both = parse(&format!("{top}{capture}{uses}")).unwrap();
    assert_eq!(both.rounds[0].scenario.captures, 1);
    let early = wrong(&format!("{top}{uses}[[flows.steps]]\nurl = '/c'\n{capture}"));
    assert!(early.contains("line 7") && early.contains("later steps of their flow"), "{early}");
    let foreign = wrong(&format!("{top}{capture}[[flows]]\n{uses}"));
    assert!(foreign.contains("{{id}}"), "{foreign}");
}

#[test]
fn every_key_of_the_top_level_and_of_rounds_is_read() {
    let text = "version = 1\nabout = 'it'\ntarget = 'http://127.0.0.1:1/api/'\nusers = '2k'\n\
        passes = 3\nthink = '1s'\ntimeout = '2s'\nkeep_alive = false\ncookies = false\n\
        redirects = 4\nseed = 5\nthresholds = ['p99<1s']\n\
        [connect]\nsources = ['127.0.0.2']\nconnect_timeout = '3s'\nresolve = ['a.example:80:127.0.0.9']\n\
        [[flows]]\nname = 'f'\nweight = 6\n[[flows.steps]]\nurl = 'x?y'\n\
        [[flows.steps]]\nname = 'other'\nurl = 'http://a.example'\nthink = '0'\n\
        [[rounds]]\nusers = 7\npasses = 8\nkeep_alive = true\nbeside = 6_395\n[[rounds]]\n";
    let read = parse(text).unwrap();
    assert_eq!((read.about.as_deref(), read.seed, read.thresholds.len()), (Some("it"), Some(5), 1));
    let [first, second] = &read.rounds[..] else { panic!("{read:?}") };
    assert_eq!((first.requests.connections, second.requests.connections), (7, 2_000));
    assert_eq!((first.scenario.passes, second.scenario.passes), (Some(8), Some(3)));
    assert_eq!((first.scenario.close, second.scenario.close), (false, true));
    assert_eq!((first.requests.new_connections, second.requests.new_connections), (false, true));
    assert_eq!((first.beside, second.beside), (Some(6_395.0), None));
    assert_eq!((&first.requests.pace, &second.requests.pace), (&Pace::Closed, &Pace::Closed));
    assert_eq!(first.requests.timeout, Duration::from_secs(2));
    assert_eq!(first.requests.sources.len(), 1);
    assert_eq!(first.requests.connect_timeout, Some(Duration::from_secs(3)));
    assert!(first.requests.follows, "redirects may lead to other hosts");
    let Scenario { endpoints, steps, flows, cookies, redirects, .. } = &*first.scenario;
    assert_eq!((flows[0].weight, flows[0].name.as_str(), *cookies, *redirects), (6, "f", false, 4));
    assert_eq!(endpoints[1].address.to_string(), "127.0.0.9:80");
    assert_eq!((endpoints[1].host.as_str(), steps[1].endpoint), ("a.example", 1));
    assert_eq!((steps[0].think.map(|(least, _)| least.as_secs()), steps[1].think), (Some(1), None));
    assert_eq!((steps[0].name.as_str(), steps[1].name.as_str()), ("GET x?y", "other"));
}

#[test]
fn command_line_overrides_the_file() {
    let overrides = Overrides {
        target: Some("http://127.0.0.3:3".to_owned()),
        users: Some(9),
        duration: Some(Duration::from_secs(4)),
        warm_up: Some(Duration::from_secs(2)),
    };
    let text =
        format!("version = 1\ntarget = 'http://127.0.0.1:1'\nusers = 5\nwarm_up = '9s'\n{STEP}");
    let read = Experiment::parse(&text, "x.toml", Path::new("."), &overrides).unwrap();
    let requests = &read.rounds[0].requests;
    assert_eq!(requests.endpoints[0].address.to_string(), "127.0.0.3:3");
    assert_eq!((requests.connections, requests.duration), (9, Some(Duration::from_secs(4))));
    assert_eq!(requests.warm_up, Duration::from_secs(2));
}

#[test]
fn stages_ramp_users_or_with_a_rate_steps_per_second() {
    let text = |more: &str| {
        format!(
            "version = 1\ntarget = 'http://127.0.0.1:1'\nstages = ['1s:40', '1s:0']\n{more}{STEP}"
        )
    };
    let users = parse(&text("")).unwrap();
    assert!(matches!(&users.rounds[0].requests.pace, Pace::Users(stages) if stages.len() == 2));
    assert_eq!(
        (users.rounds[0].requests.connections, users.rounds[0].requests.duration),
        (40, None)
    );
    let plain = format!("version = 1\ntarget = 'http://127.0.0.1:1'\nrate = '1k'\n{STEP}");
    assert_eq!(parse(&plain).unwrap().rounds[0].requests.pace, Pace::Rate(1_000));
    let rates = parse(&text("rate = 1\nusers = 3\n")).unwrap();
    assert!(matches!(rates.rounds[0].requests.pace, Pace::Rates(_)));
    assert_eq!(rates.rounds[0].requests.connections, 3);
}

#[test]
fn the_example_and_the_built_in_scenarios_are_valid() {
    for text in
        [include_str!("init.toml"), include_str!("../../../../scenarios/go-stress-http.toml")]
    {
        parse(text).unwrap();
    }
    // The commented-out lines are valid too, except those that need a file.
    let shown: String = include_str!("init.toml")
        .lines()
        .skip_while(|line| !line.starts_with("version"))
        .map(|line| line.strip_prefix("# ").unwrap_or(line))
        .filter(|line| {
            !line.contains('.')
                || !["file =", "ca =", "cert =", "key ="].iter().any(|key| line.starts_with(key))
        })
        .filter(|line| !line.starts_with("proxy") && !line.contains("{{env"))
        .filter(|line| {
            !line.starts_with("[[feeds]]")
                && !line.starts_with("name = \"people\"")
                && !line.starts_with("order =")
        })
        .filter(|line| !line.ends_with("."))
        .map(|line| format!("{line}\n"))
        .collect();
    parse(&shown).unwrap_or_else(|error| panic!("{error:#}\n{shown}"));
}

#[test]
fn through_a_proxy_sockets_use_a_tunnel_and_plain_requests_do_not() {
    let text = "version = 1\ntarget = 'http://a.test'\n[connect]\nproxy = '127.0.0.1:1'\n\
                compression = 'shared'\ncompress_above = '2KiB'\n[[flows]]\n\
                [[flows.steps]]\nurl = '/login'\n[[flows.steps]]\nconnect = '/feed'\n\
                [[flows.steps]]\ncable = 'ws://a.test/cable'\n[[flows.steps]]\nurl = '/again'\n";
    let read = parse(text).unwrap();
    let scenario = &read.rounds[0].scenario;
    let numbers: Vec<u8> = scenario.steps.iter().map(|step| step.endpoint).collect();
    assert_eq!(numbers, [0, 1, 1, 0]);
    let routes: Vec<_> = scenario.endpoints.iter().map(|endpoint| &endpoint.route).collect();
    assert!(
        matches!(routes.as_slice(), [load::Route::Forward(_), load::Route::Tunnel(_)]),
        "{routes:?}"
    );
    assert_eq!(scenario.compress_above, Some(2_048));
    let straight = parse(&text.replace("proxy = '127.0.0.1:1'\n", "")).unwrap();
    assert_eq!(straight.rounds[0].scenario.endpoints.len(), 1);
}

#[test]
fn errors_of_parallel_requests_name_the_line_and_the_key() {
    let top = "version = 1\ntarget = 'http://127.0.0.1:1'\n[[flows]]\n[[flows.steps]]\n";
    let many: String = "{ url = '/' },\n".repeat(65);
    for (step, parts) in [
        ("url = '/'\nparallel = [{ url = '/' }]", &["line 4", "cannot be combined with url"][..]),
        (
            "within = '1s'\nparallel = [{ url = '/' }]",
            &["line 4", "combined with within", "requests"],
        ),
        ("parallel = []", &["line 4", "at least one request"]),
        ("parallel = 5", &["line 5", "[[flows.steps.parallel]]"]),
        ("parallel = [{ url = '/', think = '1s' }]", &["line 5", "has no key think"]),
        ("parallel = [{ method = 'GET' }]", &["line 5", "parallel]] needs url"]),
        ("parallel = [{ url = '/', connect = '/' }]", &["line 5", "has no key connect"]),
        ("once = true\nparallel = [{ url = '/' }, { url = '/' }]", &["line 3", "not once"]),
        (&format!("parallel = [\n{many}]"), &["line 4", "more than 64 steps"]),
        (
            "parallel = [{ url = '/', capture = { a = { json = '$.a' } } }, { url = '/{{a}}' }]",
            &["line 5", "unknown template {{a}}", "later steps"],
        ),
        (
            "parallel = [{ url = '/', capture = { a = { json = '$.a' } } },\n\
             { url = '/', capture = { a = { json = '$.b' } } }]",
            &["line 6", "two requests", "capture a"],
        ),
    ] {
        let error = wrong(&format!("{top}{step}"));
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?}: {error}");
    }
    for limit in ["hosts_per_user = 0", "connections_per_host = 65"] {
        let error = wrong(&format!("{top}url = '/'\n[connect]\n{limit}"));
        assert!(error.contains("line 7") && error.contains("expected"), "{error}");
    }
}

#[test]
fn connections_of_users_to_all_hosts_and_at_the_same_time_are_planned() {
    let parts: String = "{ url = '/part' },\n".repeat(8);
    let steps = format!(
        "[[flows]]\n[[flows.steps]]\nurl = '/'\n[[flows.steps]]\nurl = 'http://127.0.0.1:2/'\n\
         [[flows.steps]]\nparallel = [\n{parts}{{ url = 'http://127.0.0.1:3/', capture = {{ id = {{ \
         json = '$.id' }} }} }}]\n[[flows.steps]]\nurl = '/{{{{id}}}}'\n"
    );
    for (limits, links) in [
        ("", 8),
        ("hosts_per_user = 2", 7),
        ("connections_per_host = 2", 4),
        ("hosts_per_user = 1", 7),
    ] {
        let text = format!(
            "version = 1\ntarget = 'http://127.0.0.1:1'\nusers = 9\n[connect]\n{limits}\n{steps}"
        );
        let experiment = parse(&text).unwrap();
        let requests = &experiment.rounds[0].requests;
        assert_eq!((requests.connections, requests.links), (9, links), "{limits}");
        let parallel: Vec<u8> =
            experiment.rounds[0].scenario.steps.iter().map(|step| step.parallel).collect();
        assert_eq!(parallel, [0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
