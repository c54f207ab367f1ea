// `Server`, this package's own API. It is written upon that of uWebSockets.js, so that its cases run on both.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const fs = require('node:fs');
const https = require('node:https');
const { uws, both, ours, isOriginal, Queue, Client, Raw, certificate, program } = require('./support.js');

const { Server } = isOriginal ? require('../lib')(uws) : uws;

async function startedWith(own, t, options, build) {
  const server = new Server({ ...options, ...own });
  build(server);
  const { port } = await server.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => server.close());
  return { server, port, url: `http://127.0.0.1:${port}` };
}

const WAYS = [['', both, {}], [', with workers', ours, { workers: 2 }]];

/** A case for a server that accepts on the loop of JavaScript, and for one with workers. */
function cases(name, body, first = both) {
  for (const [way, declare, own] of WAYS) {
    (way === '' ? first : declare)(`${name}${way}`, (t) => body(t, (...rest) => startedWith(own, ...rest)));
  }
}

cases('messages by async iteration, text as strings and bytes as Uint8Array', async (t, started) => {
  const { port } = await started(t, {}, (server) => server.websocket('/*', async (socket) => {
    for await (const message of socket) {
      await socket.send(typeof message === 'string' ? `${message}!` : message);
    }
  }));
  const client = await Client.open(t, port);
  client.send('häß');
  client.send(Buffer.from([1, 2, 3]));
  assert.equal(await client.next(), 'häß!');
  assert.deepEqual(await client.next(), Buffer.from([1, 2, 3]));
});

cases('messages that come before they are read are kept, in order', async (t, started) => {
  const go = new Queue();
  const all = new Queue();
  const { port } = await started(t, {}, (server) => server.websocket('/*', async (socket) => {
    await go.next();
    const messages = [];
    for await (const message of socket) { messages.push(message); if (message === 'last') break; }
    all.push(messages);
  }));
  const client = await Client.open(t, port);
  for (const message of ['1', '2', 'last']) client.send(message);
  client.ws.ping('end');
  await client.pongs.next();
  go.push();
  assert.deepEqual(await all.next(), ['1', '2', 'last']);
});

cases('the iteration ends when the socket closes, as do closed and signal', async (t, started) => {
  const ended = new Queue();
  const { port, server } = await started(t, {}, (given) => given.websocket('/*', async (socket) => {
    const aborted = new Promise((resolve) => socket.signal.addEventListener('abort', resolve));
    for await (const message of socket) assert.fail(message);
    await aborted;
    ended.push({ ...await socket.closed, isOpen: socket.isOpen, sent: await socket.send('late'), aborted: socket.signal.aborted });
  }));
  const client = await Client.open(t, port);
  client.ws.close(4000, 'done');
  assert.deepEqual(await ended.next(), { code: 4000, reason: 'done', isOpen: false, sent: false, aborted: true });
  assert.equal(server.counters.open, 0);
});

cases('events instead of iteration', async (t, started) => {
  const seen = new Queue();
  const { port } = await started(t, {}, (server) => {
    server.addEventListener('connection', ({ socket }) => seen.push(['connection', socket.request.path]));
    server.websocket('/*', (socket) => {
      for (const type of ['message', 'ping', 'close']) {
        socket.addEventListener(type, (event) => seen.push([type, event.data?.toString() ?? event.code]));
      }
    });
  });
  const client = await Client.open(t, port, '/events');
  client.send('text');
  client.ws.ping('p');
  client.ws.close(1000);
  assert.deepEqual(await seen.next(), ['connection', '/events']);
  assert.deepEqual(await seen.next(), ['message', 'text']);
  assert.deepEqual(await seen.next(), ['ping', '112']);
  assert.deepEqual(await seen.next(), ['close', 1000]);
});

