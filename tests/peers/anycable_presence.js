// AnyCable's client, @anycable/core, in a room with others: what its own list of members says after few joins,
// several tabs, a lost connection, and very many joins at once.
// usage: node anycable_presence.js ws://PUBLIC[,ws://PUBLIC OF ANOTHER NODE] http://ADMIN
'use strict';
const assert = require('node:assert');
const { pathToFileURL } = require('node:url');
const WebSocket = require('ws');

const [publicUrls, adminUrl] = process.argv.slice(2);
// Clients connect to each in turn.
const nodes = publicUrls.split(',');
let connected = 0;
// More than are announced one by one; with their infos more than an event lists.
const MANY = 400;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(what, condition) {
  const deadline = Date.now() + 60_000;
  while (!(await condition())) {
    assert.ok(Date.now() < deadline, `timed out: ${what}`);
    await sleep(20);
  }
}

async function main() {
  const { createCable, Monitor } = await import(
    pathToFileURL(require.resolve('@anycable/core'))
  );
  const connect = async (stream) => {
    const cable = createCable(`${nodes[connected++ % nodes.length]}/cable`, {
      protocol: 'actioncable-v1-ext-json',
      websocketImplementation: WebSocket,
      logLevel: 'error',
      monitor: new Monitor({ pingInterval: 3000, reconnectStrategy: () => 50 }),
    });
    const room = cable.streamFrom(stream);
    const events = [];
    room.on('presence', (event) => events.push(event));
    await room.ensureSubscribed();
    return { cable, room, events };
  };
  const listed = async ({ room }) => Object.keys(await room.presence.info()).sort();
  const users = async (stream) => {
    const response = await fetch(`${adminUrl}/api/presence/${stream}/users`);
    assert.strictEqual(response.status, 200);
    return (await response.json()).records.map(({ id }) => id).sort();
  };

  // A few people, with two tabs of one of them.
  const watcher = await connect('room');
  assert.deepStrictEqual(await watcher.room.presence.info(), {});
  const [ann, tab, bob] = [await connect('room'), await connect('room'), await connect('room')];
  await ann.room.presence.join('ann', { name: 'Ann' });
  await tab.room.presence.join('ann', { name: 'Ann' });
  await bob.room.presence.join(7, { name: 'Bob' });
  await until('both are listed', async () => (await listed(watcher)).length === 2);
  assert.deepStrictEqual(await watcher.room.presence.info(), {
    7: { name: 'Bob' },
    ann: { name: 'Ann' },
  });
  const types = () => watcher.events.map(({ type, id }) => `${type} ${id ?? ''}`.trim()).sort();
  assert.deepStrictEqual(types(), ['info', 'join 7', 'join ann']);
  await until('7 and ann', async () => (await users('room')).join() === '7,ann');
  console.log('ok joins');

  await tab.room.presence.leave();
  await bob.room.presence.leave();
  await until('bob has left', async () => (await listed(watcher)).length === 1);
  assert.deepStrictEqual(types(), ['info', 'join 7', 'join ann', 'leave 7']);
  console.log('ok leaves');

  // The library joins again by itself; the others do not notice.
  const before = watcher.events.length;
  let restored = 0;
  ann.cable.on('connect', (event) => (restored += event.reconnect ? 1 : 0));
  ann.cable.transport.ws.terminate();
  await until('ann is back', () => restored === 1 && ann.room.state === 'connected');
  await bob.room.presence.join(8, {});
  await until('another event', () => watcher.events.length > before);
  assert.strictEqual(watcher.events[before].id, '8');
  await until('8 and ann', async () => (await users('room')).join() === '8,ann');
  console.log('ok a lost connection');

  // Very many: the list is right for who asks meanwhile, and for who asks again when told so.
  const [early, other] = [await connect('hall'), await connect('hall')];
  assert.deepStrictEqual(await early.room.presence.info(), {});
  const crowd = await Promise.all(Array.from({ length: MANY }, () => connect('hall')));
  const late = crowd[MANY - 1];
  for (const { room } of [early, other, late]) {
    room.on('presence', ({ type }) => {
      if (type === 'info' || type === 'changed') room.presence.reset();
    });
  }
  const info = { text: 'x'.repeat(100) };
  await Promise.all(crowd.map(({ room }, number) => room.presence.join(`m${number}`, info)));
  const meanwhile = late.room.presence.info();
  await until('all are present', async () => (await users('hall')).length === MANY);
  assert.ok(await meanwhile);
  await until('all are listed', async () => (await listed(late)).length === MANY);
  await until('it asks again', async () => (await listed(early)).length === MANY);
  assert.deepStrictEqual(await early.room.presence.info(), await late.room.presence.info());
  const received = early.events.filter(({ type }) => type === 'changed').length;
  assert.ok(received > 0, 'no event for many');
  console.log(`${early.events.length} events for ${MANY} members`);
  console.log('ok very many');
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
