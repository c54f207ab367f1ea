// WebSocket, WebSocketBehavior and the order of events.
'use strict';

const assert = require('node:assert/strict');
const { uws, isOriginal, both, ours, listen, serve, Queue, Client, Raw, frame, text } = require('./support.js');

/** A server that logs its events in `log`, and calls `act` with each message. */
async function logged(t, act = {}, options = {}) {
  const log = new Queue();
  const behavior = {
    idleTimeout: 0,
    ...options,
    open: (ws) => { log.push('open'); act.open?.(ws); },
    message: (ws, message, isBinary) => { log.push(`message ${text(message)} ${isBinary}`); act.message?.(ws, text(message)); },
    drain: (ws) => { log.push('drain'); act.drain?.(ws); },
    dropped: (ws, message, isBinary) => log.push(`dropped ${text(message)} ${isBinary}`),
    ping: (ws, message) => log.push(`ping ${text(message)}`),
    pong: (ws, message) => log.push(`pong ${text(message)}`),
    subscription: (ws, topic, now, before) => log.push(`subscription ${text(topic)} ${before} to ${now}`),
    close: (ws, code, message) => { log.push(`close ${code} ${text(message)}`.trim()); act.close?.(ws); },
  };
  const port = await serve(t, (app) => { act.app = app; app.ws('/*', behavior); });
  return { log, port };
}

async function inOrder(log, ...expected) {
  for (const event of expected) assert.equal(await log.next(), event);
}

both('open, message, close, in this order', async (t) => {
  const { log, port } = await logged(t, { message: (ws, message) => ws.send(`${message}!`) });
  const client = await Client.open(t, port);
  client.send('text');
  client.send(Buffer.from('bytes'));
  assert.equal(await client.next(), 'text!');
  await client.next();
  client.ws.close(4001, 'enough');
  await inOrder(log, 'open', 'message text false', 'message bytes true', 'close 4001 enough');
  assert.equal((await client.closed).code, 4001);
});

both('each message is an ArrayBuffer of its length', async (t) => {
  const sizes = new Queue();
  const port = await serve(t, (app) => app.ws('/*', {
    maxPayloadLength: 100_000,
    message: (ws, message) => { assert.ok(message instanceof ArrayBuffer); sizes.push(message.byteLength); },
  }));
  const client = await Client.open(t, port);
  for (const size of [0, 1, 125, 126, 65_535, 65_536, 100_000]) {
    client.send(Buffer.alloc(size));
    assert.equal(await sizes.next(), size);
  }
});

both('send takes text, ArrayBuffer and views, as text or binary', async (t) => {
  const sources = [
    ['text', 'häß🙂'], ['ArrayBuffer', new TextEncoder().encode('ab').buffer], ['Buffer', Buffer.from('cd')],
    ['part of a buffer', new Uint8Array(new TextEncoder().encode('xefx').buffer, 1, 2)],
    ['Uint16Array', new Uint16Array([0x6867])],
  ];
  const { port } = await logged(t, {
    open: (ws) => {
      for (const [name, source] of sources) {
        assert.equal(ws.send(source), 1, name);
        assert.equal(ws.send(source, true), 1, name);
      }
    },
  });
  const client = new Client(`ws://127.0.0.1:${port}/`);
  t.after(() => client.ws.terminate());
  for (const expected of ['häß🙂', 'ab', 'cd', 'ef', 'gh']) {
    assert.equal(await client.next(), expected);
    assert.deepEqual(await client.next(), Buffer.from(expected));
  }
});

both('a fragmented message of the client is one message', async (t) => {
  const { log, port } = await logged(t);
  const raw = new Raw(t, port);
  await raw.upgrade();
  raw.write(frame(1, 'a', { fin: false }), frame(9, 'between'), frame(0, 'b', { fin: false }), frame(0, 'c'));
  await inOrder(log, 'open', 'ping between', 'message abc false');
});

