// The option `workers`: threads that hold the sockets.
'use strict';

const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const path = require('node:path');
const { Worker } = require('node:worker_threads');
const { uws, node, ours, serve, listen, Queue, Client, Raw, frame, program, text, moduleName } = require('./support.js');

const app = (options) => uws.App({ workers: 2, ...options });

/** A server with workers whose events are a queue. */
async function opened(t, behavior = {}) {
  const events = new Queue();
  const sockets = new Queue();
  const own = app();
  const port = await serve(t, (given) => given.ws('/*', {
    open: (ws) => sockets.push(ws),
    drain: (ws) => events.push(['drain', ws.getBufferedAmount()]),
    dropped: (ws, message, isBinary) => events.push(['dropped', message.byteLength, isBinary]),
    close: (ws, code, reason) => events.push(['close', code, text(reason)]),
    ...behavior,
  }), own);
  return { app: own, port, events, sockets };
}

ours('open, message, close, in this order, over several threads', async (t) => {
  const { port, sockets, events } = await opened(t, {
    message: (ws, message, isBinary) => { ws.count = (ws.count ?? 0) + 1; ws.send(message, isBinary); },
  });
  const clients = [];
  for (let at = 0; at < 8; at += 1) clients.push(await Client.open(t, port, `/${at}`));
  const all = [];
  for (let at = 0; at < 8; at += 1) all.push(await sockets.next());
  assert.equal(new Set(all).size, 8);
  for (const [at, client] of clients.entries()) {
    for (const message of [`text ${at}`, Buffer.from([at, 0, 255]), '']) {
      client.send(message);
      assert.deepEqual(await client.next(), message);
    }
    client.ws.close(3000 + at, `reason ${at}`);
    assert.deepEqual(await events.next(), ['close', 3000 + at, `reason ${at}`]);
    assert.equal((await client.closed).code, 3000 + at);
  }
  assert.deepEqual(all.map((ws) => ws.count), Array(8).fill(3));
  for (const ws of all) assert.throws(() => ws.send('x'), /closed/i);
});

ours('messages of one turn arrive in order, large and small', async (t) => {
  const { port, sockets } = await opened(t, { maxBackpressure: 0 });
  const client = await Client.open(t, port);
  const ws = await sockets.next();
  const sent = [];
  for (let at = 0; at < 300; at += 1) sent.push(`${at}:`.padEnd(at % 7 === 0 ? 70_000 : 20, 'x'));
  for (const message of sent) assert.notEqual(ws.send(message), 2);
  for (const message of sent) assert.equal(await client.next(), message);
});

ours('topics of all threads: subscribe, publish of app and socket, unsubscribe, getTopics', async (t) => {
  const changes = [];
  const { app: own, port, sockets } = await opened(t, {
    subscription: (ws, topic, now, before) => changes.push([text(topic), before, now]),
    message: (ws, message) => ws.send(message),
  });
  const members = [];
  for (let at = 0; at < 6; at += 1) {
    const client = await Client.open(t, port);
    members.push({ client, ws: await sockets.next() });
  }
  assert.equal(own.publish('news', 'nobody'), false);
  for (const { ws } of members) assert.equal(ws.subscribe('news'), true);
  assert.equal(members[0].ws.subscribe('news'), true);
  assert.deepEqual(changes, members.map((_, at) => ['news', at, at + 1]));
  assert.equal(own.numSubscribers('news'), 6);
  assert.deepEqual(members[0].ws.getTopics(), ['news']);
  // In the turn of the subscription, and between messages.
  members[0].ws.send('before');
  assert.equal(own.publish('news', 'for all'), true);
  assert.equal(members[0].ws.publish('news', 'for others'), true);
  members[0].ws.send('behind');
  for (const [at, { client }] of members.entries()) {
    const expected = at === 0 ? ['before', 'for all', 'behind'] : ['for all', 'for others'];
    for (const message of expected) assert.equal(await client.next(), message);
  }
  assert.equal(members[1].ws.unsubscribe('news'), true);
  assert.equal(members[1].ws.unsubscribe('news'), false);
  assert.equal(members[1].ws.isSubscribed('news'), false);
  assert.equal(members[1].ws.publish('news', 'a member of nothing'), false);
  own.publish('news', 'left');
  members[1].client.send('end');
  assert.equal(await members[1].client.next(), 'end');
  assert.equal(await members[2].client.next(), 'left');
  members[2].ws.end(1000, 'done');
  assert.equal(own.numSubscribers('news'), 4);
});

