// Routes with a cache: the third argument of `get`. In uWebSockets.js 20.51.4 their responses have `end` alone, and a second
// request ends the process.
'use strict';

const assert = require('node:assert/strict');
const https = require('node:https');
const { uws, ours, serve, get, request, certificate, program, Raw, Queue } = require('./support.js');

const FOREVER = 1_000_000;
const MODES = { 'on the thread of Node.js': () => uws.App(), 'with workers': () => uws.App({ workers: 2 }) };

/** A case for an app of each kind. */
function modes(name, body) {
  for (const [mode, app] of Object.entries(MODES)) ours(`${name}, ${mode}`, (t) => body(t, app()));
}

/** A handler whose responses the test ends. */
function manual() {
  const calls = new Queue();
  let count = 0;
  return {
    calls,
    get count() { return count; },
    handler: (res, req) => {
      count += 1;
      res.onAborted(() => assert.fail('a request with a cache is not aborted'));
      calls.push({ res, url: req.getUrl(), query: req.getQuery() });
    },
  };
}

const pipelined = (targets) => targets.map((target) => `GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`).join('');

ours('a number of seconds is a cache', async (t) => {
  let calls = 0;
  const port = await serve(t, (app) => app.get('/*', (res) => { calls += 1; res.end(`answer ${calls}`); }, 60));
  assert.equal((await get(t, port, '/')).body, 'answer 1');
  assert.equal((await get(t, port, '/')).body, 'answer 1');
  assert.equal((await get(t, port, '/?other')).body, 'answer 2');
});

modes('status, headers and body of an answer are kept, for its URL with its query', async (t, own) => {
  const calls = [];
  const port = await serve(t, (app) => app
    .get('/a/:name', (res, req) => {
      calls.push(req.getParameter(0) + req.getQuery());
      res.writeStatus('203 Changed').writeHeader('x-text', 'für').writeHeader(Buffer.from('x-bytes'), Buffer.from([0x41, 0x0d, 0x42]));
      assert.equal(res.write('pieces: '), true);
      res.write(new Uint8Array([0, 255]).buffer);
      assert.equal(res.getWriteOffset(), 10);
      assert.equal(res.end(Buffer.from([13, 10])), res);
    }, { lowerExpiry: FOREVER, upperExpiry: FOREVER })
    .head('/a/:name', (res) => res.writeHeader('x-own', 'head').endWithoutBody(12))
    .post('/a/:name', (res) => res.end('post')), own);
  for (let round = 0; round < 3; round += 1) {
    const answer = await fetch(`http://127.0.0.1:${port}/a/b?c`);
    assert.equal(answer.status, 203);
    assert.equal(answer.statusText, 'Changed');
    assert.equal(Buffer.from(answer.headers.get('x-text'), 'latin1').toString(), 'für');
    assert.equal(answer.headers.get('x-bytes'), 'A B');
    assert.equal(answer.headers.get('content-length'), '12');
    assert.ok(Math.abs(Date.parse(answer.headers.get('date')) - Date.now()) < 60_000);
    assert.deepEqual(Buffer.from(await answer.arrayBuffer()), Buffer.from('pieces: \0\xff\r\n', 'latin1'));
  }
  await get(t, port, '/a/b');
  await get(t, port, '/a/d?c');
  assert.deepEqual(calls, ['bc', 'b', 'dc']);
  const head = new Raw(t, port);
  head.write('HEAD /a/b?c HTTP/1.1\r\nHost: a\r\n\r\n');
  assert.match(await head.head(), /x-own: head/);
  assert.equal((await request(t, port, 'POST /a/b?c HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n')).body, 'post');
});