both('fragments of the server are one message', async (t) => {
  const { port } = await logged(t, {
    open: (ws) => {
      assert.equal(ws.sendFirstFragment('a'), 1);
      assert.equal(ws.sendFragment('b'), 1);
      assert.equal(ws.sendLastFragment('c'), 1);
    },
  });
  const client = new Client(`ws://127.0.0.1:${port}/`);
  t.after(() => client.ws.terminate());
  assert.equal(await client.next(), 'abc');
});

both('pings are answered, and both sides see them', async (t) => {
  const { log, port } = await logged(t, {
    message: (ws) => { assert.equal(ws.ping(), 1); assert.equal(ws.ping('from server'), 1); },
  });
  const client = await Client.open(t, port);
  client.ws.ping('from client');
  assert.equal(await client.pongs.next(), 'from client');
  client.send('go');
  assert.equal(await client.pings.next(), '');
  assert.equal(await client.pings.next(), 'from server');
  await inOrder(log, 'open', 'ping from client', 'message go false', 'pong ', 'pong from server');
});

both('cork calls its function at once and returns the socket', async (t) => {
  const { port } = await logged(t, {
    message: (ws) => {
      let called = false;
      assert.equal(ws.cork(() => { called = true; ws.send('1'); ws.send('2'); }), ws);
      assert.equal(called, true);
    },
  });
  const client = await Client.open(t, port);
  client.send('go');
  assert.deepEqual([await client.next(), await client.next()], ['1', '2']);
});

both('user data has what upgrade gave, as has the socket', async (t) => {
  const seen = new Queue();
  const port = await serve(t, (app) => app.ws('/:room', {
    upgrade: (res, req, context) => {
      assert.equal(req.getParameter('room'), 'blue');
      res.upgrade({ room: 5 }, req.getHeader('sec-websocket-key'), req.getHeader('sec-websocket-protocol'),
        req.getHeader('sec-websocket-extensions'), context);
    },
    open: (ws) => seen.push([ws.getUserData().room, ws.room]),
    message: (ws) => { ws.getUserData().room += 1; seen.push([ws.getUserData().room]); },
    close: (ws) => seen.push(['closed', ws.getUserData().room]),
  }));
  const client = await Client.open(t, port, '/blue');
  assert.deepEqual(await seen.next(), [5, 5]);
  client.send('x');
  assert.deepEqual(await seen.next(), [6]);
  client.ws.close();
  assert.deepEqual(await seen.next(), ['closed', 6]);
});

both('open is called inside of res.upgrade', async (t) => {
  const order = [];
  const port = await serve(t, (app) => app.ws('/*', {
    upgrade: (res, req, context) => {
      order.push('upgrade');
      res.upgrade({}, req.getHeader('sec-websocket-key'), '', '', context);
      order.push('upgraded');
    },
    open: () => order.push('open'),
  }));
  await Client.open(t, port);
  assert.deepEqual(order, ['upgrade', 'open', 'upgraded']);
});

both('open is called inside of a later res.upgrade, and what it sends follows the answer', async (t) => {
  const order = [];
  const port = await serve(t, (app) => app.ws('/*', {
    upgrade: (res, req, context) => {
      const key = req.getHeader('sec-websocket-key');
      res.onAborted(() => {});
      setImmediate(() => res.cork(() => {
        res.writeStatus('101 Switching Protocols').writeHeader('X-Later', 'yes');
        res.upgrade({ name: 'later' }, key, '', '', context);
        order.push('upgraded');
      }));
    },
    open: (ws) => { order.push('open'); ws.subscribe('a'); assert.equal(ws.send(ws.name), 1); },
    message: (ws, message) => { order.push(text(message)); ws.end(4000, 'enough'); },
  }));
  const raw = new Raw(t, port);
  const head = raw.upgrade();
  // uWebSockets.js refuses what comes before its answer.
  if (!isOriginal) raw.write(frame(1, 'early'));
  assert.match(await head, /\r\nX-Later: yes\r\n/);
  assert.equal((await raw.frame()).payload.toString(), 'later');
  if (isOriginal) raw.write(frame(1, 'early'));
  assert.equal((await raw.frame()).opcode, 8);
  assert.deepEqual(order, ['open', 'upgraded', 'early']);
});