ours('upgrade decides, now and later, with what the request has', async (t) => {
  const own = app();
  const seen = new Queue();
  const sockets = new Queue();
  const port = await serve(t, (given) => given.ws('/rooms/:room', {
    upgrade: async (res, req, context) => {
      const header = (name) => req.getHeader(name);
      const [room, url, query] = [req.getParameter('room'), req.getUrl(), req.getQuery('token')];
      const keys = [header('sec-websocket-key'), header('sec-websocket-protocol'), header('sec-websocket-extensions')];
      const address = text(res.getRemoteAddressAsText());
      seen.push([room, url, query, header('x-test'), address]);
      if (room === 'closed') return res.writeStatus('403 Forbidden').writeHeader('x-why', 'closed').end('no');
      if (room === 'now') return res.upgrade({ room }, ...keys, context);
      let aborted = false;
      res.onAborted(() => { aborted = true; });
      await new Promise(setImmediate);
      if (!aborted) res.cork(() => res.writeStatus('101 Switching Protocols').writeHeader('x-room', room).upgrade({ room }, ...keys, context));
    },
    open: (ws) => sockets.push([ws.getUserData().room, text(ws.getRemoteAddressAsText()), ws.send(`in ${ws.room}`)]),
  }), own);
  for (const room of ['now', 'later']) {
    const headers = { 'X-Test': 'yes', 'Sec-WebSocket-Protocol': 'chat' };
    const raw = new Raw(t, port);
    const head = await raw.upgrade(`/rooms/${room}?token=t1`, headers);
    assert.match(head, /^HTTP\/1.1 101 /);
    assert.match(head, /Sec-WebSocket-Protocol: chat/i);
    if (room === 'later') assert.match(head, /x-room: later/);
    assert.deepEqual(await seen.next(), [room, `/rooms/${room}`, 't1', 'yes', '127.0.0.1']);
    assert.deepEqual(await sockets.next(), [room, '127.0.0.1', 1]);
    assert.equal(String((await raw.frame()).payload), `in ${room}`);
  }
  const refused = new Raw(t, port);
  assert.match(await refused.upgrade('/rooms/closed'), /^HTTP\/1.1 403 Forbidden[^]*x-why: closed/);
});

ours('a client that leaves while upgrade decides is aborted, or opened and closed', async (t) => {
  const own = app();
  const [waiting, ends] = [new Queue(), new Queue()];
  const port = await serve(t, (given) => given.ws('/*', {
    upgrade: (res, req, context) => {
      const keys = ['key', 'protocol', 'extensions'].map((name) => req.getHeader(`sec-websocket-${name}`));
      let aborted = false;
      res.onAborted(() => { aborted = true; ends.push('aborted'); });
      waiting.push(() => { if (!aborted) res.upgrade({}, ...keys, context); });
    },
    close: () => ends.push('closed'),
  }), own);
  for (let at = 0; at < 20; at += 1) {
    const client = new Raw(t, port);
    client.upgrade().catch(() => {});
    const accept = await waiting.next();
    client.socket.resetAndDestroy();
    accept();
    assert.match(await ends.next(), /^(aborted|closed)$/);
  }
  assert.equal(ends.size, 0);
});

ours('a slow client: send tells of its queue as of the last batch, then drain', async (t) => {
  const { port, sockets, events } = await opened(t, { maxBackpressure: 0 });
  const raw = new Raw(t, port);
  await raw.upgrade();
  const ws = await sockets.next();
  raw.socket.pause();
  assert.equal(ws.send('goes'), 1);
  assert.equal(ws.getBufferedAmount(), 0);
  // What is sent in one turn, beyond 64 KiB, waits for its thread.
  assert.equal(ws.send(Buffer.alloc(16 << 20), true), 0);
  assert.equal(ws.getBufferedAmount(), (16 << 20) + 4);
  while (ws.getBufferedAmount() >= 16 << 20) await new Promise(setImmediate);
  assert.equal(ws.send('waits'), 0);
  raw.socket.resume();
  assert.deepEqual(await events.next(), ['drain', 0]);
  assert.equal(ws.send('goes'), 1);
});

