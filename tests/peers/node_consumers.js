// Programs that depend on uWebSockets.js, with a module of its API in its place: the first argument. Prints `ok NAME`.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const Module = require('node:module');
const path = require('node:path');
const { pathToFileURL } = require('node:url');
const { WebSocket } = require('ws');

const replacement = process.argv[2];
const resolve = Module._resolveFilename;
Module._resolveFilename = (request, ...rest) => resolve(request === 'uWebSockets.js' ? replacement : request, ...rest);

const uws = require(replacement);
const ok = (name) => console.log(`ok ${name}`);

/** A port of an app. */
const listen = (app) => new Promise((done) => {
  app.listen('127.0.0.1', 0, (listener) => { assert.ok(listener); done(uws.us_socket_local_port(listener)); });
});

/** Sends messages by `ws`, and returns the same number of answers. */
async function talk(url, messages) {
  const client = new WebSocket(url);
  const answers = [];
  client.on('message', (data) => answers.push(data.toString()));
  await once(client, 'open');
  for (const message of messages) client.send(message);
  while (answers.length < messages.length) await once(client, 'message');
  client.close();
  return answers;
}

/** Socket.IO's server attached to an app; clients by WebSocket, by polling, and by an upgrade from one to the other. */
async function socketIo() {
  const { Server } = require('socket.io');
  const { io } = require('socket.io-client');
  const app = uws.App();
  const server = new Server();
  server.attachApp(app);
  server.on('connection', (socket) => {
    socket.join('room');
    socket.on('echo', (...values) => values.pop()(...values));
    socket.on('tell', (text) => server.to('room').emit('told', text));
    socket.on('others', (text) => socket.to('room').emit('told', text));
  });
  const port = await listen(app);
  for (const transports of [['websocket'], ['polling'], ['polling', 'websocket']]) {
    const clients = [0, 1].map(() => io(`http://127.0.0.1:${port}`, { transports, forceNew: true, reconnection: false }));
    await Promise.all(clients.map((client) => once(client, 'connect')));
    const [first, second] = clients;
    const bytes = Buffer.alloc(100_000, 7);
    assert.deepEqual(await new Promise((done) => first.emit('echo', 'text', bytes, (...values) => done(values))), ['text', bytes]);
    const told = Promise.all(clients.map((client) => once(client, 'told')));
    first.emit('tell', 'all');
    assert.deepEqual((await told).flat(), ['all', 'all']);
    const other = once(second, 'told');
    first.emit('others', 'others');
    assert.deepEqual(await other, ['others']);
    if (transports.length === 2 && first.io.engine.transport.name !== 'websocket') await once(first.io.engine, 'upgrade');
    const gone = once(server.sockets.sockets.get(second.id), 'disconnect');
    second.close();
    await gone;
    first.close();
    ok(`socket.io by ${transports.join(' and ')}`);
  }
  app.close();
}

async function hyperExpress() {
  const { Server } = require('hyper-express');
  const server = new Server();
  server.get('/users/:id', (request, response) => response.json({ id: request.path_parameters.id, query: request.query_parameters }));
  server.post('/body', async (request, response) => response.status(201).send(await request.text()));
  server.upgrade('/echo', (request, response) => response.upgrade({ name: request.query_parameters.name }));
  server.ws('/echo', (ws) => ws.on('message', (message) => ws.send(`${ws.context.name} ${message}`)));
  const listener = await server.listen(0, '127.0.0.1');
  const port = uws.us_socket_local_port(listener);
  const url = `http://127.0.0.1:${port}`;
  assert.deepEqual(await (await fetch(`${url}/users/5?a=b`)).json(), { id: '5', query: { a: 'b' } });
  const posted = await fetch(`${url}/body`, { method: 'POST', body: 'x'.repeat(200_000) });
  assert.deepEqual([posted.status, (await posted.text()).length], [201, 200_000]);
  assert.equal((await fetch(`${url}/none`)).status, 404);
  ok('hyper-express requests');
  assert.deepEqual(await talk(`ws://127.0.0.1:${port}/echo?name=ann`, ['1', '2']), ['ann 1', 'ann 2']);
  ok('hyper-express sockets');
  server.close();
}

async function ultimateExpress() {
  const express = require('ultimate-express');
  const app = express();
  app.use(express.json());
  app.get('/users/:id', (req, res) => res.set('x-a', 'b').json({ id: req.params.id, query: req.query }));
  app.post('/json', (req, res) => res.status(201).send(req.body));
  app.get('/later', (req, res) => setImmediate(() => res.send('later')));
  const port = await new Promise((done) => {
    app.listen(0, '127.0.0.1', (value) => done(app.port ?? value));
  });
  const url = `http://127.0.0.1:${port}`;
  const got = await fetch(`${url}/users/5?a=b`);
  assert.equal(got.headers.get('x-a'), 'b');
  assert.deepEqual(await got.json(), { id: '5', query: { a: 'b' } });
  const posted = await fetch(`${url}/json`, { method: 'POST', body: '{"a":[1]}', headers: { 'content-type': 'application/json' } });
  assert.deepEqual([posted.status, await posted.json()], [201, { a: [1] }]);
  assert.equal(await (await fetch(`${url}/later`)).text(), 'later');
  assert.equal((await fetch(`${url}/none`)).status, 404);
  ok('ultimate-express requests');
}

async function crossws() {
  // For `import` only, which does not look in NODE_PATH.
  const { default: adapter } = await import(pathToFileURL(path.join(process.env.NODE_PATH, 'crossws/dist/adapters/uws.mjs')));
  const seen = [];
  const ws = adapter({ hooks: {
    // The adapter reads the request after it.
    upgrade: async () => {},
    open: (peer) => peer.subscribe('room'),
    message: (peer, message) => { peer.send(message.text()); peer.publish('room', 'to others'); },
    close: () => seen.push('close'),
  } });
  const app = uws.App().ws('/*', ws.websocket);
  const port = await listen(app);
  assert.deepEqual(await talk(`ws://127.0.0.1:${port}/`, ['a', 'b']), ['a', 'b']);
  while (seen.length === 0) await new Promise(setImmediate);
  ok('crossws');
  app.close();
}

(async () => {
  let failed = false;
  for (const run of [socketIo, hyperExpress, ultimateExpress, crossws]) {
    await run().catch((error) => {
      failed = true;
      console.error(run.name, error);
    });
  }
  process.exit(failed ? 1 : 0);
})();
