'use strict';

const { text, arrayBuffer, addressText } = require('./bytes');

/** Where a socket, or a response, is; -1 once it has ended. */
const SLOT = Symbol('slot');
/** What is known of the route of a socket: on its prototype. */
const KIND = Symbol('kind');

const NONE = -1;

/** Makes an exception uncaught, after what is under way. */
function report(error) {
  queueMicrotask(() => {
    throw error;
  });
}

function closed() {
  return new Error(
    'Invalid access of closed WebSocket: it may be used until its close handler is called, or end or close',
  );
}

function noMessage() {
  return new TypeError('publish is called with a topic and a message');
}

/**
 * The class of an app's sockets. One object per socket holds its slot and the user data; all else is the engine's.
 */
function socketClass(native, sockets) {
  /** Messages that are sent in fragments. */
  const fragments = new WeakMap();
  // Loads of properties of an object with so many are slow.
  const { send } = native;

  /** Sockets whose program is being told of their subscriptions: what ends them again there is too late. */
  const leaving = new Set();

  /** Takes a socket out of use, after its program was told of its subscriptions. False if it is being taken already. */
  function leave(ws, slot) {
    const { subscription } = ws[KIND].behavior;
    if (subscription) {
      if (leaving.has(ws)) return false;
      leaving.add(ws);
      try {
        for (const topic of native.topics(slot)) {
          const count = native.subscribers(topic);
          try {
            subscription(ws, arrayBuffer(topic), count - 1, count);
          } catch (error) {
            // It keeps no socket in use: that would be the next connection's with this slot.
            report(error);
          }
        }
      } finally {
        leaving.delete(ws);
      }
    }
    ws[SLOT] = NONE;
    sockets[slot] = undefined;
    return true;
  }

  class WebSocket {
    static name = 'uWS.WebSocket';

    constructor(slot) {
      this[SLOT] = slot;
    }

    send(message, isBinary, compress) {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      const sent = send(slot * 4 + (isBinary ? 1 : 0) + (compress ? 2 : 0), message);
      if (sent === 2) {
        const { dropped } = this[KIND].behavior;
        if (dropped) dropped(this, arrayBuffer(message), !!isBinary);
      }
      return sent;
    }

    /** The pieces are sent together, as one message, with the last one. */
    sendFirstFragment(message, isBinary, compress) {
      if (this[SLOT] === NONE) throw closed();
      fragments.set(this, { pieces: [Buffer.from(arrayBuffer(message))], isBinary, compress });
      return 1;
    }

    sendFragment(message) {
      if (this[SLOT] === NONE) throw closed();
      const begun = fragments.get(this);
      if (!begun) throw new Error('a message in fragments begins with sendFirstFragment');
      begun.pieces.push(Buffer.from(arrayBuffer(message)));
      return 1;
    }

    sendLastFragment(message) {
      this.sendFragment(message);
      const { pieces, isBinary, compress } = fragments.get(this);
      fragments.delete(this);
      return this.send(Buffer.concat(pieces), isBinary, compress);
    }

    ping(message = '') {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      return native.ping(slot, message);
    }

    getBufferedAmount() {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      return native.buffered(slot);
    }

    end(code = 0, shortMessage = '') {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      const reason = text(shortMessage, 'a reason');
      if (!leave(this, slot)) return;
      native.end(slot, code, reason);
      const { close } = this[KIND].behavior;
      if (close) close(this, code, arrayBuffer(reason));
    }

    close() {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      if (!leave(this, slot)) return;
      native.close(slot);
      const { close } = this[KIND].behavior;
      if (close) close(this, 1006, new ArrayBuffer(0));
    }

    cork(callback) {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      const began = native.cork(slot);
      try {
        callback();
      } finally {
        if (began) native.uncork();
      }
      return this;
    }

    subscribe(topic) {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      const count = native.subscribe(slot, topic);
      if (count === -1) return false;
      const { subscription } = this[KIND].behavior;
      if (subscription && count > 0) subscription(this, arrayBuffer(topic), count, count - 1);
      return true;
    }

    /** For `Server`: a subscription that begins with what is kept since then. */
    _subscribeFrom(topic, since, flags) {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      return native.history_subscribe(slot, topic, since, flags);
    }

    unsubscribe(topic) {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      const count = native.unsubscribe(slot, topic);
      if (count === -1) return false;
      const { subscription } = this[KIND].behavior;
      if (subscription) subscription(this, arrayBuffer(topic), count, count + 1);
      return true;
    }

    isSubscribed(topic) {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      return native.is_subscribed(slot, topic);
    }

    getTopics() {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      return native.topics(slot);
    }

    publish(topic, message, isBinary, compress) {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      if (arguments.length < 2) throw noMessage();
      return native.publish(slot, topic, message, (isBinary ? 1 : 0) | (compress ? 2 : 0));
    }

    getRemoteAddress() {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      return native.remote_address(slot);
    }

    getRemoteAddressAsText() {
      return addressText(this.getRemoteAddress());
    }

    getRemotePort() {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      return native.remote_port(slot);
    }

    /** Stops reading: the peer feels it by the flow control of TCP. */
    pause() {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      native.pause(slot, true);
    }

    resume() {
      const slot = this[SLOT];
      if (slot === NONE) throw closed();
      native.pause(slot, false);
    }

    getUserData() {
      return this;
    }
  }

  return { WebSocket, leave };
}

module.exports = { socketClass, report, noMessage, SLOT, KIND, NONE };