cases('messages that no listener is left for are kept for the next reader', async (t, started) => {
  const seen = new Queue();
  const { port } = await started(t, {}, (server) => server.websocket('/*', async (socket) => {
    const listener = ({ data }) => seen.push(`listener ${data}`);
    socket.addEventListener('message', listener, { once: true });
    socket.addEventListener('message', ({ data }) => seen.push(`once ${data}`), { once: true });
    socket.addEventListener('ping', () => {
      socket.addEventListener('message', listener);
      socket.removeEventListener('message', listener);
    });
    socket.addEventListener('pong', async () => {
      for await (const message of socket) seen.push(`reader ${message}`);
    });
  }));
  const client = await Client.open(t, port);
  client.send('1');
  client.send('2');
  client.ws.ping();
  client.send('3');
  client.ws.pong();
  for (const expected of ['listener 1', 'once 1', 'listener 2', 'reader 3']) assert.equal(await seen.next(), expected);
});

both('an error that no listener is left for is an uncaught exception', async (t) => {
  const { lines } = await program(t, `
    const { Server } = ${isOriginal ? `require(${JSON.stringify(require.resolve('../lib'))})(uws)` : 'uws'};
    const { WebSocket } = require('ws');
    process.on('uncaughtException', (error) => { log('uncaught', error.message); process.exit(); });
    const server = new Server({ });
    server.addEventListener('error', ({ error }) => log('event', error.message), { once: true });
    server.websocket('/*', () => { throw new Error('broken'); });
    server.listen({ port: 0, host: '127.0.0.1' }).then(({ port }) => {
      const next = () => new WebSocket('ws://127.0.0.1:' + port);
      next().on('close', next);
    });
  `);
  assert.deepEqual(lines, ['event broken', 'uncaught broken']);
});

// uWebSockets.js does not drain what is sent when its drain event has ended, in a promise.
cases('await of send waits for a slow reader', async (t, started) => {
  const results = new Queue();
  const { port } = await started(t, { maxBackpressure: 64 * 1024 * 1024 }, (server) => server.websocket('/*', async (socket) => {
    const chunk = new Uint8Array(1024 * 1024);
    const first = await socket.send(chunk);
    let waits = 0;
    for (let sent = 1; sent < 32; sent += 1) {
      const sending = socket.send(chunk);
      if (socket.bufferedAmount > 64 * 1024) {
        waits += 1;
        if (waits === 1) results.push('waits');
      }
      await sending;
      assert.ok(socket.bufferedAmount <= 64 * 1024);
    }
    results.push([first, waits > 0]);
  }));
  const client = new Client(`ws://127.0.0.1:${port}/`);
  t.after(() => client.ws.terminate());
  await once(client.ws, 'open');
  client.ws._socket.pause();
  assert.equal(await results.next(), 'waits');
  client.ws._socket.resume();
  assert.deepEqual(await results.next(), [true, true]);
}, ours);

cases('a message above maxBackpressure is dropped, counted, and send says so', async (t, started) => {
  const results = new Queue();
  const { port, server } = await started(t, { maxBackpressure: 1000, highWaterMark: 1e9 }, (given) => given.websocket('/*', async (socket) => {
    const chunk = new Uint8Array(1024 * 1024);
    let sent = 0;
    while (await socket.send(chunk)) { sent += 1; assert.ok(sent < 1000); }
    results.push(sent);
  }));
  const client = new Client(`ws://127.0.0.1:${port}/`);
  t.after(() => client.ws.terminate());
  client.ws.once('open', () => client.ws._socket.pause());
  assert.ok(await results.next() > 0);
  assert.equal(server.counters.dropped, 1);
});

cases('a program that does not take messages cannot be flooded', async (t, started) => {
  const closed = new Queue();
  const { port, server } = await started(t, { maxQueue: 1000 }, (given) => given.websocket('/*', (socket) => {
    socket.closed.then((end) => closed.push(end));
  }));
  const client = await Client.open(t, port);
  for (let sent = 0; sent < 20; sent += 1) client.send('x'.repeat(100));
  // Paused where the addon can pause, otherwise closed.
  if (isOriginal) {
    assert.equal((await closed.next()).code, 1013);
    assert.equal(server.counters.overflowed, 1);
  } else {
    while (!t.signal.aborted && server.counters.paused === 0) await new Promise(setImmediate);
    assert.equal(server.counters.overflowed, 0);
  }
});