ours('what little waits is in getBufferedAmount, too', async (t) => {
  const own = uws.App({ workers: 1 });
  const [sockets, ticks] = [new Queue(), new Queue()];
  const port = await serve(t, (given) => given.ws('/*', {
    maxBackpressure: 0, open: (ws) => sockets.push(ws), message: () => ticks.push(),
  }), own);
  const raw = new Raw(t, port);
  await raw.upgrade();
  const ws = await sockets.next();
  const clock = await Client.open(t, port);
  const other = await sockets.next();
  raw.socket.pause();
  const piece = Buffer.alloc(16 * 1024);
  while (ws.getBufferedAmount() === 0) {
    ws.send(piece, true);
    other.send('tick');
    await clock.next();
    clock.send('tock');
    await ticks.next();
  }
  assert.ok(ws.getBufferedAmount() <= piece.length + 4, `${ws.getBufferedAmount()}`);
});

ours('what waited has left when drain is called, also if a thread had no backlog', async (t) => {
  const { port, sockets, events } = await opened(t, { maxBackpressure: 0 });
  const client = await Client.open(t, port);
  const ws = await sockets.next();
  for (let at = 0; at < 4; at += 1) ws.send(Buffer.alloc(20_000), true);
  assert.equal(ws.send('much'), 0);
  assert.deepEqual(await events.next(), ['drain', 0]);
  for (let at = 0; at < 4; at += 1) await client.next();
  assert.equal(await client.next(), 'much');
  assert.equal(ws.send('little'), 1);
});

ours('what is above maxBackpressure is reported as dropped', async (t) => {
  const { app: own, port, sockets, events } = await opened(t, { maxBackpressure: 1000 });
  const raw = new Raw(t, port);
  await raw.upgrade();
  const ws = await sockets.next();
  ws.subscribe('news');
  raw.socket.pause();
  const much = 16 << 20;
  ws.send(Buffer.alloc(much), true);
  // As the thread says.
  while (ws.getBufferedAmount() >= much) await new Promise(setImmediate);
  ws.send('too much');
  assert.deepEqual(await events.next(), ['dropped', 8, false]);
  own.publish('news', 'published', true);
  assert.deepEqual(await events.next(), ['dropped', 9, true]);
});

ours('a thread that JavaScript does not keep up with waits, and nothing is lost', async (t) => {
  let [count, bytes] = [0, 0];
  const done = new Queue();
  const { port } = await opened(t, {
    maxPayloadLength: 1 << 20,
    message: (ws, message) => {
      count += 1;
      bytes += message.byteLength;
      if (count === 200) done.push('all');
    },
  });
  const client = new Worker(`
    const { workerData } = require('node:worker_threads');
    const { WebSocket } = require('ws');
    const ws = new WebSocket('ws://127.0.0.1:' + workerData.port);
    ws.on('open', () => { for (let at = 0; at < 200; at += 1) ws.send(Buffer.alloc(200_000)); });
  `, { eval: true, workerData: { port } });
  t.after(() => client.terminate());
  await once(client, 'online');
  // More than a mailbox holds comes meanwhile.
  for (let at = 0; at < 20 && count < 200; at += 1) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
    await new Promise(setImmediate);
  }
  await done.next();
  assert.equal(bytes, 200 * 200_000);
});

