//! [`App`]: a worker of the engine on the loop of a thread of Node.
//!
//! JavaScript calls back while it is called: in the middle of a turn, when the engine is borrowed by it. Before
//! each call of JavaScript the handler leaves pointers to itself and to the core ([`App::entered`]), and does not use
//! either until that call has returned. What JavaScript calls uses them ([`App::with`]); between turns
//! it uses the worker. No code that has either calls JavaScript in another way.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::time::Duration;

use engine::sys::linux::Linux;
use engine::sys::process::now_ns;
use engine::{Core, Limits, Plan, Proxies, ProxyProtocol, Sys, Tables, Worker};
use napi_sys::{
    self as sys, Status, napi_async_cleanup_hook_handle, napi_callback_info, napi_env, napi_value,
};
use topics::{HistoryLimits, Topics};

use crate::broker::Broker;
use crate::handler::Js;
use crate::napi::{Env, Thrown};
use crate::setup::Listeners;
use crate::shared::Shared;
use crate::threads::Threads;
use crate::uv::Driver;
use crate::{cached, children, history, http, key_value, setup, shared, sockets, threads};

/// What an app takes beside its connections, for the garbage collector, which would take apps for small.
pub(crate) const APP_BYTES: i64 = 64 * 1024;

/// Turns in a row while there is more to do, before the loop looks at what else it has.
const TURNS_MAX: usize = 8;

/// A worker, its place on the loop, and the way to it.
pub(crate) struct App {
    worker: UnsafeCell<Option<Worker<Linux, Js>>>,
    /// Where the worker is while its turn calls JavaScript.
    entered: Cell<Option<Entered>>,
    in_turn: Cell<bool>,
    driver: RefCell<Option<Driver>>,
    pub(crate) listeners: RefCell<Listeners>,
    /// What other threads name it by; 0 without a name.
    pub(crate) descriptor: Cell<u32>,
    /// The environment ends: no more JavaScript is called.
    pub(crate) ended: Cell<bool>,
    hook: Cell<napi_async_cleanup_hook_handle>,
    /// What other threads wake the worker by.
    wake_fd: Cell<Option<i32>>,
    /// JavaScript's half stays even if no program has it, since something can happen.
    strong: Cell<bool>,
    /// The program has closed it and opened nothing since.
    pub(crate) closed: Cell<bool>,
    /// Functions of JavaScript that have it as their data.
    functions: Cell<usize>,
    /// libuv has its handles.
    driven: Cell<bool>,
}

#[derive(Copy, Clone)]
struct Entered {
    js: *mut Js,
    core: *mut Core<Linux, Js>,
}

