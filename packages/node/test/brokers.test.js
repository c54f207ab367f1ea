// Topics that processes share by Redis and by NATS.
'use strict';

const assert = require('node:assert/strict');
const path = require('node:path');
const { spawn } = require('node:child_process');
const { uws, node, ours, serve, Queue, Client, moduleName } = require('./support.js');
const { availableBrokers, freePort, start, until } = require('./support_brokers.js');

const { Server } = uws;

/** Apps that accept on the loop of JavaScript, and apps with workers. */
const WAYS = [['', {}], [', with workers', { workers: 2 }]];

function brokers(name, body) {
  for (const [kind, broker] of availableBrokers()) {
    for (const [way, own] of WAYS) {
      ours(`${kind}: ${name}${way}`, (t) => body(t, broker, {
        here: (_, options) => here(t, { ...options, ...own }),
        other: (_, options) => other(t, { ...options, ...own }),
        server: (options) => new Server({ ...options, ...own }),
      }));
    }
  }
}

/** Another process, whose app shares the topics of a broker. */
async function other(t, options) {
  const child = spawn(node[0], [...node.slice(1), '-e', `
    const uws = require(${JSON.stringify(moduleName)});
    const app = uws.App(${JSON.stringify(options)});
    const told = (value) => process.send(value);
    app.ws('/*', {
      open: (ws) => { ws.subscribe('news'); told('subscribed'); },
      message: (ws, message, isBinary) => ws.publish('news', message, isBinary),
    });
    app.listen('127.0.0.1', 0, (listener) => told(uws.us_socket_local_port(listener)));
    process.on('message', ({ publish, count }) => {
      for (let at = 0; at < (count ?? 0); at += 1) app.publish('news', publish + at);
      told(app.getTopicsState());
    });
    process.on('disconnect', () => process.exit());
  `], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'], cwd: path.join(__dirname, '..') });
  t.after(() => child.kill('SIGKILL'));
  const told = new Queue();
  child.on('message', (value) => told.push(value));
  const port = await told.next();
  const ask = (message) => {
    child.send(message);
    return told.next();
  };
  const join = async () => {
    const client = await Client.open(t, port);
    assert.equal(await told.next(), 'subscribed');
    return client;
  };
  return { child, ask, join, ready: () => until(async () => (await ask({})).broker.ready) };
}

/** An app of this process with a client that is subscribed, also at the broker. */
async function here(t, options) {
  const sockets = new Queue();
  const app = uws.App(options);
  const port = await serve(t, (given) => given.ws('/*', {
    open: (ws) => { ws.subscribe('news'); sockets.push(ws); },
    message: (ws, message) => ws.send(message),
  }), app);
  const client = await Client.open(t, port);
  const ready = () => until(() => app.getTopicsState().broker.ready);
  return { app, client, ws: await sockets.next(), ready };
}

brokers('publish reaches the subscribers of other processes, once and in order', async (t, kind, { here, other }) => {
  const { url } = await start(t, kind);
  const own = await here(t, { broker: url });
  const [first, second] = [await other(t, { broker: url }), await other(t, { broker: url, topics: 'named' })];
  const clients = [own.client, await first.join(), await second.join(), await second.join()];
  for (const each of [own, first, second]) await each.ready();
  const count = 200;
  for (let at = 0; at < count; at += 1) assert.equal(own.app.publish('news', `here ${at}`), true);
  await first.ask({ publish: 'there ', count });
  for (const client of clients) {
    const next = { here: 0, there: 0 };
    for (let number = 0; number < 2 * count; number += 1) {
      const [from, at] = (await client.next()).split(' ');
      assert.equal(Number(at), next[from]);
      next[from] += 1;
    }
  }
  clients[1].send(Buffer.from('binary'));
  for (const client of [own.client, clients[2]]) assert.deepEqual(await client.next(), Buffer.from('binary'));
  const state = await until(() => {
    const { broker } = own.app.getTopicsState();
    return broker.published >= count && broker.waiting === 0 && broker;
  });
  assert.equal(state.lost, 0);
  assert.equal(state.gaps, 0);
  assert.equal(state.trouble, undefined);
});

brokers('prefixes keep programs apart', async (t, kind, { here, other }) => {
  const { url } = await start(t, kind);
  const [one, two] = [await here(t, { broker: { url, prefix: 'one' } }), await here(t, { broker: { url, prefix: 'two' } })];
  const same = await other(t, { broker: { url, prefix: 'one' } });
  const client = await same.join();
  for (const each of [one, two, same]) await each.ready();
  two.app.publish('news', 'two');
  one.app.publish('news', 'one');
  assert.equal(await client.next(), 'one');
  assert.equal(await one.client.next(), 'one');
  assert.equal(await two.client.next(), 'two');
});

brokers('without its broker a process serves its own, counts what is lost, and goes on', async (t, kind, { here, other }) => {
  const broker = await start(t, kind);
  const missed = new Queue();
  const own = await here(t, { broker: broker.url, missed: (topic) => missed.push(topic) });
  const there = await other(t, { broker: broker.url });
  const far = await there.join();
  for (const each of [own, there]) await each.ready();
  await broker.stop();
  const trouble = await until(() => own.app.getTopicsState().broker.trouble);
  assert.match(trouble, /127\.0\.0\.1/);
  assert.equal(own.app.publish('news', 'only here'), true);
  assert.equal(await own.client.next(), 'only here');
  assert.equal(own.app.getTopicsState().broker.lost, 1);
  await broker.run();
  for (const each of [own, there]) await each.ready();
  // What was published by others meanwhile is not known.
  assert.equal(await missed.next(), 'news');
  own.app.publish('news', 'again');
  assert.equal(await far.next(), 'again');
  assert.equal(await own.client.next(), 'again');
});

brokers('what spoolBytes hold arrives when the broker is back', async (t, kind, { here }) => {
  const broker = await start(t, kind);
  const own = await here(t, { broker: { url: broker.url, spoolBytes: 1 << 20 } });
  await own.ready();
  await broker.stop();
  await until(() => own.app.getTopicsState().broker.trouble);
  own.app.publish('news', 'kept');
  assert.equal(own.app.getTopicsState().broker.waiting, 1);
  await broker.run();
  await own.ready();
  await until(() => own.app.getTopicsState().broker.waiting === 0);
  assert.equal(own.app.getTopicsState().broker.lost, 0);
});

brokers('what was published last reaches others before a program ends', async (t, kind, { here }) => {
  const { url } = await start(t, kind);
  const own = await here(t, { broker: url });
  await own.ready();
  const child = spawn(node[0], [...node.slice(1), '-e', `
    const uws = require(${JSON.stringify(moduleName)});
    const app = uws.App({ broker: '${url}' });
    const ready = () => {
      if (!app.getTopicsState().broker.ready) return setTimeout(ready, 5);
      for (let at = 0; at < 100; at += 1) app.publish('news', 'last ' + at);
    };
    ready();
  `], { stdio: 'inherit', cwd: path.join(__dirname, '..') });
  t.after(() => child.kill('SIGKILL'));
  for (let at = 0; at < 100; at += 1) assert.equal(await own.client.next(), `last ${at}`);
});

brokers('Server shares its topics, too', async (t, kind, { other, server: serverOf }) => {
  const { url } = await start(t, kind);
  const there = await other(t, { broker: url });
  const far = await there.join();
  const server = serverOf({ broker: url });
  server.websocket('/', (socket) => socket.subscribe('news'));
  const { port } = await server.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => server.close());
  const client = await Client.open(t, port);
  await until(() => server.topicsState.broker.ready && server.subscribers('news') === 1);
  await there.ready();
  server.publish('news', 'of a Server');
  assert.equal(await far.next(), 'of a Server');
  assert.equal(await client.next(), 'of a Server');
});

