//! Which listener of a shared port gets a connection.
//!
//! The kernel takes one at random, so in a storm one or two connections wait at each of many listeners.
//! Every one of them is then polled, and its socket fetched into the cache, for a single accept. A client
//! takes its source ports in sequence, though. With the program here a whole block of ports waits at one
//! listener and is accepted in batches, while all listeners still add up for many clients. Sources:
//! socket(7), `reuseport_select_sock` in the kernel, its Documentation/networking/filter.rst.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;

use super::Fd;
use super::linux::{check, seed};

/// Ports of a block, as a power of two. One address has at most 64 blocks, two for each of 32 queues:
/// together fewer connections than an accept queue of 4,096 holds.
const BLOCK_BITS: u32 = 10;
/// Connections of one address that may wait at one queue of 32.
pub const PORTS_OF_A_QUEUE: u64 = 2 << BLOCK_BITS;
/// `SO_ATTACH_REUSEPORT_CBPF` (asm-generic/socket.h).
const ATTACH: libc::c_int = 51;

/// Spreads connections over the listeners of a port, `workers` × `queues` of them in the order in which
/// they began to listen. Listener `i` belongs to worker `i` modulo `workers`. The worker is random, so that
/// its load does not depend on how clients choose ports; the queue is that of the client's address and
/// block of ports. `listener` is any of them.
///
/// # Errors
/// Those of setsockopt(2) and getrandom(2). The kernel then spreads connections at random.
pub fn spread_by_port(listener: i32, workers: u32, queues: u32) -> io::Result<()> {
    let random = seed()?;
    // Odd, so that addresses that differ keep that: a client cannot compute who shares its queue.
    let secret = random.first_chunk().map_or(1, |bytes| u32::from_ne_bytes(*bytes) | 1);
    let mut code = program(workers.max(1), queues.max(1), secret);
    let program = libc::sock_fprog { len: code.len() as libc::c_ushort, filter: code.as_mut_ptr() };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (number, level) = (Fd::new(listener).number(), libc::SOL_SOCKET);
    // SAFETY: program and code live through the call, which copies both; the lengths are theirs.
    check(unsafe { libc::setsockopt(number, level, ATTACH, (&raw const program).cast(), length) })?;
    Ok(())
}

