// The history of a Server's topics, in the memory of the process.
'use strict';

const assert = require('node:assert/strict');
const { uws, ours, certificate, Queue, Client } = require('./support.js');
const { until } = require('./support_brokers.js');
const { serverOf, socketOf, positioned, threadOf } = require('./support_history.js');

const { Server } = uws;

/** A test of sockets on the thread of JavaScript, and of sockets on others. */
function both(name, body) {
  ours(name, (t) => body(t, {}));
  ours(`on other threads: ${name}`, (t) => body(t, { workers: 2 }));
}

both('a socket gets what it missed, in order, and then what comes', async (t, threads) => {
  const { server, join } = await serverOf(t, threads);
  const { position: begin, ...none } = await server.history('room');
  assert.deepEqual(none, { messages: [], more: false, recovered: true, reason: undefined });
  const first = await join();
  assert.equal(first.result.recovered, true);
  assert.match(begin, /^[0-9a-f]{8}:0$/);
  assert.equal(first.result.position, begin);
  server.publish('room', 'one');
  const [position, one] = await positioned(first.client);
  assert.equal(one, 'one');
  assert.equal(position, first.result.position.replace(/0$/, '1'));
  first.client.ws.terminate();
  server.publish('room', 'two');
  server.publish('room', Buffer.from('three'));
  const again = await join(position);
  assert.equal(again.result.recovered, true);
  assert.equal(again.result.position, position.replace(/1$/, '3'));
  assert.equal((await positioned(again.client))[1], 'two');
  const three = await again.client.next();
  assert.ok(Buffer.isBuffer(three) && three.toString().endsWith(':3\nthree'));
  server.publish('room', 'four');
  assert.equal((await positioned(again.client))[1], 'four');
  // One that asks for nothing gets what comes only.
  const late = await join();
  server.publish('room', 'five');
  assert.equal((await positioned(late.client))[1], 'five');
});

both('nothing is missing and nothing comes twice, however much is published meanwhile', async (t, threads) => {
  const { server, join } = await serverOf(t, { ...threads, history: { size: 100_000 } });
  let published = 0;
  let expected = 0;
  let goesOn = true;
  t.after(() => { goesOn = false; });
  const publish = () => {
    if (!goesOn) return;
    // No more than is kept.
    for (let many = 0; many < 7 && published < expected + 5000; many += 1) {
      if (server.publish('room', String(published))) published += 1;
    }
    setImmediate(publish);
  };
  publish();
  let since;
  for (let round = 0; round < 40; round += 1) {
    since ??= (await server.history('room', { limit: 1 })).position.replace(/:.*/, ':0');
    const { client, result } = await join(since);
    assert.equal(result.reason, undefined);
    const end = expected + 50 + 13 * round;
    while (expected < end) {
      const [position, text] = await positioned(client);
      assert.equal(Number(text), expected);
      since = position;
      expected += 1;
    }
    client.ws.terminate();
  }
});

ours('nothing comes twice where the loop is blocked after a socket has joined again', async (t) => {
  const { server, sockets, join } = await serverOf(t, { history: { size: 10_000 } });
  const { client, result: { position: since } } = await join();
  const socket = await sockets.next();
  // Between two turns of the addon.
  await new Promise(setImmediate);
  const count = 5000;
  for (let at = 0; at < count; at += 1) assert.equal(server.publish('room', String(at)), true);
  socket.unsubscribe('room');
  assert.equal((await socket.subscribe('room', { since, positions: true })).recovered, true);
  // What was published is still to be delivered, and has to be known as sent for longer than a second.
  for (const end = performance.now() + 1100; performance.now() < end;);
  for (let at = 0; at < count; at += 1) assert.equal((await positioned(client))[1], String(at));
  assert.equal(server.publish('room', 'last'), true);
  assert.equal((await positioned(client))[1], 'last');
});

