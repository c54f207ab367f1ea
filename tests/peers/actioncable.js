// Rails' own client, @rails/actioncable, at /cable.
// usage: node actioncable.js ws://PUBLIC http://ADMIN
'use strict';
const assert = require('node:assert');
const { once, EventEmitter } = require('node:events');
const WebSocket = require('ws');

// The client is made for pages.
global.document = { visibilityState: 'visible' };
global.addEventListener = () => {};
global.removeEventListener = () => {};
const ActionCable = require('@rails/actioncable');
ActionCable.adapters.WebSocket = WebSocket;

const [publicUrl, adminUrl] = process.argv.slice(2);

async function post(path, message) {
  const response = await fetch(adminUrl + path, { method: 'POST', body: JSON.stringify(message) });
  assert.ok(response.ok, `${path} answered ${response.status}: ${await response.text()}`);
}

const publish = (topic, data) => post('/api/publish', { topic, data: JSON.stringify(data) });

const stream = (name) => ({ channel: '$pubsub', stream_name: name });

// A subscription that emits its callbacks.
function subscribe(consumer, params) {
  const events = new EventEmitter();
  const told = (name) => (data) => events.emit(name, data);
  events.subscription = consumer.subscriptions.create(params, {
    connected: told('connected'),
    disconnected: told('disconnected'),
    rejected: told('rejected'),
    received: told('received'),
  });
  return events;
}

const tests = {
  async receives() {
    const consumer = ActionCable.createConsumer(`${publicUrl}/cable`);
    const news = subscribe(consumer, stream('news'));
    await once(news, 'connected');
    for (const message of [{ text: 'héllo ✓' }, [1, 2], 'plain', null, 7.5]) {
      const received = once(news, 'received');
      await publish('news', message);
      assert.deepStrictEqual((await received)[0], message);
    }
    consumer.disconnect();
  },
  async rejects() {
    const consumer = ActionCable.createConsumer(`${publicUrl}/cable`);
    await once(subscribe(consumer, 'ChatChannel'), 'rejected');
    await once(subscribe(consumer, { channel: 'Turbo::StreamsChannel', signed_stream_name: 'x' }), 'rejected');
    consumer.disconnect();
  },
  // The same stream under other parameters is another subscription.
  async many_subscriptions() {
    const consumer = ActionCable.createConsumer(`${publicUrl}/cable`);
    const all = [];
    for (let index = 0; index < 50; index++) {
      all.push(subscribe(consumer, { ...stream('many'), index }));
    }
    await Promise.all(all.map((one) => once(one, 'connected')));
    const received = Promise.all(all.map((one) => once(one, 'received')));
    await publish('many', 'to all');
    assert.strictEqual((await received).length, 50);
    consumer.disconnect();
  },
  async unsubscribes_and_subscribes_again() {
    const consumer = ActionCable.createConsumer(`${publicUrl}/cable`);
    for (let round = 0; round < 20; round++) {
      const again = subscribe(consumer, stream('again'));
      await once(again, 'connected');
      again.subscription.unsubscribe();
    }
    const last = subscribe(consumer, stream('again'));
    await once(last, 'connected');
    const received = [];
    last.on('received', (message) => received.push(message));
    const end = once(last, 'received');
    await publish('again', 1);
    await end;
    assert.deepStrictEqual(received, [1]);
    consumer.disconnect();
  },
  async hears_pings() {
    const consumer = ActionCable.createConsumer(`${publicUrl}/cable`);
    await once(subscribe(consumer, stream('quiet')), 'connected');
    const { monitor } = consumer.connection;
    const first = monitor.pingedAt;
    while (monitor.pingedAt === first) await new Promise((resolve) => setTimeout(resolve, 50));
    assert.ok(!monitor.connectionIsStale());
    consumer.disconnect();
  },
  // The socket breaks: it comes back and hears on.
  async reconnects() {
    const consumer = ActionCable.createConsumer(`${publicUrl}/cable`);
    const news = subscribe(consumer, stream('broken'));
    await once(news, 'connected');
    const gone = once(news, 'disconnected');
    consumer.connection.webSocket.terminate();
    await gone;
    const back = once(news, 'connected');
    consumer.connection.reopen();
    await back;
    const received = once(news, 'received');
    await publish('broken', 'still there');
    assert.strictEqual((await received)[0], 'still there');
    consumer.disconnect();
  },
};

(async () => {
  for (const [name, test] of Object.entries(tests)) {
    await test();
    console.log(`ok ${name}`);
  }
  process.exit(0);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