modes('who asks while an answer is made waits for it', async (t, own) => {
  const { calls, handler } = manual();
  const port = await serve(t, (app) => app.get('/*', handler, { lowerExpiry: FOREVER, upperExpiry: FOREVER }), own);
  const first = get(t, port, '/');
  const { res } = await calls.next();
  const waiting = [new Raw(t, port), new Raw(t, port)];
  waiting.forEach((raw) => raw.write(pipelined(['/', '/other'])));
  const gone = new Raw(t, port);
  gone.write(pipelined(['/']));
  await new Promise((resolve) => gone.socket.end(resolve));
  res.writeStatus('202 Made').cork(() => res.end('same'));
  assert.equal((await first).body, 'same');
  for (const raw of waiting) {
    assert.match(await raw.head(), /^HTTP\/1.1 202 Made\r\n/);
    await raw.until((bytes) => bytes.length >= 4);
    assert.equal(raw.bytes.toString().slice(0, 4), 'same');
    raw.bytes = raw.bytes.subarray(4);
  }
  const other = await calls.next();
  assert.equal(other.url, '/other');
  other.res.end('other');
  for (const raw of waiting) {
    await raw.head();
    assert.equal(await raw.until((bytes) => bytes.length >= 5 && bytes.toString()), 'other');
  }
  assert.equal(calls.size, 0);
  assert.equal((await get(t, port, '/')).body, 'same');
});

ours('those who wait are answered together, also with what is not kept', async (t) => {
  const { calls, handler } = manual();
  let come = 0;
  const port = await serve(t, (app) => app.get('/*', handler, 0).filter((res, count) => { come += count; }));
  const raws = [1, 2, 3].map(() => new Raw(t, port));
  raws.forEach((raw) => raw.write(pipelined(['/'])));
  const { res } = await calls.next();
  // A connection is accepted with its request.
  while (come < 3) await new Promise(setImmediate);
  res.writeHeader('set-cookie', 'a=b').end('same');
  for (const raw of raws) {
    assert.match(await raw.head(), /set-cookie: a=b/);
    assert.equal(await raw.until((bytes) => bytes.length >= 4 && bytes.toString()), 'same');
  }
  assert.equal(calls.size, 0);
});

modes('above lowerExpiry the old answer is sent and one new one is made', async (t, own) => {
  const { calls, handler } = manual();
  const port = await serve(t, (app) => app.get('/*', handler, { lowerExpiry: 0, upperExpiry: FOREVER }), own);
  const first = get(t, port, '/');
  (await calls.next()).res.end('first');
  assert.equal((await first).body, 'first');
  // Each is answered while the handler works on the next answer.
  assert.equal((await get(t, port, '/')).body, 'first');
  assert.equal((await get(t, port, '/')).body, 'first');
  const second = await calls.next();
  assert.equal(calls.size, 0);
  second.res.end('second');
  assert.throws(() => second.res.end('again'), /has ended/);
  assert.equal((await get(t, port, '/')).body, 'second');
  // An answer that fails does not take the place of one that can be sent.
  (await calls.next()).res.writeStatus('503 Busy').end('busy');
  assert.equal((await get(t, port, '/')).body, 'second');
  (await calls.next()).res.close();
  assert.equal((await get(t, port, '/')).body, 'second');
  // One that must not be kept ends what was kept.
  (await calls.next()).res.writeHeader('Cache-Control', 'max-age=5,no-store').end('secret');
  const last = get(t, port, '/');
  (await calls.next()).res.end('last');
  assert.equal((await last).body, 'last');
});

modes('above upperExpiry requests wait for a new answer', async (t, own) => {
  let calls = 0;
  const port = await serve(t, (app) => app
    .get('/never', (res) => { calls += 1; res.end(`${calls}`); }, 0)
    .get('/soon', (res) => { calls += 1; res.end(`${calls}`); }, 0.02), own);
  assert.equal((await get(t, port, '/never')).body, '1');
  assert.equal((await get(t, port, '/never')).body, '2');
  while ((await get(t, port, '/soon')).body === '3');
  assert.equal(calls, 4);
});

