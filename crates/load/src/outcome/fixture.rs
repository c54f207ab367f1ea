//! Outcomes for tests.

use serde_json::{Value, json};

use crate::Outcome;

/// An outcome with all sections, and a value other than zero in each field.
pub(crate) fn full() -> Outcome {
    let latency = || {
        json!({"count": 9, "above_range": 1, "p50_ms": 1.0, "p90_ms": 2.0, "p95_ms": 3.0,
            "p99_ms": 4.0, "p999_ms": 5.0, "max_ms": 6.0})
    };
    let of_all = || {
        json!({"count": 9, "p50_ms": 1.0, "p90_ms": 2.0, "p95_ms": 3.0, "p99_ms": 4.0,
            "p999_ms": 5.0, "max_ms": 6.0})
    };
    let counts = |names: &str| -> serde_json::Map<String, Value> {
        names.split_whitespace().map(|name| (name.to_owned(), json!(7))).collect()
    };
    let with = |mut counts: serde_json::Map<String, Value>, more: Value| {
        counts.extend(more.as_object().cloned().unwrap());
        Value::Object(counts)
    };
    let worst = || json!([{"connection": 3, "received": 2, "lost": 1}]);
    let step = json!({
        "name": "login", "tags": {"type": "api"}, "requests": 7, "failed": 1,
        "errors": {"check": 1}, "redirects": 1, "latency": latency(), "service_time": latency(),
        "checks": [{"name": "is in", "passed": 6, "failed": 1}],
    });
    let usage = || json!({"rss_bytes": 7, "cpu_seconds": 0.5});
    let mut document = json!({
        "version": 2, "standfast": "0.1.0", "held": true, "interrupted": true,
        "reasons": ["1 requests failed"], "tolerated": true,
        "target": ["http://a/"], "tls_error": "expired", "message_error": "a: no", "scenario": "a.toml", "about": "all",
        "seed": 7, "passes": 3, "beside": 1.5, "users": 5, "keep_alive": true, "pipeline": 2, "streams": 3,
        "method": "GET", "message_bytes": 20, "compressed": true, "duration_seconds": 3.0,
        "warm_up_seconds": 1.0, "settings": [["connections", "5"]],
        "pace": {"model": "open", "rate": 5.0, "arrival_rate": 2.0, "stages": [[1.0, 5]]},
        "began_unix_us": 7, "measured_unix_us": 7,
        "connections": with(
            counts(
                "requested opened open failed retired replaced opened_late retries reconnects \
                 in_flight_max sources_changed closed_idle unasked closed_surplus time_wait_most \
                 http2_opened http2_failed http2_ended http2_goaways http2_streams_allowed",
            ),
            json!({"seconds": 2.0, "per_second": 3.5}),
        ),
        "requests": counts(
            "ok failed sent answered stragglers unfinished unknown unsent warm_up redirects repeated",
        ),
    });
    add(
        &mut document,
        json!({
            "dropped": 7, "seconds": 3.0, "per_second": 2.0, "good_per_second": 1.0,
            "latency": latency(), "service_time": latency(), "latency_of_all": of_all(),
            "time_to_first_byte": latency(), "send_lag": latency(), "scheduling_error": latency(),
            "status": {"200": 6}, "errors": {"timeout": 1}, "call_errors": {"grpc_internal": "no"},
            "goaways": {"ENHANCE_YOUR_CALM": {"count": 7, "debug": "no"}}, "body_bytes": 7, "decoded_bytes": 7,
            "connect_errors": {"dns": 1}, "retried_by": {"dns": 1}, "closed": {"reset": 1},
            "warm_up_messages": 7,
            "heartbeats": with(
                counts("sent received unanswered_sockets not_due_sockets"),
                json!({"awaited": true, "latency": latency()}),
            ),
            "echo": counts("sent unsent received lost unknown duplicated reordered corrupted late"),
        }),
    );
    add(
        &mut document,
        json!({
            "broadcast": with(
                counts(
                    "published receivers expected received refused lost unknown duplicated \
                     reordered corrupted late stale foreign untimed publishers publish_rejected \
                     publish_unanswered publish_unknown publish_unsent receivers_short",
                ),
                json!({
                    "p50_ms": 1.0, "p99_ms": 4.0, "last_ms": 6.0, "latency": latency(),
                    "from_send": latency(), "latency_of_all": of_all(), "to_first": latency(),
                    "to_last": latency(), "first_to_last": latency(), "rate": 5.0,
                    "reached_rate": 4.0, "accepted_rate": 3.0, "publish_lag": latency(),
                    "publish": latency(), "publish_failed": {"HTTP 503": 1}, "worst": worst(),
                }),
            ),
            "cable": with(
                counts(
                    "subscribed rejected waiting subscribes repeated confirmed_again pings stale \
                     unexpected",
                ),
                json!({
                    "disconnects": {"unauthorized": 1}, "to_welcome": latency(),
                    "to_confirm": latency(), "to_subscribed": latency(),
                }),
            ),
        }),
    );
    add(
        &mut document,
        json!({
            "churn": with(
                counts(
                    "streams published publish_unsent begun judged owed received refused lost \
                     duplicated reordered late stale corrupted unexpected unconfirmed",
                ),
                json!({
                    "publish_failed": {"HTTP 503": 1}, "rate": 5.0, "reached_rate": 4.0,
                    "accepted_rate": 3.0, "latency": latency(), "from_send": latency(),
                    "latency_of_all": of_all(), "publish_lag": latency(), "publish": latency(),
                }),
            ),
            "stages": [with(
                counts("target open_most opened answered errors"),
                json!({
                    "seconds": 1.0, "per_second": 2.0, "per_second_most": 3.0,
                    "latency": latency(),
                }),
            )],
            "flows": [{"name": "users", "begun": 7, "completed": 6, "steps": [step]}],
            "selections": [with(
                counts("requests failed answered checks_passed checks_failed"),
                json!({"selector": "{step:login}", "good_per_second": 1.0, "latency_of_all": of_all()}),
            )],
            "sockets": with(
                counts("received unread_dropped reopened gone"),
                json!({
                    "closed_by": {"1001": 1}, "broken": {"masked_frame": 1}, "ended_by": {"OK": 1},
                }),
            ),
        }),
    );
    add(
        &mut document,
        json!({
            "groups": with(
                counts(
                    "size groups met senders sent not_sent warm_up receivers expected received \
                     refused lost duplicated reordered late stale corrupted foreign early receivers_short",
                ),
                json!({
                    "kind": "N:N", "sent_per_second": 2.0, "received_per_second": 3.0,
                    "send_lag": latency(), "latency": latency(), "latency_of_all": of_all(),
                    "worst": worst(),
                }),
            ),
        }),
    );
    add(
        &mut document,
        json!({
            "generator": {
                "cores": 2, "cpu_seconds": 1.0, "cpu_cores_most": 0.5, "messages_per_second": 2.0,
                "cpu_us_per_message": 3.0, "stolen": 0.1, "saturated": true,
                "workers": [{"busy": 0.5, "waited": 0.1, "wait_ms": 0.2}],
                "reasons": ["it had no core"], "rate_missed": true,
            },
            "watched": with(
                counts("pid rss_bytes_before rss_bytes descriptors_before descriptors"),
                json!({
                    "cpu_seconds": 1.0, "rss_bytes_per_connection": 90.0,
                    "cpu_ms_per_1000_messages": 1.5,
                }),
            ),
            "thresholds": [
                {"threshold": "p99<5ms", "value": 4.0, "met": false, "why": "the generator was saturated"},
            ],
            "samples": [with(
                counts("open failed closed sent received"),
                json!({
                    "elapsed_seconds": 1.0, "phase": "requests", "p50_ms": 1.0, "p99_ms": 4.0,
                    "max_ms": 6.0, "server": usage(), "client": usage(), "kernel_bytes": 7,
                }),
            )],
        }),
    );
    Outcome::read(document).unwrap()
}

/// Adds fields to a document.
fn add(document: &mut Value, fields: Value) {
    let (Some(document), Value::Object(fields)) = (document.as_object_mut(), fields) else {
        panic!("expected objects")
    };
    document.extend(fields);
}
