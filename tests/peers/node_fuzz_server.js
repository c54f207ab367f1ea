// The server of node_fuzz.js: handlers that do what is allowed and what is not, at random. Whatever they do, the process
// lives, each socket is closed once, and what is thrown is an Error of JavaScript.
//
// Usage: node --expose-gc node_fuzz_server.js MODULE SEED, by `fork`
'use strict';

const { Worker } = require('node:worker_threads');
const { random } = require('./node_fuzz_random.js');

const [folder, seed] = process.argv.slice(2);
const uws = require(folder);
const { chance, below, pick } = random(Number(seed));

/** Sockets and responses that programs keep too long, newest last. */
const KEPT_MAX = 200;
const TOPICS = ['a', 'b/c', '', 'ä', 'x'.repeat(300)];
const VALUES = [undefined, null, 0, -1, 1e10, NaN, 'text', {}, [], Symbol('s'), () => {}, new ArrayBuffer(8), new DataView(new ArrayBuffer(3))];

const counts = { opened: 0, closed: 0, twice: 0, requests: 0, aborted: 0, messages: 0, planned: 0, thrown: 0, workers: 0 };
const messagesThrown = new Map();
const sockets = [];
const responses = [];
const ended = new WeakSet();

function keep(list, value) {
  list.push(value);
  if (list.length > KEPT_MAX) list.splice(0, 50);
}

/** What a call throws is an Error with a text; anything else ends the process, and so the run. */
function attempt(call) {
  try {
    return call();
  } catch (error) {
    if (error?.message === 'planned') throw error;
    if (!(error instanceof Error) || !error.message) fail(`thrown: ${String(error)}`);
    counts.thrown += 1;
    messagesThrown.set(error.message.slice(0, 60), (messagesThrown.get(error.message.slice(0, 60)) ?? 0) + 1);
    return undefined;
  }
}

/** The same where handlers of others may throw what is planned. */
function attemptAny(call) {
  try {
    attempt(call);
  } catch {
    counts.planned += 1;
  }
}

function fail(text) {
  console.error(`fuzz: ${text}`);
  process.exit(7);
}

process.on('uncaughtException', (error) => {
  if (error.message === 'planned') counts.planned += 1;
  else if (/^A request handler returned without/.test(error.message)) counts.thrown += 1;
  else fail(`uncaught: ${error.stack}`);
});
process.on('unhandledRejection', (error) => {
  if (error.message === 'planned') counts.planned += 1;
  else fail(`unhandled: ${error.stack}`);
});

const bytes = () => {
  const length = pick([0, 1, 20, 125, 126, 2000, 70_000]);
  return pick([() => 'ä'.repeat(length), () => new ArrayBuffer(length), () => Buffer.alloc(length, 'x'), () => new Float64Array(length >> 3)])();
};
const argument = () => (chance(0.1) ? pick(VALUES) : bytes());
const name = () => (chance(0.05) ? pick(VALUES) : pick(TOPICS));

const SOCKET_CALLS = [
  (ws) => ws.send(argument(), chance(0.5), chance(0.3)),
  (ws) => ws.send(argument(), chance(0.5)),
  (ws) => { for (let n = below(50); n > 0; n -= 1) ws.send('burst'); },
  (ws) => ws.ping(chance(0.5) ? undefined : argument()),
  (ws) => ws.subscribe(name()),
  (ws) => ws.unsubscribe(name()),
  (ws) => ws.isSubscribed(name()),
  (ws) => ws.getTopics(),
  (ws) => ws.publish(name(), argument(), chance(0.5), chance(0.3)),
  (ws, app) => app.publish(name(), argument(), chance(0.5), chance(0.3)),
  (ws, app) => app.numSubscribers(name()),
  (ws) => ws.cork(() => { for (let n = below(4); n > 0; n -= 1) act(ws); }),
  (ws) => ws.cork(pick(VALUES)),
  (ws) => ws.getBufferedAmount(),
  (ws) => ws.getRemoteAddressAsText(),
  (ws) => ws.getRemotePort(),
  (ws) => ws.getUserData(),
  (ws) => { ws.pause(); setTimeout(() => attempt(() => ws.resume()), below(30)); },
  (ws) => ws.sendFirstFragment(bytes(), chance(0.5)),
  (ws) => ws.sendFragment(bytes()),
  (ws) => ws.sendLastFragment(bytes()),
];
const SOCKET_ENDS = [
  (ws) => ws.close(),
  (ws) => ws.end(),
  (ws) => ws.end(pick([0, 1000, 1005, 1006, 3000, 99_999, -5, NaN]), chance(0.1) ? pick(VALUES) : 'é'.repeat(below(200))),
];

