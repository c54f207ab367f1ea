// Topics.
'use strict';

const assert = require('node:assert/strict');
const { both, serve, Queue, Client, text } = require('./support.js');

/** Clients with their sockets at the server. */
async function crowd(t, size, options = {}) {
  const sockets = new Queue();
  let app;
  const subscriptions = [];
  const port = await serve(t, (given) => {
    app = given.ws('/*', {
      open: (ws) => sockets.push(ws),
      subscription: (ws, topic, now, before) => subscriptions.push([text(topic), before, now]),
      message: (ws, message) => ws.send(message),
      ...options,
    });
  });
  const members = [];
  for (let at = 0; at < size; at += 1) {
    const client = await Client.open(t, port);
    members.push({ client, ws: await sockets.next() });
  }
  return { app, port, members, subscriptions };
}

/** Checks that nothing else comes before an echo. */
async function nothingElse(client) {
  client.send('end of test');
  assert.equal(await client.next(), 'end of test');
}

both('subscribe, isSubscribed, getTopics, unsubscribe and what they return', async (t) => {
  const { members: [{ ws }], subscriptions } = await crowd(t, 1);
  assert.equal(ws.isSubscribed('a'), false);
  assert.equal(ws.subscribe('a'), true);
  assert.equal(ws.subscribe('a'), true);
  assert.equal(ws.subscribe(Buffer.from('b')), true);
  assert.equal(ws.isSubscribed('a'), true);
  assert.deepEqual(ws.getTopics().sort(), ['a', 'b']);
  assert.equal(ws.unsubscribe('a'), true);
  assert.equal(ws.unsubscribe('a'), false);
  assert.deepEqual(ws.getTopics(), ['b']);
  assert.deepEqual(subscriptions, [['a', 0, 1], ['b', 0, 1], ['a', 1, 0]]);
});

both('publish of an app reaches all members, and says whether there is one', async (t) => {
  const { app, members } = await crowd(t, 3);
  assert.equal(app.publish('news', 'nobody'), false);
  members[0].ws.subscribe('news');
  members[1].ws.subscribe('news');
  assert.equal(app.numSubscribers('news'), 2);
  assert.equal(app.numSubscribers('other'), 0);
  assert.equal(app.publish('news', 'text'), true);
  assert.equal(app.publish('news', Buffer.from('bytes'), true), true);
  for (const { client } of members.slice(0, 2)) {
    assert.equal(await client.next(), 'text');
    assert.deepEqual(await client.next(), Buffer.from('bytes'));
  }
  await nothingElse(members[2].client);
});

both('publish of a socket reaches all others, not itself', async (t) => {
  const { members: [first, second] } = await crowd(t, 2);
  first.ws.subscribe('news');
  assert.equal(first.ws.publish('news', 'alone'), false);
  second.ws.subscribe('news');
  assert.equal(first.ws.publish('news', 'to others'), true);
  assert.equal(await second.client.next(), 'to others');
  await nothingElse(first.client);
});

both('a socket that has subscribed to nothing publishes nothing', async (t) => {
  const { members: [first, second] } = await crowd(t, 2);
  second.ws.subscribe('news');
  assert.equal(first.ws.publish('news', 'from outside'), false);
  first.ws.subscribe('something else');
  assert.equal(first.ws.publish('news', 'from a member of another'), true);
  assert.equal(await second.client.next(), 'from a member of another');
});

both('publications and messages of one turn keep their order', async (t) => {
  const { app, members: [{ ws, client }] } = await crowd(t, 1);
  ws.subscribe('a');
  ws.subscribe('b');
  const expected = [];
  for (let number = 0; number < 100; number += 1) {
    expected.push(`a${number}`, `b${number}`, `s${number}`);
    app.publish('a', `a${number}`);
    app.publish('b', `b${number}`);
    ws.send(`s${number}`);
  }
  for (const message of expected) assert.equal(await client.next(), message);
});

both('topics are exact: no wildcards', async (t) => {
  const { app, members: [{ ws, client }] } = await crowd(t, 1);
  for (const topic of ['a/#', 'a/+', '*']) ws.subscribe(topic);
  assert.equal(app.publish('a/b', 'x'), false);
  assert.equal(app.publish('a/#', 'literal'), true);
  assert.equal(await client.next(), 'literal');
});

both('routes of one app share their topics', async (t) => {
  const sockets = new Queue();
  let app;
  const port = await serve(t, (given) => {
    app = given.ws('/a', { open: (ws) => sockets.push(ws) }).ws('/b', { open: (ws) => sockets.push(ws) });
  });
  const clients = [];
  for (const target of ['/a', '/b']) {
    clients.push(await Client.open(t, port, target));
    (await sockets.next()).subscribe('shared');
  }
  assert.equal(app.numSubscribers('shared'), 2);
  app.publish('shared', 'x');
  for (const client of clients) assert.equal(await client.next(), 'x');
});

both('a socket that closes leaves its topics', async (t) => {
  const closed = new Queue();
  const { app, members: [{ ws, client }], subscriptions } = await crowd(t, 1, { close: () => closed.push(app.numSubscribers('a')) });
  ws.subscribe('a');
  client.ws.close();
  assert.equal(await closed.next(), 0);
  assert.deepEqual(subscriptions, [['a', 0, 1], ['a', 1, 0]]);
  assert.equal(app.publish('a', 'x'), false);
});

both('a member that unsubscribes after a publication still gets it', async (t) => {
  const { app, members: [{ ws, client }] } = await crowd(t, 1);
  ws.subscribe('a');
  app.publish('a', 'before');
  ws.unsubscribe('a');
  app.publish('a', 'after');
  assert.equal(await client.next(), 'before');
  await nothingElse(client);
});
