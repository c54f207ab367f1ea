// The option `workers`: requests, their bodies and answers.
'use strict';

const assert = require('node:assert/strict');
const { Worker } = require('node:worker_threads');
const { uws, ours, serve, listen, get, request, Queue, Raw, text } = require('./support.js');

const app = (options) => uws.App({ workers: 2, ...options });

ours('what a handler has written before no other takes the request is before the 404', async (t) => {
  const own = app();
  const port = await serve(t, (given) => given
    .get('/head', (res, req) => { res.writeStatus('201 Made').writeHeader('x-first', '1'); req.setYield(true); }), own);
  const { head, body } = await get(t, port, '/head');
  assert.match(head, /^HTTP\/1.1 201 Made\r\n(.*\r\n)*x-first: 1\r\n/i);
  assert.match(body, /^<html>.*Not Found/);
  assert.equal((await get(t, port, '/none')).status, 'HTTP/1.1 404 Not Found');
});

ours('plain requests are answered, at once, later, and in pieces', async (t) => {
  const own = app();
  const port = await serve(t, (given) => given
    .get('/hello/:name', (res, req) => res.writeHeader('x-own', '1').end(`hello ${req.getParameter(0)} ${req.getHeader('x-test')}`))
    .get('/later', async (res) => {
      res.onAborted(() => {});
      await new Promise(setImmediate);
      res.cork(() => res.writeStatus('202 Accepted').end('later'));
    })
    .get('/pieces', (res) => { res.write('one '); res.write('two '); res.end('three'); })
    .get('/stream', (res) => { while (!res.tryEnd(Buffer.alloc(1000), 5000)[1]); })
    .get('/yields', (res, req) => { req.setYield(true); })
    .any('/*', (res) => res.writeStatus('404 Not Found').end('mine')), own);
  assert.match((await get(t, port, '/hello/you', 'X-Test: yes\r\n')).body, /^hello you yes$/);
  const later = await get(t, port, '/later');
  assert.deepEqual([later.status, later.body], ['HTTP/1.1 202 Accepted', 'later']);
  assert.match((await get(t, port, '/yields')).body, /mine/);
  assert.match(await (await fetch(`http://127.0.0.1:${port}/pieces`)).text(), /^one two three$/);
  assert.equal((await get(t, port, '/stream')).body.length, 5000);
  // Several on one connection.
  const raw = new Raw(t, port);
  for (let at = 0; at < 3; at += 1) {
    raw.write(`GET /hello/${at} HTTP/1.1\r\nHost: a\r\n\r\n`);
    await raw.head();
    await raw.until((bytes) => bytes.length >= 8);
    raw.bytes = Buffer.alloc(0);
  }
});

/** A POST with this body, as text. */
const post = (target, body, headers = '') => `POST ${target} HTTP/1.1\r\nHost: a\r\nContent-Length: ${Buffer.byteLength(body)}\r\n${headers}\r\n${body}`;

