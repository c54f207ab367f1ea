// Routes, HttpRequest and HttpResponse.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const { uws, both, ours, serve, get, program, request, Raw, Queue, text } = require('./support.js');

const METHODS = { get: 'GET', post: 'POST', options: 'OPTIONS', del: 'DELETE', patch: 'PATCH', put: 'PUT', trace: 'TRACE' };

const call = (t, port, method, target) => request(t, port, `${method} ${target} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n`);

both('a route answers its method alone', async (t) => {
  const port = await serve(t, (app) => {
    for (const name of Object.keys(METHODS)) app[name]('/one', (res, req) => res.end(`${name} ${req.getMethod()}`));
  });
  for (const [name, method] of Object.entries(METHODS)) {
    assert.equal((await call(t, port, method, '/one')).body, `${name} ${method.toLowerCase()}`);
  }
  assert.match((await call(t, port, 'PROPFIND', '/one')).status, /^HTTP\/1.1 404 /);
});

both('any answers what no method answers, also an unknown one', async (t) => {
  const port = await serve(t, (app) => app
    .any('/*', (res, req) => {
      // In this order: getMethod of uWebSockets.js changes what the other returns.
      const method = req.getCaseSensitiveMethod();
      res.end(`any ${req.getMethod()} ${method}`);
    })
    .get('/*', (res) => res.end('get')));
  assert.equal((await call(t, port, 'GET', '/')).body, 'get');
  assert.equal((await call(t, port, 'POST', '/')).body, 'any post POST');
  assert.equal((await call(t, port, 'PROPFIND', '/')).body, 'any propfind PROPFIND');
});

both('static beats parameter beats wildcard, in any order of registration', async (t) => {
  const port = await serve(t, (app) => app
    .get('/*', (res) => res.end('wildcard'))
    .get('/a/:b', (res) => res.end('parameter'))
    .get('/a/static', (res) => res.end('static')));
  assert.equal((await get(t, port, '/a/static')).body, 'static');
  assert.equal((await get(t, port, '/a/other')).body, 'parameter');
  assert.equal((await get(t, port, '/a/b/c')).body, 'wildcard');
});

both('setYield gives the request to the next route', async (t) => {
  const calls = [];
  const port = await serve(t, (app) => app
    .get('/a/:b', (res, req) => { calls.push('parameter'); assert.equal(req.setYield(true), req); })
    .get('/*', (res, req) => { calls.push('wildcard'); res.end(req.getUrl()); }));
  assert.equal((await get(t, port, '/a/1')).body, '/a/1');
  assert.deepEqual(calls, ['parameter', 'wildcard']);
});

both('what a handler has written before it passes a request on is before the answer', async (t) => {
  const port = await serve(t, (app) => app
    .get('/a/:b', (res, req) => { res.writeHeader('x-first', '1'); req.setYield(true); })
    .get('/*', (res) => res.end('second')));
  const { head, body } = await get(t, port, '/a/1');
  assert.match(head, /^HTTP\/1.1 200 OK\r\n(.*\r\n)*x-first: 1\r\n/i);
  assert.equal(body, 'second');
});

ours('a handler that has passed a request on cannot answer it, nor another one later', async (t) => {
  let passed;
  const port = await serve(t, (app) => app
    .get('/a/:b', (res, req) => { passed = res; req.setYield(true); })
    .get('/*', (res) => { assert.throws(() => passed.end('first'), /has ended/); res.end('second'); }));
  assert.equal((await get(t, port, '/a/1')).body, 'second');
  assert.equal((await get(t, port, '/b')).body, 'second');
});

both('what a handler has written before no other takes the request is before the 404', async (t) => {
  const port = await serve(t, (app) => app
    .get('/head', (res, req) => { res.writeStatus('201 Made').writeHeader('x-first', '1'); req.setYield(true); })
    .get('/body', (res, req) => { res.write('piece '); req.setYield(true); }));
  const { head, body } = await get(t, port, '/head');
  assert.match(head, /^HTTP\/1.1 201 Made\r\n(.*\r\n)*x-first: 1\r\n/i);
  assert.match(body, /^<html>.*Not Found/);
  const response = await fetch(`http://127.0.0.1:${port}/body`);
  assert.equal(response.status, 200);
  assert.match(await response.text(), /^piece <html>.*Not Found/);
});

