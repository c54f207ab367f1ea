// @rails/actioncable as the client of an application of Rails that answers HTTP RPC (rails/app.ru).
// usage: node rails_app.js ws://PUBLIC http://APP
'use strict';
const assert = require('node:assert');
const WebSocket = require('ws');

// The client is made for pages.
global.document = { visibilityState: 'visible', addEventListener() {}, removeEventListener() {} };
global.addEventListener = global.removeEventListener = () => {};
const ActionCable = require('@rails/actioncable');

const [publicUrl, appUrl] = process.argv.slice(2);
// A browser has a cookie jar for each user.
let cookie = '';
ActionCable.adapters.WebSocket = class extends WebSocket {
  constructor(url, protocols) {
    super(url, protocols, cookie ? { headers: { cookie } } : {});
  }
};

async function post(path, body = '') {
  const response = await fetch(appUrl + path, { method: 'POST', body });
  assert.strictEqual(response.status, 204, path);
  return response;
}

async function consumerOf(user, page) {
  const response = await post(`/login?user=${user}`);
  cookie = response.headers.get('set-cookie').split(';')[0];
  return ActionCable.createConsumer(`${publicUrl}/cable?page=${page}`);
}

// What a subscription's callbacks were called with, in order.
class Heard {
  constructor(consumer, room) {
    this.all = [];
    this.wake = () => {};
    const note = (what) => (data) => (this.all.push(data === undefined ? what : data), this.wake());
    this.subscription = consumer.subscriptions.create(
      { channel: 'RoomChannel', room },
      {
        connected: () => note('connected')(),
        disconnected: ({ willAttemptReconnect }) => note(`disconnected ${willAttemptReconnect}`)(),
        rejected: note('rejected'),
        received: note(),
      },
    );
  }

  // The next `count` of them.
  async next(count) {
    while (this.all.length < count) await new Promise((resolve) => (this.wake = resolve));
    return this.all.splice(0, count);
  }

  // Waits for what comes before the answer of an action.
  async act(action, data = {}) {
    this.subscription.perform(action, data);
    return (await this.next(1))[0];
  }
}

async function noted(lines) {
  const all = [];
  do {
    const text = await (await fetch(`${appUrl}/noted`)).text();
    all.push(...text.split('\n').filter(Boolean));
    if (all.length < lines.length) await new Promise((resolve) => setTimeout(resolve, 20));
  } while (all.length < lines.length);
  assert.deepStrictEqual(all.sort(), [...lines].sort());
}

async function run() {
  const annCable = await consumerOf('ann', '7');
  const ann = new Heard(annCable, '1');
  assert.deepStrictEqual(await ann.next(2), [{ hello: 'ann', page: '7' }, 'connected']);
  const bobCable = await consumerOf('bob', '8');
  const bob = new Heard(bobCable, '1');
  assert.deepStrictEqual(await bob.next(2), [{ hello: 'bob', page: '8' }, 'connected']);
  await noted(['ann after_subscribe', 'bob after_subscribe']);
  console.log('ok identified_by, session, subscribed, transmit');

  // A channel's variables and the session last from call to call, of each connection by itself.
  for (const number of [1, 2]) {
    ann.subscription.perform('speak', { text: 'hi' });
    const said = [{ text: 'hi', by: 'ann', number }];
    assert.deepStrictEqual(await ann.next(1), said);
    assert.deepStrictEqual(await bob.next(1), said);
  }
  assert.deepStrictEqual(await ann.act('count'), { said: 2, calls: 3 });
  assert.deepStrictEqual(await bob.act('count'), { said: 0, calls: 1 });
  ann.subscription.send({ just: 'data' });
  assert.deepStrictEqual(await ann.next(1), [{ received: { just: 'data' } }]);
  console.log('ok perform, broadcasts, state');

  // Only this user's; then others' as well.
  await post('/notify?user=bob', '{"n":1}');
  assert.deepStrictEqual(await bob.next(1), [{ n: 1 }]);
  assert.deepStrictEqual(await ann.act('count'), { said: 2, calls: 4 });
  console.log('ok stream_for');

  assert.deepStrictEqual(await bob.act('mute'), { muted: true });
  ann.subscription.perform('speak', { text: 'unheard' });
  await ann.next(1);
  await post('/notify?user=bob', '{"n":2}');
  assert.deepStrictEqual(await bob.next(1), [{ n: 2 }], 'the other stream goes on');
  assert.deepStrictEqual(await bob.act('unmute'), { muted: false });
  await post('/notify?user=bob', '{"n":3}');
  ann.subscription.perform('speak', { text: 'heard' });
  await ann.next(1);
  assert.strictEqual((await bob.next(1))[0].text, 'heard', 'all others were stopped');
  console.log('ok stop_stream_from, stop_all_streams');

  const locked = new Heard(annCable, 'locked');
  assert.deepStrictEqual(await locked.next(1), ['rejected']);
  await noted(['ann unsubscribed from locked after ']);
  console.log('ok reject');

  ann.subscription.unsubscribe();
  await noted(['ann unsubscribed from 1 after 4']);
  bob.subscription.perform('speak', { text: 'alone' });
  await bob.next(1);
  assert.deepStrictEqual(ann.all, []);
  console.log('ok unsubscribe');

  annCable.disconnect();
  await noted(['ann left 7']);
  bob.subscription.perform('leave');
  assert.deepStrictEqual(await bob.next(1), ['disconnected false']);
  await noted(['bob unsubscribed from 1 after 1', 'bob left 8']);
  console.log('ok disconnect, once each');

  cookie = '';
  const stranger = new Heard(ActionCable.createConsumer(`${publicUrl}/cable`), '1');
  stranger.subscription.consumer.connection.open();
  assert.deepStrictEqual(await stranger.next(1), ['disconnected false']);
  await noted([]);
  console.log('ok reject_unauthorized_connection');
  process.exit(0);
}

run().catch((error) => {
  console.error(error);
  process.exit(1);
});