ours('limits hold: a message that is too long, pings and pongs, closing at once', async (t) => {
  const controls = new Queue();
  const { port, sockets, events } = await opened(t, {
    maxPayloadLength: 10, ping: (ws, data) => controls.push(['ping', text(data)]), pong: (ws, data) => controls.push(['pong', text(data)]),
  });
  const client = await Client.open(t, port);
  const ws = await sockets.next();
  client.ws.ping('p');
  assert.deepEqual(await controls.next(), ['ping', 'p']);
  ws.ping('q');
  assert.equal(await client.pings.next(), 'q');
  assert.deepEqual(await controls.next(), ['pong', 'q']);
  client.send('more than ten bytes');
  assert.deepEqual(await events.next(), ['close', 1006, 'Received too big message']);
  const other = await Client.open(t, port);
  (await sockets.next()).close();
  assert.deepEqual(await events.next(), ['close', 1006, '']);
  assert.equal((await other.closed).code, 1006);
  const raw = new Raw(t, port);
  await raw.upgrade();
  await sockets.next();
  raw.write(frame(1, Buffer.from([0xff])));
  assert.deepEqual(await events.next(), ['close', 1006, 'Received invalid UTF-8']);
});

ours('compression, and TLS', async (t) => {
  const { port, sockets } = await opened(t, { compression: uws.SHARED_COMPRESSOR });
  const raw = new Raw(t, port);
  assert.match(await raw.upgrade('/', { 'Sec-WebSocket-Extensions': 'permessage-deflate' }), /permessage-deflate/);
  const ws = await sockets.next();
  ws.send('long '.repeat(100), false, true);
  assert.equal((await raw.frame()).compressed, true);
  assert.throws(() => uws.SSLApp({ workers: 1 }), /key_file_name/);
});

ours('what is not there throws, and says why', async (t) => {
  for (const workers of [0, -1, 1.5, 1025, '2', NaN]) assert.throws(() => uws.App({ workers }), /invalid option workers/);
  const own = app();
  t.after(() => own.close());
  for (const name of ['listen_unix', 'filter', 'getDescriptor', 'addChildAppDescriptor', 'missingServerName']) {
    assert.throws(() => own[name](() => {}, 'x'), new RegExp(`${name} is not for an app with the option workers`));
  }
  assert.throws(() => own.ws('/x', { maxLifetime: 1 }), /maxLifetime is not for/);
  own.ws('/*', {});
  await listen(own);
  assert.throws(() => own.listen(0, () => {}), /listens once/);
  assert.throws(() => own.ws('/later', {}), /before listen/);
  assert.throws(() => own.get('/later', () => {}), /before listen/);
});

ours('close ends listener and sockets, what was sent before arrives, and the app can listen again', async (t) => {
  const { app: own, port, sockets, events } = await opened(t);
  for (let round = 0; round < 3; round += 1) {
    const at = round === 0 ? port : await listen(own);
    const client = await Client.open(t, at);
    (await sockets.next()).send('last words');
    own.close();
    assert.deepEqual(await events.next(), ['close', 1006, '']);
    assert.equal(await client.next(), 'last words');
    assert.equal((await client.closed).code, 1006);
    await assert.rejects(Client.open(t, at));
  }
});

ours('sockets that end each other while their app is closed are closed once each', async (t) => {
  for (const options of [{}, { workers: 2 }]) {
    const own = uws.App(options);
    const sockets = new Queue();
    const [all, closed] = [[], []];
    const port = await serve(t, (given) => given.ws('/*', {
      open: (ws) => sockets.push(ws),
      close: (ws) => {
        closed.push(ws);
        for (const other of all) if (!closed.includes(other)) other.close();
      },
    }), own);
    for (let at = 0; at < 3; at += 1) {
      await Client.open(t, port);
      all.push(await sockets.next());
    }
    own.close();
    assert.equal(closed.length, 3);
    assert.equal(new Set(closed).size, 3);
  }
});

ours('us_listen_socket_close refuses new connections and keeps those that are open', async (t) => {
  const own = app().ws('/*', { message: (ws, message) => ws.send(message) });
  t.after(() => own.close());
  const [listener, port] = await new Promise((resolve) => {
    own.listen('127.0.0.1', 0, (given) => resolve([given, uws.us_socket_local_port(given)]));
  });
  const client = await Client.open(t, port);
  uws.us_listen_socket_close(listener);
  assert.equal(uws.us_socket_local_port(listener), -1);
  await assert.rejects(Client.open(t, port));
  client.send('still');
  assert.equal(await client.next(), 'still');
});

