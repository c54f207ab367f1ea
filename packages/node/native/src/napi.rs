//! The part of Node-API that is used here: values in and out, errors, functions.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use napi_sys::{
    self as sys, Status, napi_callback_info, napi_env, napi_handle_scope, napi_ref, napi_value,
};

/// Bytes of a string that are converted without asking for its length first.
const TEXT_BYTES: usize = 64 * 1024;

/// Bytes of a string, such as the name of a header, that is converted without an allocation.
const SHORT_TEXT_BYTES: usize = 256;

/// What a call from JavaScript throws.
#[derive(Debug)]
pub(crate) struct Thrown(pub(crate) String);

impl<T: Into<String>> From<T> for Thrown {
    fn from(text: T) -> Self {
        Thrown(text.into())
    }
}

/// The environment of a thread's JavaScript, in its own thread only, with a handle scope open.
#[derive(Copy, Clone)]
pub(crate) struct Env(pub(crate) napi_env);

// Every method passes the environment of this thread, handles of the scope that is open, and pointers to
// locals that outlive the call. What fails leaves `null`, which Node-API refuses with a status instead of using it.
impl Env {
    pub(crate) fn undefined(self) -> napi_value {
        let mut value = null_mut();
        // SAFETY: see above.
        unsafe { sys::napi_get_undefined(self.0, &mut value) };
        value
    }

    pub(crate) fn bool(self, is: bool) -> napi_value {
        let mut value = null_mut();
        // SAFETY: see above.
        unsafe { sys::napi_get_boolean(self.0, is, &mut value) };
        value
    }

    #[inline]
    pub(crate) fn int(self, number: i32) -> napi_value {
        let mut value = null_mut();
        // SAFETY: see above.
        unsafe { sys::napi_create_int32(self.0, number, &mut value) };
        value
    }

    pub(crate) fn number(self, number: f64) -> napi_value {
        let mut value = null_mut();
        // SAFETY: see above.
        unsafe { sys::napi_create_double(self.0, number, &mut value) };
        value
    }

    /// A string of bytes that are Latin-1, as those of heads are.
    pub(crate) fn latin1(self, text: &[u8]) -> napi_value {
        let mut value = null_mut();
        // SAFETY: see above; the bytes are copied.
        unsafe {
            sys::napi_create_string_latin1(
                self.0,
                text.as_ptr().cast(),
                text.len() as isize,
                &mut value,
            )
        };
        value
    }

    pub(crate) fn string(self, text: &str) -> napi_value {
        let mut value = null_mut();
        // SAFETY: see above; the bytes are copied.
        unsafe {
            sys::napi_create_string_utf8(
                self.0,
                text.as_ptr().cast(),
                text.len() as isize,
                &mut value,
            )
        };
        value
    }

