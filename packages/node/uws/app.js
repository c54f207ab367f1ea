'use strict';

const binding = require('./native');
const { text, arrayBuffer } = require('./bytes');
const { httpClasses, unanswered, YIELD, ABORTED, DATA, WRITABLE, KEEP, CONTEXT } = require('./http');
const { socketClass, report, noMessage, SLOT, KIND, NONE } = require('./socket');
const { readCertificates } = require('./certificates');
const { checkBehavior } = require('./behavior');
const { sharedTopics, topicsState } = require('./shared');
const { workersOf, withWorkers } = require('./workers');

const LISTENER = Symbol('listener');

/** Apps whose replies may wait for other handlers when one of them ends the process; one list, however often this is loaded. */
const AT_EXIT = Symbol.for('standfast.apps');
const atExit = process[AT_EXIT] ?? new Set();
if (process[AT_EXIT] === undefined) {
  Object.defineProperty(process, AT_EXIT, { value: atExit });
  process.on('exit', () => atExit.forEach((app) => app.deref()?.send_deferred()));
}
const forgotten = new FinalizationRegistry((app) => atExit.delete(app));

const DESCRIPTOR_MAX = 2 ** 31 - 1;

/** How often `close` looks for sockets that handlers have opened meanwhile. */
const CLOSING_ROUNDS = 16;

/** Sets an element of a list that may be shorter. */
function place(list, at, value) {
  while (list.length <= at) list.push(undefined);
  list[at] = value;
}

