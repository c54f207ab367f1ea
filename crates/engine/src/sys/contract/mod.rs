//! The contract of [`Sys`] as tests: each case runs on the real kernel ([`Linux`]) and on the
//! simulated one ([`Sim`]), over TCP and UNIX streams, and for both ends of a connection. What a
//! simulation finds is worth as much as its kernel's likeness to the real one.
//!
//! A case that fails on `linux` states the contract wrongly. One that fails on `sim` alone shows where
//! the simulated kernel has to be changed.
//!
//! Not covered, because the two kernels differ on purpose:
//! - `wait`'s timeout: the simulated kernel never blocks, and its driver advances the clock. The case
//!   is in `waking` for Linux alone;
//! - `poll_fd`: `None` in a simulation, which no other event loop embeds;
//! - `notice_dead_peer`: the simulated network loses no packets, so it has nothing to notice;
//! - when a full stream becomes writable: Linux waits until part of its buffer is free, the simulated
//!   kernel for one byte. The contract covers a full and an empty buffer;
//! - unread bytes of a peer that resets: over a network they may be lost on their way, on loopback
//!   they are not. The contract allows both, unless the end of the stream has arrived behind them;
//! - `stop_listening` of a UNIX listener: no worker accepts from one;
//! - `watch_listener` by several workers: simulated workers share no UNIX listener. For Linux it is in
//!   `tests/unix_listeners.rs`.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should panic")]

mod accepting;
mod connecting;
mod readiness;
mod stream;
mod waking;
mod world;

use super::linux::Linux;
use super::sim::Sim;
use world::{LinuxWorld, Role, SimWorld, Transport};

/// Makes a test of each case, for each kernel and transport.
macro_rules! contract {
    (
        both { $($both_in:ident::$both:ident,)* }
        tcp { $($tcp_in:ident::$tcp:ident,)* }
        unix { $($unix_in:ident::$unix:ident,)* }
    ) => {
        mod linux {
            contract!(@tests tcp LinuxWorld Tcp $($both_in::$both,)* $($tcp_in::$tcp,)*);
            contract!(@tests unix LinuxWorld Unix $($both_in::$both,)* $($unix_in::$unix,)*);
        }
        mod sim {
            contract!(@tests tcp SimWorld Tcp $($both_in::$both,)* $($tcp_in::$tcp,)*);
            contract!(@tests unix SimWorld Unix $($both_in::$both,)* $($unix_in::$unix,)*);
        }
    };
    (@tests $name:ident $world:ident $transport:ident $($case_in:ident::$case:ident,)*) => {
        mod $name {
            $(
                #[test]
                fn $case() {
                    use crate::sys::contract::*;
                    for role in [Role::Accepts, Role::Connects] {
                        $case_in::$case(&mut $world::new(Transport::$transport, role));
                    }
                }
            )*
        }
    };
}

contract! {
    both {
        readiness::idle_stream_is_writable,
        readiness::arrived_bytes_make_it_readable,
        readiness::half_close_by_the_peer_makes_it_readable,
        readiness::own_half_close_leaves_it_writable,
        readiness::both_half_closes_fail_it_whatever_is_watched,
        readiness::close_by_the_peer,
        readiness::close_by_the_peer_with_bytes_unread_by_it_fails_it,
        readiness::reset_by_the_peer_fails_it_even_after_the_error_was_taken,
        readiness::full_stream_is_not_writable_until_it_is_read,
        readiness::failure_of_a_stream_watched_for_nothing_is_reported_once_per_watch,
        readiness::failure_of_a_stream_watched_for_reading_or_writing_is_reported_again,
        readiness::stream_watched_for_nothing_reports_what_it_is_watched_for_next,
        readiness::readable_is_reported_until_all_is_read,
        readiness::writable_is_reported_at_each_wait,
        readiness::end_of_stream_is_reported_at_each_wait,
        readiness::rewatch_replaces_interest_and_key,
        readiness::unwatched_and_closed_streams_report_nothing,
        readiness::wait_appends_no_more_than_it_is_asked_for,
        readiness::watch_calls_out_of_order_fail,
        stream::bytes_arrive_in_order_and_in_portions,
        stream::nothing_to_read_is_would_block,
        stream::end_of_stream_follows_the_bytes_and_stays,
        stream::full_stream_takes_part_and_then_would_block,
        stream::pieces_are_sent_one_after_another,
        stream::after_its_own_half_close_a_stream_only_reads,
        stream::after_a_half_close_by_the_peer_a_stream_only_writes,
        stream::close_by_the_peer_leaves_its_bytes_to_read,
        stream::close_with_unread_bytes_resets_the_peer,
        stream::error_is_taken_once,
        stream::unknown_descriptor_is_an_error,
        stream::addresses,
        accepting::empty_queue_is_would_block,
        accepting::listener_is_readable_until_its_queue_is_empty,
        accepting::connection_is_accepted_with_the_bytes_sent_before,
        accepting::connection_that_its_peer_has_left_is_accepted,
        accepting::stream_accepts_nothing,
        accepting::closing_a_listener_resets_what_waits_and_refuses_what_follows,
        connecting::success_is_reported_as_writable,
        waking::wake_up_is_readable_until_it_is_cleared,
        waking::clock_does_not_go_back,
    }
    tcp {
        stream::reset_by_the_peer_is_an_error_once_and_then_the_end,
        stream::reset_by_the_peer_is_an_error_of_the_next_send,
        stream::reset_after_the_end_is_no_error_of_a_read,
        stream::reset_after_the_end_leaves_the_bytes_before_it,
        stream::reset_of_a_stream_that_is_over_is_no_error,
        stream::first_send_after_a_close_by_the_peer_is_lost,
        accepting::stopped_listener_fails_and_resets_what_waits,
        accepting::peer_address_is_known_even_of_a_reset_connection,
        connecting::refused_connect_fails,
        connecting::connect_under_way_is_not_ready_and_completes,
    }
    unix {
        stream::reset_on_close_means_nothing_to_a_unix_stream,
        connecting::refused_unix_connect_fails_at_once,
        connecting::full_unix_queue_is_would_block,
    }
}