impl App {
    /// Creates an app on the loop of this thread. It stays until its functions are gone and libuv has let go of it.
    fn create(
        env: Env,
        events: napi_value,
        tls: bool,
        shared: Option<Shared>,
    ) -> Result<&'static App, Thrown> {
        let app: &'static App = Box::leak(Box::new(App {
            worker: UnsafeCell::new(None),
            entered: Cell::new(None),
            in_turn: Cell::new(false),
            driver: RefCell::new(None),
            listeners: RefCell::default(),
            descriptor: Cell::new(0),
            ended: Cell::new(false),
            hook: Cell::new(null_mut()),
            wake_fd: Cell::new(None),
            strong: Cell::new(true),
            closed: Cell::new(false),
            functions: Cell::new(0),
            driven: Cell::new(false),
        }));
        let nofile = capacity::nofile().soft;
        let plan = Plan::new(1, 1, nofile, Plan::LISTENERS_RESERVED, Tables::Shared);
        let limits = Limits {
            keep_alive_timeout: setup::HTTP_IDLE,
            handshake_timeout: setup::HTTP_IDLE,
            compress_above_bytes: 0,
            proxies: Proxies { protocol: ProxyProtocol::Accepted, ..Proxies::default() },
            ..Limits::default()
        };
        let worker = Worker::embedded(limits, plan.capacity, |remote| {
            let joined = shared.as_ref().map(|shared| shared.join(remote));
            let (number, directory) = joined.unwrap_or_default();
            Js::new(app, env, events, tls, Topics::new(number, directory), shared)
        });
        let worker = worker.map_err(|error| format!("cannot create an app: {error}"))?;
        let descriptor = worker.poll_fd().unwrap_or(-1);
        app.wake_fd.set(worker.wake_fd());
        // SAFETY: nobody has used the cell yet.
        unsafe { *app.worker.get() = Some(worker) };
        let (mut uv, mut hook) = (null_mut(), null_mut());
        let data = std::ptr::from_ref(app).cast_mut().cast::<c_void>();
        // SAFETY: the loop is that of this thread. The app is not freed before `on_closed`, which is the last to get `data`.
        unsafe {
            sys::napi_get_uv_event_loop(env.0, &mut uv);
            *app.driver.borrow_mut() = Driver::new(uv.cast(), descriptor, data);
            sys::napi_add_async_cleanup_hook(env.0, Some(on_cleanup), data, &mut hook);
        }
        app.hook.set(hook);
        if app.driver.borrow().is_none() {
            return Err("cannot watch the descriptor of an app".into());
        }
        app.driven.set(true);
        Ok(app)
    }

    /// Ends everything without calling JavaScript. What is under way in a turn ends after it.
    fn end(&self) {
        if !self.ended.replace(true) {
            children::ended(self);
        }
        // Before the worker, whose descriptor it watches.
        let driver = self.driver.borrow_mut().take();
        if let Some(driver) = driver {
            driver.close();
        }
        if self.in_turn.get() {
            return;
        }
        // SAFETY: no turn is under way.
        let worker = unsafe { (*self.worker.get()).take() };
        if let Some(mut worker) = worker {
            if let Some(threads) = &mut worker.parts().0.threads {
                threads.stop();
            }
            worker.end_all();
            self.listeners.borrow_mut().close_all(&mut worker, self.descriptor.get());
            worker.parts().0.forget_all();
        }
    }

    /// Frees it when nobody has it any more.
    ///
    /// # Safety
    /// `app` is not used after this.
    unsafe fn free_unused(app: *const App) {
        // SAFETY: it is there until it is freed here, which nobody can notice: functions, libuv and the hook of
        // the environment have let go of it, and nothing else keeps a pointer beyond a call.
        unsafe {
            let (functions, driven) = ((*app).functions.get(), (*app).driven.get());
            if functions == 0 && !driven && (*(*app).worker.get()).is_none() {
                drop(Box::from_raw(app.cast_mut()));
            }
        }
    }

    /// Calls JavaScript from a turn, which JavaScript reaches meanwhile.
    #[inline]
    pub(crate) fn call_out<S: Sys, T>(
        &self,
        js: &mut Js,
        core: &mut Core<S, Js>,
        call: impl FnOnce() -> T,
    ) -> T {
        // The only worker with this handler is the one of `App::create`, so S is Linux.
        let core = std::ptr::from_mut(core).cast();
        let before = self.entered.replace(Some(Entered { js, core }));
        let result = call();
        self.entered.set(before);
        result
    }

    /// Handler and core, for a call from JavaScript. `act` must not call JavaScript.
    #[inline]
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Js, &mut Core<Linux, Js>) -> T) -> T {
        if let Some(Entered { js, core }) = self.entered.get() {
            // SAFETY: `call_out` is on the stack, whose caller uses neither before it has returned. `act` calls
            // no JavaScript, so this is the only use of them.
            return unsafe { act(&mut *js, &mut *core) };
        }
        // SAFETY: no turn calls JavaScript, so no turn is under way, and nobody else has the worker.
        let worker = unsafe { &mut *self.worker.get() };
        match worker {
            Some(worker) => {
                let (js, core) = worker.act();
                act(js, core)
            }
            // Only `enter` leads here, which refuses calls of apps that have ended.
            None => std::process::abort(),
        }
    }

    /// As [`App::with`], for what a turn has to go on with.
    pub(crate) fn with_turn<T>(&self, act: impl FnOnce(&mut Js, &mut Core<Linux, Js>) -> T) -> T {
        let result = self.with(act);
        self.turn_soon();
        result
    }

    pub(crate) fn wake_fd(&self) -> Option<i32> {
        self.wake_fd.get()
    }

    /// Sees to it that a turn follows.
    pub(crate) fn turn_soon(&self) {
        if !self.in_turn.get()
            && let Some(driver) = self.driver.borrow_mut().as_mut()
        {
            let now_ns = now_ns();
            driver.wake_at(now_ns, now_ns);
        }
    }

    fn turn(&self, timer: bool) {
        if self.ended.get() || self.in_turn.replace(true) {
            return;
        }
        if timer && let Some(driver) = self.driver.borrow_mut().as_mut() {
            driver.was_due();
        }
        for _ in 0..TURNS_MAX {
            // SAFETY: no other turn is under way, and calls from JavaScript use `entered` meanwhile.
            let Some(worker) = (unsafe { &mut *self.worker.get() }) else { break };
            let turned = worker.turn(Some(Duration::ZERO));
            worker.parts().0.end_scope();
            if turned.is_err() {
                // Epoll itself fails: there is nothing to go on with.
                break;
            }
            if worker.deadline().is_none_or(|at_ns| at_ns > worker.parts().1.now_ns()) {
                break;
            }
        }
        self.in_turn.set(false);
        if self.ended.get() {
            self.end();
        } else {
            self.settle();
        }
    }

    /// Between two turns: opens and closes listeners, and tells the loop when to come back.
    pub(crate) fn settle(&self) {
        if self.in_turn.get() || self.ended.get() {
            return;
        }
        // SAFETY: no turn is under way, and no JavaScript is called below.
        let Some(worker) = (unsafe { &mut *self.worker.get() }) else { return };
        let mut listeners = self.listeners.borrow_mut();
        listeners.apply(worker, self.descriptor.get());
        let threads = worker.parts().0.threads.as_ref();
        let keeps_alive = listeners.any_open()
            || threads.is_some_and(|threads| threads.keeps_alive())
            || worker.parts().1.connections() > 0;
        let js = worker.parts().0;
        let strong = keeps_alive || js.shared.is_some() && !self.closed.get();
        if self.strong.replace(strong) != strong {
            js.set_strong(strong);
        }
        if let Some(driver) = self.driver.borrow_mut().as_mut() {
            driver.set_keeps_alive(keeps_alive);
            if let Some(at_ns) = worker.deadline() {
                driver.wake_at(at_ns, now_ns());
            }
        }
    }
}