both('a request without a route gets 404', async (t) => {
  const port = await serve(t, (app) => app.get('/here', (res) => res.end()));
  assert.match((await get(t, port, '/there')).status, /^HTTP\/1.1 404 /);
});

both('the request has its parts', async (t) => {
  let seen;
  const port = await serve(t, (app) => app.get('/p/:first/:second', (res, req) => {
    const headers = [];
    req.forEach((name, value) => headers.push([name, value]));
    seen = {
      url: req.getUrl(), method: req.getMethod(), query: req.getQuery(), headers,
      x: req.getQuery('x'), encoded: req.getQuery('e'), missing: req.getQuery('nope'),
      parameters: [req.getParameter(0), req.getParameter(1), req.getParameter('first'), req.getParameter('second')],
      header: req.getHeader('x-a'), absent: req.getHeader('absent'),
    };
    res.end();
  }));
  await get(t, port, '/p/1%20a/2?x=1&e=a%20b', 'X-A:  one \r\nX-A: two\r\n');
  assert.deepEqual(seen, {
    url: '/p/1%20a/2', method: 'get', query: 'x=1&e=a%20b',
    headers: [['host', 'a'], ['x-a', 'one'], ['x-a', 'two']],
    x: '1', encoded: 'a b', missing: undefined,
    parameters: ['1%20a', '2', '1%20a', '2'],
    header: 'one', absent: '',
  });
});

ours('getQuery finds what URLSearchParams finds, but no key without a value', async (t) => {
  const keys = ['a', 'ab', 'b c', 'b', '', 'x=', 'ä', '?a'];
  const port = await serve(t, (app) => app.get('/*', (res, req) => {
    res.end(JSON.stringify(keys.map((key) => req.getQuery(key) ?? null)));
  }));
  for (const query of ['a=1&ab=2', 'ab=2&a=1&a=3', 'a', 'a=', '=v&&a=b=c', '?a=1', 'b+c=1', 'b%20c=1&a', 'x%3D=1', '%C3%A4=1', 'a=%', '&']) {
    const pairs = query.split('&').filter((pair) => pair.includes('='));
    const expected = keys.map((key) => new URLSearchParams(pairs.join('&')).get(key));
    const answer = await request(t, port, `GET /?${query} HTTP/1.1\r\nHost: a\r\n\r\n`);
    assert.deepEqual(JSON.parse(answer.body), expected, query);
  }
});

both('getQuery is empty or undefined without a query', async (t) => {
  let query;
  const port = await serve(t, (app) => app.get('/*', (res, req) => { query = [req.getQuery(), req.getQuery('x')]; res.end(); }));
  await get(t, port, '/');
  assert.ok(query[0] === '' || query[0] === undefined);
  assert.equal(query[1], undefined);
});

both('a request is void after its handler', async (t) => {
  let kept;
  const port = await serve(t, (app) => app.get('/*', (res, req) => { kept = req; res.end(); }));
  await get(t, port, '/');
  for (const use of [() => kept.getUrl(), () => kept.getHeader('host'), () => kept.forEach(() => {})]) {
    assert.throws(use, Error);
  }
});

both('collect calls its function at once, as cork does', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res) => {
    const order = [];
    assert.equal(res.collect(() => { order.push('called'); res.writeHeader('x-in', '1'); }), res);
    res.end([...order, 'after'].join());
  }));
  const { head, body } = await get(t, port, '/');
  assert.match(head, /x-in: 1/i);
  assert.equal(body, 'called,after');
});

