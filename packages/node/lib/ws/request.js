// A handshake's request for handlers of `ws`: an `http.IncomingMessage` that did not come by a server of node:http. Its
// `socket` has the address only.
'use strict';

const { IncomingMessage } = require('node:http');

class Request extends IncomingMessage {
  constructor(res, req, isSecure) {
    const address = plain(Buffer.from(res.getRemoteAddress()));
    super({
      remoteAddress: address,
      remoteFamily: address.includes(':') ? 'IPv6' : 'IPv4',
      remotePort: res.getRemotePort?.(),
      encrypted: isSecure,
    });
    // Before getMethod, which changes it in uWebSockets.js.
    this.method = req.getCaseSensitiveMethod();
    const query = req.getQuery();
    this.url = query ? `${req.getUrl()}?${query}` : req.getUrl();
    this.httpVersion = '1.1';
    [this.httpVersionMajor, this.httpVersionMinor] = [1, 1];
    const headers = {};
    req.forEach((name, value) => {
      this.rawHeaders.push(name, value);
      const earlier = headers[name];
      headers[name] = earlier === undefined ? value : `${earlier}${name === 'cookie' ? '; ' : ', '}${value}`;
    });
    this.headers = headers;
    this.complete = true;
    this.push(null);
  }
}

/** An address as Node.js writes it; that of an IPv4 client of an IPv6 listener is its own. */
function plain(bytes) {
  if (bytes.length === 4) return bytes.join('.');
  if (bytes.length !== 16) return '';
  if (bytes.readUInt32BE(8) === 0xffff && bytes.subarray(0, 8).every((byte) => byte === 0)) {
    return `::ffff:${bytes.subarray(12).join('.')}`;
  }
  const parts = Array.from({ length: 8 }, (_, at) => bytes.readUInt16BE(at * 2).toString(16));
  return new URL(`http://[${parts.join(':')}]`).hostname.slice(1, -1);
}

module.exports = { Request };
