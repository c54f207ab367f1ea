// The history of a Server's topics: reading it, and subscriptions that begin with what was missed.
'use strict';

const { setTimeout: pause } = require('node:timers/promises');

/** How long a broker may take to confirm a topic. */
const CONFIRMED_WITHIN = 10_000;
/** How long this process may be behind the one that a position is from, and when that is looked at again. */
const BEHIND_WITHIN = 8000;
const BEHIND_PAUSE = 20;
/** Characters of a topic in an error. */
const NAME_LENGTH = 100;
/** Messages that one call reads. */
const LIMIT = 100;

/** What the addon has done with a subscription, and bits of how it is to be done. */
const [GONE, DONE, , BEHIND] = [0, 1, 2, 3];
const [POSITIONS, MAY_WAIT] = [1, 2];

class History {
  #native;
  /** Returns the state of the broker; undefined without one. */
  #broker;
  /** By topic, those who wait for the broker. */
  #waiting = new Map();
  /** By socket and topic, those whose messages are being sent. */
  #sending = new Map();
  /** By socket and topic, what ends the last call of `subscribe` that has not subscribed yet. */
  #calls = new WeakMap();
  #isClosed = false;

  constructor(native, broker) {
    this.#native = native;
    this.#broker = broker;
  }

  async read(topic, { since, limit = LIMIT } = {}) {
    if (!Number.isSafeInteger(limit) || limit < 1) throw new RangeError(`invalid limit ${limit}: expected a whole number of messages`);
    const start = startOf(since);
    topic = named(topic);
    await this.#ready(topic);
    const [reason, position, more, ...flat] = await this.#patiently((mayWait) => {
      const read = this.#native.history_read(topic, start, Math.min(limit, 2 ** 32 - 1));
      return read[0] === 'ahead' && mayWait ? undefined : read;
    });
    const messages = [];
    for (let at = 0; at < flat.length; at += 3) {
      const [data, own, time] = flat.slice(at, at + 3);
      messages.push({ data: typeof data === 'string' ? data : new Uint8Array(data), position: own, time: new Date(time) });
    }
    return { messages, position, more, recovered: reason === undefined, reason };
  }

  /** `raw` returns the socket of the addon while it is open. */
  async subscribe(socket, raw, topic, { since, positions = false }) {
    const start = startOf(since);
    topic = named(topic);
    const calls = this.#calls.get(socket) ?? new Map();
    this.#calls.set(socket, calls);
    let own;
    const ended = new Promise((resolve) => { own = (reason) => resolve(lost(reason)); });
    const isLast = () => calls.get(topic) === own;
    calls.get(topic)?.('unsubscribed');
    calls.set(topic, own);
    let subscribed;
    try {
      // The broker may be away for long.
      const early = await Promise.race([this.#ready(topic), ended]);
      if (early) return early;
      subscribed = await this.#patiently((mayWait) => {
        if (raw() && !isLast()) return lost('unsubscribed');
        const flags = (positions ? POSITIONS : 0) | (mayWait ? MAY_WAIT : 0);
        const [outcome, reason, position] = raw()?._subscribeFrom(topic, start, flags) ?? [GONE];
        if (outcome === BEHIND) return undefined;
        if (outcome === GONE) return lost('closed');
        this.#settle(socket, topic, lost('unsubscribed'));
        if (outcome === DONE) return { recovered: reason === undefined, reason, position };
        if (!this.#sending.has(socket)) this.#sending.set(socket, new Map());
        return { sent: new Promise((resolve) => { this.#sending.get(socket).set(topic, resolve); }) };
      });
    } finally {
      if (isLast()) calls.delete(topic);
    }
    return subscribed.sent ?? subscribed;
  }

  /** The broker has confirmed a topic. */
  confirmed(topic) {
    const waiting = this.#waiting.get(topic) ?? [];
    this.#waiting.delete(topic);
    for (const { resolve } of waiting) resolve();
  }

  /** A socket has got what it missed of a topic, or not all of it. */
  replayed(socket, topic, reason, position) {
    this.#settle(socket, topic, { recovered: reason === undefined, reason, position });
  }

  unsubscribed(socket, topic) {
    topic = named(topic);
    this.#calls.get(socket)?.get(topic)?.('unsubscribed');
    this.#calls.get(socket)?.delete(topic);
    this.#settle(socket, topic, lost('unsubscribed'));
  }

  closed(socket) {
    for (const end of this.#calls.get(socket)?.values() ?? []) end('closed');
    for (const resolve of this.#sending.get(socket)?.values() ?? []) resolve(lost('closed'));
    this.#sending.delete(socket);
  }

  /** The server stops. */
  close() {
    this.#isClosed = true;
    for (const waiting of this.#waiting.values()) {
      for (const { reject } of waiting) reject(stops());
    }
    this.#waiting.clear();
  }

  #settle(socket, topic, result) {
    const own = this.#sending.get(socket);
    const resolve = own?.get(topic);
    if (!resolve) return;
    own.delete(topic);
    if (own.size === 0) this.#sending.delete(socket);
    resolve(result);
  }

  /** Waits until the broker has confirmed a topic and what it keeps of it is here. */
  async #ready(topic) {
    if (this.#isClosed) throw stops();
    if (this.#native.history_follow(topic)) return;
    let timer;
    const waiting = this.#waiting.get(topic) ?? new Set();
    this.#waiting.set(topic, waiting);
    let own;
    try {
      await new Promise((resolve, reject) => {
        own = { resolve, reject };
        waiting.add(own);
        timer = setTimeout(() => reject(this.#unconfirmed(topic)), CONFIRMED_WITHIN);
      });
    } finally {
      clearTimeout(timer);
      waiting.delete(own);
      if (waiting.size === 0 && this.#waiting.get(topic) === waiting) this.#waiting.delete(topic);
    }
  }

  #unconfirmed(topic) {
    const { trouble } = this.#broker();
    const why = trouble === undefined ? '' : `: ${trouble}`;
    const name = topic.length > NAME_LENGTH ? `${topic.slice(0, NAME_LENGTH)}…` : topic;
    return new Error(`the broker has not confirmed the topic ${name} within ${CONFIRMED_WITHIN / 1000} s${why}`);
  }

  /** Tries again while this process is behind the one that a position is from. */
  async #patiently(attempt) {
    const until = performance.now() + BEHIND_WITHIN;
    for (;;) {
      const result = attempt(this.#broker !== undefined && performance.now() < until);
      if (result !== undefined) return result;
      await pause(BEHIND_PAUSE);
    }
  }
}

/** A topic as the addon names it, which has it in UTF-8. */
function named(topic) {
  if (typeof topic !== 'string') throw new TypeError('expected a topic: a string');
  return topic.toWellFormed();
}

const stops = () => new Error('the server stops');

const lost = (reason) => ({ recovered: false, reason, position: undefined });

/** Where messages begin, for the addon. */
function startOf(since) {
  if (since === undefined || since === null || typeof since === 'string') return since ?? undefined;
  if (since instanceof Date && !Number.isNaN(since.getTime())) return since.getTime();
  throw new TypeError(`invalid since ${since}: expected a position, or a Date`);
}

module.exports = { History };