function createApp(tls, options) {
  /** By slot. A socket without an open handler has no object before its first event. */
  const sockets = [];
  /** By slot: those that have not ended when their handler returns. */
  const responses = [];
  /** By route. */
  const routes = [];
  const filters = [];
  /** By slot, what is called when a connection of another server ends. */
  const adopted = new Map();
  let missingName;

  const events = {
    request(slot, route, upgrades) {
      const { handler, names } = routes[route];
      const res = new HttpResponse(slot, upgrades ? route : -1);
      const req = new HttpRequest(names);
      let returned = false;
      try {
        handler(res, req, CONTEXT);
        returned = true;
      } finally {
        if (!returned && res[SLOT] !== NONE) {
          // With an abort handler it may be answered later, and has to end when its client leaves.
          if (res[ABORTED]) place(responses, slot, res);
          else {
            leaveResponse(res, slot);
            native.res_close(slot);
          }
        }
      }
      if (res[SLOT] === NONE) return 0;
      if (req[YIELD]) {
        // The next handler has one of its own, and the slot may have another connection later.
        leaveResponse(res, slot);
        return 1;
      }
      if (!res[ABORTED] && !res[DATA]) {
        leaveResponse(res, slot);
        native.res_close(slot);
        throw unanswered();
      }
      place(responses, slot, res);
      return 0;
    },

    aborted(slot) {
      const res = responses[slot];
      if (res === undefined) return;
      leaveResponse(res, slot);
      const handler = res[ABORTED];
      if (handler) handler();
    },

    data(slot, bytes, last) {
      const handler = responses[slot]?.[DATA];
      return handler && handler(bytes, last) === KEEP ? 1 : 0;
    },

    writable(slot, offset) {
      const handler = responses[slot]?.[WRITABLE];
      if (handler) handler(offset);
    },

    open(slot, route) {
      const { open } = routes[route].behavior;
      open(socketAt(slot, route));
    },

    message(slotAndBinary, bytes) {
      const slot = slotAndBinary >>> 1;
      const ws = sockets[slot] ?? socketAt(slot);
      ws[KIND].behavior.message(ws, bytes, (slotAndBinary & 1) === 1);
    },

    dropped(slotAndBinary, bytes) {
      const ws = socketAt(slotAndBinary >>> 1);
      ws[KIND].behavior.dropped(ws, bytes, (slotAndBinary & 1) === 1);
    },

    drain(slot) {
      const ws = socketAt(slot);
      ws[KIND].behavior.drain(ws);
    },

    close(slot, code, reason) {
      const ws = socketAt(slot);
      if (!leaveSocket(ws, slot)) return;
      native.leave(slot);
      const { close } = ws[KIND].behavior;
      if (close) close(ws, code, reason);
    },

    ping(slot, bytes) {
      const ws = socketAt(slot);
      ws[KIND].behavior.ping(ws, bytes);
    },

    pong(slot, bytes) {
      const ws = socketAt(slot);
      ws[KIND].behavior.pong(ws, bytes);
    },

    filter(slot, count) {
      if (count < 0) {
        const ended = adopted.get(slot);
        adopted.delete(slot);
        if (ended) ended();
      }
      for (const filter of filters) {
        const res = new HttpResponse(slot, -1);
        try {
          filter(res, count);
        } finally {
          // The slot may have another connection later.
          leaveResponse(res, slot);
        }
      }
    },

    missing_name(name) {
      missingName(name);
    },

    missed(topic) {
      if (missed) missed(topic);
    },

    confirmed(topic) {
      if (options.confirmed) options.confirmed(topic);
    },

    replayed(slot, topic, reason, position) {
      const ws = socketAt(slot);
      ws[KIND].behavior.replayed(ws, topic, reason, position);
    },
  };

  const missed = options?.missed;
  const workers = workersOf(options);
  const native = binding.createApp(events, tls, sharedTopics(options) ?? {}, workers);
  const weak = new WeakRef(native);
  atExit.add(weak);
  forgotten.register(native, weak);
  const { WebSocket, leave: leaveSocket } = socketClass(native, sockets);
  const { HttpRequest, HttpResponse, leave: leaveResponse } = httpClasses(
    native,
    responses,
    (slot, route, userData) => {
      const ws = new routes[route].Socket(slot);
      if (userData !== null && typeof userData === 'object') Object.assign(ws, userData);
      place(sockets, slot, ws);
      const { open } = routes[route].behavior;
      if (open) open(ws);
    },
  );

  /** The object of a socket, made now if it has none. */
  function socketAt(slot, route) {
    const known = sockets[slot];
    if (known !== undefined) return known;
    const ws = new routes[route ?? native.route_of(slot)].Socket(slot);
    place(sockets, slot, ws);
    return ws;
  }

  /** The host that routes are added for; "" is any. */
  let host = '';

  function addRoute(method, pattern, handler, cache) {
    pattern = text(pattern, 'a pattern');
    if (typeof handler !== 'function') {
      throw new TypeError(`expected a handler for ${pattern}: a function (res, req)`);
    }
    const names = pattern.split('/').filter((part) => part.startsWith(':')).map((name) => name.slice(1));
    if (cache === undefined) {
      routes[native.route(host, method, pattern)] = { handler, names };
      return;
    }
    if (method !== 'GET') throw new TypeError(`a route with a cache is one of get: ${pattern} is not`);
    const { cacheOptions, cachedHandler } = require('./cached');
    const options = cacheOptions(cache);
    const route = native.route(host, method, pattern);
    routes[route] = { handler: cachedHandler(native, route, handler, options), names };
  }

  const app = {
    ws(pattern, behavior = {}) {
      pattern = text(pattern, 'a pattern');
      const names = pattern.split('/').filter((part) => part.startsWith(':'));
      const kind = { behavior, handler: behavior.upgrade, names: names.map((name) => name.slice(1)) };
      kind.Socket = class extends WebSocket { static name = WebSocket.name; };
      kind.Socket.prototype[KIND] = kind;
      const checked = checkBehavior(behavior);
      if (workers > 0 && checked.maxLifetime > 0) throw new Error('maxLifetime is not for an app with the option workers');
      const route = native.socket_route(host, pattern, checked);
      routes[route] = kind;
      return app;
    },

    listen(...args) {
      const callback = args.find((arg) => typeof arg === 'function');
      const rest = args.filter((arg) => typeof arg !== 'function');
      const host = rest.length > 1 && typeof rest[0] !== 'number' ? text(rest.shift() ?? '', 'a host') : '';
      const [given, flags = 0] = rest;
      // Of an environment variable, say.
      const port = typeof given === 'string' && given.trim() !== '' ? Number(given) : given;
      const index = native.listen(host, port, (flags & 1) !== 0);
      const listener = index === -1 ? false : { [LISTENER]: { native, index } };
      if (callback) callback(listener);
      return app;
    },

    listen_unix(callback, path) {
      const index = native.listen_unix(path);
      callback(index === -1 ? false : { [LISTENER]: { native, index } });
      return app;
    },

    publish(topic, message, isBinary, compress) {
      if (arguments.length < 2) throw noMessage();
      return native.publish(-1, topic, message, (isBinary ? 1 : 0) | (compress ? 2 : 0));
    },

    numSubscribers(topic) {
      return native.subscribers(topic);
    },

    /** The history of topics, for `Server`. */
    _history: native,

    /** For `Server`: it is closed, and need not stay for topics that it shares. Connections stay until they end. */
    _release() {
      native.release();
    },

    getTopicsState() {
      return topicsState(native.topics_state());
    },

    // Without TLS names have no certificates: programs call these for both kinds of apps.
    addServerName(name, serverOptions) {
      if (!tls) return app;
      const { certificate, key, authorities, required } = readCertificates(serverOptions);
      native.add_certificate(text(name, 'a name'), certificate, key, authorities, required);
      return app;
    },

    removeServerName(name) {
      if (!tls) return app;
      native.remove_certificate(text(name, 'a name'));
      return app;
    },

    domain(name) {
      host = text(name, 'a name');
      return app;
    },

    missingServerName(callback) {
      if (typeof callback !== 'function') throw new TypeError('expected a handler: a function (name)');
      missingName = callback;
      if (tls) native.report_names();
      return app;
    },

    filter(callback) {
      if (typeof callback !== 'function') throw new TypeError('expected a filter: a function (res, count)');
      filters.push(callback);
      native.filter();
      return app;
    },

    getDescriptor() {
      return native.descriptor();
    },

    addChildAppDescriptor(descriptor) {
      native.add_child(descriptor);
      return app;
    },

    removeChildAppDescriptor(descriptor) {
      native.remove_child(descriptor);
      return app;
    },

    /** Serves a connection of another server, as if `bytes` came first. Returns whether it does; `ended` is called then. */
    _adopt(descriptor, bytes, ended) {
      const slot = native.adopt(descriptor, bytes);
      if (slot === -1) return false;
      adopted.set(slot, ended);
      events.filter(slot, 1);
      return true;
    },

    adoptSocket(descriptor) {
      if (!Number.isInteger(descriptor) || descriptor < 0 || descriptor > DESCRIPTOR_MAX) {
        throw new TypeError('expected the descriptor of a connected TCP socket: a whole number, 0 or more');
      }
      const slot = native.adopt(descriptor, '', true);
      if (slot === -1) throw new Error('cannot take over a socket: there is no room for another connection');
      // The connection is the app's now.
      try {
        events.filter(slot, 1);
      } catch (error) {
        report(error);
      }
      return app;
    },

    close() {
      // Their handlers are called before this returns. What one of them throws keeps no other from its end.
      const thrown = [];
      const end = (one) => {
        try {
          if (one !== undefined && one[SLOT] !== NONE) one.close();
        } catch (error) {
          thrown.push(error);
        }
      };
      // One of them may end others of these, and open new ones.
      for (let rounds = 0; rounds < CLOSING_ROUNDS; rounds += 1) {
        const open = [...native.open_sockets().map((slot) => socketAt(slot)), ...responses].filter((one) => one !== undefined);
        if (open.length === 0) break;
        open.forEach(end);
      }
      native.close_all();
      if (workers > 0) {
        // Their ends are not reported.
        sockets.forEach((ws, slot) => ws && leaveSocket(ws, slot));
        responses.forEach((res, slot) => res && leaveResponse(res, slot));
      }
      thrown.slice(1).forEach(report);
      if (thrown.length > 0) throw thrown[0];
      return app;
    },
  };

  const methods = {
    get: 'GET',
    post: 'POST',
    options: 'OPTIONS',
    del: 'DELETE',
    patch: 'PATCH',
    put: 'PUT',
    head: 'HEAD',
    connect: 'CONNECT',
    trace: 'TRACE',
    any: '',
  };
  for (const [name, method] of Object.entries(methods)) {
    app[name] = (pattern, handler, cache) => {
      addRoute(method, pattern, handler, cache);
      return app;
    };
  }

  if (tls) {
    const { certificate, key, authorities, required } = readCertificates(options);
    native.add_certificate('', certificate, key, authorities, required);
  }
  if (workers > 0) withWorkers(app);
  return app;
}

function closeListener(listener) {
  const own = listener?.[LISTENER];
  if (!own) throw new TypeError('expected the listen socket that the callback of listen was called with');
  own.native.close_listener(own.index);
}

function listenerPort(listener) {
  const own = listener?.[LISTENER];
  return own ? own.native.listener_port(own.index) : -1;
}

module.exports = { createApp, closeListener, listenerPort, arrayBuffer };