modes('answers that are for one client, or failures, are not kept', async (t, own) => {
  const calls = {};
  const port = await serve(t, (app) => app.get('/*', (res, req) => {
    const url = req.getUrl();
    calls[url] = (calls[url] ?? 0) + 1;
    if (url === '/cookie') res.writeHeader('Set-Cookie', 'a=b');
    if (url === '/private') res.writeHeader('CACHE-CONTROL', 'Private="x"');
    if (url === '/store') res.writeHeader('cache-control', 'no-storey, x-private, private-x');
    if (url === '/failed') res.writeStatus('500 Failed');
    if (url === '/part') res.writeStatus('206 Partial Content');
    if (url === '/absent') res.writeStatus('404 Absent');
    res.end(`${calls[url]}`);
  }, { lowerExpiry: FOREVER, upperExpiry: FOREVER }), own);
  for (const url of ['/cookie', '/private', '/failed', '/part']) {
    assert.equal((await get(t, port, url)).body, '1', url);
    assert.equal((await get(t, port, url)).body, '2', url);
  }
  for (const url of ['/store', '/absent']) {
    assert.equal((await get(t, port, url)).body, '1', url);
    assert.equal((await get(t, port, url)).body, '1', url);
  }
});

ours('the oldest answers make room, and one that has none is sent', async (t) => {
  const calls = [];
  const port = await serve(t, (app) => app.get('/:size', (res, req) => {
    calls.push(req.getUrl() + req.getQuery());
    res.end('x'.repeat(Number(req.getParameter(0))));
  }, { lowerExpiry: FOREVER, upperExpiry: FOREVER, bytes: 30_000 }));
  const sizes = async (...targets) => {
    calls.length = 0;
    for (const target of targets) assert.equal((await get(t, port, target)).body.length, Number(/\d+/.exec(target)[0]));
    return calls.length;
  };
  assert.equal(await sizes('/9000?1', '/9000?2', '/9000?3', '/9000?1', '/9000?2', '/9000?3'), 3);
  assert.equal(await sizes('/9000?4', '/9000?2', '/9000?3', '/9000?4'), 1);
  assert.equal(await sizes('/9000?1', '/9000?3', '/9000?4', '/9000?1'), 1);
  assert.equal(await sizes('/30000', '/30000', '/9000?3', '/9000?4', '/9000?1'), 2);
  // Small ones count with what each takes besides: none of the first is left.
  for (let at = 0; at < 200; at += 1) await get(t, port, `/1?${at}`);
  assert.equal(await sizes('/1?199', '/1?198', '/1?0', '/9000?1'), 2);
});

ours('what is wrong with a cache is told', () => {
  const app = uws.App();
  const wrong = [null, 'x', true, -1, NaN, Infinity, {}, { lowerExpiry: 1 }, { upperExpiry: 1 }, { lowerExpiry: 2, upperExpiry: 1 },
    { lowerExpiry: -1, upperExpiry: 1 }, { lowerExpiry: '1', upperExpiry: 1 }, { lowerExpiry: 1, upperExpiry: 2, bytes: -1 },
    { lowerExpiry: 1, upperExpiry: 2, bytes: 1.5 }, { lowerExpiry: 1, upperExpiry: 2, size: 5 }];
  for (const cache of wrong) assert.throws(() => app.get('/', () => {}, cache), /cache/, JSON.stringify(cache));
  assert.throws(() => app.post('/', () => {}, 5), /a route with a cache is one of get/);
  assert.throws(() => app.any('/', () => {}, { lowerExpiry: 1, upperExpiry: 5 }), /a route with a cache is one of get/);
  assert.equal(app.post('/', () => {}, undefined), app);
});

ours('what is of one client is not there, and an answer that has ended is void', async (t) => {
  let kept;
  const absent = ['upgrade', 'onData', 'collectBody', 'pause', 'resume', 'getRemoteAddress', 'getRemoteAddressAsText', 'getRemotePort',
    'getProxiedRemoteAddress', 'getProxiedRemoteAddressAsText'];
  const port = await serve(t, (app) => app.get('/*', (res) => {
    kept = res;
    for (const name of absent) assert.throws(() => res[name](1, () => {}), new RegExp(`${name} is not for a route with a cache`));
    assert.throws(() => res.writeStatus('101 Switching'), /from 200/);
    assert.throws(() => res.writeHeader('a b', 'c'), /invalid header name/);
    assert.throws(() => res.write(5), /expected a string/);
    assert.equal(res.onWritable(() => assert.fail()), res);
    assert.equal(res.writeStatus('200 First').writeStatus('500 Second'), res);
    assert.equal(res.writeHeader('x-number', 5), res);
    assert.deepEqual(res.tryEnd('piece', 12), [true, false]);
    assert.throws(() => res.writeHeader('x-late', '1'), /head of this response is complete/);
    assert.deepEqual(res.tryEnd(' and more than that', 12), [true, true]);
  }, 60));
  for (let round = 0; round < 2; round += 1) {
    const { head, body } = await get(t, port, '/');
    assert.match(head, /^HTTP\/1.1 200 First\r\n(.*\r\n)*x-number: 5\r\n/);
    assert.equal(body, 'piece and mo');
  }
  const uses = ['writeStatus', 'writeHeader', 'write', 'end', 'endWithoutBody', 'tryEnd', 'getWriteOffset', 'onWritable', 'onAborted',
    'cork', 'close'];
  for (const name of uses) assert.throws(() => kept[name]('a', 'b'), /has ended/, name);
});

