// @rails/actioncable at /cable, while a Rails app broadcasts by its own adapter for Redis (rails/redis.rb).
// usage: node actioncable_redis.js ws://PUBLIC REDIS_URL PREFIX TOKEN OTHER_TOKEN
'use strict';
const assert = require('node:assert');
const { spawnSync } = require('node:child_process');
const path = require('node:path');
const WebSocket = require('ws');

// The client is made for pages.
global.document = { visibilityState: 'visible', addEventListener() {}, removeEventListener() {} };
global.addEventListener = global.removeEventListener = () => {};
const ActionCable = require('@rails/actioncable');
ActionCable.adapters.WebSocket = WebSocket;

const [publicUrl, redisUrl, prefix, token, otherToken] = process.argv.slice(2);

// A subscription and what its callbacks were called with, in order.
class Heard {
  constructor(consumer, stream) {
    this.all = [];
    this.wake = () => {};
    const note = (what) => (data) => (this.all.push(data === undefined ? what : data), this.wake());
    consumer.subscriptions.create(
      { channel: '$pubsub', stream_name: stream },
      {
        connected: () => note('connected')(),
        disconnected: ({ willAttemptReconnect }) => note(`disconnected ${willAttemptReconnect}`)(),
        rejected: note('rejected'),
        received: note(),
      },
    );
  }

  async next(count) {
    while (this.all.length < count) await new Promise((resolve) => (this.wake = resolve));
    return this.all.splice(0, count);
  }
}

async function run() {
  const consumers = [token, otherToken].map((jid) => ActionCable.createConsumer(`${publicUrl}/cable?jid=${jid}`));
  const [news, others] = consumers.map((consumer) => new Heard(consumer, 'news'));
  // What `broadcast_to` a record is called by Rails.
  const record = Buffer.from('gid://app/User/7').toString('base64url');
  const room = new Heard(consumers[1], `room:${record}`);
  for (const heard of [news, others, room]) assert.deepStrictEqual(await heard.next(1), ['connected']);
  console.log('ok connected');
  const rails = spawnSync('/usr/bin/ruby', [path.join(__dirname, 'rails/redis.rb'), redisUrl, prefix], { encoding: 'utf8' });
  assert.strictEqual(rails.status, 0, rails.stderr);
  const messages = [{ text: 'héllo ✓', n: 1 }, 'plain'];
  assert.deepStrictEqual(await news.next(2), messages);
  assert.deepStrictEqual(await others.next(2), messages);
  assert.deepStrictEqual(await room.next(1), [[1, 2]]);
  console.log('ok broadcast');
  // The client may come back: Rails did not forbid it.
  assert.deepStrictEqual(await news.next(1), ['disconnected true']);
  assert.deepStrictEqual(others.all, []);
  console.log('ok disconnect');
  process.exit(0);
}

run().catch((error) => {
  console.error(error);
  process.exit(1);
});