cases('topics', async (t, started) => {
  const { port, server } = await started(t, {}, (given) => given.websocket('/rooms/:room', async (socket) => {
    socket.subscribe(socket.request.params.room);
    await socket.send(socket.topics.join());
    for await (const message of socket) socket.publish(socket.request.params.room, message);
  }));
  const [first, second] = [await Client.open(t, port, '/rooms/blue%20room'), await Client.open(t, port, '/rooms/blue%20room')];
  assert.equal(await first.next(), 'blue room');
  assert.equal(await second.next(), 'blue room');
  assert.equal(server.subscribers('blue room'), 2);
  first.send('to the other');
  assert.equal(await second.next(), 'to the other');
  assert.equal(server.publish('blue room', new Uint8Array([7])), true);
  assert.deepEqual(await first.next(), Buffer.from([7]));
  assert.equal(server.publish('nobody', ''), false);
});

cases('authorize accepts with data and protocol, or refuses', async (t, started) => {
  const { port, server } = await started(t, {}, (given) => given.websocket('/*', (socket) => { socket.send(socket.data.user); }, {
    authorize: async (request) => {
      if (request.query.get('user') === 'nobody') return false;
      if (request.query.get('user') === null) return new Response('who are you?', { status: 401, headers: { 'x-why': 'no user' } });
      return { data: { user: request.query.get('user') }, protocol: request.protocols[1] };
    },
  }));
  const client = new Client(`ws://127.0.0.1:${port}/?user=ann`, ['one', 'two']);
  t.after(() => client.ws.terminate());
  assert.equal(await client.next(), 'ann');
  assert.equal(client.ws.protocol, 'two');
  await assert.rejects(Client.open(t, port, '/?user=nobody'), /403/);
  await assert.rejects(Client.open(t, port, '/'), /401/);
  assert.deepEqual([server.counters.accepted, server.counters.refused], [1, 2]);
});

cases('a client that leaves while it is authorized does no harm', async (t, started) => {
  const waiting = new Queue();
  const errors = [];
  const { port, server } = await started(t, {}, (given) => {
    given.addEventListener('error', ({ error }) => errors.push(error));
    given.websocket('/*', () => {}, { authorize: () => new Promise((resolve) => waiting.push(resolve)) });
  });
  for (let at = 0; at < 20; at += 1) {
    const raw = new Raw(t, port);
    raw.upgrade().catch(() => {});
    const resolve = await waiting.next();
    // Out of the turn of its handshake.
    await new Promise(setImmediate);
    raw.socket.resetAndDestroy();
    resolve();
    await raw.closed;
  }
  const opening = Client.open(t, port);
  (await waiting.next())();
  await opening;
  assert.deepEqual([errors, server.counters.refused, server.counters.open], [[], 0, 1]);
}, ours);

cases('compressed messages', async (t, started) => {
  const { port } = await started(t, { compress: true }, (server) => server.websocket('/*', async (socket) => {
    for await (const message of socket) await socket.send(message);
  }));
  const client = await Client.open(t, port, '/', [], { perMessageDeflate: { threshold: 0 } });
  client.send('again '.repeat(1000));
  assert.equal(await client.next(), 'again '.repeat(1000));
});

cases('an error in a handler closes its socket with 1011 and is an event', async (t, started) => {
  const errors = new Queue();
  const { port } = await started(t, {}, (server) => {
    server.addEventListener('error', ({ error }) => errors.push(error.message));
    server.websocket('/*', async (socket) => { for await (const message of socket) throw new Error(`planned ${message}`); });
  });
  const client = await Client.open(t, port);
  client.send('x');
  assert.equal((await client.closed).code, 1011);
  assert.equal(await errors.next(), 'planned x');
});

