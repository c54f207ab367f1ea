// Node.js's `ws` as a client of /echo and /topics.
// usage: node ws.js ws://PUBLIC http://ADMIN, or node ws.js wss://PUBLIC http://ADMIN AUTHORITY.pem
'use strict';
const assert = require('node:assert');
const { once } = require('node:events');
const WebSocket = require('ws');

const [publicUrl, adminUrl, authority] = process.argv.slice(2);
const ca = authority && require('node:fs').readFileSync(authority);

// Messages are collected from the start: one may follow the handshake in the same packet.
async function open(path, options = {}) {
  const socket = new WebSocket(publicUrl + path, { perMessageDeflate: false, ca, ...options });
  socket.received = [];
  socket.on('message', (data, isBinary) => {
    socket.received.push({ data, isBinary });
    socket.emit('collected');
  });
  await once(socket, 'open');
  return socket;
}

async function next(socket) {
  while (socket.received.length === 0) await once(socket, 'collected');
  return socket.received.shift();
}

async function echoes(socket, sent, isBinary) {
  socket.send(sent, { binary: isBinary });
  const message = await next(socket);
  assert.strictEqual(message.isBinary, isBinary);
  assert.deepStrictEqual(message.data, Buffer.from(sent));
}

async function close(socket) {
  socket.close(1000, 'done');
  const [code] = await once(socket, 'close');
  assert.strictEqual(code, 1000);
}

async function publish(message) {
  const body = JSON.stringify(message);
  const response = await fetch(`${adminUrl}/api/publish`, { method: 'POST', body });
  assert.ok(response.ok, `publish answered ${response.status}`);
}

const tests = {
  async echo_text() {
    const socket = await open('/echo');
    await echoes(socket, 'héllo, wörld ✓', false);
    await echoes(socket, '', false);
    await close(socket);
  },
  async echo_binary() {
    const socket = await open('/echo');
    await echoes(socket, Buffer.from([0, 1, 254, 255]), true);
    await close(socket);
  },
  async echo_every_length_form() {
    const socket = await open('/echo');
    for (const length of [125, 126, 65535, 65536]) {
      await echoes(socket, Buffer.alloc(length, 'x'), true);
    }
    await close(socket);
  },
  async echo_fragments() {
    const socket = await open('/echo');
    socket.send('one ', { fin: false });
    socket.ping('between');
    socket.send('two ', { fin: false });
    socket.send('three', { fin: true });
    const [payload] = await once(socket, 'pong');
    assert.strictEqual(payload.toString(), 'between');
    const message = await next(socket);
    assert.strictEqual(message.data.toString(), 'one two three');
    await close(socket);
  },
  async echo_many_in_order() {
    const socket = await open('/echo');
    const count = 10_000;
    for (let index = 0; index < count; index++) socket.send(String(index));
    for (let index = 0; index < count; index++) {
      assert.strictEqual((await next(socket)).data.toString(), String(index));
    }
    await close(socket);
  },
  // Offers of its own accord: any window, and contexts kept.
  async compressed() {
    for (const offer of [true, { clientMaxWindowBits: 9, serverMaxWindowBits: 10 }]) {
      const socket = await open('/echo', { perMessageDeflate: offer });
      assert.ok(socket.extensions.startsWith('permessage-deflate'), socket.extensions);
      for (const length of [0, 1, 1023, 1024, 5000, 65536]) {
        await echoes(socket, 'héllo '.repeat(length / 7), false);
        await echoes(socket, Buffer.alloc(length, 'x'), true);
      }
      const topic = await open('/topics/long', { perMessageDeflate: offer });
      await publish({ topic: 'long', data: 'news '.repeat(1000) });
      assert.strictEqual((await next(topic)).data.toString(), 'news '.repeat(1000));
      await close(topic);
      await close(socket);
    }
  },
  async topic_from_admin() {
    const socket = await open('/topics/node');
    await publish({ topic: 'node', data: 'from the admin ✓' });
    const text = await next(socket);
    assert.deepStrictEqual([text.data.toString(), text.isBinary], ['from the admin ✓', false]);
    await publish({ topic: 'node', data_base64: 'AP8=' });
    const binary = await next(socket);
    assert.deepStrictEqual([[...binary.data], binary.isBinary], [[0, 255], true]);
    await close(socket);
  },
  async topic_from_client() {
    const [one, two] = [await open('/topics/node'), await open('/topics/node')];
    one.send('from a client');
    assert.strictEqual((await next(two)).data.toString(), 'from a client');
    await close(one);
    await close(two);
  },
};

(async () => {
  for (const [name, test] of Object.entries(tests)) {
    await test();
    console.log(`ok ${name}`);
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
