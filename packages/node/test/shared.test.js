// Topics that the apps of several threads share.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const { Worker } = require('node:worker_threads');
const { uws, ours, serve, Queue, Client, moduleName, program } = require('./support.js');

/** A case for apps that accept on the loop of JavaScript, and for apps with workers. */
function cases(name, body) {
  for (const [way, own] of [['', {}], [', with workers', { workers: 2 }]]) {
    // Apps of earlier cases still have their topics.
    const named = (options) => ({ ...options, ...own, ...(options?.topics && { topics: options.topics + way }) });
    ours(`${name}${way}`, (t) => body(t, {
      thread: (_, topics, port) => thread(t, named({ topics }), port),
      here: (_, options) => here(t, named(options)),
      App: (options) => uws.App(named(options)),
      named,
    }));
  }
}

const THREAD = `
  const { parentPort, workerData } = require('node:worker_threads');
  const uws = require(workerData.moduleName);
  const app = uws.App(workerData.options);
  const sockets = [];
  app.ws('/*', {
    open: (ws) => { sockets.push(ws); ws.subscribe('news'); parentPort.postMessage('subscribed'); },
    message: (ws, message, isBinary) => parentPort.postMessage(ws.publish('news', message, isBinary)),
  });
  app.listen('127.0.0.1', workerData.port, (listener) => parentPort.postMessage(uws.us_socket_local_port(listener)));
  parentPort.on('message', ({ publish, count = 1, leave }) => {
    if (leave) { app.close(); process.exit(0); }
    for (let at = 0; at < count; at += 1) app.publish('news', count === 1 ? publish : publish + at);
    parentPort.postMessage(app.getTopicsState());
  });
`;

/** A thread with an app that shares topics. */
async function thread(t, options, port = 0) {
  const worker = new Worker(THREAD, { eval: true, workerData: { moduleName, options, port } });
  t.after(() => worker.terminate());
  const told = new Queue();
  worker.on('message', (value) => told.push(value));
  const listening = await told.next();
  const join = async () => {
    const client = await Client.open(t, listening);
    assert.equal(await told.next(), 'subscribed');
    return client;
  };
  const ask = (message) => {
    worker.postMessage(message);
    return told.next();
  };
  return { worker, told, port: listening, join, ask };
}

/** The same in this thread. */
async function here(t, options) {
  const sockets = new Queue();
  const app = uws.App(options);
  const port = await serve(t, (given) => given.ws('/*', {
    open: (ws) => { ws.subscribe('news'); sockets.push(ws); },
    message: (ws, message) => ws.send(message),
  }), app);
  const client = await Client.open(t, port);
  return { app, client, ws: await sockets.next() };
}

cases('publish of an app reaches the subscribers of all threads, once', async (t, { thread, here }) => {
  const own = await here(t, { topics: 'all threads' });
  const [first, second] = [await thread(t, 'all threads'), await thread(t, 'all threads')];
  const clients = [own.client, await first.join(), await second.join(), await second.join()];
  assert.deepEqual(own.app.getTopicsState(), { apps: 3, refused: 0 });
  assert.equal(own.app.publish('news', 'from here'), true);
  assert.equal(own.app.publish('news', Buffer.from('bytes'), true), true);
  await first.ask({ publish: 'from a thread' });
  for (const client of clients) {
    const got = [await client.next(), await client.next(), await client.next()];
    assert.deepEqual(got, ['from here', Buffer.from('bytes'), 'from a thread']);
  }
  assert.equal(own.app.numSubscribers('news'), 1);
  assert.equal(own.app.publish('nobody has this', 'x'), false);
});

cases('publish of a socket reaches all others, whatever their thread', async (t, { thread, here }) => {
  const own = await here(t, { topics: 'sockets' });
  const other = await thread(t, 'sockets');
  const far = await other.join();
  const near = await other.join();
  near.send('hello');
  assert.equal(await other.told.next(), true);
  assert.equal(await far.next(), 'hello');
  assert.equal(await own.client.next(), 'hello');
  assert.equal(own.ws.publish('news', 'alone here'), true);
  // Both are the first socket of their app: it is not mistaken for the publisher.
  for (const client of [far, near]) assert.equal(await client.next(), 'alone here');
  own.client.send('end');
  assert.equal(await own.client.next(), 'end');
});

cases('with no subscriber in this thread publish tells whether another has one', async (t, { thread, App }) => {
  const app = App({ topics: 'publisher' });
  assert.equal(app.publish('news', 'nobody'), false);
  const other = await thread(t, 'publisher');
  const client = await other.join();
  assert.equal(app.publish('news', 'somebody'), true);
  assert.equal(await client.next(), 'somebody');
});

cases('other names, and apps without one, have topics of their own', async (t, { here }) => {
  const [one, two, none] = [await here(t, { topics: 'one' }), await here(t, { topics: 'two' }), await here(t)];
  assert.equal(none.app.getTopicsState(), undefined);
  for (const { app, client } of [one, two, none]) {
    app.publish('news', 'mine');
    client.send('end');
    assert.deepEqual([await client.next(), await client.next()], ['mine', 'end']);
  }
});

cases('what several threads publish arrives complete, each in its order', async (t, { thread }) => {
  const count = 500;
  const threads = [await thread(t, 'order'), await thread(t, 'order'), await thread(t, 'order')];
  const clients = [];
  for (const each of threads) clients.push(await each.join());
  const states = await Promise.all(threads.map((each, at) => each.ask({ publish: `${at} `, count })));
  for (const state of states) assert.equal(state.refused, 0);
  for (const client of clients) {
    const next = threads.map(() => 0);
    for (let number = 0; number < count * threads.length; number += 1) {
      const [from, at] = (await client.next()).split(' ').map(Number);
      assert.equal(at, next[from]);
      next[from] += 1;
    }
    assert.deepEqual(next, threads.map(() => count));
  }
});

