//! One suite for everything that keeps values: a model in memory, and each broker that is installed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::*;
use crate::kept::Position;
#[cfg(any(feature = "redis", feature = "nats"))]
use crate::test_servers::{Server, run, settings};
use crate::transport::{
    Channel, Fault, Fetched, Inbox, Link, Outgoing, Rejected, Taken, Transport,
};

const LONG: Duration = Duration::from_secs(600);

/// What a broker has to do, in memory.
#[derive(Default)]
struct Model(RefCell<HashMap<Arc<str>, Expiring>>);

type Expiring = (Arc<[u8]>, Instant);

impl crate::members::MemberStore for Model {}

impl Link for Model {
    async fn publish(&self, batch: &[Outgoing]) -> Result<Vec<Taken>, Fault> {
        Ok(batch.iter().map(|_| Taken::To(None)).collect())
    }

    async fn subscribe(&self, _: &[Channel]) -> Result<Vec<(Channel, Rejected)>, Fault> {
        Ok(Vec::new())
    }

    async fn unsubscribe(&self, _: &[Channel]) -> Result<(), Fault> {
        Ok(())
    }

    async fn fetch(
        &self,
        _: &[(Channel, Option<Position>)],
    ) -> Result<Vec<Result<Fetched, Rejected>>, Fault> {
        Ok(Vec::new())
    }

    async fn store(&self, commands: &[StoreCommand]) -> Result<Vec<StoreAnswer>, Fault> {
        let now = now();
        let mut values = self.0.borrow_mut();
        values.retain(|_, (_, until)| *until > now);
        let mut perform = |command: &StoreCommand| match &command.what {
            StoreAction::Put(value, ttl) => {
                values.insert(Arc::clone(&command.key), (Arc::clone(value), now + *ttl));
                StoreAnswer::Stored
            }
            StoreAction::Take => match values.remove(&command.key) {
                Some((value, _)) => StoreAnswer::Taken(value.to_vec()),
                None => StoreAnswer::Missing,
            },
        };
        Ok(commands.iter().map(&mut perform).collect())
    }

    async fn read(&self, keys: &[Arc<str>]) -> Result<Vec<StoreAnswer>, Fault> {
        let (now, values) = (now(), self.0.borrow());
        let found = |key: &Arc<str>| match values.get(key).filter(|(_, until)| *until > now) {
            Some((value, _)) => StoreAnswer::Found(value.to_vec()),
            None => StoreAnswer::Missing,
        };
        Ok(keys.iter().map(found).collect())
    }

    async fn add(&self, new: &[NewValue]) -> Result<Vec<StoreAnswer>, Fault> {
        let now = now();
        let mut values = self.0.borrow_mut();
        values.retain(|_, (_, until)| *until > now);
        let mut add = |new: &NewValue| match values.contains_key(&new.key) {
            true => StoreAnswer::Exists,
            false => {
                values.insert(Arc::clone(&new.key), (Arc::clone(&new.value), now + new.ttl));
                StoreAnswer::Stored
            }
        };
        Ok(new.iter().map(&mut add).collect())
    }

    async fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn ended(&self) -> Fault {
        std::future::pending().await
    }
}

#[expect(clippy::disallowed_methods, reason = "a test that waits for values to expire")]
fn now() -> Instant {
    Instant::now()
}

fn put(key: &str, value: &[u8], ttl: Duration) -> StoreCommand {
    StoreCommand { key: key.into(), what: StoreAction::Put(value.into(), ttl) }
}

fn take(key: &str) -> StoreCommand {
    StoreCommand { key: key.into(), what: StoreAction::Take }
}

fn new(key: &str, value: &[u8], ttl: Duration) -> NewValue {
    NewValue { key: key.into(), value: value.into(), ttl }
}

fn taken(value: &[u8]) -> StoreAnswer {
    StoreAnswer::Taken(value.to_vec())
}

