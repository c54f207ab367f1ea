'use strict';

// Strings and bytes, as the API takes and returns them.

const encoder = new TextEncoder();

/** The text of a string, or of bytes in UTF-8. */
function text(value, what) {
  if (typeof value === 'string') return value;
  if (value instanceof ArrayBuffer || ArrayBuffer.isView(value)) {
    return new TextDecoder().decode(value);
  }
  throw new TypeError(`expected ${what}: a string, an ArrayBuffer or a view of one`);
}

/** An ArrayBuffer of its own with these bytes. */
function arrayBuffer(value) {
  if (value instanceof ArrayBuffer) return value.slice(0);
  if (ArrayBuffer.isView(value)) {
    return value.buffer.slice(value.byteOffset, value.byteOffset + value.byteLength);
  }
  const bytes = encoder.encode(String(value));
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
}

/** The text of an address of 4 or 16 bytes, as an ArrayBuffer. */
function addressText(address) {
  const bytes = new Uint8Array(address);
  if (bytes.length !== 16) return arrayBuffer(bytes.join('.'));
  const groups = [];
  for (let at = 0; at < 16; at += 2) {
    groups.push(((bytes[at] << 8) | bytes[at + 1]).toString(16).padStart(4, '0'));
  }
  return arrayBuffer(groups.join(':'));
}

/** A certificate in PEM, of its bytes in DER; empty without any. */
function pem(der) {
  if (der.byteLength === 0) return '';
  const lines = Buffer.from(der).toString('base64').match(/.{1,64}/g);
  return ['-----BEGIN CERTIFICATE-----', ...lines, '-----END CERTIFICATE-----', ''].join('\n');
}

module.exports = { text, arrayBuffer, addressText, pem };
