// The PROXY protocol: what a proxy says of the client in front of a connection.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const net = require('node:net');
const tls = require('node:tls');
const { Worker } = require('node:worker_threads');
const { uws, both, ours, serve, certificate, Queue, Raw, text, frame, moduleName } = require('./support.js');

const SIGNATURE = Buffer.from('0d0a0d0a000d0a515549540a', 'hex');

/** A header of version 2. */
function header(command, family, body = Buffer.alloc(0)) {
  return Buffer.concat([SIGNATURE, Buffer.from([command, family, body.length >> 8, body.length & 255]), body]);
}

/** What it says: source, destination, both ports. */
const ADDRESSES_4 = Buffer.from([10, 1, 2, 3, 192, 0, 2, 9, 0x12, 0x34, 0, 80]);
const ADDRESSES_6 = Buffer.from('20010db8000000000000000000000001' + '20010db8000000000000000000000002' + '12340050', 'hex');
const V4 = header(0x21, 0x11, ADDRESSES_4);
const V6 = header(0x21, 0x21, ADDRESSES_6);
const LOCAL = header(0x20, 0x00);

const IPV4 = '10.1.2.3 4';
const IPV6 = '2001:0db8:0000:0000:0000:0000:0000:0001 16';
const NONE = ' 0';

const GET = 'GET / HTTP/1.1\r\nHost: a\r\n\r\n';

/** What a response says of its client. */
const seen = (res) => `${text(res.getProxiedRemoteAddressAsText())} ${res.getProxiedRemoteAddress().byteLength}`;

/** An app that answers with what it sees. */
const answers = (given) => given.get('/*', (res) => res.end(seen(res)));

/** The body of the next answer of a connection. */
async function answer(raw) {
  const length = Number(/content-length: (\d+)/i.exec(await raw.head())[1]);
  await raw.until((bytes) => bytes.length >= length || length === 0);
  const body = raw.bytes.subarray(0, length).toString();
  raw.bytes = raw.bytes.subarray(length);
  return body;
}

/** Sends bytes on a connection of its own, and returns the body of the first answer. */
async function ask(t, port, ...parts) {
  const raw = new Raw(t, port);
  raw.write(Buffer.concat(parts.map((part) => Buffer.from(part))));
  const body = await answer(raw);
  raw.socket.destroy();
  return body;
}

both('a header says whose connection it is, for all of its requests', async (t) => {
  const port = await serve(t, answers);
  const cases = [
    [V4, IPV4], [V6, IPV6], [LOCAL, NONE], [Buffer.alloc(0), NONE],
    // Behind the addresses: what else a proxy says, here an authority and no operation.
    [header(0x21, 0x11, Buffer.concat([ADDRESSES_4, Buffer.from([2, 0, 3, 97, 46, 98, 4, 0, 1, 0])])), IPV4],
    [header(0x21, 0x12, ADDRESSES_4), IPV4],
  ];
  for (const [bytes, expected] of cases) {
    const raw = new Raw(t, port);
    raw.write(bytes, GET, GET);
    assert.equal(await answer(raw), expected);
    assert.equal(await answer(raw), expected);
    raw.write(GET);
    assert.equal(await answer(raw), expected);
    raw.socket.destroy();
  }
});

both('an address is reported in the form that the header has', async (t) => {
  const port = await serve(t, answers);
  const mapped = '00000000000000000000ffff0a010203';
  assert.equal(await ask(t, port, header(0x21, 0x21, Buffer.from(`${mapped}${mapped}12340050`, 'hex')), GET),
    '0000:0000:0000:0000:0000:ffff:0a01:0203 16');
});

both('a header comes in any pieces', async (t) => {
  const port = await serve(t, answers);
  for (const bytes of [V4, V6]) {
    for (let at = 1; at <= bytes.length; at += 1) {
      const raw = new Raw(t, port);
      raw.socket.setNoDelay();
      raw.write(bytes.subarray(0, at));
      await new Promise(setImmediate);
      raw.write(Buffer.concat([bytes.subarray(at), Buffer.from(GET.slice(0, 9))]));
      await new Promise(setImmediate);
      raw.write(GET.slice(9));
      assert.equal(await answer(raw), bytes === V4 ? IPV4 : IPV6, `${at}`);
      raw.socket.destroy();
    }
  }
});

both('the address of the peer stays that of the peer', async (t) => {
  const port = await serve(t, (app) => app.get('/*', (res) => res.end(text(res.getRemoteAddressAsText()))));
  assert.match(await ask(t, port, V4, GET), /^(127\.0\.0\.1|[0:]+ffff:7f00:0001)$/);
});

