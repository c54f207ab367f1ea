// Node.js's `ws` as members of the chat of the library's example. usage: node library_chat.js ws://HOST:PORT
'use strict';
const assert = require('node:assert');
const { once } = require('node:events');
const WebSocket = require('ws');

const [url] = process.argv.slice(2);

async function join(room, name) {
  const socket = new WebSocket(`${url}/rooms/${encodeURIComponent(room)}?name=${encodeURIComponent(name)}`);
  socket.received = [];
  socket.on('message', (data, isBinary) => {
    socket.received.push(isBinary ? data : data.toString());
    socket.emit('collected');
  });
  await once(socket, 'open');
  assert.strictEqual(await next(socket), `* ${name} is here`);
  return socket;
}

async function next(socket) {
  while (socket.received.length === 0) await once(socket, 'collected');
  return socket.received.shift();
}

async function leave(socket) {
  socket.close(1000, 'done');
  const [code] = await once(socket, 'close');
  assert.strictEqual(code, 1000);
}

const tests = {
  async two_people_chat() {
    const ada = await join('lobby', 'Ada');
    const bob = await join('lobby', 'Bób');
    assert.strictEqual(await next(ada), '* Bób is here');
    ada.send('hello ✓');
    assert.strictEqual(await next(ada), 'Ada: hello ✓');
    assert.strictEqual(await next(bob), 'Ada: hello ✓');
    await leave(bob);
    assert.strictEqual(await next(ada), '* Bób has left');
    await leave(ada);
  },
  async rooms_are_apart() {
    const one = await join('a room/one', 'One');
    const two = await join('two', 'Two');
    one.send('x');
    assert.strictEqual(await next(one), 'One: x');
    two.send('y');
    assert.strictEqual(await next(two), 'Two: y');
    await Promise.all([leave(one), leave(two)]);
  },
  async hundred_members_get_each_line_once_and_in_order() {
    const members = [];
    for (let i = 0; i < 100; i++) members.push(await join('hundred', `m${i}`));
    const last = members[99];
    for (let i = 0; i < 50; i++) last.send(String(i));
    for (const member of members) {
      const lines = [];
      while (lines.length < 50) {
        const line = await next(member);
        if (!line.startsWith('*')) lines.push(line);
      }
      assert.deepStrictEqual(lines, Array.from({ length: 50 }, (_, i) => `m99: ${i}`));
    }
    await Promise.all(members.map(leave));
  },
  async without_a_name_nobody_is_let_in() {
    const socket = new WebSocket(`${url}/rooms/lobby`);
    const [error] = await once(socket, 'error');
    assert.match(error.message, /400/);
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