/// libuv: something is readable, or the deadline has come.
///
/// # Safety
/// `data` is an [`App`] of this thread.
pub(crate) unsafe fn on_turn(data: *mut c_void, timer: bool) {
    // SAFETY: by contract; an app is not freed before `on_closed`.
    let app = unsafe { &*data.cast::<App>() };
    or_abort(|| app.turn(timer));
}

/// Calls what must not panic. The state after a panic is not known: going on could corrupt what is sent.
#[inline]
fn or_abort<T>(call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        eprintln!("standfast: an invariant of the server is broken; see the message above");
        std::process::abort()
    })
}

/// The environment ends: connections are closed without calling JavaScript.
///
/// # Safety
/// Node calls it once, with an [`App`] of this thread.
unsafe extern "C" fn on_cleanup(hook: napi_async_cleanup_hook_handle, data: *mut c_void) {
    // SAFETY: by contract; `on_closed` removes the hook of an app before it can be freed.
    let app = unsafe { &*data.cast::<App>() };
    app.hook.set(hook);
    app.end();
    if !app.driven.get() {
        // SAFETY: the handle is that of this hook.
        unsafe { sys::napi_remove_async_cleanup_hook(app.hook.replace(null_mut())) };
    }
}

/// libuv has let go of an app that has ended.
///
/// # Safety
/// As [`on_turn`], once.
pub(crate) unsafe fn on_closed(data: *mut c_void) {
    // SAFETY: by contract; the handle is that of the app's hook, and the app is not used afterwards.
    unsafe {
        let app = data.cast::<App>();
        sys::napi_remove_async_cleanup_hook((*app).hook.replace(null_mut()));
        (*app).driven.set(false);
        App::free_unused(app);
    }
}

/// JavaScript has let go of a function of an app. After the last one nothing can be done with the app.
///
/// # Safety
/// Node calls it once for each function, in the thread of the app.
unsafe extern "C" fn on_function_gone(_: napi_env, data: *mut c_void, _: *mut c_void) {
    // SAFETY: by contract; the app is not freed while it counts a function, and is not used afterwards.
    unsafe {
        let app = data.cast::<App>();
        let rest = (*app).functions.get().saturating_sub(1);
        (*app).functions.set(rest);
        if rest == 0 {
            or_abort(|| (*app).end());
            App::free_unused(app);
        }
    }
}

/// A function that JavaScript calls.
pub(crate) type Native = fn(&App, Env, &[napi_value; ARGUMENTS]) -> Result<napi_value, Thrown>;

/// Most arguments of a [`Native`].
pub(crate) const ARGUMENTS: usize = 5;

#[inline]
pub(crate) fn enter(env: napi_env, info: napi_callback_info, native: Native) -> napi_value {
    let env = Env(env);
    let (arguments, data) = env.arguments::<ARGUMENTS>(info);
    // SAFETY: the data of these functions is an app, which is not freed before they are gone.
    let app = unsafe { &*data.cast::<App>() };
    if app.ended.get() {
        env.throw("this app has ended with its thread");
        return null_mut();
    }
    called(env, || native(app, env, &arguments))
}

/// The result of a function that JavaScript calls, or what it throws.
#[inline]
pub(crate) fn called(
    env: Env,
    function: impl FnOnce() -> Result<napi_value, Thrown>,
) -> napi_value {
    match or_abort(function) {
        Ok(value) => value,
        Err(Thrown(text)) => {
            env.throw(&text);
            null_mut()
        }
    }
}

