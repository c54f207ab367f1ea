//! The part of libuv that is used here: a descriptor that is watched, and a timer. Node exports it.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;

unsafe extern "C" {
    fn uv_handle_size(kind: i32) -> usize;
    fn uv_poll_init(uv: *mut c_void, handle: *mut c_void, descriptor: i32) -> i32;
    fn uv_poll_start(handle: *mut c_void, events: i32, call: Callback) -> i32;
    fn uv_timer_init(uv: *mut c_void, handle: *mut c_void) -> i32;
    fn uv_timer_start(handle: *mut c_void, call: TimerCallback, ms: u64, repeat: u64) -> i32;
    fn uv_timer_stop(handle: *mut c_void) -> i32;
    fn uv_update_time(uv: *mut c_void);
    fn uv_ref(handle: *mut c_void);
    fn uv_unref(handle: *mut c_void);
    fn uv_close(handle: *mut c_void, call: TimerCallback);
    fn uv_handle_get_data(handle: *const c_void) -> *mut c_void;
    fn uv_handle_set_data(handle: *mut c_void, data: *mut c_void);
}

type Callback = unsafe extern "C" fn(*mut c_void, i32, i32);
type TimerCallback = unsafe extern "C" fn(*mut c_void);

const READABLE: i32 = 1;
/// Numbers of the kinds of handles; part of libuv's ABI.
const POLL: i32 = 8;
const TIMER: i32 = 13;

/// A handle of a loop, allocated with the size that this loop's library gives it.
struct Handle(NonNull<c_void>);

/// The words of memory of a handle of this kind.
fn words(kind: i32) -> usize {
    // SAFETY: no pointers are passed.
    unsafe { uv_handle_size(kind) }.div_ceil(size_of::<u128>())
}

/// Frees the memory of a handle that libuv has let go of.
///
/// # Safety
/// `memory` is that of a [`Handle`] of this kind, which nobody uses.
unsafe fn free(kind: i32, memory: *mut c_void) {
    // SAFETY: allocated by `Handle::new` with as many words.
    drop(unsafe {
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory.cast::<u128>(), words(kind)))
    });
}

impl Handle {
    fn new(kind: i32, data: *mut c_void, init: impl FnOnce(*mut c_void) -> i32) -> Option<Handle> {
        let memory = Box::leak(vec![0_u128; words(kind)].into_boxed_slice()).as_mut_ptr().cast();
        if init(memory) != 0 {
            // Registered nowhere, but a failure is as good as the end: it is not freed.
            return None;
        }
        // SAFETY: the handle was initialised.
        unsafe { uv_handle_set_data(memory, data) };
        NonNull::new(memory).map(Handle)
    }
}

/// What drives a worker on a loop. Both handles have `data` as theirs.
pub(crate) struct Driver {
    uv: *mut c_void,
    poll: Handle,
    timer: Handle,
    /// When the timer is due; 0 if it is not set.
    at_ns: u64,
    keeps_alive: bool,
}

impl Driver {
    /// Watches a descriptor, without keeping the loop alive. `turn` is called with `data`.
    ///
    /// # Safety
    /// `uv` is the loop of this thread, and `data` may be passed to `turn` until [`Driver::close`].
    pub(crate) unsafe fn new(
        uv: *mut c_void,
        descriptor: i32,
        data: *mut c_void,
    ) -> Option<Driver> {
        // SAFETY: the memory has the size of the handle, and is freed only after the handle was closed.
        let poll =
            Handle::new(POLL, data, |memory| unsafe { uv_poll_init(uv, memory, descriptor) })?;
        // SAFETY: as above.
        let timer = Handle::new(TIMER, data, |memory| unsafe { uv_timer_init(uv, memory) })?;
        // SAFETY: initialised handles of this loop.
        unsafe {
            uv_poll_start(poll.0.as_ptr(), READABLE, on_poll);
            uv_unref(poll.0.as_ptr());
            uv_unref(timer.0.as_ptr());
        }
        Some(Driver { uv, poll, timer, at_ns: 0, keeps_alive: false })
    }

    /// Whether the loop goes on as long as this is so.
    pub(crate) fn set_keeps_alive(&mut self, keeps: bool) {
        if std::mem::replace(&mut self.keeps_alive, keeps) != keeps {
            let handle = self.poll.0.as_ptr();
            // SAFETY: an initialised handle.
            unsafe { if keeps { uv_ref(handle) } else { uv_unref(handle) } }
        }
    }

    /// Has the worker's turn at this time, or earlier.
    pub(crate) fn wake_at(&mut self, at_ns: u64, now_ns: u64) {
        if self.at_ns != 0 && self.at_ns <= at_ns {
            return;
        }
        self.at_ns = at_ns.max(1);
        let ms = at_ns.saturating_sub(now_ns).div_ceil(1_000_000);
        // SAFETY: an initialised handle of this loop. Its time may be that of the beginning of a long call.
        unsafe {
            if ms > 0 {
                uv_update_time(self.uv);
            }
            uv_timer_start(self.timer.0.as_ptr(), on_timer, ms, 0);
        }
    }

    /// The timer was due, perhaps a little early: it is to be set again.
    pub(crate) fn was_due(&mut self) {
        self.at_ns = 0;
    }

    /// Closes the handles; `closed` is called with `data` once both are.
    pub(crate) fn close(self) {
        // SAFETY: initialised handles, which are not used afterwards.
        unsafe {
            uv_timer_stop(self.timer.0.as_ptr());
            // libuv calls back in the opposite order.
            uv_close(self.poll.0.as_ptr(), on_poll_closed);
            uv_close(self.timer.0.as_ptr(), on_timer_closed);
        }
    }
}

/// # Safety
/// Called by libuv with a handle of a [`Driver`].
unsafe extern "C" fn on_poll(handle: *mut c_void, _status: i32, _events: i32) {
    // SAFETY: by contract of `Driver::new`.
    unsafe { crate::app::on_turn(uv_handle_get_data(handle), false) };
}

/// # Safety
/// As [`on_poll`].
unsafe extern "C" fn on_timer(handle: *mut c_void) {
    // SAFETY: by contract of `Driver::new`.
    unsafe { crate::app::on_turn(uv_handle_get_data(handle), true) };
}

/// # Safety
/// As [`on_poll`], once.
unsafe extern "C" fn on_timer_closed(handle: *mut c_void) {
    // SAFETY: by contract of `Driver::close`.
    unsafe { free(TIMER, handle) };
}

/// # Safety
/// As [`on_poll`], once, after the timer's.
unsafe extern "C" fn on_poll_closed(handle: *mut c_void) {
    // SAFETY: by contract of `Driver::new` and `Driver::close`.
    unsafe {
        let data = uv_handle_get_data(handle);
        free(POLL, handle);
        crate::app::on_closed(data);
    }
}