ours('answers without a body, with a date of their own, and those that end the connection', async (t) => {
  let calls = 0;
  const port = await serve(t, (app) => app
    .get('/empty', (res) => { calls += 1; res.writeStatus('204 No Content').writeHeader('etag', '"1"').endWithoutBody(); }, 60)
    .get('/date', (res) => { calls += 1; res.writeHeader('Date', 'mine').end(); }, 60)
    .get('/close', (res) => { calls += 1; res.end('bye', true); }, 60));
  for (let round = 0; round < 2; round += 1) {
    const raw = new Raw(t, port);
    raw.write(pipelined(['/empty', '/date', '/close']));
    assert.match(await raw.head(), /^HTTP\/1.1 204 No Content\r\netag: "1"\r\nDate: [^\r]*\r\n\r\n$/);
    assert.match(await raw.head(), /^HTTP\/1.1 200 OK\r\nDate: mine\r\nContent-Length: 0\r\n\r\n$/);
    assert.match(await raw.head(), /\r\nConnection: close\r\n/);
    await raw.closed;
    assert.equal(raw.bytes.toString(), 'bye');
  }
  assert.equal(calls, 3);
});

modes('what is kept is what was sent first, whatever was left out and given as text', async (t, own) => {
  let calls = 0;
  const port = await serve(t, (app) => {
    const route = (path, answer) => app.get(path, (res) => { calls += 1; answer(res); }, 60);
    route('/length', (res) => res.endWithoutBody(7));
    route('/text', (res) => res.endWithoutBody('7'));
    route('/none', (res) => res.endWithoutBody());
    route('/whole', (res) => res.tryEnd('hello'));
    route('/five', (res) => res.tryEnd('hello', '5'));
    route('/blank', (res) => res.writeHeader('x', undefined).writeHeader('Connection', 'keep-alive').end(undefined));
  }, own);
  for (const path of ['/length', '/text', '/none', '/whole', '/five', '/blank']) {
    const answers = [];
    for (let round = 0; round < 2; round += 1) {
      const raw = new Raw(t, port);
      raw.write(`GET ${path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`);
      const head = await raw.head();
      await raw.closed;
      answers.push(`${head.replace(/Date: .*/, '')}${raw.bytes}`);
    }
    assert.equal(answers[0], answers[1], path);
    if (/length|text/.test(path)) assert.match(answers[0], /Content-Length: 7\r\n/);
    if (/whole|five/.test(path)) assert.match(answers[0], /\r\n\r\nhello$/);
  }
  assert.equal(calls, 6);
});

ours('an exception and a rejection close who waits, also after onAborted', async (t) => {
  const { code, lines, stderr } = await program(t, `
    process.on('unhandledRejection', (error) => log(error.message));
    process.on('uncaughtException', (error) => log(error.message));
    const app = uws.App()
      .get('/async', async (res) => { res.onAborted(() => {}); log('called'); await null; throw new Error('mine'); }, 60)
      .get('/sync', (res) => { res.onAborted(() => {}); log('called'); throw new Error('mine'); }, 60);
    listen(app, async (port) => {
      const ask = (path) => fetch('http://127.0.0.1:' + port + path).then((answer) => answer.text(), () => 'closed').then(log);
      for (const path of ['/async', '/async', '/sync', '/sync']) await ask(path);
      process.exit(0);
    });`);
  assert.equal(code, 0, stderr);
  for (const text of ['called', 'mine', 'closed']) assert.equal(lines.filter((line) => line === text).length, 4, text);
  assert.equal(lines.length, 12, lines.join());
});

