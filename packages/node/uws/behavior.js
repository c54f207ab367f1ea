'use strict';

const HANDLERS = ['upgrade', 'open', 'message', 'dropped', 'drain', 'close', 'ping', 'pong', 'subscription'];

function whole(behavior, name, byDefault, least, most) {
  let value = behavior[name] ?? byDefault;
  // Of an environment variable, say.
  if (typeof value === 'string' && value.trim() !== '') value = Number(value);
  if (!Number.isFinite(value) || value < least || value > most) {
    throw new RangeError(`invalid ${name} ${value}: expected a number from ${least} to ${most}`);
  }
  return Math.floor(value);
}

/** What the engine is told of a behaviour. Mistakes, which end the process with uWebSockets.js, throw. */
function checkBehavior(behavior) {
  if (behavior === null || typeof behavior !== 'object') {
    throw new TypeError('expected a behavior: an object with handlers and limits');
  }
  for (const name of HANDLERS) {
    const handler = behavior[name];
    if (handler !== undefined && handler !== null && typeof handler !== 'function') {
      throw new TypeError(`expected the handler ${name} to be a function`);
    }
  }
  const idleTimeout = whole(behavior, 'idleTimeout', 120, 0, 960);
  if (idleTimeout > 0 && idleTimeout < 8) {
    throw new RangeError(`invalid idleTimeout ${idleTimeout}: expected 0 or 8 to 960 seconds`);
  }
  const compression = whole(behavior, 'compression', 0, 0, 0xfff);
  return {
    maxPayloadLength: whole(behavior, 'maxPayloadLength', 16 * 1024, 0, 2 ** 32 - 1),
    maxBackpressure: whole(behavior, 'maxBackpressure', 64 * 1024, 0, 2 ** 40),
    maxLifetime: whole(behavior, 'maxLifetime', 0, 0, 240),
    idleTimeout,
    closeOnBackpressureLimit: !!behavior.closeOnBackpressureLimit,
    sendPingsAutomatically: behavior.sendPingsAutomatically !== false,
    // 0 off, 1 contexts are not kept between messages, 2 they are.
    compression: (compression & 0xff) === 0 ? 0 : (compression & 0xff) === 1 ? 1 : 2,
    // Not of uWebSockets.js: messages are ArrayBuffers that stay valid after the handler.
    keepMessages: !!behavior.keepMessages,
    upgrade: !!behavior.upgrade,
    open: !!behavior.open,
    message: !!behavior.message,
    drain: !!behavior.drain,
    dropped: !!behavior.dropped,
    ping: !!behavior.ping,
    pong: !!behavior.pong,
  };
}

module.exports = { checkBehavior };