both('nothing is left for the next connection', async (t) => {
  const port = await serve(t, answers);
  for (let at = 0; at < 4; at += 1) {
    assert.equal(await ask(t, port, V4, GET), IPV4);
    assert.equal(await ask(t, port, GET), NONE);
  }
});

both('a header precedes a handshake, and is known while it is decided about', async (t) => {
  const told = new Queue();
  const port = await serve(t, (app) => app.ws('/*', {
    upgrade: async (res, req, context) => {
      const keys = ['key', 'protocol', 'extensions'].map((name) => req.getHeader(`sec-websocket-${name}`));
      res.onAborted(() => {});
      told.push(seen(res));
      await new Promise(setImmediate);
      told.push(seen(res));
      res.cork(() => res.upgrade({}, ...keys, context));
    },
    message: (ws, message) => ws.send(message),
  }));
  const raw = new Raw(t, port);
  raw.write(V6);
  assert.match(await raw.upgrade(), /^HTTP\/1.1 101 /);
  assert.deepEqual([await told.next(), await told.next()], [IPV6, IPV6]);
  raw.write(frame(1, 'echo'));
  assert.equal((await raw.frame()).payload.toString(), 'echo');
});

both('a header may precede the first bytes inside TLS', async (t) => {
  const port = await serve(t, answers, uws.SSLApp(certificate('localhost')));
  assert.equal(await askTls(t, port, [], [V4, GET]), IPV4);
  assert.equal(await askTls(t, port, [], [GET]), NONE);
});

both('a header that stays incomplete ends as a request does', async (t) => {
  const port = await serve(t, answers);
  const ends = [V4.subarray(0, 13), V4.subarray(0, 27)].map((bytes) => {
    const raw = new Raw(t, port);
    raw.write(bytes);
    return raw.closed.then(() => raw.bytes.length);
  });
  assert.deepEqual(await Promise.all(ends), [0, 0]);
});

/** As `ask`, over TLS: `before` in pieces before it, `inside` as its first bytes. */
async function askTls(t, port, before, inside) {
  const socket = net.connect(port, '127.0.0.1').setNoDelay();
  t.after(() => socket.destroy());
  await once(socket, 'connect');
  for (const piece of before) {
    socket.write(piece);
    await new Promise(setImmediate);
  }
  const secure = tls.connect({ socket, servername: 'localhost', rejectUnauthorized: false });
  let bytes = '';
  secure.on('data', (data) => { bytes += data; });
  const closed = new Promise((resolve, reject) => {
    secure.on('error', reject);
    secure.on('close', () => reject(new Error(`closed after ${JSON.stringify(bytes)}`)));
  });
  closed.catch(() => {});
  await Promise.race([once(secure, 'secureConnect'), closed]);
  secure.write(Buffer.concat(inside.map((part) => Buffer.from(part))));
  while (!/\r\n\r\n[^]+$/.test(bytes)) await Promise.race([once(secure, 'data'), closed]);
  socket.destroy();
  return bytes.split('\r\n\r\n')[1];
}

// uWebSockets.js refuses what precedes TLS.
ours('a header precedes TLS, in any pieces, and only one counts', async (t) => {
  const app = uws.SSLApp(certificate('localhost'));
  app.missingServerName(() => {});
  for (const one of [uws.SSLApp(certificate('localhost')), app, uws.SSLApp({ ...certificate('localhost'), workers: 2 })]) {
    const port = await serve(t, answers, one);
    assert.equal(await askTls(t, port, [V4], [GET]), IPV4);
    assert.equal(await askTls(t, port, [LOCAL], [GET]), NONE);
    for (const at of [1, 2, 12, 15, 16, 51]) {
      assert.equal(await askTls(t, port, [V6.subarray(0, at), V6.subarray(at)], [GET]), IPV6, `${at}`);
    }
    // Of a client that lies behind a proxy that does not.
    assert.match(await askTls(t, port, [V4], [V6, GET]), /^Refused: /);
    assert.match(await askTls(t, port, [LOCAL], [V6, GET]), /^Refused: /);
    // Wrong ones, and such behind the beginning of TLS.
    for (const wrong of [header(0x11, 0x11, ADDRESSES_4), header(0x21, 0x11, Buffer.alloc(5000)), Buffer.from('\r\n\r\n'), Buffer.from('\r\nGET')]) {
      await assert.rejects(askTls(t, port, [wrong], [GET]));
    }
    assert.equal(await askTls(t, port, [], [GET]), NONE);
  }
});

ours('the port in a header', async (t) => {
  for (const app of [uws.App(), uws.App({ workers: 1 })]) {
    const port = await serve(t, (given) => given.get('/*', (res) => res.end(`${res.getProxiedRemotePort()}`)), app);
    assert.equal(await ask(t, port, V4, GET), '4660');
    assert.equal(await ask(t, port, GET), '0');
  }
});

