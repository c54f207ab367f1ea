// An application whose answers by gRPC are wrong, each in the way that the cookie `case` of the client names,
// which is in the message, or of a caller that sends a cookie itself. Other calls than Connect succeed.
// usage: node grpc_wrong.js     prints its port first, ends with its standard input
'use strict';
const http2 = require('node:http2');

const head = { ':status': 200, 'content-type': 'application/grpc' };
// status 1 and transmissions, by their field numbers in the contract.
const welcome = Buffer.from('{"type":"welcome"}');
const connected = Buffer.concat([Buffer.from([8, 1, 0x1a, welcome.length]), welcome]);

function framed(message) {
  const prefix = Buffer.alloc(5);
  prefix.writeUInt32BE(message.length, 1);
  return Buffer.concat([prefix, message]);
}

function answer(stream, body, trailers) {
  stream.respond(head, { waitForTrailers: true });
  stream.on('wantTrailers', () => stream.sendTrailers(trailers));
  stream.end(body);
}

const ok = { 'grpc-status': '0' };
const cases = {
  right: (stream) => answer(stream, framed(connected), ok),
  no_status: (stream) => answer(stream, framed(connected), { other: '0' }),
  no_number: (stream) => answer(stream, framed(connected), { 'grpc-status': 'yes' }),
  refused: (stream) => answer(stream, framed(connected), { 'grpc-status': '16' }),
  two_messages: (stream) => answer(stream, Buffer.concat([framed(connected), framed(connected)]), ok),
  page: (stream) => answer(stream, '<h1>', ok),
  long: (stream) => answer(stream, Buffer.alloc(10 << 20), ok),
  no_trailers: (stream) => {
    stream.respond(head);
    stream.end(framed(connected));
  },
  status_in_head: (stream) => stream.respond({ ...head, 'grpc-status': '13' }, { endStream: true }),
  not_found: (stream) => {
    stream.respond({ ':status': 404 });
    stream.end();
  },
  reset: (stream) => {
    stream.respond(head);
    stream.write(framed(connected));
    stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR);
  },
  gone: (stream) => stream.session.destroy(),
  never_ends: (stream) => {
    stream.respond(head);
    stream.write(framed(connected));
  },
};

const server = http2.createServer();
server.on('session', (session) => session.on('error', () => {}));
server.on('sessionError', () => {});
server.on('stream', (stream, headers) => {
  const parts = [];
  stream.on('error', () => {});
  stream.on('data', (part) => parts.push(part));
  stream.on('end', () => {
    const caller = /case=(\w+)/.exec(headers.cookie ?? '');
    if (caller) return cases[caller[1]](stream);
    if (!headers[':path'].endsWith('/Connect')) return answer(stream, framed(Buffer.from([8, 1])), ok);
    cases[/case=(\w+)/.exec(Buffer.concat(parts).toString('latin1'))[1]](stream);
  });
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.on('end', () => process.exit(0)).resume();
