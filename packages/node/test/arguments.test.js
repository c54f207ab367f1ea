// What programs pass beside what the types say, and what they read: found with programs that depend on uWebSockets.js.
'use strict';

const assert = require('node:assert/strict');
const { uws, both, ours, serve, get, Client, Raw, text } = require('./support.js');

/** The port that an app gets with these arguments. */
function listenWith(t, ...args) {
  const app = uws.App().get('/*', (res) => res.end());
  t.after(() => app.close());
  let port;
  app.listen(...args, (listener) => { port = listener && uws.us_socket_local_port(listener); });
  return port;
}

both('ports and limits are numbers, or text as of environment variables', (t) => {
  assert.ok(listenWith(t, '0') > 0);
  assert.ok(listenWith(t, '127.0.0.1', '0') > 0);
  const limits = { idleTimeout: '60', maxPayloadLength: '1000', maxBackpressure: '1000', maxLifetime: '5', compression: '0' };
  uws.App().ws('/*', limits).close();
});

both('the length of endWithoutBody can be text, and any true value closes', async (t) => {
  const port = await serve(t, (app) => app
    .get('/length', (res) => { res.onAborted(() => {}); res.endWithoutBody('7'); })
    .get('/closes', (res) => res.end('x', 1)));
  const raw = new Raw(t, port);
  raw.write('GET /length HTTP/1.1\r\nHost: a\r\n\r\n');
  assert.match(await raw.head(), /\r\nContent-Length: 7\r\n/);
  const { head, raw: other } = await get(t, port, '/closes');
  assert.match(head, /connection: close/i);
  await other.closed;
});

both('the length of tryEnd can be text, or that of the chunk', async (t) => {
  const seen = [];
  const port = await serve(t, (app) => app
    .get('/text', (res) => seen.push(res.tryEnd('hello', '5')))
    .get('/none', (res) => seen.push(res.tryEnd('hello'))));
  for (const path of ['/text', '/none']) {
    const { head, raw } = await get(t, port, path);
    assert.match(head, /content-length: 5\r\n/i);
    await raw.until((bytes) => bytes.length === 5);
    assert.equal(raw.bytes.toString(), 'hello');
  }
  assert.deepEqual(seen, [[true, true], [true, true]]);
});

both('a value that is undefined is empty', async (t) => {
  let sent;
  const port = await serve(t, (app) => app
    .get('/', (res) => res.writeHeader('x-none', undefined).end(undefined))
    .ws('/ws', { open: (ws) => { sent = ws.send(undefined); } }));
  const { head } = await get(t, port, '/');
  assert.match(head, /\r\nx-none: *\r\n/);
  const client = await Client.open(t, port, '/ws');
  assert.deepEqual([await client.next(), sent], ['', 1]);
});

both('a key of the query without a sign of equality has no value', async (t) => {
  let seen;
  const port = await serve(t, (app) => app.get('/', (res, req) => {
    seen = ['a', 'b', 'c', 'd'].map((key) => req.getQuery(key));
    res.end();
  }));
  await get(t, port, '/?a&b=&c=1&c');
  assert.deepEqual(seen, [undefined, '', '1', undefined]);
});

both('a route replaces one of the same pattern, unless that has parameters', async (t) => {
  const seen = [];
  const pass = (name) => (res, req) => { seen.push(name); req.setYield(true); };
  const port = await serve(t, (app) => app
    .get('/a', pass('first')).get('/a', pass('second')).get('/:a', pass('parameter')).get('/:a', pass('again'))
    .any('/*', pass('any')).any('/*', (res) => res.end())
    .ws('/ws', { open: (ws) => ws.send('first') }).ws('/ws', { open: (ws) => ws.send('second') }));
  await get(t, port, '/a');
  assert.deepEqual(seen, ['second', 'parameter', 'again']);
  const client = await Client.open(t, port, '/ws');
  assert.equal(await client.next(), 'second');
});

both('the first character of a pattern stands for the slash', async (t) => {
  const port = await serve(t, (app) => app.get('xtest', (res) => res.end('found')).any('/*', (res) => res.end('other')));
  for (const [path, body] of [['/test', 'found'], ['/xtest', 'other']]) {
    const { raw } = await get(t, port, path);
    await raw.until((bytes) => bytes.length === 5);
    assert.equal(raw.bytes.toString(), body);
  }
});

both('an IPv4 client of an IPv6 listener has the address that the listener sees', async (t) => {
  const seen = [];
  const app = uws.App().get('/', (res) => {
    seen.push(text(res.getRemoteAddressAsText()), res.getRemoteAddress().byteLength);
    res.end();
  });
  t.after(() => app.close());
  let port;
  app.listen('::', 0, (listener) => { port = uws.us_socket_local_port(listener); });
  await get(t, port, '/');
  assert.deepEqual(seen, ['0000:0000:0000:0000:0000:ffff:7f00:0001', 16]);
});