cases('plain requests by fetch', async (t, started) => {
  const { url } = await started(t, {
    maxBody: 100,
    fetch: async (request) => {
      const { pathname, searchParams } = new URL(request.url);
      if (pathname === '/json') return Response.json({ query: searchParams.get('a'), header: request.headers.get('x-a') });
      if (pathname === '/body') return new Response(await request.text(), { status: 201, headers: { 'x-b': 'c' } });
      if (pathname === '/throw') throw new Error('planned');
      return new Response(null, { status: 204 });
    },
  }, (server) => server.addEventListener('error', () => {}));
  assert.deepEqual(await (await fetch(`${url}/json?a=1`, { headers: { 'x-a': '2' } })).json(), { query: '1', header: '2' });
  const posted = await fetch(`${url}/body`, { method: 'POST', body: 'hello' });
  assert.deepEqual([posted.status, posted.headers.get('x-b'), await posted.text()], [201, 'c', 'hello']);
  assert.equal((await fetch(`${url}/body`, { method: 'POST', body: 'x'.repeat(101) })).status, 413);
  assert.equal((await fetch(`${url}/throw`)).status, 500);
  assert.equal((await fetch(`${url}/other`)).status, 204);
});

cases('a response is streamed as fast as it is read, and cancelled with the client', async (t, started) => {
  const cancelled = new Queue();
  const { url } = await started(t, {
    fetch: (request) => {
      let sent = 0;
      const endless = request.url.endsWith('/endless');
      return new Response(new ReadableStream({
        pull(controller) {
          sent += 1;
          controller.enqueue(new Uint8Array(64 * 1024));
          if (!endless && sent === 64) controller.close();
        },
        cancel: () => cancelled.push('cancelled'),
      }));
    },
  }, () => {});
  assert.equal((await (await fetch(`${url}/`)).arrayBuffer()).byteLength, 4 * 1024 * 1024);
  const abort = new AbortController();
  const response = await fetch(`${url}/endless`, { signal: abort.signal });
  await response.body.getReader().read();
  abort.abort();
  assert.equal(await cancelled.next(), 'cancelled');
});

cases('a stream that fails while a slow client is awaited is an event', async (t, started) => {
  const errors = new Queue();
  const unhandled = [];
  const note = (error) => unhandled.push(error.message);
  process.on('unhandledRejection', note);
  t.after(() => process.off('unhandledRejection', note));
  let pulls = 0;
  const { port } = await started(t, { fetch: () => new Response(new ReadableStream({
    // The client takes less than is written, so that the failure is not awaited yet.
    pull: (controller) => {
      pulls += 1;
      if (pulls > 2) throw new Error('broken');
      controller.enqueue(new Uint8Array(16 * 1024 * 1024));
    },
  })) }, (server) => server.addEventListener('error', ({ error }) => errors.push(error.message)));
  const raw = new Raw(t, port);
  raw.socket.pause();
  raw.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  while (pulls < 3) await new Promise(setImmediate);
  // What nobody handles would be reported in these turns.
  for (let turn = 0; turn < 3; turn += 1) await new Promise(setImmediate);
  raw.socket.resume();
  assert.equal(await errors.next(), 'broken');
  assert.deepEqual(unhandled, []);
});

cases('the body of a response is cancelled if its client has left before', async (t, started) => {
  const [asked, left, cancelled] = [new Queue(), new Queue(), new Queue()];
  const { port } = await started(t, { fetch: async (request) => {
    request.signal.addEventListener('abort', () => left.push());
    asked.push();
    await left.next();
    return new Response(new ReadableStream({ cancel: () => cancelled.push('cancelled') }));
  } }, () => {});
  const raw = new Raw(t, port);
  raw.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  await asked.next();
  raw.socket.destroy();
  assert.equal(await cancelled.next(), 'cancelled');
});

cases('close ends sockets with 1001 and refuses new ones', async (t, started) => {
  const { port, server } = await started(t, {}, (given) => given.websocket('/*', () => {}));
  const client = await Client.open(t, port);
  await server.close();
  assert.equal((await client.closed).code, 1001);
  await assert.rejects(Client.open(t, port));
});

