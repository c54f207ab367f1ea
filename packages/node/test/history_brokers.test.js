// The history of a Server's topics at Redis and NATS.
'use strict';

const assert = require('node:assert/strict');
const { uws, ours } = require('./support.js');
const { freePort, start, until } = require('./support_brokers.js');
const { serverOf, socketOf, positioned, brokers, other, publish } = require('./support_history.js');

const { Server } = uws;

brokers('a client gets exactly what it missed at another process, and after all of them have restarted', async (t, kind, threads) => {
  const { url } = await start(t, kind);
  const options = { ...threads, broker: url, history: { size: 1000 } };
  const first = await other(t, options);
  const { server, join } = await serverOf(t, options);
  const far = await first.join();
  assert.equal(far.result.recovered, true);
  for (let at = 0; at < 100; at += 1) await publish(server, String(at));
  let since;
  for (let at = 0; at < 50; at += 1) {
    const [position, text] = await positioned(far.client);
    assert.equal(text, String(at));
    since = position;
  }
  await first.stop();
  // Its next process is here.
  const { client, result } = await join(since);
  assert.equal(result.recovered, true);
  for (let at = 100; at < 110; at += 1) await publish(server, String(at));
  for (let at = 50; at < 110; at += 1) {
    const [position, text] = await positioned(client);
    assert.equal(text, String(at));
    since = position;
  }
  await server.close();
  const second = await other(t, options);
  await until(() => second.call('publish', 'room', '110'));
  const back = await second.join(since);
  assert.equal(back.result.recovered, true);
  assert.equal((await positioned(back.client))[1], '110');
  const read = await second.call('history', 'room', { since, limit: 10 });
  assert.deepEqual(read.messages.map(({ data }) => data), ['110']);
  assert.equal((await second.call('history', 'room', { limit: 200 })).messages.length, 111);
});

brokers('what several processes publish has one order for all', async (t, kind) => {
  const { url } = await start(t, kind);
  const { server, join } = await serverOf(t, { broker: url, history: { size: 5000 } });
  const there = await other(t, { broker: url, history: { size: 5000 } });
  const clients = [(await join()).client, (await there.join()).client];
  clients[0].send('of a socket here');
  const expected = await positioned(clients[1]);
  assert.equal(expected[1], 'of a socket here');
  const count = 300;
  for (let at = 0; at < count; at += 1) {
    await publish(server, `here ${at}`);
    assert.equal(await there.call('publish', 'room', `there ${at}`), true);
  }
  const seen = [[], []];
  for (const [at, client] of clients.entries()) {
    // The publisher's own client has not got the first.
    for (let number = 0; number < 2 * count; number += 1) seen[at].push(await positioned(client));
  }
  assert.deepEqual(seen[0], seen[1]);
  const positions = new Set(seen[0].map(([position]) => position));
  assert.equal(positions.size, 2 * count);
  const read = await server.history('room', { since: expected[0], limit: 1000 });
  assert.deepEqual(read.messages.map(({ position, data }) => [position, data]), seen[0]);
});

brokers('a broker that has lost its data begins another epoch, which is told', async (t, kind) => {
  const broker = await start(t, kind);
  const { server, join } = await serverOf(t, { broker: broker.url });
  const { client } = await join();
  await publish(server, 'before');
  const [since] = await positioned(client);
  await broker.stop();
  await until(() => server.topicsState.broker.trouble);
  assert.equal(server.publish('room', 'nobody gets this'), false);
  broker.forget();
  const missed = new Promise((resolve) => { server.addEventListener('missed', ({ topic }) => resolve(topic)); });
  await broker.run();
  await until(() => server.topicsState.broker.ready);
  await publish(server, 'after');
  const [position, text] = await positioned(client);
  assert.equal(text, 'after');
  assert.notEqual(position.slice(0, 8), since.slice(0, 8));
  assert.equal(await missed, 'room');
  const again = await join(since);
  assert.deepEqual([again.result.recovered, again.result.reason], [false, 'epoch']);
  const { messages } = await server.history('room');
  assert.deepEqual(messages.map(({ data }) => data), ['after']);
});

brokers('what was published while a process was cut off is there when it is back', async (t, kind) => {
  const broker = await start(t, kind);
  const { server, join, open, subscribed } = await serverOf(t, { broker: { url: broker.url, spoolBytes: 1 << 20 } });
  const { client } = await join();
  await publish(server, 'one');
  const [since] = await positioned(client);
  await broker.stop();
  await until(() => server.topicsState.broker.trouble);
  assert.equal(server.publish('room', 'spooled'), true);
  const waits = await open(since);
  await broker.run();
  const { recovered, reason } = await subscribed.next();
  const [, text] = await positioned(client);
  assert.equal(text, 'spooled');
  // Redis without persistence has lost what it kept, NATS has it on disk.
  const keeps = kind.program === 'nats-server';
  assert.deepEqual([recovered, reason], keeps ? [true, undefined] : [false, 'epoch']);
  if (keeps) assert.equal((await positioned(waits))[1], 'spooled');
});

brokers('a topic of more than 1024 bytes is refused, and longest ones work', async (t, kind) => {
  const { url } = await start(t, kind);
  const { server, sockets, join } = await serverOf(t, { broker: url });
  await join();
  const socket = await sockets.next();
  const long = 'é'.repeat(512);
  const expected = /a topic of 1025 bytes: with a broker a topic has at most 1024 bytes/;
  await assert.rejects(server.history(`${long}.`), expected);
  await assert.rejects(socket.subscribe(`${long}.`, {}), expected);
  for (const call of [() => socket.subscribe(`${long}.`), () => socket.publish(`${long}.`, 'x'), () => server.publish(`${long}.`, 'x')]) {
    assert.throws(call, expected);
  }
  assert.equal(socket.unsubscribe(`${long}.`), false);
  const { position } = await server.history(long);
  await until(() => server.publish(long, 'kept'));
  await until(async () => (await server.history(long, { since: position })).messages.length > 0);
  assert.equal(server.topicsState.broker.connected, 1);
  assert.equal(new Server({ history: true }).publish(`${long}.`, 'kept'), true);
});

ours('while a broker does not answer history waits, until the server stops', async (t) => {
  const server = new Server({ history: true, broker: `redis://127.0.0.1:${await freePort()}` });
  await until(() => server.topicsState.broker.trouble?.includes('refused'));
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const late = server.history('é'.repeat(101));
  t.mock.timers.tick(10_000);
  await assert.rejects(late, /has not confirmed the topic é{100}… within 10 s: .*refused/);
  t.mock.timers.reset();
  const read = server.history('room');
  await server.close();
  await assert.rejects(read, /the server stops/);
});

ours('what waits for a broker ends with unsubscribe, another call, the socket and the server', async (t) => {
  const { server, client, socket } = await socketOf(t, { history: true, broker: `redis://127.0.0.1:${await freePort()}` });
  const first = socket.subscribe('room', {});
  const second = socket.subscribe('room', {});
  assert.deepEqual(await first, { recovered: false, reason: 'unsubscribed', position: undefined });
  socket.unsubscribe('room');
  assert.equal((await second).reason, 'unsubscribed');
  const third = socket.subscribe('room', {});
  client.ws.terminate();
  assert.equal((await third).reason, 'closed');
  await server.close();
  await assert.rejects(server.history('room'), /the server stops/);
});
