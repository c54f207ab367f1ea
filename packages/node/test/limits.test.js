// Limits of a socket: sizes, times, backpressure.
'use strict';

const assert = require('node:assert/strict');
const { uws, both, ours, serve, Queue, Client, Raw, frame, program, text } = require('./support.js');

/** A server whose sockets are given to the test. */
async function opened(t, options = {}) {
  const [sockets, events] = [new Queue(), new Queue()];
  const port = await serve(t, (app) => app.ws('/*', {
    idleTimeout: 0,
    open: (ws) => sockets.push(ws),
    close: (ws, code, message) => events.push(['close', code, text(message)]),
    drain: (ws) => events.push(['drain', ws.getBufferedAmount()]),
    dropped: (ws, message, isBinary) => events.push(['dropped', message.byteLength, isBinary]),
    ...options,
  }));
  const raw = new Raw(t, port);
  await raw.upgrade();
  return { ws: await sockets.next(), raw, events, port };
}

/** Sends until the socket has a backlog; the reader is paused. */
function fill(ws, raw) {
  raw.socket.pause();
  const chunk = Buffer.alloc(1024 * 1024);
  for (let sent = 1; ; sent += 1) {
    const status = ws.send(chunk, true);
    if (status !== 1) return { status, sent };
    assert.ok(sent < 1000, 'the kernel takes everything');
  }
}

both('a message of maxPayloadLength arrives; a longer one ends the connection', async (t) => {
  const sizes = new Queue();
  const options = { maxPayloadLength: 100, message: (ws, message) => sizes.push(message.byteLength) };
  const { raw, events } = await opened(t, options);
  raw.write(frame(2, Buffer.alloc(100)));
  assert.equal(await sizes.next(), 100);
  raw.write(frame(2, Buffer.alloc(101)));
  assert.deepEqual((await events.next()).slice(0, 2), ['close', 1006]);
  await raw.closed;
});

both('fragments of more than maxPayloadLength end the connection', async (t) => {
  const { raw, events } = await opened(t, { maxPayloadLength: 100 });
  raw.write(frame(2, Buffer.alloc(60), { fin: false }), frame(0, Buffer.alloc(60)));
  assert.deepEqual((await events.next()).slice(0, 2), ['close', 1006]);
});

both('maxPayloadLength is 16 KiB by default', async (t) => {
  const sizes = new Queue();
  const { raw, events } = await opened(t, { message: (ws, message) => sizes.push(message.byteLength) });
  raw.write(frame(2, Buffer.alloc(16 * 1024)));
  assert.equal(await sizes.next(), 16 * 1024);
  raw.write(frame(2, Buffer.alloc(16 * 1024 + 1)));
  assert.deepEqual((await events.next()).slice(0, 2), ['close', 1006]);
});

both('the close handler is told why', async (t) => {
  const { raw, events } = await opened(t, { maxPayloadLength: 1 });
  raw.write(frame(1, 'ab'));
  assert.deepEqual(await events.next(), ['close', 1006, 'Received too big message']);
  const other = await opened(t);
  other.raw.write(Buffer.from([0xff, 0x80, 0, 0, 0, 1]));
  assert.deepEqual(await other.events.next(), ['close', 1006, 'Received invalid WebSocket frame']);
});

both('text that is not UTF-8 ends the connection', async (t) => {
  const { raw, events } = await opened(t);
  raw.write(frame(1, Buffer.from([0xff])));
  assert.deepEqual(await events.next(), ['close', 1006, 'Received invalid UTF-8']);
});

both('send returns 1, then 0 with a backlog, then 2 above maxBackpressure; drain follows', async (t) => {
  const { ws, raw, events } = await opened(t, { maxBackpressure: 1000 });
  const { status } = fill(ws, raw);
  assert.equal(status, 0);
  const backlog = ws.getBufferedAmount();
  assert.ok(backlog > 1000);
  assert.equal(ws.send('dropped'), 2);
  assert.deepEqual(await events.next(), ['dropped', 7, false]);
  assert.equal(ws.getBufferedAmount(), backlog, 'what is dropped takes no room');
  raw.socket.resume();
  for (;;) {
    const [name, amount] = await events.next();
    assert.equal(name, 'drain');
    if (amount === 0) break;
  }
  assert.equal(ws.send('again'), 1);
});

