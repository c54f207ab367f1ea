//! Rails' own adapter for Redis: broadcasts and disconnects of an untouched application, and what is
//! subscribed for it.

use rustix::process::Signal;
use serde_json::json;

use crate::harness::brokers::{Broker, RedisClient, Reply};
use crate::harness::cable::{Cable, Extended};
use crate::harness::eventually;
use crate::harness::peer::{self, Runtime};
use crate::harness::server::Server;
use crate::harness::signing::{SECRET, hs256, now_unix_s};
use crate::harness::socket::Socket;

/// Debian's Rails with its client of Redis, and Node.js.
const RAILS: Runtime = Runtime {
    program: "/usr/bin/ruby",
    check: &["-e", "gem 'actioncable', '~> 6.1'; gem 'redis', '< 5'"],
};

/// A token of a connection that Rails identifies by a record.
fn token(user: u64) -> String {
    let identifiers = json!({"current_user": format!("gid://app/User/{user}")}).to_string();
    hs256(SECRET, &json!({"ext": identifiers, "exp": now_unix_s() + 60}))
}

fn serve(redis: &Broker, prefix: &str) -> Server {
    serve_with(redis, prefix, &[])
}

fn serve_with(redis: &Broker, prefix: &str, further: &[&str]) -> Server {
    let url = redis.url("");
    let flags = ["--broadcast-adapter", "action-cable", "--redis-url", &url, "--public-streams"];
    let more = ["--action-cable-prefix", prefix, "--max-subscription-bytes", "16MiB"];
    let flags = [&flags[..], &more, further].concat();
    let server = Server::start_with(&flags, &[("STANDFAST_SERVE_SECRET", SECRET)]);
    eventually("the server is ready", || server.admin_get("/ready").status == 200);
    server
}

/// The channels that somebody subscribes to.
fn channels(client: &mut RedisClient) -> Vec<String> {
    let Reply::Many(names) = client.ask(&["PUBSUB", "CHANNELS"]) else { panic!("an array") };
    let name = |reply| match reply {
        Reply::Text(name) => name,
        other => panic!("{other:?}"),
    };
    let mut names: Vec<String> = names.into_iter().map(name).collect();
    names.sort();
    names
}

fn listener(server: &Server, stream: &str) -> Cable {
    let mut cable = Cable::join(server.listen, None).welcomed();
    let wanted = json!({"channel": "$pubsub", "stream_name": stream});
    assert_eq!(cable.subscribe(&wanted), "confirm_subscription");
    cable
}

#[test]
fn an_untouched_rails_app_broadcasts_and_disconnects() {
    let Some(redis) = Broker::redis(&[]) else { return };
    if !peer::is_here(&RAILS, "Action Cable with Redis") {
        return;
    }
    for prefix in ["", "app*production"] {
        let server = serve(&redis, prefix);
        let (public, url) = (format!("ws://{}", server.listen), redis.url(""));
        let args = [public.as_str(), &url, prefix, &token(1), &token(2)];
        let expected = ["connected", "broadcast", "disconnect"];
        peer::works(&peer::NODE, "actioncable_redis.js", &args, &expected);
        let published = server.metrics()["standfast_published_total{source=\"action-cable\"}"];
        assert_eq!(published, 3.0);
    }
}

#[test]
fn only_streams_with_subscribers_are_subscribed() {
    let Some(redis) = Broker::redis(&[]) else { return };
    let mut client = RedisClient::connect(&redis);
    let server = serve(&redis, "app");
    assert!(channels(&mut client).is_empty());
    let mut news = listener(&server, "news");
    let other = listener(&server, "news");
    eventually("one channel", || channels(&mut client) == ["app:news"]);
    for number in 0..1_000 {
        let subscribers = client.number(&["PUBLISH", "app:news", &number.to_string()]);
        assert_eq!(subscribers, 1, "one connection for all clients");
        assert_eq!(news.hear()["message"], number);
    }
    assert_eq!(client.number(&["PUBLISH", "app:others", "1"]), 0);
    // A page that is loaded again costs Redis nothing: the channel lingers.
    drop((news, other));
    eventually("the clients have left", || server.metrics()["standfast_topics"] == 0.0);
    assert_eq!(channels(&mut client), ["app:news"]);
    eventually("the channel is unsubscribed", || channels(&mut client).is_empty());
}