/// The program in classic BPF. It returns the index of the listener.
fn program(workers: u32, queues: u32, secret: u32) -> [libc::sock_filter; 23] {
    use libc::{
        BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP,
        BPF_K, BPF_LD, BPF_LDX, BPF_MEM, BPF_MOD, BPF_MSH, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST,
        BPF_W, BPF_X,
    };
    let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM).cast_unsigned();
    let network = |offset: i32| (libc::SKF_NET_OFF + offset).cast_unsigned();
    let step = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |k: u32, jt: u8| libc::sock_filter {
        code: (BPF_JMP | BPF_JEQ | BPF_K) as u16,
        jt,
        jf: 0,
        k,
    };
    [
        // The worker.
        step(BPF_LD | BPF_W | BPF_ABS, random),
        step(BPF_ALU | BPF_MOD | BPF_K, workers),
        step(BPF_ST, 0),
        // The version of IP: where the source address is, or its last four bytes, and the port.
        step(BPF_LD | BPF_B | BPF_ABS, network(0)),
        step(BPF_ALU | BPF_RSH | BPF_K, 4),
        jump(6, 3),
        step(BPF_LD | BPF_W | BPF_ABS, network(12)),
        step(BPF_LDX | BPF_B | BPF_MSH, network(0)),
        step(BPF_JMP | BPF_JA, 2),
        step(BPF_LD | BPF_W | BPF_ABS, network(20)),
        step(BPF_LDX | BPF_W | BPF_IMM, 40),
        // The queue.
        step(BPF_ALU | BPF_MUL | BPF_K, secret),
        step(BPF_ALU | BPF_RSH | BPF_K, 16),
        step(BPF_ST, 1),
        step(BPF_LD | BPF_H | BPF_IND, network(0)),
        step(BPF_ALU | BPF_RSH | BPF_K, BLOCK_BITS),
        step(BPF_LDX | BPF_W | BPF_MEM, 1),
        step(BPF_ALU | BPF_ADD | BPF_X, 0),
        step(BPF_ALU | BPF_MOD | BPF_K, queues),
        // The listener.
        step(BPF_ALU | BPF_MUL | BPF_K, workers),
        step(BPF_LDX | BPF_W | BPF_MEM, 0),
        step(BPF_ALU | BPF_ADD | BPF_X, 0),
        step(BPF_RET | BPF_A, 0),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use super::*;
    use crate::sys::linux::Linux;
    use crate::sys::process::{Listen, close, listen, start_connect_from};
    use crate::sys::{Interest, Sys};

    const WORKERS: usize = 2;
    const QUEUES: usize = 4;

    /// Connects from each source; for each connection the listener that got it, and its client.
    fn accepted(address: &str, sources: &[IpAddr]) -> Vec<(usize, SocketAddr)> {
        let address = address.parse().unwrap();
        let defer = Duration::ZERO;
        let mut options = Listen { address, backlog: 64, shared_port: true, defer, v6_only: true };
        let mut listeners = Vec::new();
        for _ in 0..WORKERS * QUEUES {
            let (number, actual) = listen(&options).unwrap();
            options.address = actual;
            listeners.push(number);
        }
        spread_by_port(listeners[0], WORKERS as u32, QUEUES as u32).unwrap();
        let mut sys = Linux::new(None).unwrap();
        for (index, number) in listeners.iter().enumerate() {
            sys.watch(Fd::new(*number), Interest::READ, index as u64).unwrap();
        }
        let mut accepted = Vec::new();
        for source in sources {
            let _client = start_connect_from(options.address, Some(*source)).unwrap();
            let mut events = Vec::new();
            sys.wait(&mut events, 1, Some(Duration::from_secs(60))).unwrap();
            let index = events.first().expect("a connection arrives").key as usize;
            let fd = sys.accept(Fd::new(listeners[index])).unwrap();
            accepted.push((index, sys.peer(fd).unwrap()));
            sys.close(fd);
        }
        listeners.into_iter().for_each(close);
        accepted
    }

    /// The queues of each address and block of ports.
    fn queues(accepted: &[(usize, SocketAddr)]) -> BTreeMap<(IpAddr, u16), BTreeSet<usize>> {
        let mut queues = BTreeMap::<_, BTreeSet<_>>::new();
        for (index, client) in accepted {
            let block = (client.ip(), client.port() >> BLOCK_BITS);
            queues.entry(block).or_default().insert(index / WORKERS);
        }
        queues
    }

    #[test]
    fn a_block_of_ports_has_one_queue_and_any_worker() {
        for (address, source) in [("127.0.0.1:0", "127.0.0.9"), ("[::1]:0", "::1")] {
            let accepted = accepted(address, &[source.parse().unwrap(); 64]);
            for (block, queues) in queues(&accepted) {
                assert_eq!(queues.len(), 1, "{block:?}: {queues:?}");
            }
            let workers: BTreeSet<usize> = accepted.iter().map(|(at, _)| at % WORKERS).collect();
            assert_eq!(workers.len(), WORKERS, "the same worker 64 times: {accepted:?}");
        }
    }

    #[test]
    fn addresses_spread_over_all_queues() {
        let source = |n: u8| IpAddr::V4(Ipv4Addr::new(127, 0, 1, n));
        let accepted = accepted("127.0.0.1:0", &(1..=200).map(source).collect::<Vec<_>>());
        let queues: BTreeSet<usize> = accepted.iter().map(|(at, _)| at / WORKERS).collect();
        assert_eq!(queues.len(), QUEUES, "{accepted:?}");
    }
}