ours('a broker that does not answer is told, and does not keep an app from starting', async (t) => {
  const port = await freePort();
  const own = await here(t, { broker: `redis://:secret@127.0.0.1:${port}` });
  const trouble = await until(() => {
    const { trouble: now } = own.app.getTopicsState().broker;
    return now?.includes('refused') && now;
  });
  assert.ok(trouble.includes(String(port)) && !trouble.includes('secret'), trouble);
  own.app.publish('news', 'still');
  assert.equal(await own.client.next(), 'still');
});

ours('settings that cannot be used throw, and say what is expected', (t) => {
  const wrong = (broker, expected) => assert.throws(() => uws.App({ broker }), expected);
  wrong('http://127.0.0.1', /invalid URL of a broker: expected redis:\/\/HOST/);
  wrong('redis://127.0.0.1,nats://127.0.0.1', /one or several of one kind/);
  wrong('redis://127.0.0.1:99999', /invalid URL of a Redis server/);
  wrong('redis://user:secret@127.0.0.1:99999', (error) => !error.message.includes('secret'));
  wrong({ url: 'redis://127.0.0.1', prefix: 'a b' }, /invalid prefix "a b" of a broker/);
  wrong({ url: 'redis://127.0.0.1', spoolBytes: -1 }, /invalid spoolBytes -1/);
  wrong({ url: 'redis://127.0.0.1', spool: 1 }, /broker has no option spool/);
  wrong({ url: 'rediss://127.0.0.1', ca: '/nowhere/ca.pem' }, /cannot read the ca of a broker \/nowhere\/ca.pem/);
  wrong({}, /expected the url of a broker/);
  wrong(7, /expected the option broker to be a URL/);
  assert.throws(() => uws.App({ broker: 'redis://127.0.0.1', missed: 1 }), /missed to be a function/);
  const kept = uws.App({ topics: 'settings' });
  assert.throws(() => uws.App({ topics: 'settings', broker: 'redis://127.0.0.1' }), /these topics has a broker or options/);
  t.after(() => kept.close());
});
