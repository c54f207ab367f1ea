// Child apps: those of other threads, which serve what an app accepts.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const { Worker } = require('node:worker_threads');
const { uws, both, ours, moduleName, get, Client, program } = require('./support.js');

/** A thread with an app, and the app's descriptor. */
async function thread(t, name) {
  const worker = new Worker(`
    const { parentPort } = require('node:worker_threads');
    const uws = require(${JSON.stringify(moduleName)});
    const app = uws.App()
      .get('/*', (res) => res.end('${name}'))
      .ws('/ws', { message: (ws, message) => ws.send('${name}') });
    parentPort.postMessage(app.getDescriptor());
    parentPort.once('message', () => { app.close(); process.exit(); });
  `, { eval: true });
  t.after(() => worker.terminate());
  const [descriptor] = await once(worker, 'message');
  return { worker, descriptor };
}

function listening(app) {
  return new Promise((resolve, reject) => {
    app.listen('127.0.0.1', 0, (listener) => {
      if (listener) resolve({ listener, port: uws.us_socket_local_port(listener) });
      else reject(new Error('cannot listen'));
    });
  });
}

// In a program, since uWebSockets.js ends the process when a thread with an app ends.
both('a child serves the connections of its parent', async (t) => {
  const { lines } = await program(t, `
    const { Worker } = require('node:worker_threads');
    const worker = new Worker(\`
      const uws = require(${JSON.stringify(moduleName)});
      const app = uws.App()
        .get('/*', (res) => res.end('child'))
        .ws('/ws', { message: (ws, message) => ws.send('child') });
      // With uWebSockets.js nothing else keeps the thread.
      setInterval(() => {}, 1_000_000);
      require('node:worker_threads').parentPort.postMessage(app.getDescriptor());
    \`, { eval: true });
    worker.once('message', (descriptor) => {
      log(typeof descriptor);
      const app = uws.App().get('/*', (res) => res.end('parent'));
      listen(app, async (port) => {
        app.addChildAppDescriptor(descriptor);
        for (let at = 0; at < 5; at += 1) log(await (await fetch('http://127.0.0.1:' + port)).text());
        const { WebSocket } = require('ws');
        const client = new WebSocket('ws://127.0.0.1:' + port + '/ws');
        client.on('open', () => client.send('who?'));
        client.on('message', (message) => { log('socket', String(message)); process.kill(process.pid, 'SIGKILL'); });
      });
    });
  `);
  assert.deepEqual(lines, ['number', ...Array(5).fill('child'), 'socket child']);
});

ours('a child in a thread serves requests and sockets', async (t) => {
  const { descriptor } = await thread(t, 'child');
  const app = uws.App().get('/*', (res) => res.end('parent'));
  const { listener, port } = await listening(app);
  t.after(() => uws.us_listen_socket_close(listener));
  app.addChildAppDescriptor(descriptor);
  for (let at = 0; at < 5; at += 1) assert.equal((await get(t, port, '/')).body, 'child');
  const client = await Client.open(t, port, '/ws');
  client.send('who?');
  assert.equal(await client.next(), 'child');
});

ours('a listener that is opened later has the children, and closes for them', async (t) => {
  const children = [await thread(t, 'first'), await thread(t, 'second')];
  const app = uws.App().get('/*', (res) => res.end('parent'));
  for (const { descriptor } of children) app.addChildAppDescriptor(descriptor);
  const { listener, port } = await listening(app);
  for (let at = 0; at < 5; at += 1) assert.notEqual((await get(t, port, '/')).body, 'parent');
  uws.us_listen_socket_close(listener);
  await assert.rejects(get(t, port, '/'));
});

ours('a parent without children accepts itself: after removal, or the end of their threads', async (t) => {
  const [first, second] = [await thread(t, 'first'), await thread(t, 'second')];
  const app = uws.App().get('/*', (res) => res.end('parent'));
  const { listener, port } = await listening(app);
  t.after(() => uws.us_listen_socket_close(listener));
  app.addChildAppDescriptor(first.descriptor);
  app.addChildAppDescriptor(second.descriptor);
  app.removeChildAppDescriptor(first.descriptor);
  // What the first has accepted before it knew is its own.
  while ((await get(t, port, '/')).body !== 'second');
  second.worker.postMessage('end');
  await once(second.worker, 'exit');
  while ((await get(t, port, '/').catch(() => ({}))).body !== 'parent');
});

ours('the descriptor of an app that has ended names no other', async (t) => {
  const first = await thread(t, 'first');
  first.worker.postMessage('end');
  await once(first.worker, 'exit');
  const second = await thread(t, 'second');
  assert.notEqual(second.descriptor, first.descriptor);
  const app = uws.App();
  assert.throws(() => app.addChildAppDescriptor(first.descriptor), /getDescriptor/);
  app.close();
});

ours('a descriptor of nothing throws', () => {
  const app = uws.App();
  assert.throws(() => app.addChildAppDescriptor(12_345), /getDescriptor/);
  assert.throws(() => app.addChildAppDescriptor(app.getDescriptor()), /own child/);
  app.close();
});
