//! What holds for Redis only, and the suites against it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use brokers::redis::{ClusterTransport, RedisTransport};
use brokers::{Channel, Fault, FaultKind, Inbox, Link, Outgoing, Position, Taken, Transport};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use crate::contract::{self, Stand};
use crate::model::Model;
use crate::servers::{RedisCluster, RedisServer};
use crate::support::{outgoing, settings};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn the_model_keeps_the_contract() {
    let model = Model::default();
    let mut lose = || model.empty();
    contract::all(&mut Stand { transport: model.clone(), lose: &mut lose, in_order: true });
}

#[test]
fn redis_keeps_the_contract() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let mut lose = || drop(server.ask("FLUSHALL"));
    contract::all(&mut Stand { transport: server.transport(), lose: &mut lose, in_order: true });
}

#[test]
fn a_redis_cluster_keeps_the_contract() {
    let Some(cluster) = RedisCluster::start(3) else { return };
    let mut lose = || cluster.0.iter().for_each(|one| drop(one.ask("FLUSHALL")));
    contract::all(&mut Stand { transport: cluster.transport(), lose: &mut lose, in_order: true });
}

#[test]
fn a_redis_cluster_has_a_part_for_each_master() {
    let Some(cluster) = RedisCluster::start(2) else { return };
    let parts = cluster.transport().discover().unwrap();
    let seed = format!("redis://127.0.0.1:{}", cluster.0[0].port);
    let names: Vec<String> = parts.iter().map(Transport::server).collect();
    assert_eq!(names, [format!("{seed} part 1 of 2"), format!("{seed} part 2 of 2")]);
    let Some(alone) = RedisServer::start(&[]) else { return };
    let fault = ClusterTransport::new(vec![alone.transport()]).discover().unwrap_err();
    assert!(fault.why.contains("not a node of a Redis Cluster"), "{fault}");
}

#[test]
fn redis_keeps_the_contract_when_it_is_restarted() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let (transport, server) = (server.transport(), std::cell::RefCell::new(server));
    let mut lose = || server.borrow_mut().restart();
    contract::all(&mut Stand { transport, lose: &mut lose, in_order: true });
}

/// With a file the data is there after a restart, but not for certain the newest: another epoch begins.
#[test]
fn redis_begins_an_epoch_after_a_restart_with_persistence() {
    let Some(server) = RedisServer::start(&["--appendonly", "yes"]) else { return };
    let (transport, server) = (server.transport(), std::cell::RefCell::new(server));
    let mut lose = || {
        assert_ne!(server.borrow().ask("DBSIZE"), ":0");
        server.borrow_mut().restart();
        assert_ne!(server.borrow().ask("DBSIZE"), ":0");
    };
    contract::all(&mut Stand { transport, lose: &mut lose, in_order: true });
}

#[test]
fn redis_begins_an_epoch_when_keys_are_evicted() {
    for key in ["{test:t:loss}:kept", "{test:t:loss}:at"] {
        let Some(server) = RedisServer::start(&[]) else { return };
        let mut lose = || assert_eq!(server.ask(&format!("DEL {key}")), ":1");
        contract::all(&mut Stand {
            transport: server.transport(),
            lose: &mut lose,
            in_order: true,
        });
    }
}