both('a publication that a slow member has no room for is reported as dropped', async (t) => {
  for (const compression of [uws.DISABLED, uws.SHARED_COMPRESSOR]) {
    let server;
    const sockets = new Queue();
    const events = new Queue();
    const port = await serve(t, (app) => {
      server = app;
      app.ws('/*', {
        idleTimeout: 0,
        maxBackpressure: 1000,
        compression,
        open: (ws) => { ws.subscribe('news'); sockets.push(ws); },
        dropped: (ws, message, isBinary) => events.push([ws, text(message), isBinary]),
      });
    });
    const headers = compression === uws.DISABLED ? {} : { 'Sec-WebSocket-Extensions': 'permessage-deflate' };
    const raw = new Raw(t, port);
    await raw.upgrade('/', headers);
    const slow = await sockets.next();
    const other = await Client.open(t, port);
    fill(slow, raw);
    assert.equal(server.publish('news', 'first', false, compression !== uws.DISABLED), true);
    assert.equal(await other.next(), 'first');
    assert.deepEqual(await events.next(), [slow, 'first', false]);
    // A turn of its own: uWebSockets.js reports the first of each.
    assert.equal(server.publish('news', 'second'.repeat(50), true, compression !== uws.DISABLED), true);
    assert.equal((await other.next()).length, 300);
    assert.deepEqual(await events.next(), [slow, 'second'.repeat(50), true]);
  }
});

both('maxBackpressure is soft: one message may go over it', async (t) => {
  const { ws, raw } = await opened(t, { maxBackpressure: 16 * 1024 });
  fill(ws, raw);
  assert.ok(ws.getBufferedAmount() > 16 * 1024);
});

both('maxBackpressure 0 is no limit', async (t) => {
  const { ws, raw } = await opened(t, { maxBackpressure: 0 });
  fill(ws, raw);
  // The kernel may take more of it between two messages.
  for (let more = 0; ws.getBufferedAmount() <= 800_000; more += 1) {
    assert.ok(more < 1000 && ws.send(Buffer.alloc(100_000), true) !== 2);
  }
});

both('maxBackpressure is 64 KiB by default', async (t) => {
  const { ws, raw } = await opened(t);
  raw.socket.pause();
  const chunk = Buffer.alloc(1024);
  let status;
  do status = ws.send(chunk, true); while (status === 1);
  while (status === 0) status = ws.send(chunk, true);
  assert.equal(status, 2);
  const amount = ws.getBufferedAmount();
  assert.ok(amount > 62 * 1024 && amount < 66 * 1024, `${amount}`);
});

both('closeOnBackpressureLimit closes instead of dropping', async (t) => {
  const { ws, raw, events } = await opened(t, { maxBackpressure: 1000, closeOnBackpressureLimit: true });
  fill(ws, raw);
  ws.send('too much');
  for (;;) {
    const [name, code] = await events.next();
    if (name === 'dropped') continue;
    assert.deepEqual([name, code], ['close', 1006]);
    break;
  }
});

both('an idle client is pinged, and closed if it does not answer', async (t) => {
  const { raw, events } = await opened(t, { idleTimeout: 8 });
  const ping = await raw.frame();
  assert.equal(ping.opcode, 9);
  assert.deepEqual((await events.next()).slice(0, 2), ['close', 1006]);
});

both('without automatic pings an idle client is closed', async (t) => {
  const { raw, events } = await opened(t, { idleTimeout: 8, sendPingsAutomatically: false });
  assert.deepEqual((await events.next()).slice(0, 2), ['close', 1006]);
  assert.equal(raw.bytes.length, 0);
});

both('a client that answers pings stays', async (t) => {
  const sockets = new Queue();
  const closed = [];
  const port = await serve(t, (app) => app.ws('/*', {
    idleTimeout: 8, open: (ws) => sockets.push(ws), close: (ws, code) => closed.push(code),
  }));
  const client = await Client.open(t, port);
  for (let pings = 0; pings < 2; pings += 1) await client.pings.next();
  assert.deepEqual(closed, []);
});