/** What threads share, few keys so that their memory is bounded. */
const SHARED_CALLS = [
  () => uws.setString(name(), argument(), name()),
  () => [uws.getString(name(), name()), uws.getStringKeys(name())],
  () => uws.incInteger(name(), pick([1, -1, 2 ** 31, 0.5, pick(VALUES)]), name()),
  () => [uws.getInteger(name()), uws.getIntegerKeys(name())],
  () => pick([uws.deleteString, uws.deleteInteger])(name(), name()),
  () => pick([uws.deleteStringCollection, uws.deleteIntegerCollection])(name()),
  () => { uws.lock(); try { uws.lock(); shared(); uws.unlock(); } finally { uws.unlock(); } },
  () => uws.unlock(),
];

function shared() {
  attempt(() => pick(SHARED_CALLS)());
}

/** One call of a socket, or of another one that may have ended long ago. */
function act(own) {
  const ws = own !== undefined && chance(0.8) ? own : pick(sockets);
  if (ws === undefined) return;
  const app = pick(apps);
  attempt(() => pick(chance(0.06) ? SOCKET_ENDS : SOCKET_CALLS)(ws, app));
}

/** What handlers do. */
function handle(ws) {
  for (let n = below(4); n > 0; n -= 1) act(ws);
  if (chance(0.05)) actOnResponse(pick(responses));
  if (chance(0.1)) shared();
  if (chance(0.1)) Promise.resolve().then(() => act(ws));
  if (chance(0.05)) process.nextTick(() => act(ws));
  if (chance(0.05)) setImmediate(() => act(ws));
  if (chance(0.02)) throw new Error('planned');
}

const RESPONSE_CALLS = [
  (res) => res.writeStatus(pick(['200 OK', '404 Not Found', '204 No Content', 'x\r\ny', ''])),
  (res) => res.writeHeader(pick(['x-a', 'date', 'bad name', '']), pick(['1', 'a\r\nb: c', 7])),
  (res) => res.write(argument()),
  (res) => res.end(argument(), chance(0.2)),
  (res) => res.end(),
  (res) => res.endWithoutBody(pick([undefined, 0, 10, -1, NaN]), chance(0.2)),
  (res) => res.tryEnd(bytes(), pick([0, 10, 100_000, 2_000_000, -3, NaN])),
  (res) => res.tryEnd(Buffer.alloc(1_000_000), 1_000_000),
  (res) => res.getWriteOffset(),
  (res) => res.onWritable((offset) => { act(); attempt(() => res.end('rest')); return offset > 0; }),
  (res) => res.onData(() => { act(); actOnResponse(res); if (chance(0.1)) throw new Error('planned'); }),
  (res) => res.collectBody(below(2000), () => actOnResponse(res)),
  (res) => { res.pause(); setTimeout(() => attempt(() => res.resume()), below(30)); },
  (res) => res.cork(() => { for (let n = below(3); n > 0; n -= 1) actOnResponse(res); }),
  (res) => res.getRemoteAddress(),
  (res) => [res.getProxiedRemoteAddressAsText(), res.getProxiedRemotePort(), res.getX509Certificate()],
  (res) => { if (chance(0.3)) res.close(); },
  (res, context) => upgrade(res, context),
];

function upgrade(res, context) {
  res.upgrade({ own: chance(0.5) }, 'dGhlIHNhbXBsZSBub25jZQ==', pick(['', 'a', 'a, b']), pick(['', 'permessage-deflate']), context ?? {});
}

function actOnResponse(res, context) {
  if (res !== undefined) attempt(() => pick(RESPONSE_CALLS)(res, context));
}

const REQUEST_CALLS = [
  (req) => req.getUrl(),
  (req) => req.getMethod(),
  (req) => req.getQuery(pick([undefined, 'a', 5])),
  (req) => req.getHeader(pick(['host', '', 'x', 7])),
  (req) => req.getParameter(pick([0, 1, 99, -1, 'name', 'none'])),
  (req) => req.forEach(() => {}),
  (req) => req.setYield(chance(0.5)),
];

function answer(res, req, context) {
  counts.requests += 1;
  keep(responses, res);
  if (chance(0.9)) res.onAborted(() => { counts.aborted += 1; act(); actOnResponse(res); });
  for (let n = below(3); n > 0; n -= 1) attempt(() => pick(REQUEST_CALLS)(req));
  for (let n = below(5); n > 0; n -= 1) actOnResponse(res, context);
  if (chance(0.3)) setImmediate(() => { actOnResponse(res, context); attempt(() => pick(REQUEST_CALLS)(req)); });
  setTimeout(() => { attempt(() => (context && chance(0.5) ? upgrade(res, context) : res.end('late'))); }, below(20));
  if (chance(0.02)) throw new Error('planned');
}

