// What the module exports, and functions that need no server.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const fs = require('node:fs');
const { uws, both, ours, serve, get, Client, program, text } = require('./support.js');

const COMPRESSION = {
  DISABLED: 0,
  SHARED_COMPRESSOR: 1,
  SHARED_DECOMPRESSOR: 256,
  DEDICATED_COMPRESSOR: 248,
  DEDICATED_COMPRESSOR_3KB: 145,
  DEDICATED_COMPRESSOR_4KB: 146,
  DEDICATED_COMPRESSOR_8KB: 163,
  DEDICATED_COMPRESSOR_16KB: 180,
  DEDICATED_COMPRESSOR_32KB: 197,
  DEDICATED_COMPRESSOR_64KB: 214,
  DEDICATED_COMPRESSOR_128KB: 231,
  DEDICATED_COMPRESSOR_256KB: 248,
  DEDICATED_DECOMPRESSOR: 3840,
  DEDICATED_DECOMPRESSOR_512B: 2304,
  DEDICATED_DECOMPRESSOR_1KB: 2560,
  DEDICATED_DECOMPRESSOR_2KB: 2816,
  DEDICATED_DECOMPRESSOR_4KB: 3072,
  DEDICATED_DECOMPRESSOR_8KB: 3328,
  DEDICATED_DECOMPRESSOR_16KB: 3584,
  DEDICATED_DECOMPRESSOR_32KB: 3840,
};

const APP = [
  'get', 'post', 'options', 'del', 'patch', 'put', 'head', 'connect', 'trace', 'any', 'ws', 'listen', 'listen_unix',
  'close', 'filter', 'publish', 'numSubscribers', 'domain', 'addServerName', 'removeServerName', 'missingServerName',
  'getDescriptor', 'addChildAppDescriptor', 'removeChildAppDescriptor', 'adoptSocket',
];

const RESPONSE = [
  'writeStatus', 'writeHeader', 'write', 'end', 'endWithoutBody', 'tryEnd', 'close', 'getWriteOffset', 'onWritable',
  'onAborted', 'onData', 'getRemoteAddress', 'getRemoteAddressAsText', 'getProxiedRemoteAddress',
  'getProxiedRemoteAddressAsText', 'cork', 'collect', 'upgrade', 'pause', 'resume',
];

const REQUEST = [
  'getHeader', 'getParameter', 'getUrl', 'getMethod', 'getCaseSensitiveMethod', 'getQuery', 'forEach', 'setYield',
];

const SOCKET = [
  'send', 'getBufferedAmount', 'end', 'close', 'ping', 'subscribe', 'unsubscribe', 'isSubscribed', 'getTopics',
  'publish', 'cork', 'getRemoteAddress', 'getRemoteAddressAsText', 'getUserData', 'sendFirstFragment', 'sendFragment',
  'sendLastFragment',
];

const methodsOf = (object, names) => names.filter((name) => typeof object[name] !== 'function');

both('constants have the values of uWebSockets.js', () => {
  for (const [name, value] of Object.entries(COMPRESSION)) assert.equal(uws[name], value, name);
  assert.equal(uws.LIBUS_LISTEN_EXCLUSIVE_PORT, 1);
});

both('every member of an app is there', () => {
  const app = uws.App();
  assert.deepEqual(methodsOf(app, APP), []);
  app.close();
});

both('every member of a request, a response and a socket is there', async (t) => {
  const missing = {};
  const port = await serve(t, (app) => app
    .ws('/*', { open: (ws) => { missing.socket = methodsOf(ws, SOCKET); ws.send('x'); } })
    .get('/members', (res, req) => {
      missing.response = methodsOf(res, RESPONSE);
      missing.request = methodsOf(req, REQUEST);
      res.end();
    }));
  await get(t, port, '/members');
  await (await Client.open(t, port)).next();
  assert.deepEqual(missing, { response: [], request: [], socket: [] });
});

both('methods of an app that set something return the app', (t) => {
  const app = uws.App();
  t.after(() => app.close());
  const handler = () => {};
  for (const name of ['get', 'post', 'options', 'del', 'patch', 'put', 'head', 'connect', 'trace', 'any']) {
    assert.equal(app[name](`/${name}`, handler), app, name);
  }
  assert.equal(app.ws('/ws', {}), app);
  assert.equal(app.filter(handler), app);
  assert.equal(app.listen('127.0.0.1', 0, handler), app);
});

both('listen by port, with options, by host', async () => {
  const app = uws.App().get('/', (res) => res.end('here'));
  const ports = [];
  const add = (socket) => ports.push(uws.us_socket_local_port(socket));
  app.listen(0, add);
  app.listen(0, uws.LIBUS_LISTEN_EXCLUSIVE_PORT, add);
  app.listen('127.0.0.1', 0, add);
  for (const port of ports) {
    assert.ok(port > 0);
    assert.equal(await (await fetch(`http://127.0.0.1:${port}/`)).text(), 'here');
  }
  assert.equal(ports.length, 3);
  app.close();
});

both('listen calls back before it returns', (t) => {
  let called = false;
  const app = uws.App();
  t.after(() => app.close());
  app.listen('127.0.0.1', 0, () => { called = true; });
  assert.equal(called, true);
});

both('listen gives false for a port that another program has', async (t) => {
  const other = net.createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  t.after(() => other.close());
  const app = uws.App();
  t.after(() => app.close());
  let given;
  app.listen('127.0.0.1', other.address().port, (socket) => { given = socket; });
  assert.equal(given, false);
});

