//! Streams and the sampler, without sockets.

use std::future::poll_fn;

use super::*;
use crate::Exposition;

struct Fake;

impl Program for Fake {
    fn healthy(&self) -> bool {
        true
    }

    fn metrics(&self, _: &mut Exposition) {}

    fn stats(&self) -> Value {
        Value::Null
    }

    fn sample(&self, complete: bool) -> Value {
        json!({ "complete": complete, "text": "a\n\nb" })
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

async fn next(body: &mut LiveBody) -> String {
    let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
    let data = frame.unwrap().unwrap().into_data().unwrap();
    String::from_utf8(data.to_vec()).unwrap()
}

#[test]
fn only_so_many_streams_are_open_and_closed_ones_make_room() {
    let live = Live::new(Arc::new(Fake));
    let mut open: Vec<LiveBody> =
        (0..STREAMS_MAX).map(|_| live.open("page", &Value::Null).unwrap()).collect();
    assert!(live.open("page", &Value::Null).is_none());
    assert_eq!((live.count(), live.refused()), (STREAMS_MAX, 1));
    open.pop();
    assert_eq!(live.count(), STREAMS_MAX - 1);
    assert!(live.open("page", &Value::Null).is_some());
}

#[test]
fn samples_are_taken_while_a_stream_is_open_and_shared() {
    runtime().block_on(async {
        let live = Arc::new(Live::new(Arc::new(Fake)));
        tokio::spawn(Arc::clone(&live).run());
        tokio::task::yield_now().await;
        assert_eq!(live.samples(), 0);
        let mut first = live.open("page", &json!({ "a": 1 })).unwrap();
        assert_eq!(next(&mut first).await, "event: page\ndata: {\"a\":1}\n\n");
        let sample = |complete: bool| {
            format!("event: sample\ndata: {{\"complete\":{complete},\"text\":\"a\\n\\nb\"}}\n\n")
        };
        assert_eq!(next(&mut first).await, sample(true), "at once, and complete");
        let mut second = live.open("page", &Value::Null).unwrap();
        next(&mut second).await;
        assert_eq!(next(&mut second).await, sample(true), "the last complete one, at once");
        assert_eq!(live.samples(), 1);
        let shared = (next(&mut first).await, next(&mut second).await);
        assert_eq!(shared, (sample(false), sample(false)));
        assert_eq!(live.samples(), 2, "one sample for both");
        drop((first, second));
        while live.lock().complete.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((live.count(), live.samples()), (0, 2));
        let mut again = live.open("page", &Value::Null).unwrap();
        next(&mut again).await;
        assert_eq!(next(&mut again).await, sample(true), "it begins anew");
    });
}

#[test]
fn a_stream_that_is_not_read_misses_samples_and_holds_no_more() {
    let live = Live::new(Arc::new(Fake));
    let mut body = live.open("page", &Value::Null).unwrap();
    for number in 0..100 {
        live.send(&event("sample", &number.into()), false);
    }
    assert_eq!(body.0.len(), QUEUED_MAX);
    runtime().block_on(async {
        next(&mut body).await;
        assert_eq!(next(&mut body).await, "event: sample\ndata: 0\n\n");
    });
}