ours('bodies of requests: whole, in pieces, chunked, expected, unwanted, several on one connection', async (t) => {
  const port = await serve(t, (given) => given
    .post('/echo', (res) => {
      const pieces = [];
      res.onAborted(() => {});
      res.onData((piece, isLast) => {
        pieces.push(Buffer.from(piece.slice(0)));
        if (isLast) res.cork(() => res.end(Buffer.concat(pieces)));
      });
    })
    .post('/collect/:most', (res, req) => {
      res.onAborted(() => {});
      res.collectBody(Number(req.getParameter(0)), (body) => res.end(body === null ? 'too long' : `${body.byteLength}`));
    })
    .post('/unread', (res) => res.end('not read'))
    .post('/later', async (res) => {
      res.onAborted(() => {});
      await new Promise(setImmediate);
      res.onData((piece, isLast) => { if (isLast) res.end(piece); });
    })
    .any('/*', (res) => { res.onAborted(() => {}); res.onData((piece, isLast) => res.end(`${piece.byteLength} ${isLast}`)); }), app());
  assert.equal((await request(t, port, post('/echo', 'hello'))).body, 'hello');
  assert.equal((await request(t, port, post('/later', 'later'))).body, 'later');
  // Without a body, and with an empty one.
  assert.equal((await get(t, port, '/none')).body, '0 true');
  assert.equal((await request(t, port, post('/none', ''))).body, '0 true');
  const large = 'x'.repeat(3 << 20);
  const url = `http://127.0.0.1:${port}`;
  assert.equal(await (await fetch(`${url}/echo`, { method: 'POST', body: large })).text(), large);
  assert.equal(await (await fetch(`${url}/collect/5000000`, { method: 'POST', body: large })).text(), `${large.length}`);
  assert.equal((await request(t, port, post('/collect/2', 'hello'))).body, 'too long');
  const chunked = 'POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n';
  assert.equal((await request(t, port, chunked)).body, 'hello!');
  // The body is asked for only if it is read.
  const expects = new Raw(t, port);
  expects.write('POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n');
  assert.match(await expects.head(), /^HTTP\/1.1 100 /);
  expects.write('body');
  assert.match(await expects.head(), /^HTTP\/1.1 200 /);
  const refused = new Raw(t, port);
  refused.write('POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n');
  assert.match(await refused.head(), /^HTTP\/1.1 200 /);
  await refused.closed;
  // What follows a body, read or not, is the next request.
  const raw = new Raw(t, port);
  const bodies = ['one', large, 'three'];
  for (const body of bodies) raw.write(post('/echo', body), post('/unread', body));
  for (const body of bodies) {
    for (const answer of [body, 'not read']) {
      assert.match(await raw.head(), /^HTTP\/1.1 200 /);
      await raw.until((bytes) => bytes.length >= answer.length);
      assert.equal(raw.bytes.subarray(0, answer.length).toString() === answer, true);
      raw.bytes = raw.bytes.subarray(answer.length);
    }
  }
});

ours('a client that leaves in the middle of a body, or of an answer, is aborted', async (t) => {
  const [seen, aborted] = [new Queue(), new Queue()];
  const port = await serve(t, (given) => given
    .post('/*', (res) => { res.onAborted(() => aborted.push('body')); res.onData((piece) => seen.push(piece.byteLength)); })
    .get('/*', (res) => { res.onAborted(() => aborted.push('answer')); res.write('begun'); }), app());
  const body = new Raw(t, port);
  body.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345');
  assert.equal(await seen.next(), 5);
  body.socket.destroy();
  assert.equal(await aborted.next(), 'body');
  const answer = new Raw(t, port);
  answer.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  await answer.until((bytes) => bytes.includes('begun'));
  answer.socket.destroy();
  assert.equal(await aborted.next(), 'answer');
});

ours('a body that is paused is not read', async (t) => {
  const [seen, answered] = [new Queue(), new Queue()];
  const port = await serve(t, (given) => given.post('/*', (res) => {
    let size = 0;
    res.onAborted(() => {});
    res.onData((piece, isLast) => {
      size += piece.byteLength;
      if (isLast) res.end(`${size}`);
      seen.push([size, res]);
    });
    res.pause();
    answered.push(res);
  }), app());
  const raw = new Raw(t, port);
  const size = 64 << 20;
  raw.write(`POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ${size}\r\n\r\n`, Buffer.alloc(size));
  const res = await answered.next();
  // Others are served meanwhile.
  const other = new Raw(t, port);
  other.write(post('/', 'x'));
  await answered.next();
  assert.equal(seen.size, 0);
  assert.ok(raw.socket.bytesWritten - raw.socket.writableLength <= size);
  res.resume();
  await raw.head();
  await raw.until((bytes) => bytes.length >= `${size}`.length);
  assert.equal(raw.bytes.toString(), `${size}`);
});

ours('of a body no more is read than JavaScript takes, and what it has paused is kept', async (t) => {
  const size = 128 << 20;
  // Of the client: how many KiB it has written.
  const written = new Int32Array(new SharedArrayBuffer(8));
  const [paused, answered] = [new Queue(), new Queue()];
  const port = await serve(t, (given) => given.post('/*', (res) => {
    let got = 0;
    res.onAborted(() => {});
    res.onData((piece, isLast) => {
      if (got === 0) {
        // The thread goes on while this one is blocked, until it may not.
        let now;
        for (let before = -1; now !== before && now !== size >> 10;) {
          before = Atomics.load(written, 0);
          Atomics.wait(written, 1, 0, 300);
          now = Atomics.load(written, 0);
        }
        res.pause();
        paused.push([now, res]);
      }
      got += piece.byteLength;
      if (isLast) { res.end(); answered.push(got); }
    });
  }), app());
  const client = new Worker(`
    const { port, size, written } = require('node:worker_threads').workerData;
    const socket = require('node:net').connect(port, '127.0.0.1');
    socket.write('POST / HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: ' + size + '\\r\\n\\r\\n');
    const piece = Buffer.alloc(64 << 10);
    let left = size;
    const next = () => {
      if (left < size) Atomics.add(written, 0, piece.length >> 10);
      if (left === 0) return;
      left -= piece.length;
      socket.write(piece, next);
    };
    next();
  `, { eval: true, workerData: { port, size, written } });
  t.after(() => client.terminate());
  const [taken, res] = await paused.next();
  // 8 MiB for JavaScript, and the buffers of the kernel.
  assert.ok(taken < 64 << 10, `${taken} KiB`);
  assert.equal(answered.size, 0);
  res.resume();
  assert.equal(await answered.next(), size);
});

