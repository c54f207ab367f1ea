// The sockets of `WebSocketServer`, as those of the package `ws` at a server.
'use strict';

const { EventEmitter } = require('node:events');
const { lengthOf, sendable } = require('../bytes.js');
const { Waiting } = require('../waiting.js');

const STATES = ['CONNECTING', 'OPEN', 'CLOSING', 'CLOSED'];
const BINARY_TYPES = ['nodebuffer', 'arraybuffer', 'fragments', 'blob'];
const HANDLERS = ['open', 'message', 'close', 'error'];
/** The most that a control frame carries beside a code. */
const REASON_MAX = 123;

/** Why the addon closed a connection, as errors of `ws`. */
const ERRORS = {
  'Received too big message': [RangeError, 'Max payload size exceeded', 'WS_ERR_UNSUPPORTED_MESSAGE_LENGTH'],
  'Received invalid UTF-8': [Error, 'Invalid WebSocket frame: invalid UTF-8 sequence', 'WS_ERR_INVALID_UTF8'],
};

class WebSocket extends EventEmitter {
  #raw;
  #readyState = WebSocket.OPEN;
  #binaryType = 'nodebuffer';
  #threshold;
  #waiting;
  #fragmented = false;
  #ending = false;
  #paused = false;

  /** Made by a server. For a client, use the global `WebSocket` of Node.js 22 or the package `ws`. */
  constructor(raw, request, accepted) {
    super();
    if (typeof raw !== 'object' || request === undefined) {
      throw new TypeError("standfast's WebSocket is that of a server: use the global WebSocket or the package ws for a client");
    }
    const { protocol, extensions, threshold } = accepted;
    this.#raw = raw;
    this._socket = request.socket;
    this.protocol = protocol;
    this.extensions = extensions;
    this.#threshold = threshold;
  }

  get readyState() {
    return this.#readyState;
  }

  get bufferedAmount() {
    return this.#raw ? this.#raw.getBufferedAmount() : 0;
  }

  get url() {
    return '';
  }

  get isPaused() {
    return this.#paused;
  }

  get binaryType() {
    return this.#binaryType;
  }

  set binaryType(type) {
    if (BINARY_TYPES.includes(type)) this.#binaryType = type;
  }

