// A server of WebSockets over HTTP/2 (RFC 8441) with Node's http2: echoes messages. With a certificate and
// a key it uses TLS. Prints its port, and after each socket has closed what it saw so far as JSON.
'use strict';
const fs = require('fs');
const http2 = require('http2');

const [cert, key] = process.argv.slice(2);
const settings = { enableConnectProtocol: true };
const server = cert
  ? http2.createSecureServer({ settings, cert: fs.readFileSync(cert), key: fs.readFileSync(key) })
  : http2.createServer({ settings });
const seen = { sessions: 0, sockets: 0, messages: 0, pings: 0, closes: {}, unmasked: 0, refused: 0 };

const frame = (opcode, payload) => {
  let header = Buffer.from([0x80 | opcode, payload.length]);
  if (payload.length > 65535) {
    header = Buffer.alloc(10);
    header[0] = 0x80 | opcode;
    header[1] = 127;
    header.writeBigUInt64BE(BigInt(payload.length), 2);
  } else if (payload.length > 125) {
    header = Buffer.from([0x80 | opcode, 126, payload.length >> 8, payload.length & 255]);
  }
  return Buffer.concat([header, payload]);
};

server.on('session', (session) => {
  seen.sessions += 1;
  session.on('error', () => {});
});
server.on('stream', (stream, headers) => {
  stream.on('error', () => {});
  const asked = [':method', ':protocol', ':scheme', 'sec-websocket-version'].map((name) => headers[name]);
  const scheme = cert ? 'https' : 'http';
  const unwanted = ['sec-websocket-key', 'upgrade', 'connection', 'host'].some((name) => name in headers);
  if (asked.join(' ') !== `CONNECT websocket ${scheme} 13` || unwanted || headers[':path'] === '/none') {
    seen.refused += 1;
    stream.respond({ ':status': 404 }, { endStream: true });
    return;
  }
  seen.sockets += 1;
  const offered = headers['sec-websocket-protocol'];
  stream.respond({ ':status': 200, ...(offered && { 'sec-websocket-protocol': offered.split(',')[0].trim() }) });
  let rest = Buffer.alloc(0);
  stream.on('data', (data) => {
    rest = Buffer.concat([rest, data]);
    for (;;) {
      if (rest.length < 2) return;
      const opcode = rest[0] & 15;
      let length = rest[1] & 127;
      let at = 2;
      if (length === 126) {
        if (rest.length < 4) return;
        length = rest.readUInt16BE(2);
        at = 4;
      } else if (length === 127) {
        if (rest.length < 10) return;
        length = Number(rest.readBigUInt64BE(2));
        at = 10;
      }
      if (rest[1] & 128) at += 4; else seen.unmasked += 1;
      if (rest.length < at + length) return;
      const mask = rest.subarray(at - 4, at);
      const payload = Buffer.from(rest.subarray(at, at + length));
      for (let i = 0; i < length; i += 1) payload[i] ^= mask[i & 3];
      rest = rest.subarray(at + length);
      if (opcode === 8) {
        const code = payload.length > 1 ? payload.readUInt16BE(0) : 0;
        seen.closes[code] = (seen.closes[code] || 0) + 1;
        stream.end(frame(8, payload));
      } else if (opcode === 9) {
        seen.pings += 1;
        stream.write(frame(10, payload));
      } else if (opcode === 1 || opcode === 2) {
        seen.messages += 1;
        stream.write(frame(opcode, payload));
      }
    }
  });
  stream.on('close', () => console.log(JSON.stringify(seen)));
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.on('end', () => process.exit(0)).resume();
