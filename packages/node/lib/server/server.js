// `Server`: WebSockets with async iteration and promises, and plain requests by a `fetch` handler.
'use strict';

const { getEventListeners } = require('node:events');
const { readFileSync } = require('node:fs');
const { owner } = require('../bytes.js');
const { History } = require('./history.js');
const { clientOf, serve } = require('./http.js');
const { Socket, SocketEvent, bytesOf } = require('./socket.js');

const DEFAULTS = {
  /** Bytes of the largest message; a longer one closes the connection. */
  maxPayload: 1024 * 1024,
  /** Seconds without a message after which a client is pinged, and closed if it does not answer. */
  idleTimeout: 120,
  /** Bytes that may wait to be written before `send` makes its caller wait. */
  highWaterMark: 64 * 1024,
  /** Bytes that may wait before messages are dropped. */
  maxBackpressure: 1024 * 1024,
  /** Bytes of messages that a socket keeps for a program that has not taken them. */
  maxQueue: 1024 * 1024,
  /** Bytes of the largest body of a plain request. */
  maxBody: 1024 * 1024,
  /** permessage-deflate. */
  compress: false,
};
const FUNCTIONS = ['fetch'];
const OTHERS = ['tls', 'topics', 'broker', 'history', 'workers'];

module.exports = (uws) => {
  const own = owner(uws);

  class Server extends EventTarget {
    #app;
    #limits;
    #isSecure;
    #asks;
    #compression;
    #listener;
    #history;
    #sockets = new Set();
    #isClosing = false;
    #counters = { accepted: 0, refused: 0, paused: 0, overflowed: 0, dropped: 0 };
    #emptied;

    constructor(options = {}) {
      super();
      const known = [...Object.keys(DEFAULTS), ...FUNCTIONS, ...OTHERS];
      const unknown = Object.keys(options).find((name) => !known.includes(name));
      if (unknown) throw new TypeError(`Server has no option ${unknown}: there are ${known.join(', ')}`);
      this.#limits = { ...DEFAULTS, ...options };
      for (const [name, value] of Object.entries(this.#limits)) {
        if (typeof DEFAULTS[name] === 'number' && !(Number.isInteger(value) && value >= 0)) {
          throw new TypeError(`${name} must be a whole number, not ${value}`);
        }
      }
      this.#compression = this.#limits.compress ? uws.SHARED_COMPRESSOR | uws.SHARED_DECOMPRESSOR : uws.DISABLED;
      this.#isSecure = Boolean(options.tls);
      this.#asks = options.tls?.ca !== undefined;
      const { topics, broker, history, workers } = options;
      const missed = broker === undefined ? undefined : (topic) => this.dispatchEvent(new SocketEvent('missed', { topic }));
      const isGiven = [topics, broker, history, workers].some((option) => option !== undefined);
      const confirmed = (topic) => this.#history?.confirmed(topic);
      const given = isGiven ? { topics, broker, history, missed, confirmed, workers } : undefined;
      this.#app = options.tls ? uws.SSLApp({ ...tlsOptions(options.tls), ...given }) : given ? uws.App(given) : uws.App();
      if (history) this.#history = new History(this.#app._history, broker === undefined ? undefined : () => this.topicsState.broker);
      if (options.fetch) {
        this.#app.any('/*', (res, req) => serve(res, req, {
          fetch: options.fetch, isSecure: this.#isSecure, asks: this.#asks, maxBody: this.#limits.maxBody, failed: (error) => this.#failed(error),
        }));
      }
    }

    /** How many of what has happened, and how many sockets are open. */
    get counters() {
      return { open: this.#sockets.size, ...this.#counters };
    }

    get sockets() {
      return this.#sockets.values();
    }

    /**
     * Serves WebSockets on a pattern such as `/rooms/:room` or `/*`. `handler` is called with each socket; if it
     * throws or its promise rejects, the socket is closed with 1011. `authorize` is asked before: it returns what to accept
     * (`{ data, protocol }`, or nothing), or a `Response` to refuse.
     */
    websocket(pattern, handler, { authorize } = {}) {
      if (typeof handler !== 'function') throw new TypeError('websocket needs a pattern and a function');
      const parameters = [...pattern.matchAll(/:([^/]+)/g)].map(([, name]) => name);
      const { maxPayload, idleTimeout, maxBackpressure } = this.#limits;
      this.#app.ws(pattern, {
        maxPayloadLength: maxPayload,
        idleTimeout,
        maxBackpressure,
        keepMessages: true,
        compression: this.#compression,
        upgrade: (res, req, context) => this.#upgrade(res, req, context, parameters, authorize),
        open: (raw) => this.#open(raw, handler),
        message: (raw, message, isBinary) => raw.socket._message(own(message), isBinary),
        dropped: () => { this.#counters.dropped += 1; },
        drain: (raw) => raw.socket._drain(),
        ping: (raw, message) => raw.socket._control('ping', message.slice(0)),
        pong: (raw, message) => raw.socket._control('pong', message.slice(0)),
        replayed: (raw, topic, reason, position) => this.#history.replayed(raw.socket, topic, reason, position),
        close: (raw, code, message) => this.#close(raw.socket, code, message),
      });
      return this;
    }

    #upgrade(res, req, context, parameters, authorize) {
      const request = requestOf(res, req, parameters, this.#asks);
      const key = req.getHeader('sec-websocket-key');
      const extensions = req.getHeader('sec-websocket-extensions');
      let aborted = false;
      let isOver = false;
      const refuse = (response) => {
        if (isOver) return;
        this.#counters.refused += 1;
        if (aborted) return;
        res.cork(() => {
          res.writeStatus(`${response.status} ${response.statusText || 'Refused'}`);
          for (const [name, value] of response.headers ?? []) res.writeHeader(name, value);
          res.end(response.text ?? '', true);
        });
      };
      const accept = ({ data, protocol = '' } = {}) => {
        if (this.#isClosing) {
          refuse({ status: 503, statusText: 'Service Unavailable' });
          return;
        }
        if (aborted) return;
        isOver = true;
        res.cork(() => res.upgrade({ accepted: { request, data, protocol } }, key, protocol, extensions, context));
      };
      if (!authorize) {
        accept();
        return;
      }
      res.onAborted(() => { aborted = true; });
      const decide = async () => {
        const decision = await authorize(request);
        if (decision === false) refuse({ status: 403, statusText: 'Forbidden' });
        else if (decision instanceof Response) {
          const { status, statusText, headers } = decision;
          refuse({ status, statusText, headers, text: await decision.text() });
        } else accept(decision === true ? undefined : decision ?? undefined);
      };
      decide().catch((error) => {
        refuse({ status: 500, statusText: 'Internal Server Error' });
        this.#failed(error);
      });
    }

    #open(raw, handler) {
      const { accepted } = raw;
      raw.accepted = undefined;
      const context = {
        limits: this.#limits, counters: this.#counters, deflates: this.#limits.compress, history: this.#history,
      };
      const socket = new Socket(raw, accepted, context);
      raw.socket = socket;
      this.#counters.accepted += 1;
      this.#sockets.add(socket);
      this.dispatchEvent(new SocketEvent('connection', { socket }));
      const run = async () => handler(socket);
      run().catch((error) => {
        socket.close(1011, 'internal error');
        this.#failed(error);
      });
    }

    #close(socket, code, message) {
      this.#sockets.delete(socket);
      socket._close(code, message);
      if (this.#sockets.size === 0) this.#emptied?.();
    }

    /** An exception of a handler: an event, or without listeners an uncaught exception. */
    #failed(error) {
      if (getEventListeners(this, 'error').length > 0) this.dispatchEvent(new SocketEvent('error', { error }));
      else process.nextTick(() => { throw error; });
    }

    /** Listens on a port (0 for any) or a path; `signal` closes the server. Resolves to the address. */
    async listen(where, { signal } = {}) {
      const { port, host, path } = typeof where === 'object' ? where : { port: where };
      signal?.throwIfAborted();
      if (this.#listener) throw new Error('the server listens already');
      const done = (socket) => { this.#listener = socket || undefined; };
      if (path !== undefined) this.#app.listen_unix(done, path);
      else if (host !== undefined) this.#app.listen(host, port, done);
      else this.#app.listen(port, done);
      if (!this.#listener) throw new Error(`cannot listen on ${path ?? `${host ?? '*'}:${port}`}: is another program using it?`);
      signal?.addEventListener('abort', () => this.close(), { once: true });
      return path === undefined ? { host: host ?? '::', port: uws.us_socket_local_port(this.#listener) } : { path };
    }

    /** Sends to all members of a topic. Whether there are any. */
    publish(topic, message, { compress = this.#limits.compress } = {}) {
      return this.#app.publish(topic, bytesOf(message), typeof message !== 'string', compress);
    }

    /** State and counters of topics that are shared. */
    get topicsState() {
      return this.#app.getTopicsState();
    }

    /**
     * What is kept of a topic, oldest first: the latest `limit` messages [100], or with `since`, a position or a Date, those
     * from then on.
     */
    async history(topic, options) {
      if (!this.#history) throw new Error('nothing is kept: the server needs the option history');
      return this.#history.read(topic, options);
    }

    subscribers(topic) {
      return this.#app.numSubscribers(topic);
    }

    /** Stops listening and closes all sockets. Resolves when they are closed. */
    async close(code = 1001, reason = 'the server stops') {
      this.#isClosing = true;
      this.#history?.close();
      if (this.#listener) uws.us_listen_socket_close(this.#listener);
      this.#listener = undefined;
      const empty = new Promise((resolve) => { this.#emptied = resolve; });
      for (const socket of [...this.#sockets]) socket.close(code, reason);
      if (this.#sockets.size > 0) await empty;
      this.#app._release?.();
    }
  }

  if (Symbol.asyncDispose) {
    Server.prototype[Symbol.asyncDispose] = function dispose() { return this.close(); };
  }
  return { Server };
};

/** What a program sees of a handshake's request. */
function requestOf(res, req, parameters, asks) {
  const headers = new Headers();
  req.forEach((name, value) => headers.append(name, value));
  return {
    path: req.getUrl(),
    query: new URLSearchParams(req.getQuery() ?? ''),
    params: Object.fromEntries(parameters.map((name, at) => [name, decode(req.getParameter(at))])),
    headers,
    protocols: (headers.get('sec-websocket-protocol') ?? '').split(',').map((name) => name.trim()).filter(Boolean),
    ...clientOf(res, asks),
  };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Paths of PEM files, which are checked here for an error that names them. */
function tlsOptions({ key, cert, ca, passphrase }) {
  for (const file of [key, cert, ca].filter((name) => name !== undefined)) readFileSync(file);
  const options = { key_file_name: key, cert_file_name: cert, ca_file_name: ca, passphrase, rejectUnauthorized: ca === undefined ? undefined : true };
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}