/// Two links to one broker.
async fn contract(one: &impl Link, other: &impl Link) {
    use StoreAnswer::{Missing, Stored};
    // Taken once, by any link, and in the order of the commands.
    let batch = [take("t:a"), put("t:a", b"1", LONG), put("t:b", b"", LONG), take("t:b")];
    assert_eq!(one.store(&batch).await.unwrap(), [Missing, Stored, Stored, taken(b"")]);
    assert_eq!(other.store(&[take("t:a"), take("t:a")]).await.unwrap(), [taken(b"1"), Missing]);
    assert_eq!(one.store(&[take("t:a")]).await.unwrap(), [Missing]);
    // A later value takes the place of an earlier one. Any bytes, of any length.
    let bytes: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
    let batch = [put("t:a", b"1", LONG), put("t:a", &bytes, LONG)];
    assert_eq!(one.store(&batch).await.unwrap(), [Stored, Stored]);
    assert_eq!(other.store(&[take("t:a")]).await.unwrap(), [taken(&bytes)]);
    // Many, raced for: each is taken by one of both.
    let many = 0..crate::limits::STORE_BATCH;
    let key = |number: usize| format!("t:{number}");
    let puts: Vec<_> = many.clone().map(|number| put(&key(number), b"x", LONG)).collect();
    assert!(one.store(&puts).await.unwrap().iter().all(|answer| *answer == Stored));
    let takes: Vec<_> = many.map(|number| take(&key(number))).collect();
    let (one_got, other_got) = tokio::join!(one.store(&takes), other.store(&takes));
    for (one, other) in one_got.unwrap().iter().zip(&other_got.unwrap()) {
        let both = [one, other];
        let got = |answer: &StoreAnswer| both.iter().filter(|own| ***own == *answer).count();
        assert_eq!((got(&taken(b"x")), got(&Missing)), (1, 1), "{both:?}");
    }
    // They expire.
    let short = Duration::from_millis(40);
    for number in 0.. {
        assert!(number < 100, "it does not expire");
        assert_eq!(one.store(&[put("t:short", b"x", short)]).await.unwrap(), [Stored]);
        tokio::time::sleep(short * 2).await;
        if one.store(&[take("t:short")]).await.unwrap() == [Missing] {
            break;
        }
    }
}

/// Of a broker whose values can be read and added, too.
async fn contract_of_reading(one: &impl Link, other: &impl Link) {
    use StoreAnswer::{Exists, Found, Missing, Stored};
    let [a, b]: [Arc<str>; 2] = ["t:a".into(), "t:b".into()];
    let read = [Arc::clone(&a), Arc::clone(&b), Arc::clone(&a)];
    assert_eq!(one.read(&read).await.unwrap(), [Missing, Missing, Missing]);
    let values = [new("t:a", b"1", LONG), new("t:a", b"2", LONG), new("t:b", b"", LONG)];
    assert_eq!(one.add(&values).await.unwrap(), [Stored, Exists, Stored]);
    let found = [Found(b"1".to_vec()), Found(Vec::new()), Found(b"1".to_vec())];
    assert_eq!(other.read(&read).await.unwrap(), found, "it stays");
    assert_eq!(other.add(&values[..1]).await.unwrap(), [Exists]);
    assert_eq!(other.store(&[put("t:a", b"3", LONG)]).await.unwrap(), [Stored]);
    assert_eq!(one.read(&read[..1]).await.unwrap(), [Found(b"3".to_vec())]);
    assert_eq!(one.store(&[take("t:a"), take("t:b")]).await.unwrap(), [taken(b"3"), taken(b"")]);
    assert_eq!(other.read(&read[..2]).await.unwrap(), [Missing, Missing]);
    // Of two that add, one does.
    let many = 0..crate::limits::STORE_BATCH;
    let values = |by: &'static [u8]| many.clone().map(move |at| new(&format!("t:{at}"), by, LONG));
    let (ones, others): (Vec<_>, Vec<_>) = (values(b"1").collect(), values(b"2").collect());
    let (ones, others) = tokio::join!(one.add(&ones), other.add(&others));
    for both in ones.unwrap().iter().zip(&others.unwrap()) {
        assert!(matches!(both, (Stored, Exists) | (Exists, Stored)), "{both:?}");
    }
    let takes: Vec<_> = many.map(|number| take(&format!("t:{number}"))).collect();
    assert!(one.store(&takes).await.unwrap().iter().all(|answer| *answer != Missing));
    let short = Duration::from_millis(40);
    for number in 0.. {
        assert!(number < 100, "it does not expire");
        assert_eq!(one.add(&[new("t:short", b"x", short)]).await.unwrap(), [Stored]);
        tokio::time::sleep(short * 2).await;
        if other.read(&["t:short".into()]).await.unwrap() == [Missing] {
            break;
        }
        one.store(&[take("t:short")]).await.unwrap();
    }
}

