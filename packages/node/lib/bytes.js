// Between the values that programs send and receive, and those of the addon.
'use strict';

/**
 * A message to keep: uWebSockets.js takes its memory back after the handler, this package does not with the option
 * `keepMessages`, which the caller sets.
 */
function owner(uws) {
  return '_borrowsFrom' in uws ? (message) => message : (message) => message.slice(0);
}

/** What the addon can send. */
function sendable(data) {
  if (typeof data === 'string' || data instanceof ArrayBuffer || data instanceof Uint8Array) return data;
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  if (data instanceof SharedArrayBuffer) return new Uint8Array(data).slice();
  return undefined;
}

const lengthOf = (data) => (typeof data === 'string' ? Buffer.byteLength(data) : data.byteLength);

module.exports = { owner, sendable, lengthOf };