// uWebSockets.js waits with wrong headers, takes the last of several, later ones too, and the addresses of LOCAL.
ours('wrong headers, and such behind the beginning, are answered with 400', async (t) => {
  for (const app of [uws.App(), uws.App({ workers: 1 })]) {
    const port = await serve(t, answers, app);
    assert.equal(await ask(t, port, header(0x20, 0x11, ADDRESSES_4), GET), NONE);
    for (const wrong of [
      header(0x11, 0x11, ADDRESSES_4), header(0x22, 0x11, ADDRESSES_4), header(0x21, 0x11, ADDRESSES_4.subarray(0, 11)),
      header(0x21, 0x11, Buffer.alloc(4081)), Buffer.concat([V4, V6]), Buffer.concat([LOCAL, V6]),
      Buffer.from('PROXY TCP4 10.1.2.3 192.0.2.9 4660 80\r\n'), Buffer.from('\r\n\r\n'), SIGNATURE.subarray(0, 6),
    ]) {
      const raw = new Raw(t, port);
      raw.write(wrong, GET);
      assert.match(await raw.head(), /^HTTP\/1.1 400 /, wrong.toString('hex'));
      await raw.closed;
    }
    const raw = new Raw(t, port);
    raw.write(V4, GET);
    assert.equal(await answer(raw), IPV4);
    raw.write(V6, GET);
    assert.match(await raw.head(), /^HTTP\/1.1 400 /);
    await raw.closed;
    // The longest one, and what begins like one.
    assert.equal(await ask(t, port, header(0x21, 0x11, Buffer.concat([ADDRESSES_4, Buffer.alloc(4068)])), GET), IPV4);
    assert.equal(await ask(t, port, `\r\n${GET}`), NONE);
  }
});

ours('with workers requests and handshakes have the header of their connection, and others none', async (t) => {
  const told = new Queue();
  const port = await serve(t, (given) => answers(given)
    .post('/*', (res) => {
      res.onAborted(() => {});
      res.onData((piece, isLast) => { if (isLast) res.cork(() => res.end(seen(res))); });
    })
    .get('/passed', (res, req) => { req.setYield(true); })
    .ws('/ws', {
      upgrade: async (res, req, context) => {
        const keys = ['key', 'protocol', 'extensions'].map((name) => req.getHeader(`sec-websocket-${name}`));
        res.onAborted(() => {});
        await new Promise(setImmediate);
        told.push(seen(res));
        res.cork(() => res.upgrade({}, ...keys, context));
      },
    }), uws.App({ workers: 2 }));
  for (let at = 0; at < 4; at += 1) {
    const raw = new Raw(t, port);
    raw.write(V4.subarray(0, 20), V4.subarray(20), GET);
    assert.equal(await answer(raw), IPV4);
    raw.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody', 'GET /passed HTTP/1.1\r\nHost: a\r\n\r\n');
    assert.equal(await answer(raw), IPV4);
    assert.equal(await answer(raw), IPV4);
    assert.match(await raw.upgrade('/ws'), /^HTTP\/1.1 101 /);
    assert.equal(await told.next(), IPV4);
    assert.equal(await ask(t, port, GET), NONE);
    raw.socket.destroy();
  }
});

ours('a child app has the header, too', async (t) => {
  const worker = new Worker(`
    const uws = require(${JSON.stringify(moduleName)});
    const app = uws.App().get('/*', (res) => res.end('child ' + Buffer.from(res.getProxiedRemoteAddressAsText())));
    require('node:worker_threads').parentPort.postMessage(app.getDescriptor());
  `, { eval: true });
  t.after(() => worker.terminate());
  const [descriptor] = await once(worker, 'message');
  const app = uws.App();
  const port = await serve(t, answers, app);
  app.addChildAppDescriptor(descriptor);
  assert.equal(await ask(t, port, V4, GET), 'child 10.1.2.3');
});

ours('a connection that is taken over has the header that comes first', async (t) => {
  const app = answers(uws.App());
  t.after(() => app.close());
  for (const [taken, rest] of [[V4, ''], [V4.subarray(0, 5), V4.subarray(5)], [Buffer.alloc(0), V4]]) {
    const server = net.createServer({ pauseOnConnect: true }, (socket) => {
      app._adopt(socket._handle.fd, taken, () => {});
      socket._handle.close();
      socket._handle = null;
    }).listen(0, '127.0.0.1');
    t.after(() => server.close());
    await once(server, 'listening');
    assert.equal(await ask(t, server.address().port, rest, GET), IPV4);
  }
});