both('what is not available is told, with the reason', async (t, threads) => {
  const { server, join } = await serverOf(t, { ...threads, history: { size: 3 } });
  for (let at = 1; at <= 5; at += 1) server.publish('room', String(at));
  const { position } = await server.history('room');
  const epoch = position.slice(0, 8);
  const other = epoch.replace(/./g, (digit) => (digit === '0' ? '1' : '0'));
  const cases = [[`${epoch}:2`, undefined], [`${epoch}:5`, undefined], [`${epoch}:1`, 'evicted'], [`${epoch}:6`, 'ahead'],
    [`${other}:4`, 'epoch'], ['garbage', 'epoch'], [`${epoch}:-1`, 'epoch'], ['', 'epoch']];
  for (const [since, reason] of cases) {
    const { client, result } = await join(since);
    assert.deepEqual(result, { recovered: reason === undefined, reason, position }, since);
    const read = await server.history('room', { since });
    assert.equal(read.reason, reason);
    assert.equal(read.position, position);
    if (reason) assert.deepEqual(read.messages, []);
    // Without the missed messages, the next one is the first.
    if (since.endsWith(':2')) for (const text of ['3', '4', '5']) assert.equal((await positioned(client))[1], text);
    client.ws.terminate();
  }
  const { requests } = server.topicsState.history;
  assert.deepEqual(requests, { recovered: 4, epoch: 8, ahead: 2, evicted: 2 });
  const { client } = await join(`${epoch}:1`);
  server.publish('room', 'next');
  assert.equal((await positioned(client))[1], 'next');
});

ours('history reads the latest, pages from a position, and from a time', async (t) => {
  const { server } = await serverOf(t, { history: { size: 50, ttl: 3600 } });
  const began = new Date();
  await until(() => Date.now() > began.getTime());
  for (let at = 1; at <= 60; at += 1) server.publish('room', at % 2 ? String(at) : Buffer.from([at]));
  const latest = await server.history('room', { limit: 2 });
  assert.deepEqual(latest.messages.map(({ data }) => data), ['59', new Uint8Array([60])]);
  assert.equal(latest.more, false);
  const all = await server.history('room');
  assert.equal(all.messages.length, 50);
  assert.equal(all.messages[0].data, '11');
  const offsets = [];
  let { position: since } = all.messages[0];
  for (let more = true; more;) {
    const page = await server.history('room', { since, limit: 20 });
    assert.equal(page.recovered, true);
    offsets.push(...page.messages.map(({ position }) => Number(position.split(':')[1])));
    ({ position: since, more } = page);
  }
  assert.deepEqual(offsets, Array.from({ length: 49 }, (_, at) => at + 12));
  assert.equal(since, all.position);
  const { time } = all.messages.at(-1);
  assert.ok(time >= began && time <= new Date());
  const none = await server.history('room', { since: new Date(Date.now() + 1000) });
  assert.deepEqual([none.recovered, none.messages.length, none.more], [true, 0, false]);
  // The server cannot know what was before it began.
  assert.equal((await server.history('room', { since: new Date(0) })).reason, 'evicted');
  const exact = await server.history('other', { since: new Date(began.getTime() + 1) });
  assert.deepEqual([exact.recovered, exact.messages], [true, []]);
});

both('size, topicBytes, bytes and ttl evict, and are counted', async (t, threads) => {
  const { server } = await serverOf(t, { ...threads, history: { size: 1000, topicBytes: 4096, bytes: 20_000, ttl: 0.05 } });
  const { server: few } = await serverOf(t, { ...threads, history: { size: 2 } });
  for (const text of ['a', 'b', 'c']) few.publish('room', text);
  assert.deepEqual((await few.history('room')).messages.map(({ data }) => data), ['b', 'c']);
  assert.equal(few.topicsState.history.evicted.messages, 1);
  for (let at = 0; at < 10; at += 1) server.publish('room', 'x'.repeat(1000));
  assert.equal((await server.history('room')).messages.length, 3);
  assert.equal(server.topicsState.history.evicted.topicBytes, 7);
  server.publish('room', 'x'.repeat(5000));
  const read = await server.history('room');
  assert.equal(read.messages.length, 0, 'a message that is too long is not kept, and none before it');
  assert.match(read.position, /:11$/);
  for (let at = 0; at < 50; at += 1) server.publish(`room ${at}`, 'x'.repeat(1000));
  const { bytes, evicted } = server.topicsState.history;
  assert.ok(bytes <= 20_000 && evicted.bytes > 0, `${bytes} bytes, ${evicted.bytes} evicted`);
  await until(async () => (await server.history('room 49')).messages.length === 0);
  assert.ok(server.topicsState.history.evicted.age > 0);
});

