'use strict';

// Routes with a cache. The addon keeps answers and sends them, without JavaScript; here they are made, once for all who ask
// meanwhile.

const { SLOT, NONE, report } = require('./socket');
const { YIELD, ABORTED, UPGRADES, over, unanswered } = require('./http');

/** Bytes of a route's answers, unless the option `bytes` says otherwise. */
const BYTES = 16 * 1024 * 1024;
/** Seconds that an answer can be kept. */
const SECONDS_MAX = 1_000_000_000;
/** Seconds after which a handler that has not ended is called again, by the next request. */
const FILL_SECONDS_MAX = 30;
/** What was not answered is looked through in steps of so many, one with each call of a handler. */
const SWEPT = 2;

const KEPT = Symbol('kept');
const PARTS = Symbol('parts');
const SEND = Symbol('send');
const PASS_ON = Symbol('pass on');

const OPTIONS = ['lowerExpiry', 'upperExpiry', 'bytes'];
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const NOT_KEPT = /(?:^|[\s,])(?:no-store|private)(?=$|[\s,=])/i;

/** The third argument of a route, checked. */
function cacheOptions(cache) {
  const given = typeof cache === 'number' ? { lowerExpiry: cache, upperExpiry: cache } : cache;
  if (given === null || typeof given !== 'object') {
    throw new TypeError('expected a cache: { lowerExpiry, upperExpiry } in seconds, or a number of seconds');
  }
  const unknown = Object.keys(given).find((name) => !OPTIONS.includes(name));
  if (unknown !== undefined) throw new TypeError(`a cache has no option ${unknown}: there are ${OPTIONS.join(', ')}`);
  const { lowerExpiry, upperExpiry, bytes = BYTES } = given;
  for (const [name, value] of Object.entries({ lowerExpiry, upperExpiry })) {
    if (typeof value !== 'number' || !(value >= 0 && value <= SECONDS_MAX)) {
      throw new RangeError(`invalid ${name} ${String(value)} of a cache: expected a number of seconds from 0 to ${SECONDS_MAX}`);
    }
  }
  if (lowerExpiry > upperExpiry) {
    throw new RangeError(`invalid lowerExpiry ${lowerExpiry} of a cache: expected at most its upperExpiry ${upperExpiry}`);
  }
  if (!Number.isSafeInteger(bytes) || bytes < 0) {
    throw new RangeError(`invalid bytes ${String(bytes)} of a cache: expected a whole number, 0 or more`);
  }
  return { lowerExpiry, upperExpiry, bytes };
}

/** Bytes of our own of what a response takes. */
function copy(value) {
  if (value === undefined) return Buffer.alloc(0);
  if (typeof value === 'string') return Buffer.from(value);
  if (value instanceof ArrayBuffer) return Buffer.from(new Uint8Array(value));
  if (ArrayBuffer.isView(value)) return Buffer.from(new Uint8Array(value.buffer, value.byteOffset, value.byteLength));
  throw new TypeError('expected a string, an ArrayBuffer or a view of one');
}

function absent(name) {
  return new Error(`${name} is not for a route with a cache: its answer is for all clients that ask for the same URL`);
}

/** Blanks for control characters. */
function clean(bytes) {
  for (let at = 0; at < bytes.length; at += 1) {
    if ((bytes[at] < 0x20 && bytes[at] !== 0x09) || bytes[at] === 0x7f) bytes[at] = 0x20;
  }
  return bytes;
}

/** What the handler of a route with a cache answers by. The answer is for many clients: what is one client's is not there. */
class CachedResponse {
  #finish;
  #status;
  #headers = [];
  #headIsComplete = false;
  #pieces = [];
  #offset = 0;
  #isKept = true;
  #length;
  #hasBody = true;
  #close = false;

  constructor(finish) {
    this[SLOT] = 0;
    this[ABORTED] = undefined;
    this.#finish = finish;
  }

