//! Which connection a socket uses: one of its target and source with room for another stream, or a new one.

use std::io;
use std::net::IpAddr;

use engine::sys::Sys;

use super::carrier::Phase;
use super::socket::{NONE, State};
use super::{StreamKernel, carrier};

/// Connections with room, by target and source.
#[derive(Default)]
pub(super) struct Rooms(Vec<Room>);

struct Room {
    upstream: u16,
    source: Option<IpAddr>,
    /// Streams that the server last allowed on a connection, at most as many as are wanted.
    limit: u32,
    carriers: Vec<u32>,
}

impl Rooms {
    fn of(&mut self, upstream: u16, source: Option<IpAddr>, streams: u32) -> Option<&mut Room> {
        let is_it = |room: &Room| room.upstream == upstream && room.source == source;
        let at = self.0.iter().position(is_it).unwrap_or_else(|| {
            self.0.push(Room { upstream, source, limit: streams, carriers: Vec::new() });
            self.0.len() - 1
        });
        self.0.get_mut(at)
    }
}

impl<S: Sys> StreamKernel<S> {
    /// Gives a socket a connection with room for it.
    ///
    /// # Errors
    /// The error of a connect.
    pub(super) fn place(
        &mut self,
        at: u32,
        upstream: u16,
        source: Option<IpAddr>,
    ) -> io::Result<()> {
        let room = self.rooms.of(upstream, source, self.settings.streams);
        let c = match room.and_then(|room| room.carriers.last().copied()) {
            Some(c) => c,
            None => self.open_carrier(upstream, source)?,
        };
        let Some((socket, carrier)) = self.sockets.get_mut(at).zip(self.carriers.get_mut(c)) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        socket.carrier = c;
        socket.place = carrier.members.len() as u32;
        let is_ready = carrier.phase == Phase::Ready;
        socket.state = if is_ready { State::Ready } else { State::Waiting };
        carrier.members.push(at);
        self.update_room(c);
        if is_ready {
            self.list(at);
        }
        Ok(())
    }

    /// Takes a socket off its connection. One without sockets that is not usable, or no more, is closed.
    pub(super) fn leave(&mut self, at: u32) {
        let Some(socket) = self.sockets.get_mut(at) else { return };
        let (c, place) = (std::mem::replace(&mut socket.carrier, NONE), socket.place as usize);
        socket.stream = None;
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        if carrier.members.get(place) == Some(&at) {
            carrier.members.swap_remove(place);
            if let Some(moved) = carrier.members.get(place).copied()
                && let Some(moved) = self.sockets.get_mut(moved)
            {
                moved.place = place as u32;
            }
        }
        if carrier.has_waiting && carrier.phase == Phase::Ready {
            self.wake_waiting(c);
        }
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        if carrier.members.is_empty() && carrier.phase != Phase::Ready {
            return self.drop_unused(c);
        }
        self.update_room(c);
    }

    /// Notes whether a connection has room.
    pub(super) fn update_room(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        let has_room =
            carrier.phase != Phase::Leaving && carrier.members.len() < carrier.limit as usize;
        if has_room == carrier.is_roomy {
            return;
        }
        carrier.is_roomy = has_room;
        let (upstream, source) = (carrier.upstream, carrier.source);
        let Some(room) = self.rooms.of(upstream, source, self.settings.streams) else { return };
        match has_room {
            true => room.carriers.push(c),
            false => room.carriers.retain(|one| *one != c),
        }
    }

    /// The streams to expect on a new connection.
    pub(super) fn expected_limit(&mut self, upstream: u16, source: Option<IpAddr>) -> u32 {
        let streams = self.settings.streams;
        self.rooms.of(upstream, source, streams).map_or(streams, |room| room.limit)
    }

    /// Takes over how many streams the server allows. Sockets beyond that use other connections.
    pub(super) fn limit(&mut self, c: u32, allowed: u32) {
        let wanted = self.settings.streams;
        // With none allowed, sockets wait until some are.
        let limit = wanted.min(allowed).max(1);
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        carrier.limit = limit;
        let (upstream, source) = (carrier.upstream, carrier.source);
        if let Some(room) = self.rooms.of(upstream, source, wanted) {
            room.limit = limit;
        }
        if allowed < wanted {
            self.metrics.note_streams_allowed(allowed.into());
        }
        self.update_room(c);
        let Some(carrier) = self.carriers.get(c) else { return };
        let surplus = carrier.members.len().saturating_sub(limit as usize);
        let may_move = |at: &&u32| self.sockets.get(**at).is_some_and(|one| one.may_move());
        let moved: Vec<u32> =
            carrier.members.iter().rev().filter(may_move).take(surplus).copied().collect();
        self.move_away(&moved, upstream, source);
    }

    /// Gives sockets other connections than they have.
    pub(super) fn move_away(&mut self, moved: &[u32], upstream: u16, source: Option<IpAddr>) {
        for at in moved {
            self.leave(*at);
            if let Err(error) = self.place(*at, upstream, source) {
                self.fail_socket(*at, carrier::failed_connect(&error));
            }
        }
    }

    /// Lets sockets that wait on a usable connection try again.
    pub(super) fn wake_waiting(&mut self, c: u32) {
        let Some(carrier) = self.carriers.get_mut(c) else { return };
        carrier.has_waiting = false;
        for at in carrier.members.clone() {
            if let Some(socket) = self.sockets.get_mut(at)
                && socket.state == State::Waiting
            {
                socket.state = State::Ready;
                self.list(at);
            }
        }
    }
}