const behavior = (workers, own) => ({
  maxPayloadLength: 64 * 1024,
  maxBackpressure: pick([0, 1024, 1024 * 1024]),
  closeOnBackpressureLimit: chance(0.5),
  compression: pick([uws.DISABLED, uws.SHARED_COMPRESSOR, uws.DEDICATED_COMPRESSOR_4KB]),
  idleTimeout: pick([0, 8, 120]),
  maxLifetime: workers ? 0 : pick([0, 1]),
  ...own,
  open(ws) { counts.opened += 1; keep(sockets, ws); handle(ws); },
  message(ws, message, isBinary) {
    counts.messages += 1;
    if (chance(0.5)) attempt(() => ws.send(message, isBinary));
    handle(ws);
  },
  dropped: handle,
  drain: handle,
  ping: handle,
  pong: handle,
  subscription(ws) { handle(ws); },
  close(ws) {
    if (ended.has(ws)) counts.twice += 1;
    ended.add(ws);
    counts.closed += 1;
    handle(ws);
  },
});

const apps = [];

/** An app that takes connections until it is closed, which is its end. */
function begin() {
  const workers = chance(0.5) ? 1 + below(3) : undefined;
  const app = uws.App({ workers, topics: chance(0.5) ? 'shared' : undefined });
  app.ws('/plain/:name', behavior(workers, {}));
  app.ws('/decided', behavior(workers, { upgrade: (res, req, context) => answer(res, req, context) }));
  if (chance(0.7)) {
    const cache = { lowerExpiry: pick([0, 0.01]), upperExpiry: pick([0.01, 1]), bytes: pick([0, 3000, 1e6]) };
    app.get('/:name', (res, req) => answer(res, req), cache);
  }
  app.any('/*', (res, req) => answer(res, req));
  if (!workers && chance(0.5)) app.filter((res, count) => { act(); if (count > 0 && chance(0.05)) res.close(); });
  let listening;
  app.listen('127.0.0.1', 0, (listener) => { listening = listener; });
  apps.push(app);
  process.send({ port: uws.us_socket_local_port(listening) });
}

/** A thread with a server, ended in the middle of what it does. */
function thread() {
  counts.workers += 1;
  const program = `
    const { workerData, parentPort } = require('node:worker_threads');
    const uws = require(workerData);
    const app = uws.App({ workers: ${chance(0.5) ? 2 : undefined}, topics: 'shared' });
    app.ws('/*', { compression: uws.SHARED_COMPRESSOR, open: (ws) => ws.subscribe('all'),
                   message: (ws, message, isBinary) => { ws.send(message, isBinary, true); app.publish('all', 'more'); } });
    setInterval(() => { uws.lock(); uws.setString('all', String(uws.incInteger('all', 1))); uws.unlock(); }, 1);
    app.any('/*', (res) => { let gone = false; res.onAborted(() => { gone = true; }); setImmediate(() => gone || res.cork(() => res.end('x'.repeat(100000)))); });
    app.listen('127.0.0.1', 0, (listener) => parentPort.postMessage(uws.us_socket_local_port(listener)));`;
  const worker = new Worker(program, { eval: true, workerData: folder });
  worker.on('error', (error) => fail(`a thread: ${error.stack}`));
  worker.on('message', (port) => process.send({ port }));
  setTimeout(() => worker.terminate(), 300 + below(700));
}

const timers = [
  setInterval(() => { for (let n = below(10); n > 0; n -= 1) { act(); actOnResponse(pick(responses)); } }, 3),
  setInterval(thread, 2000),
  // Few at a time, so that clients find them.
  setInterval(() => {
    if (counts.requests + counts.opened === 0 || apps.length < 3) return;
    const [old] = apps.splice(below(apps.length), 1);
    attemptAny(() => old.close());
    begin();
  }, 5000),
];
for (let n = 0; n < 3; n += 1) begin();
thread();

/** Closes the apps; whether each socket has been closed. */
async function end() {
  timers.forEach(clearInterval);
  for (const app of apps) attemptAny(() => app.close());
  for (let tries = 0; tries < 100 && counts.closed < counts.opened; tries += 1) await new Promise((done) => setTimeout(done, 50));
}

process.on('message', async (what) => {
  if (what === 'end') await end();
  sockets.length = 0;
  responses.length = 0;
  globalThis.gc();
  const { rss, heapUsed, external } = process.memoryUsage();
  process.send({ counts, thrown: Object.fromEntries(messagesThrown), memory: { rss, held: heapUsed + external } });
  if (what === 'end') setTimeout(() => process.exit(0), 200);
});
