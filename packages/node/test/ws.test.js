// `WebSocketServer`, for programs of the package `ws`. It is written upon the API of uWebSockets.js, so that its cases run
// on both. `ws` is the client.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { uws, both, ours, isOriginal, certificate, Queue, Client, Raw, frame, program } = require('./support.js');

// Where bridges have their folders: no others are counted.
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'ws-tests-'));
process.env.TMPDIR = folder;
process.on('exit', () => fs.rmSync(folder, { recursive: true, force: true }));

const { WebSocketServer } = isOriginal ? require('../lib')(uws) : uws;
const { WebSocket } = WebSocketServer;

async function started(t, options = {}) {
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1', ...options });
  t.after(() => { for (const client of server.clients ?? []) client.terminate(); server.close(); });
  await once(server, 'listening');
  return { server, port: server.address().port };
}

/** An http server with what it upgrades. */
async function attached(t, options = {}, httpServer = http.createServer((_, res) => res.end('plain'))) {
  const server = new WebSocketServer({ server: httpServer, ...options });
  httpServer.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    for (const client of server.clients ?? []) client.terminate();
    server.close();
    httpServer.close();
  });
  return { server, httpServer, port: httpServer.address().port };
}

const echo = (ws) => ws.on('message', (data, isBinary) => ws.send(data, { binary: isBinary }));

const STARTS = [
  ['port', started],
  ['server', attached],
];