both('a socket that closes in its open handler, inside of res.upgrade', async (t) => {
  for (const close of [(ws) => ws.close(), (ws) => ws.end(4001, 'no')]) {
    const order = [];
    const port = await serve(t, (app) => app.ws('/*', {
      upgrade: (res, req, context) => {
        res.upgrade({}, req.getHeader('sec-websocket-key'), '', '', context);
        order.push('upgraded');
      },
      open: (ws) => { order.push('open'); close(ws); },
      close: (ws, code) => order.push(`close ${code}`),
    }));
    const { code } = await new Client(`ws://127.0.0.1:${port}/`).closed;
    assert.deepEqual(order, ['open', `close ${code}`, 'upgraded']);
  }
});

both('a request is valid while the promises of its handler run', async (t) => {
  const later = new Queue();
  const port = await serve(t, (app) => app.ws('/:name', {
    upgrade: async (res, req, context) => {
      res.onAborted(() => {});
      await undefined;
      await Promise.resolve();
      later.push(req);
      res.upgrade({ name: req.getParameter(0) }, req.getHeader('sec-websocket-key'), '', '', context);
    },
    open: (ws) => ws.send(ws.name),
  }));
  const client = new Client(`ws://127.0.0.1:${port}/first`);
  t.after(() => client.ws.terminate());
  assert.equal(await client.next(), 'first');
  const request = await later.next();
  assert.throws(() => request.getHeader('host'), Error);
});

both('an upgrade may come later', async (t) => {
  const port = await serve(t, (app) => app.ws('/*', {
    upgrade: (res, req, context) => {
      const values = ['key', 'protocol', 'extensions'].map((name) => req.getHeader(`sec-websocket-${name}`));
      let aborted = false;
      res.onAborted(() => { aborted = true; });
      setImmediate(() => { if (!aborted) res.cork(() => res.upgrade({ later: true }, ...values, context)); });
    },
    message: (ws) => ws.send(String(ws.getUserData().later)),
  }));
  const client = await Client.open(t, port);
  client.send('x');
  assert.equal(await client.next(), 'true');
});

both('a later upgrade of a client that has gone is not made', async (t) => {
  const [waiting, aborted] = [new Queue(), new Queue()];
  const port = await serve(t, (app) => app.ws('/*', {
    upgrade: (res) => { res.onAborted(() => aborted.push('aborted')); waiting.push(); },
    open: () => assert.fail('open'),
  }));
  const client = new Client(`ws://127.0.0.1:${port}/`);
  await waiting.next();
  client.ws.terminate();
  assert.equal(await aborted.next(), 'aborted');
});

/** What resets a client whose upgrade waits, and upgrades it then. */
const LOST = {
  'at once': async (client, accept) => {
    client.socket.resetAndDestroy();
    accept();
  },
  'in the same turn': async (client, accept, other) => {
    client.socket.resetAndDestroy();
    other.send('accept');
    await other.next();
  },
};

for (const [when, lose] of Object.entries(LOST)) {
  ours(`a later upgrade of a client that was reset ${when} is aborted, or is opened and closed`, async (t) => {
    const [waiting, ends] = [new Queue(), new Queue()];
    let accept;
    const port = await serve(t, (app) => app.ws('/', {
      upgrade: (res, req, context) => {
        const values = ['key', 'protocol', 'extensions'].map((name) => req.getHeader(`sec-websocket-${name}`));
        let opened = false;
        res.onAborted(() => ends.push(opened ? 'aborted after open' : 'aborted'));
        accept = () => res.upgrade({ open: () => { opened = true; } }, ...values, context);
        waiting.push();
      },
      open: (ws) => { ws.open(); ws.isOpen = true; },
      close: (ws) => ends.push(ws.isOpen ? 'closed' : 'closed before open'),
    }).ws('/other', { message: (ws) => { accept(); ws.send('done'); } }));
    const other = await Client.open(t, port, '/other');
    for (let at = 0; at < 20; at += 1) {
      const client = new Raw(t, port);
      client.upgrade().catch(() => {});
      await waiting.next();
      // Out of the turn of its handler.
      await new Promise(setImmediate);
      await lose(client, accept, other);
      assert.match(await ends.next(), /^(aborted|closed)$/);
    }
    assert.equal(ends.size, 0);
  });
}