    /// An ArrayBuffer with a copy of these bytes.
    #[inline]
    pub(crate) fn array_buffer(self, bytes: &[u8]) -> napi_value {
        let (mut value, mut data) = (null_mut(), null_mut());
        // SAFETY: see above. On success `data` points to as many bytes as were asked for, which nobody else
        // knows yet.
        unsafe {
            let status = sys::napi_create_arraybuffer(self.0, bytes.len(), &mut data, &mut value);
            if status == Status::napi_ok && !data.is_null() {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast(), bytes.len());
            }
        }
        value
    }

    /// Makes an ArrayBuffer empty, and frees its bytes.
    #[inline]
    pub(crate) fn detach(self, buffer: napi_value) {
        // SAFETY: see above.
        unsafe { sys::napi_detach_arraybuffer(self.0, buffer) };
    }

    pub(crate) fn array(self, values: impl IntoIterator<Item = napi_value>) -> napi_value {
        let mut array = null_mut();
        // SAFETY: see above.
        unsafe { sys::napi_create_array(self.0, &mut array) };
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: see above.
            unsafe { sys::napi_set_element(self.0, array, index as u32, value) };
        }
        array
    }

    /// Whether the thread is being ended, from outside of it: JavaScript does not run any more. Node.js then waits for what
    /// the thread is at.
    pub(crate) fn is_ending(self) -> bool {
        let (mut scope, mut result) = (null_mut(), null_mut());
        // SAFETY: see above; the scope is closed in the order of scopes, and its handles are not used after it.
        unsafe {
            sys::napi_open_handle_scope(self.0, &mut scope);
            let status = sys::napi_run_script(self.0, self.string("0"), &mut result);
            sys::napi_close_handle_scope(self.0, scope);
            status != Status::napi_ok
        }
    }

    // ---- values from JavaScript ----

    #[inline]
    pub(crate) fn to_u32(self, value: napi_value) -> u32 {
        let mut number = u32::MAX;
        // SAFETY: see above; what is no number leaves the default.
        unsafe { sys::napi_get_value_uint32(self.0, value, &mut number) };
        number
    }

    /// A number as JavaScript converts it to 32 bits; `None` for other values.
    pub(crate) fn to_i32(self, value: napi_value) -> Option<i32> {
        let mut number = 0;
        // SAFETY: see above.
        let status = unsafe { sys::napi_get_value_int32(self.0, value, &mut number) };
        (status == Status::napi_ok).then_some(number)
    }

    pub(crate) fn to_f64(self, value: napi_value) -> Option<f64> {
        let mut number = 0.0;
        // SAFETY: see above.
        let status = unsafe { sys::napi_get_value_double(self.0, value, &mut number) };
        (status == Status::napi_ok).then_some(number)
    }

    pub(crate) fn to_bool(self, value: napi_value) -> bool {
        let mut is = false;
        // SAFETY: see above; what is no boolean leaves the default.
        unsafe { sys::napi_get_value_bool(self.0, value, &mut is) };
        is
    }

    /// A property of an object.
    pub(crate) fn property(self, object: napi_value, name: &std::ffi::CStr) -> napi_value {
        let mut value = null_mut();
        // SAFETY: see above.
        unsafe { sys::napi_get_named_property(self.0, object, name.as_ptr(), &mut value) };
        value
    }

    /// Calls `then` with the bytes of a string, in UTF-8, of an ArrayBuffer or of a view of one; with none for `undefined`.
    /// `None` if it is nothing of these. `then` must not run JavaScript, which could free them.
    #[inline]
    pub(crate) fn bytes<T>(
        self,
        value: napi_value,
        scratch: &mut Vec<u8>,
        then: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let (mut data, mut length) = (null_mut::<c_void>(), 0);
        // SAFETY: see above; another value than an ArrayBuffer is refused.
        let status =
            unsafe { sys::napi_get_arraybuffer_info(self.0, value, &mut data, &mut length) };
        if status == Status::napi_ok {
            // SAFETY: the bytes of an ArrayBuffer, which no JavaScript can free during the call.
            return Some(then(unsafe { slice(data, length) }));
        }
        if self.text_into(value, scratch) {
            return Some(then(scratch));
        }
        let mut is = false;
        // SAFETY: see above. What is no view is not asked for its bytes.
        unsafe {
            sys::napi_is_typedarray(self.0, value, &mut is);
            if is {
                let (mut kind, mut count) = (0, 0);
                let status = sys::napi_get_typedarray_info(
                    self.0,
                    value,
                    &mut kind,
                    &mut count,
                    &mut data,
                    null_mut(),
                    null_mut(),
                );
                let length = count * element_bytes(kind);
                return (status == Status::napi_ok).then(|| then(slice(data, length)));
            }
            sys::napi_is_dataview(self.0, value, &mut is);
            if !is {
                // As uWebSockets.js takes what a caller leaves out.
                return self.is_undefined(value).then(|| then(&[]));
            }
            let status = sys::napi_get_dataview_info(
                self.0,
                value,
                &mut length,
                &mut data,
                null_mut(),
                null_mut(),
            );
            (status == Status::napi_ok).then(|| then(slice(data, length)))
        }
    }

    /// As [`Env::bytes`], for what is a string more often than bytes.
    #[inline]
    pub(crate) fn text_or_bytes<T>(
        self,
        value: napi_value,
        scratch: &mut Vec<u8>,
        then: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        if self.text_into(value, scratch) {
            return Some(then(scratch));
        }
        self.bytes(value, scratch, then)
    }

    /// As [`Env::text_or_bytes`], for what is short as a rule.
    #[inline]
    pub(crate) fn short_text<T>(
        self,
        value: napi_value,
        then: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let (mut short, mut written) = ([0; SHORT_TEXT_BYTES], 0);
        // SAFETY: see above; at most as many bytes are written as there is room for.
        let status = unsafe {
            let (into, room) = (short.as_mut_ptr().cast(), short.len());
            sys::napi_get_value_string_utf8(self.0, value, into, room, &mut written)
        };
        // As in `text_into`.
        match short.get(..written) {
            Some(text) if status == Status::napi_ok && written + 5 < SHORT_TEXT_BYTES => {
                Some(then(text))
            }
            _ => self.text_or_bytes(value, &mut Vec::new(), then),
        }
    }

    /// Converts a string to UTF-8. Returns `false` if it is none.
    fn text_into(self, value: napi_value, scratch: &mut Vec<u8>) -> bool {
        scratch.clear();
        scratch.reserve(TEXT_BYTES);
        loop {
            let (room, mut written) = (scratch.capacity(), 0);
            // SAFETY: see above; at most `room` bytes are written, of which `written` are initialised.
            unsafe {
                let into = scratch.as_mut_ptr().cast();
                let status =
                    sys::napi_get_value_string_utf8(self.0, value, into, room, &mut written);
                if status != Status::napi_ok {
                    return false;
                }
                scratch.set_len(written);
            }
            // The last character, of at most 4 bytes, and the final zero may have had no room.
            if written + 5 < room {
                return true;
            }
            let mut length = 0;
            // SAFETY: see above; without a buffer the call returns the length.
            unsafe {
                sys::napi_get_value_string_utf8(self.0, value, null_mut(), 0, &mut length);
            }
            scratch.clear();
            scratch.reserve(length + 8);
        }
    }

    /// A string's text, or that of bytes in UTF-8; `None` for other values.
    pub(crate) fn text(self, value: napi_value) -> Option<String> {
        if self.is_undefined(value) {
            return None;
        }
        self.short_text(value, |bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    pub(crate) fn is_undefined(self, value: napi_value) -> bool {
        let mut kind = sys::ValueType::napi_object;
        // SAFETY: see above.
        unsafe { sys::napi_typeof(self.0, value, &mut kind) };
        kind == sys::ValueType::napi_undefined
    }

    pub(crate) fn throw(self, text: &str) {
        let message = std::ffi::CString::new(text).unwrap_or_default();
        // SAFETY: see above; the text is copied.
        unsafe { sys::napi_throw_error(self.0, null(), message.as_ptr()) };
    }

    /// Keeps a value beyond the scope.
    pub(crate) fn keep(self, value: napi_value) -> napi_ref {
        let mut kept = null_mut();
        // SAFETY: see above.
        unsafe { sys::napi_create_reference(self.0, value, 1, &mut kept) };
        kept
    }

    #[inline]
    pub(crate) fn kept(self, kept: napi_ref) -> napi_value {
        let mut value = null_mut();
        // SAFETY: see above; `kept` is one of `keep`.
        unsafe { sys::napi_get_reference_value(self.0, kept, &mut value) };
        value
    }

    /// Calls a function as an event of the loop: what it has scheduled by promises and `nextTick` runs after it.
    /// What it throws becomes an `uncaughtException`.
    #[inline]
    pub(crate) fn emit(self, function: napi_value, arguments: &[napi_value]) -> napi_value {
        let mut result = null_mut();
        // SAFETY: see above; without an asynchronous context the call has none.
        let status = unsafe {
            sys::napi_make_callback(
                self.0,
                null_mut(),
                function,
                function,
                arguments.len(),
                arguments.as_ptr(),
                &mut result,
            )
        };
        if status == Status::napi_pending_exception {
            let mut error = null_mut();
            // SAFETY: see above.
            unsafe {
                sys::napi_get_and_clear_last_exception(self.0, &mut error);
                sys::napi_fatal_exception(self.0, error);
            }
            return null_mut();
        }
        result
    }

    /// Adds a function with data of its own to an object. Returns the function.
    pub(crate) fn method(
        self,
        object: napi_value,
        name: &str,
        function: unsafe extern "C" fn(napi_env, napi_callback_info) -> napi_value,
        data: *mut c_void,
    ) -> napi_value {
        let mut value = null_mut();
        let Ok(name) = std::ffi::CString::new(name) else { return value };
        // SAFETY: see above; the name is copied.
        unsafe {
            sys::napi_create_function(self.0, name.as_ptr(), -1, Some(function), data, &mut value);
            sys::napi_set_named_property(self.0, object, name.as_ptr(), value);
        }
        value
    }

    pub(crate) fn set_property(self, object: napi_value, name: &std::ffi::CStr, value: napi_value) {
        // SAFETY: see above.
        unsafe { sys::napi_set_named_property(self.0, object, name.as_ptr(), value) };
    }

    /// Whether a kept value stays when nothing else has it.
    pub(crate) fn set_strong(self, kept: napi_ref, strong: bool) {
        let mut count = 0;
        // SAFETY: see above; `kept` is one of `keep`.
        unsafe {
            match strong {
                true => sys::napi_reference_ref(self.0, kept, &mut count),
                false => sys::napi_reference_unref(self.0, kept, &mut count),
            }
        };
    }

    /// Tells the garbage collector of memory that objects keep, or no longer keep.
    pub(crate) fn weigh(self, bytes: i64) {
        let mut all = 0;
        // SAFETY: see above.
        unsafe { sys::napi_adjust_external_memory(self.0, bytes, &mut all) };
    }

    /// Ends what `keep` began.
    pub(crate) fn forget(self, kept: napi_ref) {
        // SAFETY: see above; `kept` is one of `keep` and is not used again.
        unsafe { sys::napi_delete_reference(self.0, kept) };
    }

    pub(crate) fn object(self) -> napi_value {
        let mut value = null_mut();
        // SAFETY: see above.
        unsafe { sys::napi_create_object(self.0, &mut value) };
        value
    }

    /// The arguments of a call, `undefined` where there are fewer, and the data of its function.
    #[inline]
    pub(crate) fn arguments<const N: usize>(
        self,
        info: napi_callback_info,
    ) -> ([napi_value; N], *mut c_void) {
        let (mut count, mut arguments, mut data) = (N, [null_mut(); N], null_mut());
        // SAFETY: see above; N values are written.
        unsafe {
            sys::napi_get_cb_info(
                self.0,
                info,
                &mut count,
                arguments.as_mut_ptr(),
                null_mut(),
                &mut data,
            )
        };
        (arguments, data)
    }
}

/// Calls of JavaScript that share a handle scope.
const SCOPE_CALLS: u32 = 128;

/// A handle scope for the calls of a turn, renewed now and then: one for each call is an allocation.
pub(crate) struct Scope {
    open: napi_handle_scope,
    calls: u32,
}

impl Default for Scope {
    fn default() -> Self {
        Scope { open: null_mut(), calls: 0 }
    }
}

impl Scope {
    /// Before a call: returns whether all handles are new. Not within a call.
    #[inline]
    pub(crate) fn enter(&mut self, env: Env) -> bool {
        self.calls += 1;
        if !self.open.is_null() && self.calls < SCOPE_CALLS {
            return false;
        }
        self.close(env);
        // SAFETY: as the methods of `Env`. No other scope of ours is open.
        unsafe { sys::napi_open_handle_scope(env.0, &mut self.open) };
        true
    }

    /// At the end of a turn.
    pub(crate) fn close(&mut self, env: Env) {
        self.calls = 0;
        let open = std::mem::replace(&mut self.open, null_mut());
        if !open.is_null() {
            // SAFETY: it was opened by `enter`, and what was opened since is closed.
            unsafe { sys::napi_close_handle_scope(env.0, open) };
        }
    }
}

/// # Safety
/// `length` bytes at `data` may be read as long as the slice is used; for none `data` may be null.
unsafe fn slice<'a>(data: *const c_void, length: usize) -> &'a [u8] {
    if data.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: by contract.
    unsafe { std::slice::from_raw_parts(data.cast(), length) }
}

/// `napi_float16_array`, which newer versions of Node-API have.
const FLOAT16_ARRAY: sys::napi_typedarray_type = 11;

/// Bytes of an element of a typed array.
fn element_bytes(kind: sys::napi_typedarray_type) -> usize {
    use sys::TypedarrayType as Kind;
    match kind {
        Kind::int16_array | Kind::uint16_array | FLOAT16_ARRAY => 2,
        Kind::int32_array | Kind::uint32_array | Kind::float32_array => 4,
        Kind::float64_array | Kind::bigint64_array | Kind::biguint64_array => 8,
        _ => 1,
    }
}