  #use() {
    if (this[SLOT] === NONE) throw over();
  }

  #end(close) {
    this.#close = !!close;
    this[SLOT] = NONE;
    const finish = this.#finish;
    this.#finish = undefined;
    finish(this);
    return this;
  }

  writeStatus(status) {
    this.#use();
    if (this.#status !== undefined || this.#headIsComplete) return this;
    const bytes = clean(copy(status));
    if (bytes[0] === 0x31) throw new Error('expected a status from 200: an answer that is kept switches no protocols');
    this.#status = bytes;
    return this;
  }

  writeHeader(key, value) {
    this.#use();
    const name = copy(key).toString('latin1');
    if (!TOKEN.test(name)) throw new Error('invalid header name: expected letters, digits and dashes');
    if (this.#headIsComplete) throw new Error('the head of this response is complete: write headers before the body');
    const bytes = clean(copy(typeof value === 'number' ? String(value) : value));
    this.writeStatus('200 OK');
    this.#headers.push([name, bytes]);
    const lowerCase = name.toLowerCase();
    if (lowerCase === 'set-cookie') this.#isKept = false;
    else if (lowerCase === 'cache-control' && NOT_KEPT.test(bytes.toString('latin1'))) this.#isKept = false;
    return this;
  }

  #add(bytes) {
    this.#headIsComplete = true;
    this.#offset += bytes.length;
    if (bytes.length > 0) this.#pieces.push(bytes);
  }

  write(chunk) {
    this.#use();
    this.#add(copy(chunk));
    return true;
  }

  beginWrite() {
    this.#use();
    this.#headIsComplete = true;
    return this;
  }

  end(body, closeConnection) {
    this.#use();
    if (body !== undefined) this.#add(copy(body));
    return this.#end(closeConnection);
  }

  endWithoutBody(reportedContentLength, closeConnection) {
    this.#use();
    if (!this.#headIsComplete) {
      this.#hasBody = false;
      if (reportedContentLength !== undefined) this.#length = Number(reportedContentLength);
    }
    return this.#end(closeConnection);
  }

  /** Nothing waits for a client: all is taken. */
  tryEnd(fullBodyOrChunk, totalSize) {
    this.#use();
    const bytes = copy(fullBodyOrChunk);
    const total = Number(totalSize) || bytes.length;
    this.#add(bytes.subarray(0, Math.max(total - this.#offset, 0)));
    const ended = this.#offset >= total;
    if (ended) this.#end(false);
    return [true, ended];
  }

  getWriteOffset() {
    this.#use();
    return this.#offset;
  }

  /** Not called, as nothing waits. */
  onWritable() {
    this.#use();
    return this;
  }

  /** Not called, as those who wait come and go. */
  onAborted(handler) {
    this.#use();
    this[ABORTED] = handler;
    return this;
  }

  cork(callback) {
    this.#use();
    callback();
    return this;
  }

  collect(callback) {
    if (typeof callback !== 'function') throw absent('collect');
    return this.cork(callback);
  }

  /** Closes the connections of those who wait. */
  close() {
    this.#use();
    this[SLOT] = NONE;
    this.#finish(undefined);
    this.#finish = undefined;
    return this;
  }

  /** Whether it may be kept, and if not, whether the answer before it may stay. */
  get [KEPT]() {
    const status = this.#status === undefined ? 200 : parseInt(this.#status.toString('latin1'), 10);
    // The latter two are answers to headers of one request.
    const fails = status >= 500 || status === 304 || status === 206;
    return { isKept: this.#isKept && !fails, fails };
  }

  /** What the addon keeps of it. */
  [PARTS]() {
    const lines = this.#headers.flatMap(([name, value]) => [Buffer.from(`${name}: `, 'latin1'), value, Buffer.from('\r\n')]);
    return {
      status: this.#status ?? Buffer.from('200 OK'),
      headers: Buffer.concat(lines),
      body: this.#hasBody ? this.#body() : undefined,
      length: this.#length,
      close: this.#close,
    };
  }

  #body() {
    if (this.#pieces.length !== 1) this.#pieces = [Buffer.concat(this.#pieces)];
    return this.#pieces[0];
  }

  #sendHead(res) {
    if (this.#status !== undefined) res.writeStatus(this.#status);
    try {
      this.#headers.forEach(([name, value]) => res.writeHeader(name, value));
    } catch {
      // A handler that has passed the request on has begun with the body: there is no place for headers.
    }
  }

  [SEND](res) {
    this.#sendHead(res);
    if (this.#hasBody) res.end(this.#body(), this.#close);
    else res.endWithoutBody(this.#length, this.#close);
  }

  /** It is not answered: what was written goes before the answer of the next route. */
  [PASS_ON](res) {
    this[SLOT] = NONE;
    this.#finish = undefined;
    this.#sendHead(res);
    this.#pieces.forEach((piece) => res.write(piece));
  }
}

/** A handler has failed that others wait for. */
function failed(answer, error) {
  if (answer[SLOT] !== NONE) answer.close();
  throw error;
}

/** What is of one client, or of a request with a body. */
const ABSENT = ['upgrade', 'onData', 'onDataV2', 'collectBody', 'pause', 'resume', 'getRemoteAddress', 'getRemoteAddressAsText',
  'getRemotePort', 'getProxiedRemoteAddress', 'getProxiedRemoteAddressAsText', 'getProxiedRemotePort', 'getX509Certificate'];
for (const name of ABSENT) {
  CachedResponse.prototype[name] = () => { throw absent(name); };
}

/** The handler of a route with a cache: called for requests that no answer is kept for, and to make a new one. */
function cachedHandler(native, route, handler, { lowerExpiry, upperExpiry, bytes }) {
  native.cache(route, lowerExpiry, upperExpiry, bytes, FILL_SECONDS_MAX);
  /** By key, requests that wait for an answer which is being made. Those whose handler was called first come first. */
  const pending = new Map();

  function join(one, res) {
    one.waiting.add(res);
    res.onAborted(() => one.waiting.delete(res));
  }

  /** Forgets what no handler has answered and nobody waits for. */
  function sweep(before) {
    let left = SWEPT;
    for (const [key, one] of pending) {
      if (left === 0 || one.began >= before) return;
      left -= 1;
      pending.delete(key);
      if (one.waiting.size > 0) pending.set(key, one);
    }
  }

  /** A handler has ended. Without an answer those who wait are closed. */
  function finish(key, one, answer) {
    // Another handler has answered them, or they were given up.
    if (pending.get(key) !== one) return;
    pending.delete(key);
    const { isKept, fails } = answer === undefined ? { isKept: false, fails: true } : answer[KEPT];
    if (isKept) native.cache_keep(route, key, answer[PARTS]());
    else if (fails) native.cache_retry(route, key);
    else native.cache_drop(route, key);
    for (const res of one.waiting) {
      try {
        if (answer === undefined) res.close();
        else answer[SEND](res);
      } catch (error) {
        report(error);
        if (res[SLOT] !== NONE) res.close();
      }
    }
  }

  return (res, req) => {
    const key = native.cache_key();
    const isAnswered = res[UPGRADES] !== NONE;
    if (isAnswered) res[SLOT] = NONE;
    const now = performance.now();
    const before = now - FILL_SECONDS_MAX * 1000;
    const known = pending.get(key);
    if (known !== undefined && known.began >= before) {
      if (!isAnswered) join(known, res);
      return;
    }
    sweep(before);
    // Those who wait for a handler that does not end get the answer of either.
    const one = known ?? { began: now, waiting: new Set() };
    one.began = now;
    pending.delete(key);
    pending.set(key, one);
    if (!isAnswered) join(one, res);
    const answer = new CachedResponse((ended) => finish(key, one, ended));
    let returned;
    let done = false;
    try {
      returned = handler(answer, req);
      done = true;
    } finally {
      if (!done && answer[SLOT] !== NONE) answer.close();
    }
    if (answer[SLOT] === NONE) return;
    // Who is told of a promise that rejects is told of this one.
    if (typeof returned?.then === 'function') Promise.resolve(returned).catch((error) => failed(answer, error));
    if (req[YIELD]) {
      if (isAnswered) native.cache_drop(route, key);
      one.waiting.delete(res);
      if (one.waiting.size === 0) pending.delete(key);
      if (!isAnswered) {
        res.onAborted(undefined);
        answer[PASS_ON](res);
      }
      return;
    }
    if (!answer[ABORTED]) {
      answer.close();
      throw unanswered();
    }
  };
}

module.exports = { cacheOptions, cachedHandler };