both('upgrade can refuse', async (t) => {
  const port = await serve(t, (app) => app.ws('/*', { upgrade: (res) => res.writeStatus('401 Unauthorized').end('no') }));
  await assert.rejects(Client.open(t, port), /401/);
});

both('upgrade can add headers', async (t) => {
  const port = await serve(t, (app) => app.ws('/*', {
    upgrade: (res, req, context) => {
      res.writeStatus('101 Switching Protocols').writeHeader('Set-Cookie', 'a=b');
      res.upgrade({}, req.getHeader('sec-websocket-key'), '', '', context);
    },
  }));
  const head = await new Raw(t, port).upgrade();
  assert.match(head, /^HTTP\/1.1 101 Switching Protocols\r\n/);
  assert.match(head, /\r\nSet-Cookie: a=b\r\n/);
  assert.match(head, /\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK\+xOo=\r\n/);
});

both('the first protocol is chosen by default, and upgrade may choose another', async (t) => {
  const port = await serve(t, (app) => app.ws('/default', {}).ws('/chosen', {
    upgrade: (res, req, context) => res.upgrade({}, req.getHeader('sec-websocket-key'), 'second', '', context),
  }));
  assert.equal((await Client.open(t, port, '/default', ['first', 'second'])).ws.protocol, 'first');
  assert.equal((await Client.open(t, port, '/chosen', ['first', 'second'])).ws.protocol, 'second');
});

both('a request to a route of WebSockets without a key goes to the next route', async (t) => {
  const port = await serve(t, (app) => app.ws('/*', {}).any('/*', (res) => res.end('plain')));
  assert.equal(await (await fetch(`http://127.0.0.1:${port}/`)).text(), 'plain');
});

both('end calls close at once, then sends the frame', async (t) => {
  const order = [];
  const { port } = await logged(t, {
    message: (ws) => { order.push('end'); ws.end(4002, 'why'); order.push('ended'); },
    close: (ws) => { order.push('close'); assert.throws(() => ws.send('late'), Error); },
  });
  const client = await Client.open(t, port);
  client.send('x');
  assert.deepEqual(await client.closed, { code: 4002, reason: 'why' });
  assert.deepEqual(order, ['end', 'close', 'ended']);
});

both('end without a code', async (t) => {
  const { log, port } = await logged(t, { message: (ws) => ws.end() });
  const client = await Client.open(t, port);
  client.send('x');
  assert.equal((await client.closed).code, 1005);
  await inOrder(log, 'open', 'message x false');
  // uWebSockets.js gives 0, which is no code.
  assert.match(await log.next(), /^close (0|1005)$/);
});

both('messages before end arrive', async (t) => {
  const { port } = await logged(t, { message: (ws) => { ws.send('last words'); ws.end(1000); } });
  const client = await Client.open(t, port);
  client.send('x');
  assert.equal(await client.next(), 'last words');
  assert.equal((await client.closed).code, 1000);
});

both('close ends the connection without a frame', async (t) => {
  const { log, port } = await logged(t, { message: (ws) => ws.close() });
  const client = await Client.open(t, port);
  client.send('x');
  assert.equal((await client.closed).code, 1006);
  await inOrder(log, 'open', 'message x false', 'close 1006');
});

