'use strict';

const { text } = require('./bytes');

/** The value of a parameter of a header such as Content-Disposition. */
function parameter(header, name) {
  const quoted = new RegExp(`[;\\s]${name}="((?:[^"\\\\]|\\\\.)*)"`, 'i').exec(header);
  if (quoted) return quoted[1].replace(/\\(.)/g, '$1');
  return new RegExp(`[;\\s]${name}=([^;\\s]+)`, 'i').exec(header)?.[1];
}

/** The parts of a multipart body (RFC 7578), or undefined if it is none. */
function getParts(body, contentType) {
  const type = text(contentType, 'a content type');
  if (!/^\s*multipart\//i.test(type)) return undefined;
  const boundary = parameter(` ${type}`, 'boundary');
  if (!boundary) return undefined;
  const whole =
    typeof body === 'string'
      ? Buffer.from(body)
      : ArrayBuffer.isView(body)
        ? Buffer.from(body.buffer, body.byteOffset, body.byteLength)
        : Buffer.from(body);
  const delimiter = Buffer.from(`--${boundary}`);
  const parts = [];
  let at = whole.indexOf(delimiter);
  while (at !== -1) {
    const begin = at + delimiter.length;
    if (whole.subarray(begin, begin + 2).toString('latin1') === '--') return parts;
    const headEnd = whole.indexOf('\r\n\r\n', begin);
    const next = whole.indexOf(Buffer.from(`\r\n--${boundary}`), headEnd === -1 ? begin : headEnd + 2);
    if (headEnd === -1 || next === -1) return parts.length > 0 ? parts : undefined;
    const head = whole.subarray(begin, headEnd).toString('utf8');
    const disposition = /^content-disposition:(.*)$/im.exec(head)?.[1] ?? '';
    const from = headEnd + 4;
    const bytes = from < next ? whole.subarray(from, next) : Buffer.alloc(0);
    const part = {
      data: bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength),
      name: parameter(disposition, 'name') ?? '',
    };
    const contentTypeOfPart = /^content-type:\s*(.*?)\s*$/im.exec(head)?.[1];
    if (contentTypeOfPart) part.type = contentTypeOfPart;
    const filename = parameter(disposition, 'filename');
    if (filename !== undefined) part.filename = filename;
    parts.push(part);
    at = next + 2;
  }
  return parts.length > 0 ? parts : undefined;
}

module.exports = { getParts };