for (const [name, start] of STARTS) {
  both(`${name}: echo of text and bytes, as Buffers`, async (t) => {
    const { server, port } = await start(t);
    server.on('connection', (ws) => {
      ws.on('message', (data, isBinary) => { assert.ok(Buffer.isBuffer(data)); ws.send(data, { binary: isBinary }); });
    });
    const client = await Client.open(t, port);
    for (const message of ['', 'häß🙂', 'x'.repeat(100_000)]) {
      client.send(message);
      assert.equal(await client.next(), message);
    }
    client.send(Buffer.from([1, 2]));
    assert.deepEqual(await client.next(), Buffer.from([1, 2]));
  });

  both(`${name}: the request has url, headers and address`, async (t) => {
    const { server, port } = await start(t);
    const seen = new Queue();
    server.on('connection', (ws, request) => seen.push(request));
    await Client.open(t, port, '/a?b=c', ['p'], { headers: { cookie: 'd=e', 'X-Mixed': 'Case' } });
    const request = await seen.next();
    assert.ok(request instanceof http.IncomingMessage);
    assert.deepEqual([request.method, request.url, request.headers.cookie, request.headers['x-mixed']], ['GET', '/a?b=c', 'd=e', 'Case']);
    assert.match(request.socket.remoteAddress, /127\.0\.0\.1$/);
  });

  both(`${name}: close by the client, by the server, and terminate`, async (t) => {
    const { server, port } = await start(t);
    const closed = new Queue();
    server.on('connection', (ws) => {
      ws.on('close', (code, reason) => closed.push([code, reason.toString(), ws.readyState, server.clients.size]));
      ws.on('message', (data) => {
        if (data.toString() === 'close') { ws.close(4002, 'server'); assert.equal(ws.readyState, WebSocket.CLOSING); }
        if (data.toString() === 'terminate') ws.terminate();
      });
    });
    const first = await Client.open(t, port);
    assert.equal(server.clients.size, 1);
    first.ws.close(4001, 'client');
    assert.deepEqual(await closed.next(), [4001, 'client', WebSocket.CLOSED, 0]);
    const second = await Client.open(t, port);
    second.send('close');
    assert.deepEqual(await second.closed, { code: 4002, reason: 'server' });
    assert.deepEqual(await closed.next(), [4002, 'server', WebSocket.CLOSED, 0]);
    const third = await Client.open(t, port);
    third.send('terminate');
    assert.equal((await third.closed).code, 1006);
    assert.deepEqual(await closed.next(), [1006, '', WebSocket.CLOSED, 0]);
  });

  both(`${name}: verifyClient, handleProtocols, headers and path`, async (t) => {
    const { server, port } = await start(t, {
      path: '/here',
      verifyClient: ({ origin, req }, done) => {
        if (origin === 'http://bad') done(false, 402, 'pay', { 'X-Why': 'bad' });
        else setImmediate(done, req.headers['x-user'] === 'ann');
      },
      handleProtocols: (protocols) => [...protocols].at(-1),
    });
    server.on('headers', (headers) => headers.push('X-Added: yes'));
    const options = { headers: { 'x-user': 'ann' } };
    const raw = new Raw(t, port);
    const head = await raw.upgrade('/here?x', { 'X-User': 'ann', 'Sec-WebSocket-Protocol': 'a, b' });
    assert.match(head, /^HTTP\/1.1 101 [^]*\r\nX-Added: yes\r\n/);
    assert.match(head, /\r\nSec-WebSocket-Protocol: b\r\n/i);
    const client = await Client.open(t, port, '/here', ['a', 'b'], options);
    assert.equal(client.ws.protocol, 'b');
    await assert.rejects(Client.open(t, port, '/elsewhere', [], options), /400/);
    await assert.rejects(Client.open(t, port, '/here'), /401/);
    await assert.rejects(Client.open(t, port, '/here', [], { origin: 'http://bad' }), /402/);
  });

  both(`${name}: compressed messages`, async (t) => {
    const { server, port } = await start(t, { perMessageDeflate: { threshold: 100 } });
    server.on('connection', echo);
    const client = await Client.open(t, port, '/', [], { perMessageDeflate: { threshold: 0 } });
    assert.match(client.ws.extensions, /permessage-deflate/);
    for (const message of ['short', 'long '.repeat(1000), 'long '.repeat(1000)]) {
      client.send(message);
      assert.equal(await client.next(), message);
    }
  });

  both(`${name}: maxPayload`, async (t) => {
    const { server, port } = await start(t, { maxPayload: 10 });
    const errors = new Queue();
    server.on('connection', (ws) => { echo(ws); ws.on('error', (error) => errors.push(error.code)); });
    const client = await Client.open(t, port);
    client.send('0123456789');
    await client.next();
    client.send('01234567890');
    assert.equal(await errors.next(), 'WS_ERR_UNSUPPORTED_MESSAGE_LENGTH');
    await client.closed;
  });

  // uWebSockets.js loses it.
  (name === 'port' ? ours : both)(`${name}: a message in the packet of the handshake`, async (t) => {
    const { server, port } = await start(t);
    server.on('connection', echo);
    const raw = new Raw(t, port);
    raw.write(Buffer.concat([Buffer.from('GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n'
      + 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n'), frame(1, 'early')]));
    await raw.head();
    assert.equal((await raw.frame()).payload.toString(), 'early');
  });
}

both('send calls back when the message is written, and with an error when closed', async (t) => {
  const { server, port } = await started(t);
  const calls = new Queue();
  let socket;
  server.on('connection', (ws) => { socket = ws; });
  const client = await Client.open(t, port);
  client.ws._socket.pause();
  socket.send('small', (error) => calls.push(['small', error]));
  assert.deepEqual(await calls.next(), ['small', undefined]);
  let written = 0;
  while (socket.bufferedAmount === 0) socket.send(Buffer.alloc(1024 * 1024), () => { written += 1; });
  socket.send('waits', (error) => calls.push(['waits', error]));
  assert.equal(calls.size, 0);
  client.ws._socket.resume();
  assert.deepEqual(await calls.next(), ['waits', undefined]);
  assert.ok(written > 0);
  client.ws._socket.pause();
  while (socket.bufferedAmount === 0) socket.send(Buffer.alloc(1024 * 1024));
  socket.send('lost', (error) => calls.push(['lost', error instanceof Error]));
  socket.terminate();
  assert.deepEqual(await calls.next(), ['lost', true]);
  socket.send('late', (error) => calls.push(['late', error instanceof Error]));
  assert.deepEqual(await calls.next(), ['late', true]);
});

both('ping and pong', async (t) => {
  const { server, port } = await started(t);
  const seen = new Queue();
  server.on('connection', (ws) => {
    ws.on('pong', (data) => seen.push(['pong', data.toString()]));
    ws.on('ping', (data) => seen.push(['ping', data.toString()]));
    ws.ping('to client');
  });
  const client = await Client.open(t, port);
  assert.deepEqual(await seen.next(), ['pong', 'to client']);
  client.ws.ping('to server');
  assert.deepEqual(await seen.next(), ['ping', 'to server']);
  assert.equal(await client.pongs.next(), 'to server');
});

both('event handlers as properties, and addEventListener', async (t) => {
  const { server, port } = await started(t);
  const seen = new Queue();
  server.on('connection', (ws) => {
    ws.onmessage = ({ data, target }) => seen.push([data, target === ws]);
    ws.addEventListener('message', ({ type }) => seen.push(type), { once: true });
    ws.onclose = ({ code, reason, wasClean }) => seen.push([code, reason, wasClean]);
    assert.equal(typeof ws.onmessage, 'function');
    assert.equal(ws.onerror, null);
  });
  const client = await Client.open(t, port);
  client.send('a');
  client.send('b');
  client.ws.close(1000, 'bye');
  const events = [];
  while (events.length < 4) events.push(await seen.next());
  assert.deepEqual(events, [['a', true], 'message', ['b', true], [1000, 'bye', true]]);
});

both('binaryType', async (t) => {
  const { server, port } = await started(t);
  const seen = new Queue();
  server.on('connection', (ws) => {
    ws.on('message', async (data) => {
      seen.push(data);
      ws.binaryType = ws.binaryType === 'nodebuffer' ? 'arraybuffer' : 'fragments';
    });
  });
  const client = await Client.open(t, port);
  for (let at = 0; at < 3; at += 1) client.send(Buffer.from([at]));
  assert.ok(Buffer.isBuffer(await seen.next()));
  assert.ok(await seen.next() instanceof ArrayBuffer);
  assert.deepEqual(await seen.next(), [Buffer.from([2])]);
});

both('data of every kind is sent as by ws', async (t) => {
  const { server, port } = await started(t);
  server.on('connection', (ws) => {
    ws.send(5);
    ws.send(undefined);
    ws.send([1, 2]);
    ws.send(new Uint16Array([3]));
    ws.send(new DataView(new ArrayBuffer(2)));
    ws.send('binary', { binary: true });
    ws.send(Buffer.from('text'), { binary: false });
    ws.send('a', { fin: false });
    ws.send('b', { fin: true });
  });
  const client = new Client(`ws://127.0.0.1:${port}/`);
  t.after(() => client.ws.terminate());
  const expected = ['5', '', Buffer.from([1, 2]), Buffer.from([3, 0]), Buffer.from([0, 0]), Buffer.from('binary'), 'text', 'ab'];
  for (const message of expected) assert.deepEqual(await client.next(), message);
});

both('an http server keeps its own requests', async (t) => {
  const { server, port } = await attached(t);
  server.on('connection', echo);
  assert.equal(await (await fetch(`http://127.0.0.1:${port}/`)).text(), 'plain');
});

both('noServer: handleUpgrade routes to several servers', async (t) => {
  const [first, second] = [new WebSocketServer({ noServer: true }), new WebSocketServer({ noServer: true })];
  first.on('connection', (ws) => ws.send('first'));
  second.on('connection', (ws, request, user) => ws.send(`second ${user}`));
  const httpServer = http.createServer().listen(0, '127.0.0.1');
  httpServer.on('upgrade', (request, socket, head) => {
    if (request.url === '/1') first.handleUpgrade(request, socket, head, (ws) => first.emit('connection', ws, request));
    else if (request.url === '/2') second.handleUpgrade(request, socket, head, (ws) => second.emit('connection', ws, request, 'ann'));
    else socket.destroy();
  });
  await once(httpServer, 'listening');
  t.after(() => { httpServer.close(); httpServer.closeAllConnections(); });
  const { port } = httpServer.address();
  for (const [target, greeting] of [['/1', 'first'], ['/2', 'second ann']]) {
    const client = new Client(`ws://127.0.0.1:${port}${target}`);
    assert.equal(await client.next(), greeting);
    client.ws.close();
    await client.closed;
  }
  await assert.rejects(Client.open(t, port, '/3'));
});

/** An https server. Its connections are passed on by a bridge. */
function secure() {
  const { key_file_name: key, cert_file_name: cert } = certificate('localhost');
  return https.createServer({ key: fs.readFileSync(key), cert: fs.readFileSync(cert) });
}

both('https: nothing of a bridge remains when its clients have gone', async (t) => {
  const folders = () => fs.readdirSync(folder).filter((name) => name.startsWith('standfast-')).length;
  assert.equal(folders(), 0);
  const { server, port } = await attached(t, {}, secure());
  const gone = new Queue();
  server.on('connection', (ws, request) => { echo(ws); request.socket.once('close', () => gone.push()); });
  const client = new Client(`wss://127.0.0.1:${port}`, [], { rejectUnauthorized: false });
  for (const message of ['a', 'b'.repeat(100_000)]) {
    if (message === 'a') await once(client.ws, 'open');
    client.send(message);
    assert.equal(await client.next(), message);
  }
  assert.equal(folders(), 1);
  client.ws.close();
  await gone.next();
  while (!t.signal.aborted && folders() > 0) await new Promise(setImmediate);
});

/** How many descriptors of this process are open connections of a port. */
function descriptors(port) {
  const own = `:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  const lines = fs.readFileSync('/proc/self/net/tcp', 'utf8').split('\n').map((line) => line.trim().split(/\s+/));
  const open = lines.filter(([, local, , state]) => local?.endsWith(own) && state === '01').map((parts) => `socket:[${parts[9]}]`);
  const links = fs.readdirSync('/proc/self/fd').map((number) => {
    try { return fs.readlinkSync(`/proc/self/fd/${number}`); } catch { return undefined; }
  });
  return links.filter((link) => open.includes(link)).length;
}

ours('server: a socket has one descriptor, and ends with its object', async (t) => {
  const { server, httpServer, port } = await attached(t);
  const seen = new Queue();
  server.on('connection', (ws, request) => {
    ws.on('close', (code) => seen.push(code));
    request.socket.once('close', () => seen.push('gone'));
    seen.push(request.socket);
  });
  const clients = [await Client.open(t, port), await Client.open(t, port), await Client.open(t, port)];
  const sockets = [await seen.next(), await seen.next(), await seen.next()];
  assert.equal(descriptors(port), 3);
  assert.equal(await new Promise((resolve) => httpServer.getConnections((_, count) => resolve(count))), 3);
  assert.equal(sockets[0].remoteAddress, '127.0.0.1');
  sockets[0].destroy();
  assert.equal((await clients[0].closed).code, 1006);
  assert.deepEqual([await seen.next(), await seen.next()].sort(), [1006, 'gone']);
  // Nobody listens for its error, which is not one of the process.
  sockets[2].destroy(new Error('of a program'));
  assert.equal((await clients[2].closed).code, 1006);
  assert.deepEqual([await seen.next(), await seen.next()].sort(), [1006, 'gone']);
  const closed = new Promise((resolve) => httpServer.close(resolve));
  clients[1].ws.close(4000);
  assert.deepEqual([await seen.next(), await seen.next()].sort(), [4000, 'gone']);
  await closed;
});

ours('server: what arrives while a client is being verified is not lost', async (t) => {
  const verify = new Queue();
  const { server, port } = await attached(t, { verifyClient: (info, done) => verify.push({ info, done }) });
  server.on('connection', echo);
  const raw = new Raw(t, port);
  const head = raw.upgrade();
  const { info, done } = await verify.next();
  // As a program does that looks for more.
  info.req.socket.read(0);
  raw.write(frame(1, 'one'));
  await once(info.req.socket, 'readable');
  raw.write(frame(1, 'two'));
  done(true);
  assert.match(await head, /^HTTP\/1.1 101 /);
  for (const message of ['one', 'two']) assert.equal((await raw.frame()).payload.toString(), message);
});

ours('server: nothing remains of clients that leave with their handshake', async (t) => {
  const { server, httpServer, port } = await attached(t);
  const gone = new Queue();
  httpServer.on('connection', (socket) => socket.once('close', () => gone.push()));
  for (let client = 0; client < 20; client += 1) {
    const raw = new Raw(t, port);
    raw.upgrade().catch(() => {});
    await once(raw.socket, 'connect');
    if (client % 2) raw.socket.end();
    else raw.socket.write('', () => raw.socket.resetAndDestroy());
    await gone.next();
  }
  assert.equal(server.clients.size, 0);
});

both('a port in use is an error with its code', async (t) => {
  const other = net.createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  t.after(() => other.close());
  const server = new WebSocketServer({ port: other.address().port, host: '127.0.0.1' });
  const [error] = await once(server, 'error');
  assert.equal(error.code, 'EADDRINUSE');
});

both('close lets clients stay, and tells when they have gone', async (t) => {
  const { server, port } = await started(t);
  server.on('connection', echo);
  const client = await Client.open(t, port);
  const order = [];
  const closed = new Promise((resolve) => { server.close(() => { order.push('closed'); resolve(); }); });
  client.send('still');
  assert.equal(await client.next(), 'still');
  order.push('echo');
  client.ws.close();
  await closed;
  assert.deepEqual(order, ['echo', 'closed']);
  await assert.rejects(Client.open(t, port));
});

both('a class of the program, and one that extends ours', async (t) => {
  class Mine extends WebSocket { get name() { return 'mine'; } }
  const { server, port } = await started(t, { WebSocket: Mine });
  server.on('connection', (ws) => ws.send(ws.name));
  const client = new Client(`ws://127.0.0.1:${port}/`);
  t.after(() => client.ws.terminate());
  assert.equal(await client.next(), 'mine');
});

both('what is not supported throws, and says so', () => {
  assert.throws(() => new WebSocketServer({ port: 0, autoPong: false }), /autoPong/);
  assert.throws(() => new WebSocketServer({ port: 0, skipUTF8Validation: true }), /skipUTF8Validation/);
  assert.throws(() => new WebSocket('ws://127.0.0.1/'), /package ws/);
});

both('a process with a closed server ends', async (t) => {
  const ended = await program(t, `
    const { WebSocketServer } = uws.WebSocketServer ? uws : require('./lib')(uws);
    const { WebSocket } = require('ws');
    const server = require('node:http').createServer().listen(0, '127.0.0.1', () => {
      const wss = new WebSocketServer({ server });
      wss.on('connection', (ws) => ws.on('message', () => { ws.close(); wss.close(() => log('closed')); server.close(); }));
      const c = new WebSocket('ws://127.0.0.1:' + server.address().port);
      c.on('open', () => c.send('x'));
    });`);
  assert.deepEqual([ended.code, ended.lines], [0, ['closed']], ended.stderr);
});