both('a long history is sent as fast as the client reads; what is evicted meanwhile is told', async (t, threads) => {
  const size = 20_000;
  const { server, sockets, subscribed, open } = await serverOf(t, { ...threads,
    history: { size, topicBytes: 64 << 20, bytes: 128 << 20 }, maxBackpressure: 16 * 1024,
  });
  const text = (at) => `${at} ${'x'.repeat(1000)}`;
  for (let at = 1; at <= size; at += 1) server.publish('room', text(at));
  const epoch = (await server.history('room', { limit: 1 })).position.slice(0, 8);
  const client = await open(`${epoch}:0`);
  client.ws.pause();
  const socket = await sockets.next();
  await until(() => socket.bufferedAmount > 0);
  assert.equal(subscribed.size, 0);
  assert.ok(socket.bufferedAmount < 1 << 20, `${socket.bufferedAmount} bytes wait`);
  server.publish('room', text(size + 1));
  client.ws.resume();
  for (let at = 1; at <= size + 1; at += 1) {
    const [position, got] = await positioned(client);
    // The first is evicted by the last, which is published while they are sent: it was sent already.
    assert.equal(position, `${epoch}:${at}`);
    assert.equal(got, text(at));
  }
  assert.deepEqual(await subscribed.next(), { recovered: true, reason: undefined, position: `${epoch}:${size + 1}` });
  assert.equal(server.counters.dropped, 0);
  client.ws.terminate();

  const late = await open(`${epoch}:1`);
  late.ws.pause();
  const slow = await sockets.next();
  await until(() => slow.bufferedAmount > 0);
  for (let at = 0; at < size; at += 1) await until(() => server.publish('room', 'new'));
  late.ws.resume();
  const { recovered, reason, position } = await subscribed.next();
  assert.deepEqual([recovered, reason], [false, 'evicted']);
  assert.match(position, /^[0-9a-f]{8}:\d+$/);
  server.publish('room', 'at last');
  let last;
  let told;
  do [told, last] = await positioned(late); while (last !== 'at last');
  assert.equal(told, `${epoch}:${2 * size + 2}`);
});

both('unsubscribing, subscribing again and closing end what is being sent', async (t, threads) => {
  const { server, client, socket } = await socketOf(t, { ...threads, history: { size: 5000, topicBytes: 16 << 20 } });
  for (let at = 1; at <= 5000; at += 1) server.publish('room', 'x'.repeat(2000));
  const since = (await server.history('room', { limit: 1 })).position.replace(/:.*/, ':0');
  client.ws.pause();
  const first = socket.subscribe('room', { since });
  await until(() => socket.bufferedAmount > 0);
  const second = socket.subscribe('room', { since });
  assert.deepEqual(await first, { recovered: false, reason: 'unsubscribed', position: undefined });
  assert.deepEqual(socket.topics, ['room']);
  assert.equal(socket.unsubscribe('room'), true);
  assert.equal((await second).reason, 'unsubscribed');
  assert.deepEqual(socket.topics, []);
  assert.equal(server.subscribers('room'), 0);
  const third = socket.subscribe('room', { since });
  await until(() => server.subscribers('room') === 1);
  client.ws.terminate();
  assert.equal((await third).reason, 'closed');
  assert.equal((await socket.subscribe('room', {})).reason, 'closed');
  assert.equal(server.subscribers('room'), 0);
});