modes('each client gets an answer by its own protocol', async (t, own) => {
  const port = await serve(t, (app) => app.get('/*', (res) => { res.write('a'); res.end('b'); }, 60), own);
  await get(t, port, '/');
  const old = new Raw(t, port);
  old.write('GET / HTTP/1.0\r\n\r\n');
  assert.match(await old.head(), /\r\nConnection: close\r\n/);
  await old.closed;
  assert.equal(old.bytes.toString(), 'ab');
  // The body of a request is none of the next one's.
  const raw = new Raw(t, port);
  raw.write(`GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /${pipelined(['/'])}`);
  for (let round = 0; round < 2; round += 1) {
    assert.match(await raw.head(), /^HTTP\/1.1 200 OK\r\n/);
    await raw.until((bytes) => bytes.length >= 2);
    raw.bytes = raw.bytes.subarray(2);
  }
});

modes('a handler passes a request on, with what it has written', async (t, own) => {
  const calls = [];
  const port = await serve(t, (app) => app
    .get('/a/b/c', (res, req) => { calls.push('first'); res.writeHeader('x-first', '1'); req.setYield(true); })
    .get('/a/b/:c', (res, req) => { calls.push('kept'); res.writeHeader('x-kept', '1').end('kept'); }, 60)
    .get('/a/:b/:c', (res, req) => { calls.push('passes'); res.writeStatus('203 Passed').writeHeader('x-passed', '1'); req.setYield(true); }, 60)
    .get('/w/x', (res, req) => { res.write('before '); req.setYield(true); })
    .get('/w/:x', (res) => res.writeHeader('x-kept', '1').end('kept'), 60)
    .any('/*', (res) => { calls.push('any'); res.writeStatus('404 Any').end('any'); }), own);
  for (let round = 0; round < 2; round += 1) {
    assert.match((await get(t, port, '/a/b/c')).head, /^HTTP\/1.1 200 OK\r\nx-first: 1\r\nx-kept: 1\r\n/);
  }
  assert.deepEqual(calls, ['first', 'kept', 'first']);
  for (let round = 0; round < 2; round += 1) {
    const { head, body } = await get(t, port, '/a/x/c');
    assert.match(head, /^HTTP\/1.1 203 Passed\r\nx-passed: 1\r\n/);
    assert.equal(body, 'any');
  }
  assert.deepEqual(calls.slice(3), ['passes', 'any', 'passes', 'any']);
  // Where the body has begun there is no place for headers.
  for (let round = 0; round < 2; round += 1) {
    const answer = await fetch(`http://127.0.0.1:${port}/w/x`);
    assert.equal(answer.headers.get('x-kept'), null);
    assert.equal(await answer.text(), 'before kept');
  }
});

for (const options of ['{}', '{ workers: 1 }']) {
  ours(`a handler that throws, or neither answers nor waits, closes those who wait: ${options}`, async (t) => {
    const { code, lines, stderr } = await program(t, `
      process.on('uncaughtException', (error) => log(error.message.slice(0, 45)));
      let calls = 0;
      const app = uws.App(${options})
        .get('/throws', (res) => { calls += 1; if (calls === 1) throw new Error('mine'); res.end('second'); }, 60)
        .get('/returns', () => { calls += 1; }, 60)
        .get('/stale', (res) => { calls += 1; if (calls === 4) return; res.end('stale ' + calls); if (calls === 5) throw new Error('after'); },
          { lowerExpiry: 0, upperExpiry: 1000 });
      listen(app, async (port) => {
        const at = 'http://127.0.0.1:' + port;
        const ask = (path) => fetch(at + path).then((answer) => answer.text(), () => 'closed').then(log);
        await ask('/throws');
        await ask('/throws');
        await ask('/throws');
        log(calls);
        calls = 2;
        await ask('/stale');
        await ask('/stale');
        await ask('/stale');
        await ask('/stale');
        await ask('/returns');
        process.exit(0);
      });`);
    assert.equal(code, 0, stderr);
    assert.deepEqual(lines.filter((line) => !/^(mine|after|A request handler)/.test(line)), [
      'closed', 'second', 'second', '2', 'stale 3', 'stale 3', 'stale 3', 'stale 5', 'closed',
    ]);
    assert.deepEqual(lines.filter((line) => /^(mine|after|A request handler)/.test(line)).sort(), [
      'A request handler returned without a response', 'A request handler returned without a response', 'after', 'mine',
    ]);
  });
}

