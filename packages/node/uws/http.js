'use strict';

const { addressText, pem, text } = require('./bytes');
const { report, SLOT, NONE } = require('./socket');

const NAMES = Symbol('parameter names');
const YIELD = Symbol('yield');
const ABORTED = Symbol('aborted');
const DATA = Symbol('data');
const WRITABLE = Symbol('writable');
/** What a data handler returns that keeps the piece: otherwise its memory is taken back. */
const KEEP = Symbol('keep');
/** The route of a request that may become a WebSocket; -1 for others. */
const UPGRADES = Symbol('upgrades');

/** What is left of a body whose length is not known. */
const UNKNOWN = 2n ** 64n - 1n;

/** What `upgrade` handlers get, and pass back. */
const CONTEXT = Object.freeze({});

function over() {
  return new Error(
    'This response has ended: it may be used until it ends, or its onAborted handler is called',
  );
}

function stale() {
  return new Error(
    'This request may be used until its handler has returned: read what you need before that',
  );
}

function unanswered() {
  return new Error(
    'A request handler returned without a response and without an abort handler: ' +
      'call res.end, or res.onAborted before you return or await',
  );
}

/** The classes of an app's requests and responses. */
function httpClasses(native, responses, upgrade) {
  /** The request whose handler is being called, or was: what reads it finds out when the promises of that call have run. */
  let current;
  /** The response to it. */
  let answering;
  // Loads of properties of an object with so many are slow.
  const { header, res_header, res_end } = native;

  class HttpRequest {
    static name = 'uWS.HttpRequest';

    constructor(names) {
      current = this;
      this[NAMES] = names;
      this[YIELD] = false;
    }

    getMethod() {
      return this.getCaseSensitiveMethod().toLowerCase();
    }

    getCaseSensitiveMethod() {
      if (current !== this) throw stale();
      return native.method();
    }

    getUrl() {
      if (current !== this) throw stale();
      return native.url();
    }

    getHeader(lowerCaseKey) {
      if (current !== this) throw stale();
      return header(lowerCaseKey);
    }

    getParameter(index) {
      if (current !== this) throw stale();
      if (typeof index !== 'number') {
        const at = this[NAMES].indexOf(text(index, 'the name of a parameter'));
        if (at === -1) return undefined;
        return native.parameter(at);
      }
      return native.parameter(index);
    }

    getQuery(key) {
      if (current !== this) throw stale();
      if (key === undefined) return native.query();
      const name = text(key, 'the key of a query parameter');
      const value = native.query_value(name);
      if (value !== false) return value;
      // Keys without `=` have no value.
      const pairs = native.query().split('&').filter((pair) => pair.includes('='));
      return new URLSearchParams(pairs.join('&')).get(name) ?? undefined;
    }

    forEach(callback) {
      if (current !== this) throw stale();
      const headers = native.headers();
      for (let at = 0; at < headers.length; at += 2) callback(headers[at], headers[at + 1]);
    }

    setYield(passes) {
      this[YIELD] = !!passes;
      return this;
    }
  }

  /** The response has ended, in whatever way. */
  function leave(res, slot) {
    res[SLOT] = NONE;
    if (responses[slot] === res) responses[slot] = undefined;
  }

  class HttpResponse {
    static name = 'uWS.HttpResponse';

    constructor(slot, upgrades) {
      answering = this;
      this[SLOT] = slot;
      this[UPGRADES] = upgrades;
      this[ABORTED] = undefined;
      this[DATA] = undefined;
      this[WRITABLE] = undefined;
    }

    writeStatus(status) {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      native.res_status(slot, status);
      return this;
    }

    writeHeader(key, value) {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      res_header(slot, key, typeof value === 'number' ? String(value) : value);
      return this;
    }

    write(chunk) {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      return native.res_write(slot, chunk);
    }

    /** Sends status and headers of an answer in chunks. */
    beginWrite() {
      this.write('');
      return this;
    }

    end(body, closeConnection) {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      res_end(slot, body === undefined ? '' : body, !!closeConnection);
      leave(this, slot);
      return this;
    }

    endWithoutBody(reportedContentLength, closeConnection) {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      const length = reportedContentLength === undefined ? undefined : Number(reportedContentLength);
      native.res_end_without_body(slot, length, !!closeConnection);
      leave(this, slot);
      return this;
    }

    tryEnd(fullBodyOrChunk, totalSize) {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      const bits = native.res_try_end(slot, fullBodyOrChunk, Number(totalSize));
      const ended = (bits & 2) !== 0;
      if (ended) leave(this, slot);
      return [(bits & 1) !== 0, ended];
    }

    getWriteOffset() {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      return native.res_offset(slot);
    }

    onWritable(handler) {
      if (this[SLOT] === NONE) throw over();
      this[WRITABLE] = handler;
      return this;
    }

    onAborted(handler) {
      if (this[SLOT] === NONE) throw over();
      this[ABORTED] = handler;
      return this;
    }

    onData(handler) {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      this[DATA] = handler;
      native.res_wants_data(slot);
      return this;
    }

    /** As `onData`, with the bytes that are left at most, 0n with the last piece. */
    onDataV2(handler) {
      let left = UNKNOWN;
      try {
        const length = answering === this ? native.header('content-length') : '';
        if (/^\d+$/.test(length)) left = BigInt(length);
      } catch {
        // Called later than the handler: the headers are gone.
      }
      return this.onData((piece, isLast) => {
        if (left !== UNKNOWN) left -= BigInt(piece.byteLength);
        handler(piece, isLast ? 0n : left);
      });
    }

    /** Calls `handler` with the whole body, or with `null` if it is longer than `maxSize` bytes. */
    collectBody(maxSize, handler) {
      let pieces = [];
      let size = 0;
      return this.onData((piece, isLast) => {
        if (pieces === null) return;
        size += piece.byteLength;
        if (size > maxSize) {
          pieces = null;
          handler(null);
          return;
        }
        pieces.push(piece);
        if (!isLast) return KEEP;
        if (pieces.length === 1) {
          try {
            handler(piece);
          } catch (error) {
            report(error);
          }
          return KEEP;
        }
        const body = new Uint8Array(size);
        let at = 0;
        for (const one of pieces) {
          body.set(new Uint8Array(one), at);
          at += one.byteLength;
        }
        handler(body.buffer);
      });
    }

    /** In uWebSockets.js 20.51 it is `cork`; with a limit and a handler it is `collectBody`. */
    collect(callback, handler) {
      return typeof callback === 'function' ? this.cork(callback) : this.collectBody(callback, handler);
    }

    pause() {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      native.res_pause(slot, true);
      return this;
    }

    resume() {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      native.res_pause(slot, false);
      return this;
    }

    cork(callback) {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      native.res_cork(slot);
      try {
        callback();
      } finally {
        if (this[SLOT] !== NONE) native.res_uncork(slot);
      }
      return this;
    }

    close() {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      leave(this, slot);
      native.res_close(slot);
      const aborted = this[ABORTED];
      if (aborted) aborted();
      return this;
    }

    upgrade(userData, secWebSocketKey, secWebSocketProtocol, secWebSocketExtensions, context) {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      if (this[UPGRADES] === -1 || context !== CONTEXT) {
        throw new Error(
          'upgrade is for the responses of upgrade handlers, with the context that they are called with',
        );
      }
      const protocol = secWebSocketProtocol === undefined ? '' : secWebSocketProtocol;
      // Its client has left: onAborted is called next.
      if (!native.res_upgrade(slot, protocol)) return;
      leave(this, slot);
      upgrade(slot, this[UPGRADES], userData);
    }

    getRemoteAddress() {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      return native.remote_address(slot);
    }

    getRemoteAddressAsText() {
      return addressText(this.getRemoteAddress());
    }

    getRemotePort() {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      return native.remote_port(slot);
    }

    getProxiedRemoteAddress() {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      return native.proxied_address(slot);
    }

    getProxiedRemoteAddressAsText() {
      return addressText(this.getProxiedRemoteAddress());
    }

    getProxiedRemotePort() {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      return native.proxied_port(slot);
    }

    getX509Certificate() {
      const slot = this[SLOT];
      if (slot === NONE) throw over();
      return pem(native.client_certificate(slot));
    }
  }

  return { HttpRequest, HttpResponse, leave };
}

module.exports = { httpClasses, over, unanswered, YIELD, ABORTED, DATA, WRITABLE, KEEP, UPGRADES, CONTEXT };