both('an aborted signal closes the server, and the process ends', async (t) => {
  const source = `
    const { Server } = uws.Server ? uws : require('./lib')(uws);
    const server = new Server().websocket('/*', async (socket) => { for await (const m of socket) log(m); log('left'); });
    const abort = new AbortController();
    server.listen(0, { signal: abort.signal }).then(({ port }) => {
      const { WebSocket } = require('ws');
      const c = new WebSocket('ws://127.0.0.1:' + port);
      c.on('open', () => abort.abort()).on('close', (code) => log(code));
    });`;
  const ended = await program(t, source);
  assert.deepEqual([ended.code, ended.lines.sort()], [0, ['1001', 'left']], ended.stderr);
});

both('wrong options are named', () => {
  assert.throws(() => new Server({ maxPayloads: 1 }), /maxPayloads/);
  assert.throws(() => new Server({ maxPayload: -1 }), /maxPayload/);
  assert.throws(() => new Server().websocket('/*'), TypeError);
});

both('an address of IPv4 is told as one where the listener is one of IPv6', async (t) => {
  const server = new Server({ fetch: (_, { remoteAddress }) => new Response(remoteAddress) });
  const { port } = await server.listen({ port: 0, host: '::' });
  t.after(() => server.close());
  assert.equal(await (await fetch(`http://127.0.0.1:${port}/`)).text(), '127.0.0.1');
});

cases('fetch and handshakes are told what a PROXY header says', async (t, started) => {
  const shown = (client) => `${client.remoteAddress} ${client.proxiedAddress} ${client.certificate}`;
  const told = new Queue();
  const { port } = await started(t, { fetch: (_, client) => new Response(shown(client)) }, (server) => server
    .websocket('/ws', async (socket) => told.push(shown(socket.request)), {
      authorize: async (request) => {
        await null;
        told.push(shown(request));
      },
    }));
  const header = Buffer.concat([Buffer.from('0d0a0d0a000d0a515549540a2111000c', 'hex'), Buffer.from([10, 1, 2, 3, 192, 0, 2, 9, 1, 2, 0, 80])]);
  for (const [before, expected] of [[header, '127.0.0.1 10.1.2.3 undefined'], [Buffer.alloc(0), '127.0.0.1  undefined']]) {
    const raw = new Raw(t, port);
    raw.write(before, 'GET / HTTP/1.1\r\nHost: a\r\n\r\n');
    await raw.head();
    await raw.until((bytes) => bytes.includes(expected));
    raw.bytes = Buffer.alloc(0);
    assert.match(await raw.upgrade('/ws'), /^HTTP\/1.1 101 /);
    assert.equal(await told.next(), expected);
    assert.equal(await told.next(), expected);
  }
});

cases('with authorities every client needs a certificate, and the program sees it', async (t, started) => {
  const authority = certificate('authority.test');
  const known = certificate('known.test', authority);
  const { key_file_name: key, cert_file_name: cert } = certificate('localhost');
  const { port } = await started(t, {
    tls: { key, cert, ca: authority.cert_file_name },
    fetch: (_, client) => new Response(client.certificate),
  }, (server) => server.websocket('/ws', (socket) => socket.send(socket.request.certificate)));
  const files = { key: fs.readFileSync(known.key_file_name), cert: fs.readFileSync(known.cert_file_name) };
  const ask = (own) => new Promise((resolve) => {
    const request = https.get({ port, host: '127.0.0.1', agent: false, rejectUnauthorized: false, ...own }, async (response) => {
      let text = '';
      for await (const piece of response) text += piece;
      resolve(text);
    });
    request.on('error', (error) => resolve(error.code));
  });
  assert.equal(await ask(files), files.cert.toString());
  assert.match(await ask({}), /^(ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED|ECONNRESET|EPIPE)$/);
  const client = new Client(`wss://127.0.0.1:${port}/ws`, [], { rejectUnauthorized: false, ...files });
  t.after(() => client.ws.terminate());
  assert.equal(await client.next(), files.cert.toString());
  for (const wrong of ['', null, false]) assert.throws(() => new Server({ tls: { key, cert, ca: wrong } }), Error);
}, ours);