both('a Connection header of the program is the only one', async (t) => {
  const port = await serve(t, (app) => app.get('/', (res) => res.writeHeader('Connection', 'keep-alive').end()));
  const raw = new Raw(t, port);
  raw.write('GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
  assert.deepEqual((await raw.head()).match(/connection: .*/gi), ['Connection: keep-alive']);
  await raw.closed;
});

both('a connection that is closed says so beside the Connection header of the program', async (t) => {
  const port = await serve(t, (app) => app
    .get('/keep', (res) => res.writeHeader('Connection', 'keep-alive').end('', true))
    .get('/close', (res) => res.writeHeader('Connection', 'Upgrade, Close').end('', true)));
  for (const [path, expected] of [['/keep', ['Connection: keep-alive', 'Connection: close']], ['/close', undefined]]) {
    const raw = new Raw(t, port);
    raw.write(`GET ${path} HTTP/1.1\r\nHost: a\r\n\r\n`);
    const lines = (await raw.head()).match(/connection: .*/gi);
    if (expected) assert.deepEqual(lines, expected);
    await raw.closed;
  }
});

ours('a 304 has the length of endWithoutBody', async (t) => {
  const port = await serve(t, (app) => app.get('/:status', (res, req) => {
    res.onAborted(() => {});
    res.writeStatus(req.getParameter(0)).endWithoutBody(100);
  }));
  for (const [status, length] of [['304', 'content-length: 100'], ['204', undefined]]) {
    const raw = new Raw(t, port);
    raw.write(`GET /${status} HTTP/1.1\r\nHost: a\r\n\r\n`);
    assert.equal((await raw.head()).match(/content-length: .*/i)?.[0].toLowerCase(), length);
  }
});

both('server names do nothing without TLS', () => {
  const app = uws.App();
  assert.equal(app.addServerName('a.test', { passphrase: 'b' }).removeServerName('a.test'), app);
  app.close();
});

both('classes have the names of uWebSockets.js', async (t) => {
  const names = [];
  const port = await serve(t, (app) => app
    .get('/', (res, req) => { names.push(res.constructor.name, req.constructor.name); res.end(); })
    .ws('/ws', { open: (ws) => { names.push(ws.constructor.name); ws.end(); } }));
  await get(t, port, '/');
  const client = await Client.open(t, port, '/ws');
  await client.closed;
  assert.deepEqual(names, ['uWS.HttpResponse', 'uWS.HttpRequest', 'uWS.WebSocket']);
});

ours('onDataV2 tells how much is left of a body at most', async (t) => {
  const bodies = [];
  const port = await serve(t, (app) => app.post('/:when', (res, req) => {
    res.onAborted(() => {});
    const lefts = [];
    const read = () => res.onDataV2((piece, left) => {
      if (piece.byteLength > 0 || left === 0n) lefts.push([piece.byteLength, left]);
      if (left === 0n) { bodies.push(lefts); res.end(); }
    });
    if (req.getParameter(0) === 'now') read();
    else setImmediate(() => { read(); reads(); });
  }));
  let reads;
  const unknown = 2n ** 64n - 1n;
  const send = async (path, head, ...pieces) => {
    const raw = new Raw(t, port);
    raw.write(`POST ${path} HTTP/1.1\r\nHost: a\r\n${head}\r\n\r\n${pieces.join('')}`);
    await raw.head();
    return bodies.pop();
  };
  assert.deepEqual(await send('/now', 'Content-Length: 5', 'hello'), [[5, 0n]]);
  assert.deepEqual(await send('/now', 'Content-Length: 0'), [[0, 0n]]);
  const chunked = await send('/now', 'Transfer-Encoding: chunked', '5\r\nhello\r\n', '0\r\n\r\n');
  assert.deepEqual(chunked.at(-1)[1], 0n);
  assert.ok(chunked.slice(0, -1).every(([, left]) => left === unknown), String(chunked));
  const raw = new Raw(t, port);
  const reading = new Promise((resolve) => { reads = resolve; });
  raw.write('POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n');
  await reading;
  raw.write('hello');
  await raw.head();
  assert.deepEqual(bodies.pop(), [[5, 0n]]);
  // More than one read takes.
  raw.write('POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n');
  raw.write('x'.repeat(300_000));
  await raw.head();
  const [parts] = bodies;
  let left = 300_000n;
  for (const [length, told] of parts) assert.equal(told, left -= BigInt(length));
});

ours('beginWrite sends the head before the body', async (t) => {
  const port = await serve(t, (app) => app.get('/', (res) => {
    res.onAborted(() => {});
    res.writeStatus('201 Created').beginWrite();
    finish = () => res.cork(() => res.end('body'));
  }));
  let finish;
  const { head, raw } = await get(t, port, '/');
  assert.match(head, /^HTTP\/1\.1 201 Created\r\n[^]*transfer-encoding: chunked/i);
  assert.equal(raw.bytes.length, 0);
  finish();
  await raw.until((bytes) => bytes.toString().endsWith('\r\n0\r\n\r\n'));
  assert.equal(raw.bytes.toString(), '4\r\nbody\r\n0\r\n\r\n');
});