both('unsubscribing and subscribing again end a subscription that has not begun', async (t, threads) => {
  const { server, sockets, open } = await serverOf(t, threads);
  await open();
  const [socket, unsubscribed] = [await sockets.next(), { recovered: false, reason: 'unsubscribed', position: undefined }];
  const left = socket.subscribe('other', {});
  assert.equal(socket.unsubscribe('other'), false);
  assert.deepEqual(await left, unsubscribed);
  assert.equal(server.subscribers('other'), 0);
  const [first, second] = await Promise.all([socket.subscribe('other', {}), socket.subscribe('other', {})]);
  assert.deepEqual(first, unsubscribed);
  assert.equal(second.recovered, true);
  assert.equal(server.subscribers('other'), 1);
  assert.equal(socket.unsubscribe('other'), true);
});

both('what is published after a subscription without a position comes, however little is kept', async (t, threads) => {
  const { server, client, socket } = await socketOf(t, { ...threads, history: { size: 3, topicBytes: 4096 } });
  server.publish('room', 'before');
  const { recovered, position } = await socket.subscribe('room', { positions: true });
  assert.deepEqual([recovered, position.split(':')[1]], [true, '1']);
  for (let at = 2; at <= 300; at += 1) server.publish('room', String(at));
  const long = 'x'.repeat(5000);
  server.publish('room', long);
  for (let at = 2; at <= 300; at += 1) assert.deepEqual(await positioned(client), [`${position.slice(0, 8)}:${at}`, String(at)]);
  assert.equal((await positioned(client))[1], long);
});

both('half a character in a topic is U+FFFD', async (t, threads) => {
  const { server, sockets, open } = await serverOf(t, threads);
  await open();
  for (let at = 0; at < 100; at += 1) server.publish('\ud800', 'x'.repeat(5000));
  const { position, messages } = await server.history('\ufffd');
  const socket = await sockets.next();
  const subscribed = await socket.subscribe('\ud800', { since: position.replace(/:.*/, ':0') });
  assert.deepEqual([subscribed.recovered, messages.length], [true, 100]);
});

both('subscribed with and without positions, a socket is one member', async (t, threads) => {
  const { server, client, socket } = await socketOf(t, { ...threads, history: true });
  socket.subscribe('room');
  const { position } = await socket.subscribe('room', { positions: true });
  assert.equal(socket.subscribe('room'), true);
  assert.deepEqual([server.subscribers('room'), socket.topics], [1, ['room']]);
  server.publish('room', 'once');
  assert.deepEqual(await positioned(client), [`${position.slice(0, 8)}:1`, 'once']);
  // On its way to the one subscription, and missed by the other.
  server.publish('room', 'twice');
  await socket.subscribe('room', { since: position.replace(/0$/, '1') });
  server.publish('room', 'plain');
  assert.deepEqual([await client.next(), await client.next()], ['twice', 'plain']);
  assert.equal(socket.unsubscribe('room'), true);
  assert.equal(server.subscribers('room'), 0);
  assert.equal(server.publish('room', 'kept, if nobody is there'), true);
  assert.equal((await server.history('room')).messages.length, 4);
});

both('with compression and TLS it is the same', async (t, threads) => {
  const { cert_file_name: cert, key_file_name: key } = certificate('localhost');
  const { server, port, subscribed } = await serverOf(t, { ...threads, compress: true, tls: { cert, key } });
  const texts = Array.from({ length: 50 }, (_, at) => `${at} `.repeat(200));
  for (const [at, text] of texts.entries()) server.publish('room', text, { compress: at % 3 > 0 });
  const { position } = (await server.history('room')).messages[9];
  const ws = { perMessageDeflate: true, rejectUnauthorized: false };
  const client = new Client(`wss://127.0.0.1:${port}/?since=${position}`, [], ws);
  t.after(() => client.ws.terminate());
  assert.equal((await subscribed.next()).recovered, true);
  server.publish('room', 'last');
  for (const text of [...texts.slice(10), 'last']) assert.equal((await positioned(client))[1], text);
});