both('a closed socket throws for everything but its user data', async (t) => {
  const checked = new Queue();
  const { port } = await logged(t, {
    message: (ws) => {
      ws.close();
      const uses = [
        () => ws.send('x'), () => ws.end(1000), () => ws.close(), () => ws.ping(), () => ws.getBufferedAmount(),
        () => ws.subscribe('a'), () => ws.unsubscribe('a'), () => ws.isSubscribed('a'), () => ws.getTopics(),
        () => ws.publish('a', 'x'), () => ws.cork(() => {}), () => ws.getRemoteAddress(), () => ws.getRemoteAddressAsText(),
      ];
      for (const use of uses) assert.throws(use, Error, use.toString());
      checked.push(uses.length);
    },
  });
  (await Client.open(t, port)).send('x');
  assert.equal(await checked.next(), 13);
});

both('a socket that closes in its open handler', async (t) => {
  const { log, port } = await logged(t, { open: (ws) => ws.close() });
  const client = new Client(`ws://127.0.0.1:${port}/`);
  await client.closed;
  await inOrder(log, 'open', 'close 1006');
});

both('the client goes: the code is 1006', async (t) => {
  const { log, port } = await logged(t);
  const raw = new Raw(t, port);
  await raw.upgrade();
  raw.socket.destroy();
  await log.next();
  assert.match(await log.next(), /^close 1006/);
});

both('a close frame without a code is 1005, and is answered', async (t) => {
  const { log, port } = await logged(t);
  const raw = new Raw(t, port);
  await raw.upgrade();
  raw.write(frame(8));
  assert.equal((await raw.frame()).opcode, 8);
  await raw.closed;
  await inOrder(log, 'open', 'close 1005');
});

both('close is called once, also of a socket that ends what the client has reset', async (t) => {
  let open = 0;
  const closed = new Queue();
  const { port } = await logged(t, {
    open: () => { open += 1; },
    message: (ws) => { ws.send('a'); ws.send('b'); ws.end(4000); },
    close: () => closed.push('close'),
  });
  const rounds = 200;
  for (let at = 0; at < rounds; at += 1) {
    const raw = new Raw(t, port);
    await raw.upgrade();
    raw.write(frame(1, 'x'));
    raw.socket.resetAndDestroy();
    await raw.closed;
  }
  for (let at = 0; at < open; at += 1) await closed.next();
  const last = await Client.open(t, port);
  last.send('x');
  assert.equal((await last.closed).code, 4000);
  await closed.next();
  assert.equal(closed.size, 0);
  assert.equal(open, rounds + 1);
});

ours('close is called once, also of a socket that a subscription handler ends', async (t) => {
  const closed = new Queue();
  const port = await serve(t, (app) => app.ws('/*', {
    open: (ws) => { ws.subscribe('a'); ws.subscribe('b'); },
    message: (ws) => ws.end(4000),
    subscription: (ws, topic, count, before) => { if (count < before) ws.end(4001); },
    close: (ws, code) => closed.push(code),
  }));
  const [first, second] = [await Client.open(t, port), await Client.open(t, port)];
  first.send('x');
  assert.equal((await first.closed).code, 4000);
  second.ws.close(4002);
  await second.closed;
  assert.deepEqual([await closed.next(), await closed.next(), closed.size], [4000, 4002, 0]);
});

both('subscriptions end before close is called', async (t) => {
  const { log, port } = await logged(t, { open: (ws) => ws.subscribe('news') });
  const client = await Client.open(t, port);
  client.ws.close(1000);
  await inOrder(log, 'open', 'subscription news 0 to 1', 'subscription news 1 to 0', 'close 1000');
});

both('close of an app closes its sockets before it returns', async (t) => {
  const log = [];
  const app = uws.App().ws('/*', { close: (ws, code) => log.push(`close ${code}`) });
  const client = await Client.open(t, await listen(app));
  app.close();
  assert.deepEqual(log, ['close 1006']);
  assert.equal((await client.closed).code, 1006);
});