ours('a program ends when its app is closed, and a thread with such an app ends', async (t) => {
  const ended = await program(t, `
    const { Worker } = require('node:worker_threads');
    const app = uws.App({ workers: 3 }).ws('/*', { close: () => log('closed'), message: () => app.close() });
    listen(app, (port) => {
      const { WebSocket } = require('ws');
      const client = new WebSocket('ws://127.0.0.1:' + port);
      client.on('open', () => client.send('close'));
      client.on('close', (code) => {
        log(code);
        const thread = new Worker(\`
          const uws = require(${JSON.stringify(moduleName)});
          const app = uws.App({ workers: 2 }).ws('/*', { message: () => process.exit(7) });
          app.listen('127.0.0.1', 0, (listener) => {
            const { WebSocket } = require('ws');
            const client = new WebSocket('ws://127.0.0.1:' + uws.us_socket_local_port(listener));
            client.on('open', () => client.send('exit'));
          });
        \`, { eval: true });
        thread.on('exit', (code) => log('thread', code));
      });
    });`);
  assert.equal(ended.code, 0, ended.stderr);
  assert.deepEqual(ended.lines, ['closed', '1006', 'thread 7']);
});

ours('exceptions of handlers are uncaught exceptions, and the app goes on', async (t) => {
  const ended = await program(t, `
    process.on('uncaughtException', (error) => log(error.message));
    const app = uws.App({ workers: 1 });
    app.ws('/*', { open: () => { throw new Error('open'); }, message: (ws) => { ws.send('answer'); throw new Error('message'); } });
    listen(app, (port) => {
      const { WebSocket } = require('ws');
      const client = new WebSocket('ws://127.0.0.1:' + port);
      client.on('open', () => client.send('x'));
      client.on('message', (message) => { log(String(message)); app.close(); });
    });`);
  assert.equal(ended.code, 0, ended.stderr);
  assert.deepEqual(ended.lines, ['open', 'message', 'answer']);
});

ours('what the process has opened before and closes is closed, and its signals are handled', async (t) => {
  const { code, lines, stderr } = await program(t, `
    const net = require('node:net');
    let signals = 0;
    process.on('SIGUSR2', () => { signals += 1; });
    const server = net.createServer((peer) => {
      const app = uws.App({ workers: 2 }).ws('/*', {});
      app.listen('127.0.0.1', 0, () => {
        peer.on('close', async () => {
          log('closed');
          for (let at = 1; at <= 50; at += 1) {
            process.kill(process.pid, 'SIGUSR2');
            while (signals < at) await new Promise(setImmediate);
          }
          log(signals);
          app.close();
          server.close();
        });
        peer.resume();
        client.destroy();
      });
    });
    let client;
    server.listen(0, '127.0.0.1', () => { client = net.connect(server.address().port, '127.0.0.1'); });
  `);
  assert.equal(code, 0, stderr);
  assert.deepEqual(lines, ['closed', '50']);
});

/** Descriptors of one process may be fewer than its sockets: each worker has a table of its own. */
ours('more sockets than a table of descriptors holds', async (t) => {
  const limit = 256;
  const source = `
    const uws = require(${JSON.stringify(moduleName)});
    const app = uws.App({ workers: 4 }).ws('/*', { open: (ws) => ws.subscribe('all'), message: (ws, message) => app.publish('all', message) });
    app.listen('127.0.0.1', 0, (listener) => console.log(uws.us_socket_local_port(listener)));
  `;
  const child = spawn('sh', ['-c', `ulimit -n ${limit}; exec "$0" "$@"`, ...node, '-e', source], {
    cwd: path.join(__dirname, '..'), stdio: ['ignore', 'pipe', 'inherit'],
  });
  t.after(() => child.kill('SIGKILL'));
  const port = Number(String((await once(child.stdout, 'data'))[0]));
  const clients = [];
  for (let at = 0; at < limit + 100; at += 1) clients.push(await Client.open(t, port));
  clients[0].send('to all');
  for (const client of clients) assert.equal(await client.next(), 'to all');
  assert.ok(fs.readdirSync(`/proc/${child.pid}/fd`).length < 64);
});