  send(data, options, callback) {
    if (typeof options === 'function') [options, callback] = [undefined, options];
    if (this.#readyState !== WebSocket.OPEN) return this.#notOpen(callback);
    if (typeof data === 'number') data = String(data);
    data ??= '';
    if (typeof Blob === 'function' && data instanceof Blob) {
      data.arrayBuffer().then((bytes) => this.send(bytes, options, callback), (error) => callback?.(error));
      return undefined;
    }
    const message = sendable(data) ?? Buffer.from(data);
    const isBinary = options?.binary ?? typeof data !== 'string';
    const compress = this.#threshold !== undefined && options?.compress !== false && lengthOf(message) >= this.#threshold;
    this.#sent(this.#write(message, isBinary, compress, options?.fin ?? true), callback);
    return undefined;
  }

  #write(message, isBinary, compress, isLast) {
    const raw = this.#raw;
    if (!this.#fragmented && isLast) return raw.send(message, isBinary, compress);
    const isFirst = !this.#fragmented;
    this.#fragmented = !isLast;
    if (isFirst) return raw.sendFirstFragment(message, isBinary, compress);
    return isLast ? raw.sendLastFragment(message, compress) : raw.sendFragment(message, compress);
  }

  ping(data, mask, callback) {
    if (typeof data === 'function') [data, callback] = [undefined, data];
    else if (typeof mask === 'function') callback = mask;
    if (this.#readyState !== WebSocket.OPEN) return this.#notOpen(callback);
    const message = typeof data === 'number' ? String(data) : data ?? '';
    if (lengthOf(message) > 125) throw new RangeError('The data size must not be greater than 125 bytes');
    this.#sent(this.#raw.ping(message), callback);
    return undefined;
  }

  pong(data, mask, callback) {
    if (typeof data === 'function') [data, callback] = [undefined, data];
    else if (typeof mask === 'function') callback = mask;
    if (this.#readyState !== WebSocket.OPEN) return this.#notOpen(callback);
    if (!this.#raw.pong) throw new Error('pong is not supported: pings are answered automatically');
    this.#sent(this.#raw.pong(data ?? ''), callback);
    return undefined;
  }

  /** Calls back when a message is written; at once unless it has to wait. */
  #sent(status, callback) {
    if (status === 0 && callback) {
      this.#waiting ??= new Waiting();
      this.#waiting.add(this.#raw.getBufferedAmount(), callback);
    } else if (callback) {
      process.nextTick(callback, status === 2 ? new Error('The message was dropped') : undefined);
    }
  }

  #notOpen(callback) {
    const state = STATES[this.#readyState];
    if (callback) process.nextTick(callback, new Error(`WebSocket is not open: readyState ${this.#readyState} (${state})`));
  }

  close(code, reason) {
    if (this.#readyState !== WebSocket.OPEN) return;
    if (code !== undefined && !isCloseCode(code)) throw new TypeError('First argument must be a valid error code number');
    if (reason !== undefined && Buffer.byteLength(reason) > REASON_MAX) {
      throw new RangeError(`The message must not be greater than ${REASON_MAX} bytes`);
    }
    this.#readyState = WebSocket.CLOSING;
    this.#ending = true;
    if (code === undefined) this.#raw.end();
    else this.#raw.end(code, reason ?? '');
  }

  terminate() {
    if (!this.#raw) return;
    this.#readyState = WebSocket.CLOSING;
    this.#ending = true;
    this.#raw.close();
  }

  pause() {
    if (!this.#raw || this.#paused) return;
    if (!this.#raw.pause) throw new Error('pause is not supported by this addon');
    this.#paused = true;
    this.#raw.pause();
  }

  resume() {
    if (!this.#raw || !this.#paused) return;
    this.#paused = false;
    this.#raw.resume();
  }

  /** Events of the addon. `message` is ours to keep. */
  _message(message, isBinary) {
    this.emit('message', isBinary ? this.#received(message) : Buffer.from(message), isBinary);
  }

  #received(message) {
    switch (this.#binaryType) {
      case 'arraybuffer': return message;
      case 'fragments': return [Buffer.from(message)];
      case 'blob': return new Blob([message]);
      default: return Buffer.from(message);
    }
  }

  _drain() {
    this.#waiting?.written(this.#raw.getBufferedAmount());
  }

  _close(code, message) {
    this.#raw = undefined;
    const reason = Buffer.from(message.slice(0));
    // Those who close hear of it later, as with `ws`.
    if (this.#ending) process.nextTick(() => this.#closed(code || 1005, reason));
    else this.#closed(code, reason);
  }

  #closed(code, reason) {
    this.#readyState = WebSocket.CLOSED;
    this.#waiting?.fail(new Error('The socket was closed while data was being compressed or sent'));
    const known = code === 1006 && ERRORS[reason.toString()];
    if (known && this.listenerCount('error') > 0) {
      const [Type, message, name] = known;
      this.emit('error', Object.assign(new Type(message), { code: name }));
    }
    this.emit('close', code, code === 1006 ? Buffer.alloc(0) : reason);
  }

  addEventListener(type, handler, options) {
    if (!HANDLERS.includes(type)) return;
    if (this.listeners(type).some((listener) => listener.handler === handler)) return;
    const listener = (...values) => {
      if (options?.once) this.removeListener(type, listener);
      const event = eventOf(type, this, values);
      if (typeof handler === 'function') handler.call(this, event);
      else handler.handleEvent(event);
    };
    listener.handler = handler;
    this.on(type, listener);
  }

  removeEventListener(type, handler) {
    for (const listener of this.listeners(type)) {
      if (listener.handler === handler) this.removeListener(type, listener);
    }
  }
}

for (const [value, state] of STATES.entries()) {
  Object.defineProperty(WebSocket, state, { enumerable: true, value });
  Object.defineProperty(WebSocket.prototype, state, { enumerable: true, value });
}

for (const type of HANDLERS) {
  Object.defineProperty(WebSocket.prototype, `on${type}`, {
    enumerable: true,
    get() {
      return this.listeners(type).find((listener) => listener.isProperty)?.handler ?? null;
    },
    set(handler) {
      for (const listener of this.listeners(type)) if (listener.isProperty) this.removeListener(type, listener);
      if (typeof handler !== 'function') return;
      this.addEventListener(type, handler);
      const added = this.listeners(type).find((listener) => listener.handler === handler);
      if (added) added.isProperty = true;
    },
  });
}

function eventOf(type, target, values) {
  switch (type) {
    case 'message': return { type, target, data: values[1] ? values[0] : values[0].toString() };
    case 'close': return { type, target, code: values[0], reason: values[1].toString(), wasClean: values[0] !== 1006 };
    case 'error': return { type, target, error: values[0], message: values[0].message };
    default: return { type, target };
  }
}

function isCloseCode(code) {
  const registered = code >= 1000 && code <= 1014 && ![1004, 1005, 1006].includes(code);
  return Number.isInteger(code) && (registered || (code >= 3000 && code <= 4999));
}

module.exports = { WebSocket };