fn run<F: Future>(test: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

async fn connect(transport: RedisTransport) -> Result<<RedisTransport as Transport>::Link, Fault> {
    connect_to(&transport).await
}

async fn connect_to<T: Transport>(transport: &T) -> Result<T::Link, Fault> {
    let (inbox, _) = Inbox::new(1 << 20, Arc::new(AtomicU64::new(0)));
    transport.connect(inbox, &settings(100, HOUR)).await
}

fn refused(transport: RedisTransport) -> Fault {
    match run(connect(transport)) {
        Ok(_) => panic!("it was not refused"),
        Err(fault) => fault,
    }
}

#[test]
fn scripts_that_the_server_has_forgotten_are_loaded_again() {
    let Some(server) = RedisServer::start(&[]) else { return };
    run(async {
        let link = connect(server.transport()).await.unwrap();
        for number in 1..=3 {
            assert_eq!(server.ask("SCRIPT FLUSH"), "+OK");
            let batch =
                [outgoing("test:t:a", 1, 2 * number - 1), outgoing("test:t:a", 1, 2 * number)];
            let taken = link.publish(&batch).await.unwrap();
            let offset = |taken: &Taken| match taken {
                Taken::Kept { position: Some(Position { offset, .. }), .. } => *offset,
                other => panic!("{other:?}"),
            };
            let offsets: Vec<u64> = taken.iter().map(offset).collect();
            assert_eq!(offsets, [2 * number - 1, 2 * number]);
            assert_eq!(server.ask("SCRIPT FLUSH"), "+OK");
            let fetched = link.fetch(&[("test:t:a".into(), None)]).await.unwrap();
            assert_eq!(fetched[0].as_ref().unwrap().last, 2 * number);
        }
    });
}

#[test]
fn what_the_user_may_not_do_is_a_fault_with_its_name() {
    let Some(server) = RedisServer::start(&["--requirepass", "secret"]) else { return };
    let wrong = refused(server.transport_as(":wrong@"));
    assert_eq!(wrong.kind, FaultKind::Refused, "{wrong}");
    assert!(wrong.why.contains("WRONGPASS"), "{wrong}");
    let Some(server) = RedisServer::start(&[]) else { return };
    // As in docs/operate/scale.md.
    let pubsub = "&test:* +subscribe +unsubscribe +publish +ping +hello +client +role";
    let kept = "~{test:* +info +script|load +evalsha +time +del +exists +hmget +hset +hlen +hkeys +hdel \
                +pexpire +xadd +xtrim +xrevrange +xlen";
    server.ask(&format!("ACL SETUSER pubsub on >p resetchannels {pubsub}"));
    server.ask(&format!("ACL SETUSER kept on >p resetchannels {pubsub} {kept}"));
    server.ask(&format!("ACL SETUSER keyless on >p resetchannels {pubsub} {kept} resetkeys"));
    for user in ["pubsub:p@", "keyless:p@"] {
        let fault = refused(server.transport_as(user));
        assert_eq!(fault.kind, FaultKind::Refused, "{user} {fault}");
        assert!(fault.why.contains("NOPERM"), "{fault}");
    }
    run(async {
        let link = connect(server.transport_as("kept:p@")).await.unwrap();
        let taken = link.publish(&[outgoing("test:t:a", 1, 1)]).await.unwrap();
        assert!(matches!(taken[0], Taken::Kept { position: Some(_), .. }), "{taken:?}");
    });
}

/// As in docs/operate/scale.md.
#[test]
fn a_user_of_a_redis_cluster_needs_these_commands_and_no_more() {
    let Some(cluster) = RedisCluster::start(2) else { return };
    let pubsub = "&{test:* +ssubscribe +sunsubscribe +spublish +ping +hello +client +asking \
                  +cluster|slots +cluster|info +role";
    let kept = "~{test:* +info +script|load +evalsha +time +del +exists +hmget +hset +hlen +hkeys +hdel \
                +pexpire +xadd +xtrim +xrevrange +xlen";
    for server in &cluster.0 {
        server.ask(&format!("ACL SETUSER kept on >p resetchannels {pubsub} {kept}"));
        server.ask(&format!("ACL SETUSER mute on >p resetchannels {pubsub} {kept} -ssubscribe"));
        server.ask("ACL SETUSER nobody on >p +hello +client");
    }
    run(async {
        let transport = cluster.transport_as("kept:p@");
        let link = connect_to(&transport).await.unwrap();
        let names: Vec<Channel> = (0..10).map(|at| format!("{{test:t:{at}}}").into()).collect();
        link.subscribe(&names).await.unwrap();
        let batch: Vec<Outgoing> = names.iter().map(|name| outgoing(name, 1, 1)).collect();
        for taken in link.publish(&batch).await.unwrap() {
            assert!(matches!(taken, Taken::Kept { reached: Some(1), .. }), "{taken:?}");
        }
        link.unsubscribe(&names).await.unwrap();
        link.check().await.unwrap();
        let mute = connect_to(&cluster.transport_as("mute:p@")).await.unwrap();
        let refused = mute.subscribe(&names).await.unwrap();
        assert!(refused.iter().all(|(_, one)| one.why.contains("NOPERM") && !one.is_invalid));
        assert_eq!(refused.len(), names.len());
        let fault = connect_to(&cluster.transport_as("nobody:p@")).await.err().unwrap();
        assert_eq!(fault.kind, FaultKind::Refused, "{fault}");
    });
}

#[test]
fn a_replica_is_a_fault() {
    let Some(master) = RedisServer::start(&[]) else { return };
    let port = master.port.to_string();
    let Some(replica) = RedisServer::start(&["--replicaof", "127.0.0.1", &port]) else { return };
    let fault = refused(replica.transport());
    assert_eq!(fault.kind, FaultKind::ReadOnly, "{fault}");
}

#[test]
fn without_memory_publications_are_refused_one_by_one() {
    let Some(server) = RedisServer::start(&[]) else { return };
    run(async {
        let link = connect(server.transport()).await.unwrap();
        let own = |number| Outgoing { keep: number % 2 == 1, ..outgoing("test:t:a", 1, number) };
        link.publish(&[own(1)]).await.unwrap();
        assert_eq!(server.ask("CONFIG SET maxmemory 1"), "+OK");
        let taken = link.publish(&[own(2), own(3), own(4)]).await.unwrap();
        assert_eq!(taken, [Taken::To(Some(0)), Taken::NoMemory, Taken::To(Some(0))]);
        let fetched = link.fetch(&[("test:t:a".into(), None), ("test:t:b".into(), None)]).await;
        assert_eq!(
            fetched.unwrap().iter().flatten().map(|one| one.last).collect::<Vec<_>>(),
            [1, 0]
        );
        assert_eq!(server.ask("CONFIG SET maxmemory 0"), "+OK");
        let taken = link.publish(&[own(5)]).await.unwrap();
        assert!(matches!(&taken[0], Taken::Kept { position: Some(at), .. } if at.offset == 2));
    });
}
