// A socket of `Server`.
'use strict';

const { getEventListeners } = require('node:events');
const { sendable } = require('../bytes.js');

/** An event of a socket or server, with what happened as properties. */
class SocketEvent extends Event {
  constructor(type, properties) {
    super(type);
    Object.assign(this, properties);
  }
}

class Socket {
  /** What the program keeps with the socket. */
  data = undefined;
  #raw;
  #limits;
  #counters;
  #deflates;
  #history;
  /** Made when a program listens for events. */
  #events;
  #messageListeners = 0;
  /** Listeners of messages may go by themselves, so that they are counted for each. */
  #lapses = false;
  /** Messages that nobody has taken, and their size; only while there are any. */
  #queue = [];
  #queued = 0;
  #isPaused = false;
  #taker;
  #drained = [];
  #end;
  #closed;
  #resolveClosed;
  #abort;

  constructor(raw, { request, protocol, data }, { limits, counters, deflates, history }) {
    this.#raw = raw;
    this.#limits = limits;
    this.#counters = counters;
    this.#deflates = deflates;
    this.#history = history;
    this.request = request;
    this.protocol = protocol;
    this.data = data;
  }

  get isOpen() {
    return this.#raw !== undefined;
  }

  /** Bytes that wait to be written. */
  get bufferedAmount() {
    return this.#raw ? this.#raw.getBufferedAmount() : 0;
  }

  get topics() {
    return this.#raw ? this.#raw.getTopics() : [];
  }

  /** Settles when the socket is closed, with `{ code, reason }`. */
  get closed() {
    if (this.#end) return Promise.resolve(this.#end);
    this.#closed ??= new Promise((resolve) => { this.#resolveClosed = resolve; });
    return this.#closed;
  }

  /** Aborted when the socket is closed. */
  get signal() {
    this.#abort ??= new AbortController();
    if (this.#end) this.#abort.abort();
    return this.#abort.signal;
  }

  /**
   * Sends text, or bytes as a binary message. The promise settles when at most `highWaterMark` bytes wait to be written:
   * with false if the message was dropped, or the socket is closed. It does not reject.
   */
  send(message, { compress = this.#deflates } = {}) {
    if (!this.#raw) return SETTLED_FALSE;
    const status = this.#raw.send(bytesOf(message), typeof message !== 'string', compress);
    if (status === 1) return SETTLED_TRUE;
    if (status === 2) return SETTLED_FALSE;
    if (this.#raw.getBufferedAmount() <= this.#limits.highWaterMark) return SETTLED_TRUE;
    return new Promise((resolve) => this.#drained.push(resolve));
  }

  /** Sends to all members of a topic but this socket. Whether there are any. */
  publish(topic, message, { compress = this.#deflates } = {}) {
    if (!this.#raw) return false;
    return this.#raw.publish(topic, bytesOf(message), typeof message !== 'string', compress);
  }

  /**
   * Subscribes to a topic. With options, where the server has a history, to what was published after `since`, in order, and
   * then to what comes: the promise settles when all is sent.
   */
  subscribe(topic, options) {
    if (options === undefined) return this.#raw ? this.#raw.subscribe(topic) : false;
    if (!this.#history) return Promise.reject(new Error('nothing is kept: the server needs the option history'));
    return this.#history.subscribe(this, () => this.#raw, topic, options);
  }

  unsubscribe(topic) {
    this.#history?.unsubscribed(this, topic);
    return this.#raw ? this.#raw.unsubscribe(topic) : false;
  }

  ping(message = '') {
    return this.#raw ? this.#raw.ping(bytesOf(message)) !== 2 : false;
  }

  /** Closes with a code and a reason of at most 123 bytes. What was sent before still arrives. */
  close(code = 1000, reason = '') {
    this.#raw?.end(code, reason);
    return this.closed;
  }

  /** Ends the connection at once, without a close frame. */
  terminate() {
    this.#raw?.close();
  }

  addEventListener(type, listener, options) {
    this.#events ??= new EventTarget();
    this.#events.addEventListener(type, listener, options);
    if (type !== 'message') return;
    if (options?.once || options?.signal) this.#lapses = true;
    this.#countListeners();
    while (this.#queue.length > 0 && this.#listens()) this.#dispatch('message', { data: this.#takeQueued() });
  }

  removeEventListener(type, listener, options) {
    if (!this.#events) return;
    this.#events.removeEventListener(type, listener, options);
    if (type === 'message') this.#countListeners();
  }

  #countListeners() {
    this.#messageListeners = getEventListeners(this.#events, 'message').length;
  }

  /** Whether somebody listens for messages. */
  #listens() {
    if (this.#lapses) this.#countListeners();
    return this.#messageListeners > 0;
  }

  /** The messages, text as strings and binary ones as Uint8Array, until the socket is closed. */
  async* [Symbol.asyncIterator]() {
    for (;;) {
      if (this.#queue.length > 0) yield this.#takeQueued();
      else if (this.#end) return;
      else if (this.#taker) throw new Error('the messages of a socket have one reader at a time');
      else {
        const message = await new Promise((resolve) => { this.#taker = resolve; });
        if (message === ENDED) return;
        yield message;
      }
    }
  }

  #dispatch(type, properties) {
    this.#events?.dispatchEvent(new SocketEvent(type, properties));
  }

  #takeQueued() {
    const message = this.#queue.shift();
    this.#queued -= message.length;
    if (this.#isPaused && this.#queued <= this.#limits.maxQueue / 2) {
      this.#isPaused = false;
      this.#raw?.resume();
    }
    return message;
  }

  /** Events of the addon. */
  _message(message, isBinary) {
    const data = isBinary ? new Uint8Array(message) : Buffer.from(message).toString();
    if (this.#taker) {
      const take = this.#taker;
      this.#taker = undefined;
      take(data);
    } else if (this.#listens()) {
      this.#dispatch('message', { data });
    } else {
      this.#queue.push(data);
      this.#queued += data.length;
      if (this.#queued > this.#limits.maxQueue) this.#full();
    }
  }

  /** The program takes messages more slowly than they come: nothing is read until it has taken half of them. */
  #full() {
    if (this.#isPaused) return;
    if (this.#raw.pause) {
      this.#isPaused = true;
      this.#counters.paused += 1;
      this.#raw.pause();
    } else {
      this.#counters.overflowed += 1;
      this.#raw.end(1013, 'messages come faster than they are taken');
    }
  }

  _drain() {
    if (this.#raw.getBufferedAmount() <= this.#limits.highWaterMark) {
      for (const resolve of this.#drained.splice(0)) resolve(true);
    }
    this.#dispatch('drain');
  }

  _control(type, message) {
    if (this.#events) this.#dispatch(type, { data: new Uint8Array(message) });
  }

  _close(code, message) {
    this.#raw = undefined;
    this.#history?.closed(this);
    this.#end = { code: code || 1005, reason: Buffer.from(message).toString() };
    for (const resolve of this.#drained.splice(0)) resolve(false);
    this.#taker?.(ENDED);
    this.#taker = undefined;
    this.#abort?.abort();
    this.#resolveClosed?.(this.#end);
    this.#dispatch('close', this.#end);
  }
}

const ENDED = Symbol('ended');
const SETTLED_TRUE = Promise.resolve(true);
const SETTLED_FALSE = Promise.resolve(false);

function bytesOf(message) {
  const bytes = sendable(message);
  if (bytes === undefined) throw new TypeError('a message is a string, an ArrayBuffer or a view of one');
  return bytes;
}

module.exports = { Socket, SocketEvent, bytesOf };