#[test]
fn the_model_keeps_the_contract() {
    let model = Model::default();
    run(async {
        contract(&model, &model).await;
        contract_of_reading(&model, &model).await;
    });
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;
    use crate::redis::RedisLink;

    async fn link(server: &Server, user: &str) -> RedisLink {
        let (inbox, _) = Inbox::new(0, Arc::default());
        server.redis_as(user).connect(inbox, &settings()).await.unwrap()
    }

    #[test]
    fn redis_keeps_the_contract() {
        let Some(server) = Server::redis(&[]) else { return };
        run(async {
            let (one, other) = (link(&server, "").await, link(&server, "").await);
            contract(&one, &other).await;
            contract_of_reading(&one, &other).await;
        });
    }

    #[test]
    fn what_redis_does_not_permit_is_refused_and_the_link_stays() {
        let user = ["--user", "other", "on", ">pass", "+@all", "-getdel", "~t:*", "&*"];
        let Some(server) = Server::redis(&user) else { return };
        run(async {
            let other = link(&server, "other:pass@").await;
            let batch = [put("t:a", b"1", LONG), take("t:a"), put("u:a", b"1", LONG)];
            let answers = other.store(&batch).await.unwrap();
            let refused = |answer: &StoreAnswer| match answer {
                StoreAnswer::Refused(why) => why.starts_with("NOPERM"),
                _ => false,
            };
            assert_eq!(answers[0], StoreAnswer::Stored);
            assert!(refused(&answers[1]) && refused(&answers[2]), "{answers:?}");
            other.check().await.unwrap();
        });
    }
}

#[cfg(feature = "nats")]
mod nats {
    use super::*;
    use crate::broker::Settings;
    use crate::nats::NatsLink;

    async fn link(server: &Server, values: Option<Duration>) -> NatsLink {
        let (inbox, _) = Inbox::new(0, Arc::default());
        let settings = Settings { values, ..settings() };
        server.nats_transport().connect(inbox, &settings).await.unwrap()
    }

    #[test]
    fn nats_keeps_the_contract() {
        let Some(server) = Server::nats(&[]) else { return };
        run(async {
            let (one, other) = (link(&server, Some(LONG)).await, link(&server, Some(LONG)).await);
            contract(&one, &other).await;
            contract_of_reading(&one, &other).await;
            one.check().await.unwrap();
        });
    }

    #[test]
    fn what_was_put_and_what_was_taken_is_so_after_nats_was_killed() {
        let Some(mut server) = Server::nats(&[]) else { return };
        run(async {
            let many = 0..crate::limits::STORE_BATCH;
            let puts = many.clone().map(|number| put(&format!("t:{number}"), b"x", LONG));
            let takes: Vec<_> = many.map(|number| take(&format!("t:{number}"))).collect();
            let (first, rest) = takes.split_at(100);
            let before = link(&server, Some(LONG)).await;
            before.store(&puts.collect::<Vec<_>>()).await.unwrap();
            let answers = before.store(first).await.unwrap();
            assert!(answers.iter().all(|answer| *answer == taken(b"x")), "{answers:?}");
            server.restart();
            let after = link(&server, Some(LONG)).await;
            let answers = after.store(first).await.unwrap();
            assert!(answers.iter().all(|answer| *answer == StoreAnswer::Missing), "{answers:?}");
            let answers = after.store(rest).await.unwrap();
            assert!(answers.iter().all(|answer| *answer == taken(b"x")), "{answers:?}");
        });
    }

    #[test]
    fn values_that_find_no_room_are_refused_and_the_link_stays() {
        let Some(server) = Server::nats(&[]) else { return };
        run(async {
            let link = link(&server, Some(LONG)).await;
            let long = vec![7; 1024 * 1024];
            let answers = link.store(&[put("t:a", &long, LONG), put("t:b", b"1", LONG)]).await;
            let answers = answers.unwrap();
            let refused = StoreAnswer::Refused("it is longer than max_payload of NATS".into());
            assert_eq!(answers, [refused, StoreAnswer::Stored]);
            assert_eq!(link.store(&[take("t:a")]).await.unwrap(), [StoreAnswer::Missing]);
        });
    }

    #[test]
    fn without_a_bucket_everything_is_refused() {
        let Some(server) = Server::nats(&[]) else { return };
        run(async {
            let answers = link(&server, None).await.store(&[take("t:a")]).await.unwrap();
            assert!(matches!(answers[..], [StoreAnswer::Refused(_)]), "{answers:?}");
            let answers = link(&server, None).await.read(&["t:a".into()]).await.unwrap();
            assert_eq!(answers, [StoreAnswer::Unsupported]);
        });
    }
}