modes('res.close ends the connections of those who wait, and app.close too', async (t, own) => {
  const { calls, handler } = manual();
  const port = await serve(t, (app) => app.get('/*', handler, 60), own);
  const ask = async () => {
    const raws = [new Raw(t, port), new Raw(t, port)];
    raws[0].write(pipelined(['/']));
    const call = await calls.next();
    raws[1].write(pipelined(['/']));
    return { ...call, raws };
  };
  const first = await ask();
  first.res.close();
  assert.throws(() => first.res.end(), /has ended/);
  await first.raws[0].closed;
  // The other one has come before, or is the one that calls the handler again.
  first.raws[1].socket.destroy();
  const [second] = await Promise.all([ask(), first.raws[1].closed]);
  own.close();
  await Promise.all(second.raws.map((raw) => raw.closed));
  // Nobody waits for it.
  second.res.end('late');
});

ours('a client that leaves is forgotten', async (t) => {
  const { calls, handler } = manual();
  const port = await serve(t, (app) => app.get('/*', handler, 60));
  const left = new Raw(t, port);
  left.write(pipelined(['/']));
  const { res } = await calls.next();
  left.socket.destroy();
  await left.closed;
  // Its slot is another's by now, and is not answered twice.
  const raw = new Raw(t, port);
  raw.write(pipelined(['/other']));
  const other = await calls.next();
  res.end('first');
  other.res.end('second');
  await raw.head();
  assert.equal(await raw.until((bytes) => bytes.length >= 6 && bytes.toString()), 'second');
  assert.equal((await get(t, port, '/')).body, 'first');
});

ours('a handler that does not end is called again', async (t) => {
  const { calls, handler } = manual();
  const port = await serve(t, (app) => app.get('/*', handler, 60));
  const first = get(t, port, '/');
  const never = await calls.next();
  const later = performance.now() + 31_000;
  t.mock.method(performance, 'now', () => later);
  const second = get(t, port, '/');
  const again = await calls.next();
  again.res.end('again');
  assert.equal((await first).body, 'again');
  assert.equal((await second).body, 'again');
  never.res.end('never');
  assert.equal((await get(t, port, '/')).body, 'again');
});

ours('routes of names, with TLS, and answers that are described', async (t) => {
  let calls = 0;
  const kept = new uws.DeclarativeResponse().writeHeader('x-kind', 'declared').writeQueryValue('a').end(' end');
  const handler = (res) => { calls += 1; res.end(`call ${calls}`); };
  const own = uws.SSLApp(certificate('localhost'));
  const port = await serve(t, (app) => app.get('/declared', kept, 60).get('/', handler, 60).domain('localhost').get('/', handler, 60), own);
  const ask = (path, host) => new Promise((resolve, reject) => {
    https.get({ port, path, host: '127.0.0.1', rejectUnauthorized: false, headers: { host }, agent: false }, async (answer) => {
      let body = '';
      for await (const piece of answer) body += piece;
      resolve(body);
    }).on('error', reject);
  });
  assert.equal(await ask('/', 'other'), 'call 1');
  assert.equal(await ask('/', 'localhost'), 'call 2');
  assert.equal(await ask('/', 'other'), 'call 1');
  assert.equal(await ask('/', 'localhost'), 'call 2');
  const plain = await serve(t, (app) => app.get('/declared', kept, 60));
  for (let round = 0; round < 2; round += 1) {
    const { head, body } = await get(t, plain, '/declared?a=b');
    assert.match(head, /x-kind: declared/);
    assert.equal(body, 'b end');
  }
});