#[test]
fn streams_are_subscribed_again_in_batches_after_redis_was_away() {
    let Some(mut redis) = Broker::redis(&[]) else { return };
    let server = serve(&redis, "");
    let streams = 1_500;
    let mut sockets: Vec<Cable> =
        (0..3).map(|_| Cable::join(server.listen, None).welcomed()).collect();
    for number in 0..streams {
        let wanted = json!({"channel": "$pubsub", "stream_name": number.to_string()});
        assert_eq!(sockets[number % 3].subscribe(&wanted), "confirm_subscription");
    }
    for signal in [None, Some(Signal::STOP)] {
        match signal {
            Some(signal) => redis.signal(signal),
            None => redis.kill(),
        }
        eventually("the server is not ready", || server.admin_get("/ready").status == 503);
        match signal {
            Some(_) => redis.signal(Signal::CONT),
            None => redis.restart(),
        }
        eventually("it is ready again", || server.admin_get("/ready").status == 200);
        let mut client = RedisClient::connect(&redis);
        assert_eq!(channels(&mut client).len(), streams, "all of them, when it is ready");
        for number in 0..streams {
            let name = number.to_string();
            assert_eq!(client.number(&["PUBLISH", &name, &name]), 1);
            assert_eq!(sockets[number % 3].hear()["message"], number);
        }
    }
    let missed = "standfast_broadcast_adapter_missed_total{";
    let metrics = server.metrics();
    let (_, missed) = metrics.iter().find(|(name, _)| name.starts_with(missed)).unwrap();
    assert_eq!(*missed, 2.0 * streams as f64);
}

#[test]
fn the_history_of_a_stream_is_not_complete_over_an_outage_of_redis() {
    let Some(mut redis) = Broker::redis(&[]) else { return };
    let server = serve_with(&redis, "", &["--history", "memory"]);
    let stream = json!({"channel": "$pubsub", "stream_name": "news"}).to_string();
    let mut client = Extended::connect(server.listen, "");
    client.subscribe(&stream);
    assert_eq!(RedisClient::connect(&redis).number(&["PUBLISH", "news", "1"]), 1);
    let first = client.hear();
    let position = json!({"offset": first["offset"], "epoch": first["epoch"]});
    let position = json!({"streams": {"news": position}});
    client.history(&stream, &position);
    assert_eq!(client.hear()["type"], "confirm_history");
    redis.kill();
    eventually("the server is not ready", || server.admin_get("/ready").status == 503);
    redis.restart();
    eventually("it is ready again", || server.admin_get("/ready").status == 200);
    client.history(&stream, &position);
    assert_eq!(client.hear()["type"], "reject_history");
}

#[test]
fn messages_that_are_no_text_are_counted_and_sessions_end_by_rails_names() {
    let Some(redis) = Broker::redis(&[]) else { return };
    let mut client = RedisClient::connect(&redis);
    let server = serve(&redis, "");
    let mut cable = Cable::join(server.listen, Some(&token(1))).welcomed();
    let mut other = Cable::join(server.listen, Some(&token(2))).welcomed();
    let _plain = Socket::open(server.listen, "/echo");
    let name = "action_cable/Z2lkOi8vYXBwL1VzZXIvMQ";
    assert_eq!(client.number(&["PUBLISH", name, "{"]), 1);
    assert_eq!(client.number(&["PUBLISH", name, r#"{"type":"dance"}"#]), 1);
    let end = r#"{"type":"disconnect","reconnect":false}"#;
    assert_eq!(client.number(&["PUBLISH", name, end]), 1);
    assert_eq!(cable.disconnect_reason(), ("remote".to_owned(), false));
    let wanted = json!({"channel": "$pubsub", "stream_name": "news"});
    assert_eq!(other.subscribe(&wanted), "confirm_subscription", "it stays");
    let invalid = "standfast_broadcast_adapter_invalid_total{";
    let metrics = server.metrics();
    let (_, invalid) = metrics.iter().find(|(name, _)| name.starts_with(invalid)).unwrap();
    assert_eq!(*invalid, 2.0);
}
