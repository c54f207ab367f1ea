// The application of the soak: AnyCable's HTTP RPC, well or wrongly, as its parent says.
// usage: forked with PORT LOG; the parent sends { mode, share }: how to answer, and how many calls of ten.
// What it performs is appended to LOG before it answers, so that nothing is forgotten when it is killed.
'use strict';
const fs = require('node:fs');
const http = require('node:http');

const [port, log] = process.argv.slice(2);
const file = fs.openSync(log, 'a');
const note = (...words) => fs.writeSync(file, `${words.join(' ')}\n`);
const between = (least, most) => least + Math.random() * (most - least);
const one = (list) => list[Math.floor(Math.random() * list.length)];
const later = (least, most) => new Promise((done) => setTimeout(done, between(least, most)));
let current = { mode: 'well', share: 10 };

// The right answer; what it means has been done when it is returned.
function perform(method, body, sid) {
  if (method === 'connect') {
    note('connect', sid);
    const user = new URL(body.env.url).searchParams.get('user');
    return { status: 1, identifiers: JSON.stringify({ user }) };
  }
  if (method === 'disconnect') {
    note('disconnect', sid);
    return { status: 1 };
  }
  if (body.command === 'subscribe') {
    return { status: 1, streams: JSON.parse(body.identifier).topics };
  }
  if (body.command === 'message') {
    const { id } = JSON.parse(body.data);
    note('perform', id);
    const { identifier } = body;
    return { status: 1, transmissions: [JSON.stringify({ identifier, message: { done: id } })] };
  }
  return { status: 1 };
}

const head = (length) => `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n\r\n`;

const MODES = {
  well: (response, answer) => response.end(answer),
  slow: async (response, answer) => (await later(200, 2500), response.end(answer)),
  late: async (response, answer) => (await later(3500, 8000), response.end(answer)),
  silent: () => {},
  garbage: (response) => response.end(one(['', '{"status":1', 'no JSON', '[]', '\u0000\u0001'])),
  status: (response, answer) => response.writeHead(one([204, 302, 400, 404, 500])).end(answer),
  overloaded: (response) => response.writeHead(one([429, 503])).end(),
  types: (response) => response.end(one(['{"status":"yes"}', '{"status":1,"streams":{"a":1}}', '{"status":7}'])),
  huge: (response) => response.end(JSON.stringify({ status: 1, cstate: { x: 'x'.repeat(10_000_000) } })),
  cut: (response, answer) => {
    response.socket.write(head(answer.length + 100) + answer);
    response.socket.end();
  },
  reset: (response) => response.socket.destroy(),
  twice: (response, answer) => response.socket.write((head(answer.length) + answer).repeat(2)),
  error: (response) => response.end('{"status":0,"error_msg":"broken"}'),
  refuses: (response) => response.end('{"status":2}'),
};

const server = http.createServer(async (request, response) => {
  response.on('error', () => {});
  const chunks = [];
  try {
    for await (const chunk of request) chunks.push(chunk);
  } catch {
    return;
  }
  const method = request.url.split('/').pop();
  const wrong = Math.random() * 10 < current.share ? current.mode : 'well';
  // What it refuses it does not do.
  const refused = ['overloaded', 'refuses', 'error'].includes(wrong);
  const sid = request.headers['x-anycable-meta-sid'];
  const body = JSON.parse(Buffer.concat(chunks));
  const answer = refused ? '' : JSON.stringify(perform(method, body, sid));
  await MODES[wrong](response, answer);
});
server.on('clientError', (_, socket) => socket.destroy());
server.keepAliveTimeout = 60_000;
server.listen(Number(port), '127.0.0.1', () => process.send({ port: server.address().port }));
process.on('message', (message) => (current = message));
process.on('disconnect', () => process.exit(0));