ours('invalid limits are errors at once, and say what is allowed', () => {
  const invalid = [
    { idleTimeout: 7 }, { idleTimeout: 961 }, { maxLifetime: 241 }, { maxPayloadLength: -1 }, { idleTimeout: 'x' },
    { compression: 77777777 },
  ];
  for (const options of invalid) {
    const app = uws.App();
    assert.throws(() => app.ws('/*', options), (error) => error.message.includes(Object.keys(options)[0]), JSON.stringify(options));
    app.close();
  }
});

ours('apps that are closed give back descriptors and memory', async (t) => {
  const { code, lines, stderr } = await program(t, `
    const { readdirSync } = require('node:fs');
    const used = () => [readdirSync('/proc/self/fd').length, process.memoryUsage.rss() / 1e6];
    (async () => {
      for (let at = 0; at < 3000; at += 1) {
        if (at === 500) log(...used());
        const app = uws.App().get('/*', (res) => res.end()).ws('/*', { message: (ws, message) => ws.send(message) });
        await new Promise((resolve) => listen(app, resolve));
        app.close();
        if (at % 10 === 0) await new Promise(setImmediate);
      }
      log(...used());
    })();`);
  assert.equal(code, 0, stderr);
  const [[, before], [descriptors, after]] = lines.map((line) => line.split(' ').map(Number));
  // Garbage is collected now and then: without that it would be 6,000 descriptors and 200 MB.
  assert.ok(descriptors < 3000, `${descriptors} descriptors`);
  assert.ok(after - before < 100, `${before} MB, then ${after} MB`);
});

ours('closed apps are collected, whatever they shared', async (t) => {
  const { code, lines, stderr } = await program(t, `
    require('node:v8').setFlagsFromString('--expose-gc');
    const gc = require('node:vm').runInNewContext('gc');
    const kept = new Set();
    const registry = new FinalizationRegistry((name) => kept.delete(name));
    (async () => {
      for (const topics of [undefined, 'shared']) {
        for (const workers of [undefined, 2]) {
          const name = 'topics ' + topics + ', workers ' + workers;
          const app = uws.App({ topics, workers });
          kept.add(name);
          registry.register(app, name);
          await new Promise((resolve) => listen(app, resolve));
          app.close();
        }
      }
      // One opens again, and is closed again.
      const again = uws.App({ topics: 'shared', workers: 1 });
      for (let times = 0; times < 2; times += 1) {
        await new Promise((resolve) => listen(again, resolve));
        again.close();
      }
      kept.add('again');
      registry.register(again, 'again');
    })().then(async () => {
      for (let rounds = 0; rounds < 500 && kept.size > 0; rounds += 1) {
        gc();
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
      log(...kept, 'are kept');
      process.exit(0);
    });`);
  assert.deepEqual([code, lines], [0, ['are kept']], stderr);
});

ours('an app that nobody has serves as long as it listens, and ends after that', async (t) => {
  const { code, lines, stderr } = await program(t, `
    require('node:v8').setFlagsFromString('--expose-gc');
    const gc = require('node:vm').runInNewContext('gc');
    (async () => {
      const port = await new Promise((resolve) => {
        let socket;
        const app = uws.App().get('/end', (res) => { res.end('ended'); uws.us_listen_socket_close(socket); }).get('/*', (res) => res.end('here'));
        listen(app, (given, listener) => { socket = listener; resolve(given); });
      });
      for (const target of ['', 'a', 'end']) {
        for (let round = 0; round < 3; round += 1) { gc(); await new Promise(setImmediate); }
        log(await (await fetch('http://127.0.0.1:' + port + '/' + target, { headers: { connection: 'close' } })).text());
      }
      await new Promise((resolve) => {
        const looking = setInterval(gc, 5);
        // It is collected, too, unless something has it.
        globalThis.registry = new FinalizationRegistry(() => { clearInterval(looking); resolve(); });
        registry.register(uws.App(), 'gone');
      });
      log('collected');
    })();`);
  assert.deepEqual([code, lines], [0, ['here', 'here', 'ended', 'collected']], stderr);
});