both('servers of several threads have one history; a publisher is not mistaken for another socket', async (t, threads) => {
  const options = { workers: threads.workers && 1, topics: `threads ${threads.workers}`, history: { size: 1000 } };
  const { server, join } = await serverOf(t, options);
  const { thread, port, told } = await threadOf(t, options);
  const far = await Client.open(t, port);
  assert.equal(await told.next(), 'subscribed');
  const { client: near, result } = await join();
  const epoch = result.position.slice(0, 8);
  // Both are the first socket of their server.
  near.send('from near');
  assert.deepEqual(await positioned(far), [`${epoch}:1`, 'from near']);
  far.send('from far');
  assert.deepEqual(await positioned(near), [`${epoch}:2`, 'from far']);
  thread.postMessage('of the thread');
  for (const client of [near, far]) assert.deepEqual(await positioned(client), [`${epoch}:3`, 'of the thread']);
  const again = await Client.open(t, port, `/?since=${epoch}:0`);
  for (const at of [1, 2, 3]) assert.equal((await positioned(again))[0], `${epoch}:${at}`);
  assert.deepEqual((await server.history('room')).messages.map(({ data }) => data), ['from near', 'from far', 'of the thread']);
  assert.throws(() => new Server({ ...threads, ...options, history: { size: 7 } }), /these topics has another history/);
});

both('what a socket of a server that is gone has published reaches the first socket of the next one', async (t, threads) => {
  const options = { workers: threads.workers && 1, topics: `next ${threads.workers}`, history: { size: 1000 } };
  const { server, join } = await serverOf(t, options);
  const { client } = await join();
  const before = await threadOf(t, options);
  (await Client.open(t, before.port)).send('from before');
  const [position] = await positioned(client);
  await before.thread.terminate();
  await until(() => server.topicsState.apps === 1);
  // It has the number of the one before among the apps, and its first socket the same place.
  const { port } = await threadOf(t, options);
  const first = await Client.open(t, port, `/?since=${position.replace(/1$/, '0')}`);
  client.send('from here');
  assert.deepEqual([(await positioned(first))[1], (await positioned(first))[1]], ['from before', 'from here']);
});

ours('a history is freed with the last server that has it', async () => {
  require('node:v8').setFlagsFromString('--expose-gc');
  const gc = require('node:vm').runInNewContext('gc');
  let server = new Server({ topics: 'freed', history: { size: 5 } });
  server.publish('room', 'kept');
  assert.throws(() => new Server({ topics: 'freed', history: { size: 6 } }), /another history/);
  await server.close();
  server = undefined;
  const again = await until(() => {
    gc();
    try {
      return new Server({ topics: 'freed', history: { size: 6 } });
    } catch {
      return false;
    }
  });
  assert.deepEqual((await again.history('room')).messages, []);
  await again.close();
});

ours('settings that cannot be used throw, and without the option nothing is kept', async (t) => {
  const wrong = (history, expected) => assert.throws(() => new Server({ history }), expected);
  wrong({ size: 0 }, /invalid size 0 of the history: expected a whole number of messages/);
  const seconds = /invalid ttl .+ of the history: expected a number of seconds from 0\.001 to 1000000000$/;
  for (const ttl of ['5m', '300', NaN, 0.0009, 1.1e9]) wrong({ ttl }, seconds);
  wrong({ bytes: 1.5 }, /invalid bytes 1.5 of the history/);
  wrong({ limit: 1 }, /history has no option limit: there are size, ttl, topicBytes, bytes/);
  wrong(7, /option history to be true, or an object/);
  const { server } = await serverOf(t);
  await assert.rejects(server.history('room', { since: 17 }), /invalid since 17: expected a position, or a Date/);
  await assert.rejects(server.history('room', { limit: 0 }), /invalid limit 0/);
  const none = new Server();
  const sockets = new Queue();
  none.websocket('/', (socket) => sockets.push(socket));
  const { port } = await none.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => none.close());
  await Client.open(t, port);
  await assert.rejects((await sockets.next()).subscribe('room', {}), /needs the option history/);
  await assert.rejects(none.history('room'), /needs the option history/);
  assert.equal(none.topicsState, undefined);
});