/// The options of topics that an app shares; without a name it shares none.
fn shared_topics(env: Env, options: napi_value) -> Result<Option<Shared>, Thrown> {
    let text = |name| env.text(env.property(options, name));
    let Some(name) = text(c"topics") else { return Ok(None) };
    let broker = text(c"url").map(|urls| Broker {
        urls,
        prefix: text(c"prefix").unwrap_or_default(),
        spool_bytes: env.to_f64(env.property(options, c"spoolBytes")).unwrap_or(0.0) as usize,
        authorities: text(c"authorities"),
    });
    let number = |name| env.to_f64(env.property(options, name));
    let limits = number(c"historySize").map(|messages| HistoryLimits {
        messages: messages as usize,
        age_ns: (number(c"historyTtl").unwrap_or(0.0) * 1e9) as u64,
        topic_bytes: number(c"historyTopicBytes").unwrap_or(0.0) as usize,
        bytes: number(c"historyBytes").unwrap_or(0.0) as usize,
    });
    Shared::new(&name, broker, limits).map(Some)
}

/// `createApp(events, tls, { topics, url, prefix, spoolBytes, authorities, historySize … }, workers)`: an app, as an object
/// with its functions.
///
/// # Safety
/// Called by Node.
unsafe extern "C" fn create_app(env: napi_env, info: napi_callback_info) -> napi_value {
    let env = Env(env);
    let ([events, tls, options, workers], _) = env.arguments::<4>(info);
    let workers = env.to_f64(workers).unwrap_or(0.0) as usize;
    let create = || App::create(env, events, env.to_bool(tls), shared_topics(env, options)?);
    match or_abort(create) {
        Ok(app) => {
            let object = env.object();
            let data = std::ptr::from_ref(app).cast_mut().cast();
            let tables = [
                sockets::NATIVES,
                http::NATIVES,
                cached::NATIVES,
                setup::NATIVES,
                children::NATIVES,
                shared::NATIVES,
                history::NATIVES,
            ];
            if workers > 0 {
                app.with(|js, _| {
                    let place = js.shared.as_ref().map(Shared::place);
                    js.threads = Some(Box::new(Threads::new(workers, place)));
                });
            }
            // Those of threads take the place of others.
            let of_threads = if workers > 0 { threads::NATIVES } else { &[] };
            for table in tables.into_iter().chain([of_threads]) {
                for (name, function) in table {
                    let function = env.method(object, name, *function, data);
                    // SAFETY: a function of this environment, and an app that counts it.
                    let counted = unsafe {
                        sys::napi_add_finalizer(
                            env.0,
                            function,
                            data,
                            Some(on_function_gone),
                            null_mut(),
                            null_mut(),
                        )
                    };
                    // One that is not counted would outlive the app: then it stays until the thread ends.
                    let more = if counted == Status::napi_ok { 1 } else { usize::MAX / 2 };
                    app.functions.set(app.functions.get().saturating_add(more));
                }
            }
            // Who has the functions has what they call.
            env.set_property(object, c"events", events);
            env.weigh(APP_BYTES);
            app.settle();
            object
        }
        Err(Thrown(text)) => {
            env.throw(&text);
            null_mut()
        }
    }
}

/// Node loads the module.
///
/// # Safety
/// Called by Node.
#[unsafe(no_mangle)]
unsafe extern "C" fn napi_register_module_v1(env: napi_env, exports: napi_value) -> napi_value {
    Env(env).method(exports, "createApp", create_app, null_mut());
    for (name, function) in key_value::NATIVES {
        Env(env).method(exports, name, *function, null_mut());
    }
    exports
}

/// A table of [`Native`]s by their names in JavaScript; after `enter:`, of functions that this function calls.
macro_rules! natives {
    ($($name:ident),* $(,)?) => {
        use crate::app::enter;
        crate::app::natives!(enter: $($name),*);
    };
    ($enter:ident: $($name:ident),* $(,)?) => {
        /// The functions of this module, by their names in JavaScript.
        pub(crate) const NATIVES: crate::app::Table = &[$((stringify!($name), entry::$name)),*];

        #[expect(unsafe_code, reason = "Node calls them")]
        mod entry {
            $(
                /// # Safety
                /// Called by Node.
                pub(super) unsafe extern "C" fn $name(
                    env: napi_sys::napi_env,
                    info: napi_sys::napi_callback_info,
                ) -> napi_sys::napi_value {
                    super::$enter(env, info, super::$name)
                }
            )*
        }
    };
}
pub(crate) use natives;

/// Names and functions for Node.
pub(crate) type Table =
    &'static [(&'static str, unsafe extern "C" fn(napi_env, napi_callback_info) -> napi_value)];