both('two apps share a port unless it is exclusive', async (t) => {
  const [first, second] = [uws.App(), uws.App()];
  t.after(() => { first.close(); second.close(); });
  const free = net.createServer().listen(0, '127.0.0.1');
  await once(free, 'listening');
  const { port } = free.address();
  free.close();
  await once(free, 'close');
  const given = [];
  first.listen('127.0.0.1', port, (socket) => given.push(Boolean(socket)));
  second.listen('127.0.0.1', port, (socket) => given.push(Boolean(socket)));
  second.listen(port, uws.LIBUS_LISTEN_EXCLUSIVE_PORT, (socket) => given.push(Boolean(socket)));
  assert.deepEqual(given, [true, true, false]);
});

both('listen_unix serves on a path', async (t) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'uws-'));
  t.after(() => fs.rmSync(folder, { recursive: true }));
  const file = path.join(folder, 'socket');
  const app = uws.App().get('/', (res) => res.end('unix'));
  t.after(() => app.close());
  let given;
  app.listen_unix((socket) => { given = socket; }, file);
  assert.ok(given);
  const client = net.connect(file);
  client.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  let bytes = '';
  client.on('data', (data) => { bytes += data; });
  while (!bytes.endsWith('unix')) await once(client, 'data');
  client.destroy();
});

both('us_listen_socket_close refuses new connections and keeps those that are open', async (t) => {
  const app = uws.App().ws('/*', { message: (ws, message) => ws.send(message) });
  t.after(() => app.close());
  let listener;
  app.listen('127.0.0.1', 0, (socket) => { listener = socket; });
  const port = uws.us_socket_local_port(listener);
  const client = await Client.open(t, port);
  uws.us_listen_socket_close(listener);
  const refused = net.connect(port, '127.0.0.1');
  const [error] = await once(refused, 'error');
  assert.equal(error.code, 'ECONNREFUSED');
  client.send('still here');
  assert.equal(await client.next(), 'still here');
});

both('a process without listeners and connections ends by itself', async (t) => {
  const ended = await program(t, `
    const app = uws.App().get('/', (res) => res.end('last'));
    listen(app, (port, socket) => {
      fetch('http://127.0.0.1:' + port, { headers: { connection: 'close' } }).then(async (response) => {
        log(await response.text());
        uws.us_listen_socket_close(socket);
        app.close();
      });
    });`);
  assert.deepEqual([ended.code, ended.lines], [0, ['last']], ended.stderr);
});

both('a listener keeps the process, and close of the app lets it end', async (t) => {
  const ended = await program(t, `
    const app = uws.App().ws('/*', { close: () => log('closed') });
    listen(app, (port) => {
      const { WebSocket } = require('ws');
      new WebSocket('ws://127.0.0.1:' + port).on('open', () => app.close()).on('close', (code) => log(code));
    });`);
  assert.equal(ended.code, 0, ended.stderr);
  assert.deepEqual(ended.lines.sort(), ['1006', 'closed']);
});

const MULTIPART = [
  '--limit', 'Content-Disposition: form-data; name="text"', '', 'hello',
  '--limit', 'Content-Disposition: form-data; name="file"; filename="notes.txt"', 'Content-Type: text/plain', '',
  'a\r\nfile', '--limit--', '',
].join('\r\n');

both('getParts splits a multipart body', () => {
  const parts = uws.getParts(Buffer.from(MULTIPART), 'multipart/form-data; boundary=limit');
  assert.deepEqual(parts.map((part) => ({ ...part, data: text(part.data) })), [
    { data: 'hello', name: 'text' },
    { data: 'a\r\nfile', name: 'file', filename: 'notes.txt', type: 'text/plain' },
  ]);
  assert.ok(parts[0].data instanceof ArrayBuffer);
});

both('getParts takes text', () => {
  const parts = uws.getParts(MULTIPART, 'multipart/form-data; boundary=limit');
  assert.deepEqual(parts.map((part) => part.name), ['text', 'file']);
});

// RFC 2046 allows quotes, and some clients send them.
ours('getParts takes a quoted boundary', () => {
  const parts = uws.getParts(MULTIPART, 'multipart/form-data; boundary="limit"');
  assert.deepEqual(parts.map((part) => part.name), ['text', 'file']);
});

both('getParts returns undefined for another content type', () => {
  assert.equal(uws.getParts('a=b', 'application/x-www-form-urlencoded'), undefined);
});

// The original has it in JavaScript beside the addon.
(uws.DeclarativeResponse ? both : ours)('DeclarativeResponse answers without a call of JavaScript', async (t) => {
  const answer = new uws.DeclarativeResponse()
    .writeHeader('x-fixed', 'yes').write('query ').writeQueryValue('q').write(' parameter ').writeParameterValue('id')
    .end('!');
  const port = await serve(t, (app) => app.get('/declared/:id', answer));
  const { head, raw } = await get(t, port, '/declared/7?q=5');
  assert.match(head, /x-fixed: yes/);
  assert.match(head, /transfer-encoding: chunked/i);
  await raw.until((bytes) => bytes.toString().endsWith('0\r\n\r\n'));
  assert.equal(raw.bytes.toString().split('\r\n').filter((_, line) => line % 2 === 1).join(''),
    'query 5 parameter 7!');
});

ours('DeclarativeResponse writes the body of the request', async (t) => {
  const answer = new uws.DeclarativeResponse().write('<').writeBody().writeQueryValue('q').end('>');
  const port = await serve(t, (app) => app.post('/', answer));
  const response = await fetch(`http://127.0.0.1:${port}/?q=5`, { method: 'POST', body: 'b'.repeat(300_000) });
  assert.equal(await response.text(), `<${'b'.repeat(300_000)}5>`);
});

ours('this package names its additions', () => {
  assert.equal(typeof uws.Server, 'function');
  assert.equal(typeof uws.WebSocketServer, 'function');
});