both('promises of a handler run before the next handler', async (t) => {
  const order = new Queue();
  const port = await serve(t, (app) => app.ws('/*', {
    message: (ws, message) => {
      const name = text(message);
      order.push(name);
      Promise.resolve().then(() => order.push(`${name} promise`));
      process.nextTick(() => order.push(`${name} tick`));
    },
  }));
  const raw = new Raw(t, port);
  await raw.upgrade();
  raw.write(Buffer.concat([frame(1, 'a'), frame(1, 'b')]));
  const seen = [];
  while (seen.length < 6) seen.push(await order.next());
  assert.deepEqual(seen, ['a', 'a tick', 'a promise', 'b', 'b tick', 'b promise']);
});

both('addresses in bytes and text', async (t) => {
  const seen = new Queue();
  const { port } = await logged(t, { open: (ws) => seen.push([ws.getRemoteAddress(), text(ws.getRemoteAddressAsText())]) });
  await Client.open(t, port);
  const [bytes, address] = await seen.next();
  assert.deepEqual([...new Uint8Array(bytes)].slice(-4), [127, 0, 0, 1]);
  assert.match(address, /^127\.0\.0\.1$|:7f00:0001$/);
});

ours('an unmasked frame closes the connection with 1002', async (t) => {
  const { log, port } = await logged(t);
  const raw = new Raw(t, port);
  await raw.upgrade();
  raw.write(Buffer.from([0x81, 1, 0x41]));
  const { opcode, payload } = await raw.frame();
  assert.deepEqual([opcode, payload.readUInt16BE()], [8, 1002]);
  await log.next();
  assert.match(await log.next(), /^close 1006/);
});

ours('a handshake without a version, or of another one, gets 426 with ours', async (t) => {
  const { port } = await logged(t);
  for (const version of [null, '12']) {
    const head = await new Raw(t, port).upgrade('/', { 'Sec-WebSocket-Version': version });
    assert.match(head, /^HTTP\/1.1 (426|400) /);
  }
});

/** Ten clients whose messages the server receives together, as one thread has both. `act` is called with the sockets. */
async function together(t, act) {
  const sockets = [];
  const port = await serve(t, (app) => app.ws('/*', {
    open: (ws) => sockets.push(ws),
    message: (ws, message) => {
      ws.send(`echo ${text(message)}`);
      act(sockets.indexOf(ws), sockets);
    },
  }));
  const clients = [];
  for (let at = 0; at < 10; at += 1) clients.push(await Client.open(t, port));
  clients.forEach((client, at) => client.send(`${at}`));
  return clients;
}

both('sockets that are received together get what others send them behind their replies', async (t) => {
  const clients = await together(t, (at, sockets) => {
    if (at > 0) sockets[at - 1].send(`from ${at}`);
    if (at === 9) sockets.forEach((ws) => ws.ping('last'));
  });
  for (const [at, client] of clients.entries()) {
    assert.equal(await client.pings.next(), 'last');
    assert.equal(await client.next(), `echo ${at}`);
    if (at < 9) assert.equal(await client.next(), `from ${at + 1}`);
  }
});

both('sockets that another one ends have sent their replies', async (t) => {
  const clients = await together(t, (at, sockets) => {
    if (at === 0) return;
    if (at % 2 === 1) sockets[at - 1].close();
    else sockets[at - 1].end(4000, 'by another');
  });
  for (const [at, client] of clients.entries()) {
    assert.equal(await client.next(), `echo ${at}`);
    if (at < 9) assert.equal((await client.closed).code, at % 2 === 0 ? 1006 : 4000);
  }
});

both('a topic is behind the replies of sockets that are received together', async (t) => {
  const sockets = [];
  const app = uws.App();
  const port = await serve(t, () => app.ws('/*', {
    open: (ws) => { sockets.push(ws); ws.subscribe('all'); },
    message: (ws, message) => {
      ws.send(`echo ${text(message)}`);
      if (ws === sockets[4]) ws.publish('all', 'published');
    },
  }), app);
  const clients = [];
  for (let at = 0; at < 5; at += 1) clients.push(await Client.open(t, port));
  clients.forEach((client, at) => client.send(`${at}`));
  for (const [at, client] of clients.entries()) {
    assert.equal(await client.next(), `echo ${at}`);
    if (at < 4) assert.equal(await client.next(), 'published');
  }
});
