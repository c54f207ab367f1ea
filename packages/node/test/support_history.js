// Servers with a history, for tests.
'use strict';

const path = require('node:path');
const { spawn } = require('node:child_process');
const { Worker } = require('node:worker_threads');
const { uws, node, ours, Queue, Client, moduleName } = require('./support.js');
const { availableBrokers, until } = require('./support_brokers.js');

const { Server } = uws;

/** A server whose clients are subscribed to `room`, from the position in their query on. */
async function serverOf(t, options) {
  const server = new Server({ history: true, ...options });
  const [subscribed, sockets] = [new Queue(), new Queue()];
  server.websocket('/', async (socket) => {
    sockets.push(socket);
    const { query } = socket.request;
    const [since, positions] = [query.get('since'), !query.has('plain')];
    subscribed.push(await socket.subscribe('room', { since, positions }));
    for await (const message of socket) socket.publish('room', message);
  });
  const { port } = await server.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => server.close());
  const open = (since) => Client.open(t, port, since === undefined ? '/' : `/?since=${since}`);
  const join = async (since) => {
    const client = await open(since);
    return { client, result: await subscribed.next() };
  };
  return { server, port, subscribed, sockets, open, join };
}

/** A server and a client of it, with its socket there. */
async function socketOf(t, options) {
  const server = new Server(options);
  const sockets = new Queue();
  server.websocket('/', (socket) => sockets.push(socket));
  const { port } = await server.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => server.close());
  const client = await Client.open(t, port);
  return { server, client, socket: await sockets.next() };
}

/** A message with its position. */
async function positioned(client) {
  const text = (await client.next()).toString();
  const at = text.indexOf('\n');
  return [text.slice(0, at), text.slice(at + 1)];
}

/** Another thread with such a server. */
async function threadOf(t, options) {
  const thread = new Worker(`
    const { parentPort, workerData } = require('node:worker_threads');
    const { Server } = require(workerData.module);
    const server = new Server(workerData.options);
    server.websocket('/', async (socket) => {
      await socket.subscribe('room', { since: socket.request.query.get('since'), positions: true });
      parentPort.postMessage('subscribed');
      for await (const message of socket) socket.publish('room', message);
    });
    server.listen({ port: 0, host: '127.0.0.1' }).then(({ port }) => parentPort.postMessage(port));
    parentPort.on('message', (message) => server.publish('room', message));
  `, { eval: true, workerData: { module: moduleName, options } });
  t.after(() => thread.terminate());
  const told = new Queue();
  thread.on('message', (value) => told.push(value));
  return { thread, port: await told.next(), told };
}

/** A test at each broker, of sockets on the thread of JavaScript and, if it wants to know, of sockets on others. */
function brokers(name, body) {
  for (const [kind, broker] of availableBrokers()) {
    ours(`${kind}: ${name}`, (t) => body(t, broker, {}));
    if (body.length > 2) ours(`${kind}, on other threads: ${name}`, (t) => body(t, broker, { workers: 2 }));
  }
}

/** Another process with such a server. */
async function other(t, options) {
  const child = spawn(node[0], [...node.slice(1), '-e', `
    const { Server } = require(${JSON.stringify(moduleName)});
    const server = new Server(${JSON.stringify({ history: true, ...options })});
    server.websocket('/', async (socket) => {
      const since = socket.request.query.get('since');
      process.send({ subscribed: await socket.subscribe('room', { since, positions: true }) });
    });
    server.listen({ port: 0, host: '127.0.0.1' }).then(({ port }) => process.send({ port }));
    process.on('message', async ({ name, args }) => process.send({ result: await server[name](...args) }));
    process.on('disconnect', () => process.exit());
  `], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'], cwd: path.join(__dirname, '..') });
  const told = { port: new Queue(), subscribed: new Queue(), result: new Queue() };
  child.on('message', (message) => Object.entries(message).forEach(([kind, value]) => told[kind].push(value)));
  const stop = () => new Promise((resolve) => { child.once('exit', resolve); child.kill('SIGKILL'); });
  t.after(() => child.kill('SIGKILL'));
  const port = await told.port.next();
  return {
    stop,
    call: (name, ...args) => { child.send({ name, args }); return told.result.next(); },
    join: async (since) => {
      const client = await Client.open(t, port, since === undefined ? '/' : `/?since=${since}`);
      return { client, result: await told.subscribed.next() };
    },
  };
}

/** Publishes once the broker takes it. */
const publish = (server, text) => until(() => server.publish('room', text));

module.exports = { serverOf, socketOf, positioned, threadOf, brokers, other, publish };