ours('a piece of a body that is on its way comes after resume', async (t) => {
  const seen = new Queue();
  const port = await serve(t, (given) => given.post('/*', (res) => {
    res.onAborted(() => {});
    res.onData((piece, isLast) => {
      seen.push(text(piece));
      res.pause();
      setImmediate(() => {
        seen.push('resumed');
        res.resume();
        if (isLast) res.end('all');
      });
    });
  }), app());
  const chunked = 'POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n';
  assert.equal((await request(t, port, chunked)).body, 'all');
  const order = [];
  while (seen.size > 0) order.push(await seen.next());
  assert.deepEqual(order, ['a', 'resumed', 'b', 'resumed', '', 'resumed']);
});

ours('a path without a route, with and without a body, keeps its connection', async (t) => {
  const port = await serve(t, (given) => given.get('/here', (res) => res.end('here')), app());
  const raw = new Raw(t, port);
  raw.write(post('/none', 'body'), 'GET /none HTTP/1.1\r\nHost: a\r\n\r\n', 'GET /here HTTP/1.1\r\nHost: a\r\n\r\n');
  await raw.until((bytes) => bytes.toString().endsWith('here'));
  assert.deepEqual(raw.bytes.toString().match(/HTTP\/1.1 \d+/g), ['HTTP/1.1 404', 'HTTP/1.1 404', 'HTTP/1.1 200']);
});

ours('answers wait for slow clients: tryEnd, write, onWritable, getWriteOffset', async (t) => {
  const size = 32 << 20;
  const body = Buffer.alloc(size, 'abcdefg');
  const waits = new Queue();
  const port = await serve(t, (given) => given
    .get('/try', (res) => {
      res.onAborted(() => {});
      const go = (from) => {
        const [ok, done] = res.tryEnd(body.subarray(from), size);
        if (!ok) waits.push(res.getWriteOffset());
        return ok || done;
      };
      res.onWritable((offset) => go(offset));
      go(0);
    })
    .get('/write', (res) => {
      res.onAborted(() => {});
      let at = 0;
      const go = () => {
        while (at < size) {
          const ok = res.write(body.subarray(at, at += 100_000));
          if (!ok) { waits.push(at); return; }
        }
        res.end();
      };
      res.onWritable(() => { go(); return true; });
      // Out of the handler, within which all is kept.
      setImmediate(go);
    }), app());
  for (const target of ['/try', '/write']) {
    const raw = new Raw(t, port);
    raw.socket.pause();
    raw.write(`GET ${target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n`);
    assert.ok(await waits.next() < size / 2);
    raw.socket.destroy();
    const answer = Buffer.from(await (await fetch(`http://127.0.0.1:${port}${target}`)).arrayBuffer());
    assert.equal(answer.equals(body), true);
  }
});

ours('an app that is closed in a request handler ends the response, before its number is another one\'s', async (t) => {
  const own = app();
  const ends = new Queue();
  let closes = true;
  own.get('/*', (res) => {
    res.onAborted(() => ends.push('aborted'));
    if (closes) own.close();
    closes = false;
    setImmediate(() => {
      try {
        res.end('late');
      } catch (error) {
        ends.push(error.message);
      }
    });
  });
  t.after(() => own.close());
  const port = await listen(own);
  const raw = new Raw(t, port);
  raw.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  assert.equal(await ends.next(), 'aborted');
  assert.match(await ends.next(), /has ended/);
  await raw.closed;
  const answer = await get(t, await listen(own), '/');
  assert.equal(answer.body, 'late');
  assert.equal(ends.size, 0);
});