ours('collect with a limit and a handler is collectBody', async (t) => {
  const port = await serve(t, (app) => app.post('/*', (res) => {
    res.onAborted(() => {});
    res.collect(3, (body) => res.end(body === null ? 'too long' : text(body)));
  }));
  const post = (body) => request(t, port, `POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
  assert.equal((await post('abc')).body, 'abc');
  assert.equal((await post('abcd')).body, 'too long');
});

both('a response that has ended is void', async (t) => {
  let kept;
  const port = await serve(t, (app) => app.get('/*', (res) => { kept = res; res.end('once'); }));
  await get(t, port, '/');
  for (const use of [() => kept.end('twice'), () => kept.write('x'), () => kept.writeStatus('200 OK'), () => kept.getRemoteAddress()]) {
    assert.throws(use, Error);
  }
});

both('status, headers and body, of text and bytes', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res) => {
    const { buffer } = new TextEncoder().encode('binary');
    assert.equal(res.writeStatus('201 Created'), res);
    assert.equal(res.writeHeader('X-A', buffer), res);
    assert.equal(res.writeHeader(Buffer.from('X-B'), '2'), res);
    assert.equal(res.end(new Uint8Array(buffer, 1, 3)), res);
  }));
  const { status, head, body } = await get(t, port, '/');
  assert.equal(status, 'HTTP/1.1 201 Created');
  assert.match(head, /\r\nX-A: binary\r\nX-B: 2\r\n/);
  assert.match(head, /\r\nContent-Length: 3\r\n/);
  assert.equal(body, 'ina');
});

both('end without a body', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res) => res.end()));
  assert.match((await get(t, port, '/')).head, /\r\nContent-Length: 0\r\n/);
});

both('text is UTF-8', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res) => res.end('häß 🙂')));
  assert.equal((await get(t, port, '/')).body, 'häß 🙂');
});

both('end can close the connection', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res) => res.end('last', true)));
  const { head, raw } = await get(t, port, '/');
  assert.match(head, /connection: close/i);
  await raw.closed;
});

both('endWithoutBody reports a length', async (t) => {
  const port = await serve(t, (app) => app.head('/*', (res) => {
    // Without it, uWebSockets.js ends the process.
    res.onAborted(() => {});
    res.endWithoutBody(1234);
  }));
  const raw = new Raw(t, port);
  raw.write('HEAD / HTTP/1.1\r\nHost: a\r\n\r\n');
  assert.match(await raw.head(), /\r\nContent-Length: 1234\r\n/);
});

both('write uses chunks, and end ends them', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res) => {
    assert.equal(res.write('ab'), true);
    assert.equal(res.write(Buffer.from('cde')), true);
    res.end('f');
  }));
  const { head, raw } = await get(t, port, '/');
  assert.match(head, /transfer-encoding: chunked/i);
  await raw.until((bytes) => bytes.toString().endsWith('\r\n0\r\n\r\n'));
  assert.equal(raw.bytes.toString(), '2\r\nab\r\n3\r\ncde\r\n1\r\nf\r\n0\r\n\r\n');
});

both('pipelined requests are answered in order', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res, req) => res.end(req.getUrl())));
  const raw = new Raw(t, port);
  raw.write('GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n');
  await raw.until((bytes) => bytes.toString().endsWith('/2'));
  assert.deepEqual(raw.bytes.toString().match(/\r\n\r\n\/\d/g), ['\r\n\r\n/1', '\r\n\r\n/2']);
});

both('an answer may come later, in a cork', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res) => {
    res.onAborted(() => {});
    setImmediate(() => {
      const same = res.cork(() => res.writeStatus('202 Accepted').writeHeader('a', 'b').end('later'));
      assert.equal(same, res);
    });
  }));
  const { status, body } = await get(t, port, '/');
  assert.deepEqual([status, body], ['HTTP/1.1 202 Accepted', 'later']);
});

both('onAborted tells that the client has gone, and the response is void in it', async (t) => {
  const aborted = new Queue();
  const started = new Queue();
  const port = await serve(t, (app) => app.get('/*', (res) => {
    assert.equal(res.onAborted(() => {
      assert.throws(() => res.end('late'), Error);
      aborted.push('aborted');
    }), res);
    started.push();
  }));
  const raw = new Raw(t, port);
  raw.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  await started.next();
  raw.socket.destroy();
  assert.equal(await aborted.next(), 'aborted');
});

both('close ends the connection and aborts', async (t) => {
  const aborted = new Queue();
  const port = await serve(t, (app) => app.get('/*', (res) => {
    res.onAborted(() => aborted.push('aborted'));
    res.close();
  }));
  const raw = new Raw(t, port);
  raw.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  assert.equal(await aborted.next(), 'aborted');
  await raw.closed;
  assert.equal(raw.bytes.length, 0);
});

both('the remote address, in bytes and in text', async (t) => {
  let seen;
  const port = await serve(t, (app) => app.get('/*', (res) => {
    seen = [res.getRemoteAddress(), text(res.getRemoteAddressAsText()), res.getProxiedRemoteAddress().byteLength];
    res.end();
  }));
  await get(t, port, '/');
  // An IPv4 client of an IPv6 listener is mapped.
  const address = [...new Uint8Array(seen[0])];
  assert.ok(address.length === 4 || address.length === 16);
  assert.deepEqual(address.slice(-4), [127, 0, 0, 1]);
  assert.ok(['127.0.0.1', '0000:0000:0000:0000:0000:ffff:7f00:0001'].includes(seen[1]), seen[1]);
  assert.equal(seen[2], 0);
});

both('onData gives a body in pieces, and says which is the last', async (t) => {
  const port = await serve(t, (app) => app.post('/*', (res) => {
    res.onAborted(() => {});
    let body = '';
    let pieces = 0;
    assert.equal(res.onData((chunk, isLast) => {
      assert.ok(chunk instanceof ArrayBuffer);
      body += text(chunk);
      pieces += 1;
      if (isLast) res.end(`${body} ${pieces > 0}`);
    }), res);
  }));
  const post = (headers, body) => request(t, port, `POST / HTTP/1.1\r\nHost: a\r\n${headers}\r\n\r\n${body}`);
  assert.equal((await post('Content-Length: 5', 'hello')).body, 'hello true');
  assert.equal((await post('Content-Length: 0', '')).body, ' true');
  assert.equal((await post('Transfer-Encoding: chunked', '3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n')).body, 'abcde true');
});

both('the memory of a piece of a body is taken back after its handler', async (t) => {
  const port = await serve(t, (app) => app.post('/*', (res) => {
    res.onAborted(() => {});
    res.onData((chunk) => {
      const bytes = chunk.byteLength;
      setImmediate(() => res.cork(() => res.end(`${bytes} ${chunk.byteLength}`)));
    });
  }));
  const answer = await request(t, port, 'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello');
  assert.equal(answer.body, '5 0');
});

for (const options of [{}, { workers: 1 }]) {
  ours(`a collected body stays ${JSON.stringify(options)}`, async (t) => {
    const port = await serve(t, (app) => app.post('/*', (res) => {
      res.onAborted(() => {});
      res.collectBody(100, (body) => setImmediate(() => res.cork(() => res.end(body))));
    }), uws.App(options));
    const post = (headers, body) => request(t, port, `POST / HTTP/1.1\r\nHost: a\r\n${headers}\r\n\r\n${body}`);
    assert.equal((await post('Content-Length: 5', 'hello')).body, 'hello');
    assert.equal((await post('Transfer-Encoding: chunked', '3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n')).body, 'abcde');
  });
}

both('a body in two reads is given in two', async (t) => {
  const chunks = new Queue();
  const port = await serve(t, (app) => app.post('/*', (res) => {
    res.onAborted(() => {});
    res.onData((chunk, isLast) => { chunks.push([text(chunk), isLast]); if (isLast) res.end(); });
  }));
  const raw = new Raw(t, port);
  raw.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc');
  assert.deepEqual(await chunks.next(), ['abc', false]);
  raw.write('def');
  assert.deepEqual(await chunks.next(), ['def', true]);
});

both('the body of an answered request is skipped', async (t) => {
  const port = await serve(t, (app) => app.post('/*', (res) => res.end('early')).get('/*', (res) => res.end('next')));
  const raw = new Raw(t, port);
  raw.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabcdefGET / HTTP/1.1\r\nHost: a\r\n\r\n');
  await raw.until((bytes) => bytes.toString().endsWith('next'));
});

ours('a body is not read further after an answer that closes the connection', async (t) => {
  const port = await serve(t, (app) => app.post('/*', (res) => {
    res.onAborted(() => {});
    res.onData(() => res.writeStatus('413 Payload Too Large').end('long', true));
  }));
  const raw = new Raw(t, port);
  const ended = once(raw.socket, 'end');
  raw.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n');
  raw.write(Buffer.alloc(1000));
  assert.match(await raw.head(), /^HTTP\/1.1 413 /);
  await ended;
  assert.equal(raw.bytes.toString(), 'long');
});

both('tryEnd and onWritable stream a large body to a reader that starts late', async (t) => {
  const body = Buffer.alloc(16 * 1024 * 1024, 'x');
  let writable = 0;
  const blocked = new Queue();
  const port = await serve(t, (app) => app.get('/*', (res) => {
    res.onAborted(() => {});
    const [ok, done] = res.tryEnd(body, body.length);
    blocked.push([ok, done]);
    if (ok) return;
    assert.ok(res.getWriteOffset() > 0);
    assert.equal(res.onWritable((offset) => {
      writable += 1;
      assert.equal(offset, res.getWriteOffset());
      return res.tryEnd(body.subarray(offset), body.length)[0];
    }), res);
  }));
  const raw = new Raw(t, port);
  raw.socket.pause();
  raw.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  assert.deepEqual(await blocked.next(), [false, false]);
  raw.socket.resume();
  let bytes = 0;
  assert.match(await raw.head(), new RegExp(`Content-Length: ${body.length}\r\n`));
  raw.socket.removeAllListeners('data');
  bytes = raw.bytes.length;
  raw.socket.on('data', (data) => { bytes += data.length; if (bytes === body.length) raw.socket.destroy(); });
  await raw.closed;
  assert.equal(bytes, body.length);
  assert.ok(writable > 0);
});

/** As a program that streams a file: a piece is written again only if `tryEnd` has said that it has to wait. */
both('onWritable is called only after tryEnd has said that something waits', async (t) => {
  const [piece, total] = [Buffer.alloc(64 * 1024), 256 * 1024 * 1024];
  const [offsets, calls] = [new Queue(), []];
  const port = await serve(t, (app) => app.get('/:most', (res, req) => {
    const most = Number(req.getParameter(0));
    let ok = true;
    res.onAborted(() => { ok = undefined; });
    res.onWritable(() => { calls.push(ok); return true; });
    setImmediate(() => {
      const write = () => { [ok] = res.tryEnd(piece, total); };
      while (ok && res.getWriteOffset() < most) res.cork(write);
      offsets.push(res.getWriteOffset());
    });
  }));
  const ask = async (most) => {
    const raw = new Raw(t, port);
    raw.socket.pause();
    raw.write(`GET /${most} HTTP/1.1\r\nHost: a\r\n\r\n`);
    return { raw, written: await offsets.next() };
  };
  // How much the kernel and the app take of an answer that nobody reads.
  const { written: full, raw: unread } = await ask(total);
  unread.socket.destroy();
  assert.ok(full < total);
  for (const less of [1, 2, 3, 4]) {
    const { written, raw } = await ask(full - less * piece.length);
    raw.socket.resume();
    await raw.head();
    await raw.until((bytes) => bytes.length >= written);
    raw.socket.destroy();
  }
  assert.ok(!calls.includes(true), `${calls}`);
});

both('tryEnd says whether it has responded', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res) => {
    res.onAborted(() => {});
    assert.deepEqual(res.tryEnd('abc', 3), [true, true]);
  }));
  assert.equal((await get(t, port, '/')).body, 'abc');
});

both('pause stops the body of a request until resume', async (t) => {
  let received = 0;
  let response;
  const paused = new Queue();
  const ended = new Queue();
  const port = await serve(t, (app) => app.post('/*', (res) => {
    response = res;
    res.onAborted(() => {});
    res.onData((chunk, isLast) => {
      received += chunk.byteLength;
      if (received === 3) { res.pause(); paused.push(); }
      if (isLast) { ended.push(received); res.end(); }
    });
  }));
  const raw = new Raw(t, port);
  raw.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc');
  await paused.next();
  raw.write('def');
  // A turn of the loop for another client shows that nothing was read for this one.
  await get(t, port, '/other');
  assert.equal(received, 3);
  response.resume();
  assert.equal(await ended.next(), 6);
});

both('properties of a response are the program\'s', async (t) => {
  let seen;
  const port = await serve(t, (app) => app.get('/*', (res) => {
    res.mine = 5;
    res.onAborted(() => {});
    queueMicrotask(() => { seen = res.mine; res.cork(() => res.end()); });
  }));
  await get(t, port, '/');
  assert.equal(seen, 5);
});

both('filter counts connections', async (t) => {
  const counts = new Queue();
  const port = await serve(t, (app) => app.filter((res, count) => counts.push(count)).get('/*', (res) => res.end()));
  const { raw } = await get(t, port, '/');
  assert.equal(await counts.next(), 1);
  raw.socket.destroy();
  assert.equal(await counts.next(), -1);
});

ours('a filter can end a connection, and its response is void after it', async (t) => {
  const counts = new Queue();
  let kept;
  let refuses = true;
  const port = await serve(t, (app) => app.get('/*', (res) => res.end('ok')).filter((res, count) => {
    counts.push(count);
    kept = res;
    if (refuses && count === 1) res.close();
  }));
  await assert.rejects(get(t, port, '/'));
  assert.deepEqual([await counts.next(), await counts.next()], [1, -1]);
  refuses = false;
  assert.equal((await get(t, port, '/')).body, 'ok');
  assert.throws(() => kept.close(), /has ended/);
});

both('hostile heads are refused', async (t) => {
  const port = await serve(t, (app) => app.any('/*', (res) => res.end('served')));
  const refused = async (request, status) => {
    const raw = new Raw(t, port);
    raw.write(request);
    assert.match(await raw.head(), status);
    await raw.closed;
  };
  await refused('GET / HTTP/1.1\r\n\r\n', /^HTTP\/1.1 400 /);
  await refused('GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello', /^HTTP\/1.1 400 /);
  await refused(`GET / HTTP/1.1\r\nHost: a\r\nX: ${'a'.repeat(100_000)}\r\n\r\n`, /^HTTP\/1.1 431 /);
});

ours('a handler that neither answers nor attaches onAborted gets an error, and the process lives', async (t) => {
  const ended = await program(t, `
    process.on('uncaughtException', (error) => { log(error.message.includes('onAborted')); process.exit(0); });
    listen(uws.App().get('/*', () => {}), (port) => fetch('http://127.0.0.1:' + port).catch(() => {}));`);
  assert.deepEqual([ended.code, ended.lines], [0, ['true']], ended.stderr);
});

both('answers have a date, behind the headers of the program', async (t) => {
  const port = await serve(t, (app) => app
    .get('/', (res) => res.writeHeader('A', 'b').end('x'))
    .get('/chunks', (res) => { res.write('a'); res.end('b'); }));
  for (const target of ['/', '/chunks', '/missing']) {
    const { head } = await get(t, port, target);
    const date = /\r\nDate: (\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT)\r\n/.exec(head)?.[1];
    assert.ok(Math.abs(Date.parse(date) - Date.now()) < 60_000, head);
  }
});

ours('a date of the program is the only one', async (t) => {
  const date = new Date(0).toUTCString();
  const port = await serve(t, (app) => app.get('/', (res) => res.writeHeader('date', date).end('x')));
  const { head } = await get(t, port, '/');
  assert.deepEqual(head.match(/^date: .*$/gim), [`date: ${date}`]);
});

both('a connection serves more after a path without a route', async (t) => {
  const port = await serve(t, (app) => app.get('/', (res) => res.end('here')));
  const raw = new Raw(t, port);
  raw.write('GET /missing HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n');
  await raw.until((bytes) => bytes.toString().endsWith('\r\n\r\nhere'));
  assert.match(raw.bytes.toString(), /^HTTP\/1.1 404 /);
});

ours('a body without a route is discarded', async (t) => {
  const port = await serve(t, (app) => app.get('/', (res) => res.end('here')));
  const raw = new Raw(t, port);
  raw.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab');
  assert.match(await raw.head(), /^HTTP\/1.1 404 /);
  raw.write('cdeGET / HTTP/1.1\r\nHost: a\r\n\r\n');
  await raw.until((bytes) => bytes.toString().endsWith('\r\n\r\nhere'));
});

ours('HTTP/1.0 with keep-alive is answered with it', async (t) => {
  const port = await serve(t, (app) => app.get('/', (res) => res.end('x')));
  const { head, raw } = await request(t, port, 'GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n');
  assert.match(head, /\r\nConnection: keep-alive\r\n/);
  raw.write('GET / HTTP/1.0\r\n\r\n');
  await raw.closed;
});