cases('threads that listen on one port and share topics are one server', async (t, { thread, App }) => {
  const first = await thread(t, 'one port');
  const second = await thread(t, 'one port', first.port);
  assert.equal(second.port, first.port);
  const app = App({ topics: 'one port' });
  const joined = [];
  for (const each of [first, second]) each.worker.on('message', (value) => value === 'subscribed' && joined.push(value));
  const clients = [];
  for (let at = 0; at < 16; at += 1) clients.push(await Client.open(t, first.port));
  while (joined.length < clients.length) await Promise.race([once(first.worker, 'message'), once(second.worker, 'message')]);
  app.publish('news', 'for all');
  for (const client of clients) assert.equal(await client.next(), 'for all');
});

cases('a thread that has ended is left out, and another one takes its place', async (t, { thread, here }) => {
  const own = await here(t, { topics: 'ends' });
  for (let round = 0; round < 3; round += 1) {
    const other = await thread(t, 'ends');
    const client = await other.join();
    assert.equal(own.app.getTopicsState().apps, 2);
    own.app.publish('news', `round ${round}`);
    for (const each of [client, own.client]) assert.equal(await each.next(), `round ${round}`);
    if (round === 0) await other.worker.terminate();
    else {
      other.worker.postMessage({ leave: true });
      await once(other.worker, 'exit');
    }
    assert.equal(own.app.getTopicsState().apps, 1);
    assert.equal(own.app.publish('news', 'those who are left'), true);
    assert.equal(await own.client.next(), 'those who are left');
  }
  assert.equal(own.app.publish('other', 'nobody'), false);
});

cases('a thread that does not turn makes publish return false, and is not forgotten', async (t, { App, named }) => {
  const app = App({ topics: 'blocked' });
  const gate = new Int32Array(new SharedArrayBuffer(4));
  const worker = new Worker(`
    const { parentPort, workerData } = require('node:worker_threads');
    const uws = require(workerData.moduleName);
    const app = uws.App(workerData.options);
    app.ws('/*', {
      maxBackpressure: 2 ** 30,
      open: (ws) => ws.subscribe('news'),
      message: () => {
        parentPort.postMessage('blocked');
        Atomics.wait(workerData.gate, 0, 0);
      },
    });
    app.listen('127.0.0.1', 0, (listener) => parentPort.postMessage(uws.us_socket_local_port(listener)));
  `, { eval: true, workerData: { moduleName, gate, options: named({ topics: 'blocked' }) } });
  t.after(() => worker.terminate());
  const [port] = await once(worker, 'message');
  const blocked = once(worker, 'message');
  const client = await Client.open(t, port);
  client.send('block');
  await blocked;
  const message = Buffer.alloc(1 << 20, 'x');
  let accepted = 0;
  while (accepted < 1000 && app.publish('news', message, true)) accepted += 1;
  assert.ok(accepted > 0 && accepted < 1000, `${accepted} of 1 MiB`);
  assert.equal(app.getTopicsState().refused, 1);
  Atomics.store(gate, 0, 1);
  Atomics.notify(gate, 0);
  for (let at = 0; at < accepted; at += 1) assert.equal((await client.next()).length, message.length);
  assert.equal(app.publish('news', 'goes on'), true);
  assert.equal(await client.next(), 'goes on');
});

ours('apps with workers and apps without share topics, also while some are closed', async (t) => {
  const topics = 'mixed';
  const [loop, held] = [await here(t, { topics }), await here(t, { topics, workers: 2 })];
  const threads = [await thread(t, { topics }), await thread(t, { topics, workers: 1 })];
  const far = [];
  for (const each of threads) far.push(await each.join());
  const publishers = [loop.ws, held.ws, loop.app, held.app];
  for (const [at, publisher] of publishers.entries()) assert.equal(publisher.publish('news', `${at}`), true);
  // What different publishers publish is in no order. A socket gets what others publish.
  const got = async (client, count) => {
    const messages = [];
    while (messages.length < count) messages.push(await client.next());
    return messages.sort();
  };
  for (const client of far) assert.deepEqual(await got(client, 4), ['0', '1', '2', '3']);
  assert.deepEqual(await got(loop.client, 3), ['1', '2', '3']);
  assert.deepEqual(await got(held.client, 3), ['0', '2', '3']);
  held.app.close();
  await held.client.closed;
  for (const each of threads) {
    each.worker.postMessage({ leave: true });
    await once(each.worker, 'exit');
  }
  // Nobody is left for a publication of the only subscriber.
  assert.equal(loop.ws.publish('news', 'alone'), false);
  assert.equal(held.app.publish('news', 'to the loop'), true);
  assert.equal(await loop.client.next(), 'to the loop');
});

ours('invalid options throw, and say what is expected', () => {
  assert.throws(() => uws.App({ topics: '' }), /expected the option topics to be a name/);
  assert.throws(() => uws.App({ topics: 7 }), /expected the option topics to be a name/);
  assert.throws(() => uws.App({ topics: 'a', missed: () => {} }), /missed is for apps with the option broker/);
});

ours('an app that shares topics does not keep its program', async (t) => {
  const { code, lines } = await program(t, `
    const app = uws.App({ topics: 'program' });
    log(app.publish('a', 'b'), JSON.stringify(app.getTopicsState()));
  `);
  assert.deepEqual(lines, ['false {"apps":1,"refused":0}']);
  assert.equal(code, 0);
});
