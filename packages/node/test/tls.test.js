// SSLApp and server names.
'use strict';

const assert = require('node:assert/strict');
const { X509Certificate } = require('node:crypto');
const { once } = require('node:events');
const fs = require('node:fs');
const net = require('node:net');
const tls = require('node:tls');
const { uws, both, ours, listen, serve, certificate, Client } = require('./support.js');

/** Connects with a server name; returns the name in the certificate and the answer to a request. */
async function ask(t, port, servername, target = '/') {
  const socket = tls.connect({ port, host: '127.0.0.1', servername, rejectUnauthorized: false });
  t.after(() => socket.destroy());
  await once(socket, 'secureConnect');
  socket.write(`GET ${target} HTTP/1.1\r\nHost: ${servername}\r\nConnection: close\r\n\r\n`);
  let bytes = '';
  socket.on('data', (data) => { bytes += data; });
  while (!/\r\n\r\n[^]+$/.test(bytes)) await once(socket, 'data');
  return { name: socket.getPeerCertificate().subject?.CN, body: bytes.split('\r\n\r\n')[1] };
}

both('SSLApp serves requests and sockets', async (t) => {
  const app = uws.SSLApp(certificate('localhost'));
  const port = await serve(t, (given) => given
    .get('/', (res) => res.end('secret'))
    .ws('/ws', { message: (ws, message, isBinary) => ws.send(message, isBinary) }), app);
  assert.deepEqual(await ask(t, port, 'localhost'), { name: 'localhost', body: 'secret' });
  const client = new Client(`wss://localhost:${port}/ws`, [], { rejectUnauthorized: false });
  t.after(() => client.ws.terminate());
  await once(client.ws, 'open');
  client.send('x'.repeat(10_000));
  assert.equal((await client.next()).length, 10_000);
});

both('addServerName and domain give a name its certificate and routes', async (t) => {
  const app = uws.SSLApp(certificate('localhost'));
  const port = await serve(t, (given) => {
    given.get('/', (res) => res.end('default'));
    assert.equal(given.addServerName('other.test', certificate('other.test')), given);
    given.domain('other.test').get('/', (res) => res.end('other'));
    given.domain('');
  }, app);
  assert.deepEqual(await ask(t, port, 'localhost'), { name: 'localhost', body: 'default' });
  assert.deepEqual(await ask(t, port, 'other.test'), { name: 'other.test', body: 'other' });
});

both('missingServerName can add the name', async (t) => {
  const missing = [];
  const app = uws.SSLApp(certificate('localhost'));
  const port = await serve(t, (given) => {
    given.any('/*', (res) => res.end('default'));
    given.missingServerName((name) => {
      missing.push(name);
      given.addServerName(name, certificate(name)).domain(name).any('/*', (res) => res.end(`late ${name}`));
    });
  }, app);
  assert.deepEqual(await ask(t, port, 'late.test'), { name: 'late.test', body: 'late late.test' });
  assert.deepEqual(await ask(t, port, 'late.test'), { name: 'late.test', body: 'late late.test' });
  assert.deepEqual(missing, ['late.test']);
});

both('removeServerName takes it away', async (t) => {
  const app = uws.SSLApp(certificate('localhost'));
  const port = await serve(t, (given) => given
    .get('/', (res) => res.end('default'))
    .addServerName('other.test', certificate('other.test')), app);
  const socket = tls.connect({ port, host: '127.0.0.1', servername: 'other.test', rejectUnauthorized: false });
  await once(socket, 'secureConnect');
  assert.equal(socket.getPeerCertificate().subject.CN, 'other.test');
  socket.destroy();
  app.removeServerName('other.test');
  assert.equal((await ask(t, port, 'other.test')).name, 'localhost');
});

ours('a file that is missing is an error that names it', () => {
  assert.throws(() => uws.SSLApp({ key_file_name: '/nowhere/key.pem', cert_file_name: '/nowhere/cert.pem' }), /\/nowhere\//);
});

both('a server speaks only TLS on its port', async (t) => {
  const app = uws.SSLApp(certificate('localhost')).any('/*', (res) => res.end('secret'));
  t.after(() => app.close());
  const port = await listen(app);
  await assert.rejects(fetch(`http://127.0.0.1:${port}/`));
});

// ---- certificates of clients ----

const authority = certificate('authority.test');
const known = certificate('known.test', authority);
const stranger = certificate('stranger.test', certificate('elsewhere.test'));

/** Options of an app that asks for certificates of clients. */
const asking = (options) => ({ ...certificate('localhost'), ca_file_name: authority.cert_file_name, ...options });

/** Connects with a certificate or none, sends requests, and returns the bodies of the answers; none if it is refused. */
async function bodies(t, port, own, requests, session) {
  const files = own ? { key: fs.readFileSync(own.key_file_name), cert: fs.readFileSync(own.cert_file_name) } : {};
  const socket = tls.connect({ port, host: '127.0.0.1', rejectUnauthorized: false, session, ...files });
  t.after(() => socket.destroy());
  const tickets = [];
  socket.on('session', (ticket) => tickets.push(ticket));
  const got = [];
  let bytes = '';
  const over = once(socket, 'close').catch(() => [true]);
  for (const one of requests) {
    socket.write(one);
    const answer = /\r\ncontent-length: (\d+)[^]*?\r\n\r\n/i;
    for (let found; ;) {
      found = answer.exec(bytes);
      const start = found && found.index + found[0].length;
      if (found && bytes.length >= start + Number(found[1])) {
        got.push(bytes.slice(start, start + Number(found[1])));
        bytes = bytes.slice(start + Number(found[1]));
        break;
      }
      const [data] = await Promise.race([once(socket, 'data').catch(() => [true]), over]);
      if (typeof data === 'boolean') return { got };
      bytes += data;
    }
  }
  return { got, ticket: tickets.at(-1), reused: socket.isSessionReused() };
}

const GET = 'GET / HTTP/1.1\r\nHost: a\r\n\r\n';
const POST = 'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello';

/** Answers with the certificate, also once the body has come, behind an await. */
const shows = (given) => given
  .get('/', (res) => res.end(res.getX509Certificate()))
  .post('/', (res) => {
    res.onAborted(() => {});
    res.onData(async (data, isLast) => {
      await null;
      if (isLast) res.cork(() => res.end(res.getX509Certificate()));
    });
  });

both('handlers read the certificate of a client that has one, and let in who has none', async (t) => {
  const port = await serve(t, shows, uws.SSLApp(asking()));
  const pem = fs.readFileSync(known.cert_file_name, 'utf8');
  assert.deepEqual((await bodies(t, port, known, [GET, POST, GET])).got, [pem, pem, pem]);
  assert.equal(new X509Certificate(pem).subject, 'CN=known.test');
  assert.deepEqual((await bodies(t, port, null, [GET, POST])).got, ['', '']);
  assert.deepEqual((await bodies(t, port, stranger, [GET])).got, []);
});

both('without ca_file_name no client is asked', async (t) => {
  const port = await serve(t, shows, uws.SSLApp(certificate('localhost')));
  assert.deepEqual((await bodies(t, port, known, [GET])).got, ['']);
});

ours('without TLS there is no certificate', async (t) => {
  const port = await serve(t, shows);
  assert.equal(await (await fetch(`http://127.0.0.1:${port}/`)).text(), '');
});

both('handlers of upgrades read it, too', async (t) => {
  const port = await serve(t, (given) => given.ws('/*', {
    upgrade: (res, req, context) => res.upgrade({ name: res.getX509Certificate() }, req.getHeader('sec-websocket-key'),
      req.getHeader('sec-websocket-protocol'), req.getHeader('sec-websocket-extensions'), context),
    open: (ws) => ws.send(ws.getUserData().name),
  }), uws.SSLApp(asking()));
  const files = { key: fs.readFileSync(known.key_file_name), cert: fs.readFileSync(known.cert_file_name) };
  for (const [options, expected] of [[files, files.cert.toString()], [{}, '']]) {
    const client = new Client(`wss://127.0.0.1:${port}/`, [], { rejectUnauthorized: false, ...options });
    t.after(() => client.ws.terminate());
    assert.equal(await client.next(), expected);
  }
});

ours('who is asked for a certificate does not resume a session: it would outlive the certificate', async (t) => {
  const port = await serve(t, shows, uws.SSLApp(asking()));
  const first = await bodies(t, port, known, [GET]);
  const second = await bodies(t, port, known, [GET], first.ticket);
  assert.deepEqual([first.ticket, first.reused, second.reused], [undefined, false, false]);
  assert.equal((await bodies(t, port, null, [GET], first.ticket)).got[0], '');
});

ours('other server names bring no other authorities, and keep what is demanded', async (t) => {
  const app = uws.SSLApp(asking({ rejectUnauthorized: true }));
  const other = certificate('other.test');
  const foreign = certificate('elsewhere.test').cert_file_name;
  assert.throws(() => app.addServerName('other.test', { ...other, ca_file_name: foreign }), /other authorities than the app's/);
  assert.throws(() => app.addServerName('other.test', { ...other, ca_file_name: other.key_file_name }), /other authorities|certificate/);
  app.addServerName('other.test', { ...other, ca_file_name: authority.cert_file_name });
  app.removeServerName('other.test').addServerName('other.test', other);
  const port = await serve(t, shows, app);
  assert.equal((await bodies(t, port, known, [GET])).got.length, 1);
  assert.deepEqual((await bodies(t, port, null, [GET])).got, []);
  assert.deepEqual((await bodies(t, port, stranger, [GET])).got, []);
  assert.throws(() => uws.SSLApp(certificate('localhost')).addServerName('other.test', { ...other, ca_file_name: foreign }), /other authorities/);
  assert.throws(() => uws.SSLApp({ ...certificate('localhost'), ca_file_name: other.key_file_name }), /certificate/);
});

ours('a certificate that cannot be added changes nothing', async (t) => {
  const app = uws.SSLApp(certificate('localhost'));
  const other = certificate('other.test');
  assert.throws(() => app.addServerName('other.test', { ...other, key_file_name: certificate('third.test').key_file_name }), Error);
  assert.throws(() => app.addServerName('other.test', { ...other, ca_file_name: other.key_file_name }), Error);
  const port = await serve(t, (given) => given.get('/', (res) => res.end('default')), app);
  assert.equal((await ask(t, port, 'other.test')).name, 'localhost');
  app.addServerName('other.test', other);
  assert.equal((await ask(t, port, 'other.test')).name, 'other.test');
});

ours('rejectUnauthorized refuses clients without a certificate, and needs authorities', async (t) => {
  const port = await serve(t, shows, uws.SSLApp(asking({ rejectUnauthorized: true })));
  assert.equal((await bodies(t, port, known, [GET])).got.length, 1);
  assert.deepEqual((await bodies(t, port, null, [GET])).got, []);
  assert.deepEqual((await bodies(t, port, stranger, [GET])).got, []);
  assert.throws(() => uws.SSLApp({ ...certificate('localhost'), rejectUnauthorized: true }), /rejectUnauthorized is for apps with ca_file_name/);
  for (const value of [null, false, 0]) assert.throws(() => uws.SSLApp(asking({ ca_file_name: value })), /ca_file_name/);
});

ours('apps with workers know certificates, too', async (t) => {
  for (const [options, without] of [[{}, ['', '']], [{ rejectUnauthorized: true }, []]]) {
    const port = await serve(t, shows, uws.SSLApp(asking({ workers: 2, ...options })));
    const pem = fs.readFileSync(known.cert_file_name, 'utf8');
    for (let client = 0; client < 4; client += 1) {
      assert.deepEqual((await bodies(t, port, known, [GET, POST, GET])).got, [pem, pem, pem]);
      assert.deepEqual((await bodies(t, port, null, [GET, POST])).got, without);
    }
    assert.deepEqual((await bodies(t, port, stranger, [GET])).got, []);
  }
});

ours('certificates and PROXY headers do not mix', async (t) => {
  const header = Buffer.concat([Buffer.from('0d0a0d0a000d0a515549540a2111000c', 'hex'), Buffer.from([10, 1, 2, 3, 192, 0, 2, 9, 0x12, 0x34, 0, 80])]);
  const sees = (res) => res.end(`${Buffer.from(res.getProxiedRemoteAddressAsText())} ${res.getX509Certificate().length}`);
  for (const workers of [0, 2]) {
    const port = await serve(t, (given) => given.get('/', sees), uws.SSLApp(asking(workers ? { workers } : {})));
    const length = fs.readFileSync(known.cert_file_name).length;
    for (const own of [known, null]) {
      for (const before of [header, Buffer.alloc(0)]) {
        const raw = net.connect(port, '127.0.0.1');
        t.after(() => raw.destroy());
        raw.write(before);
        const files = own ? { key: fs.readFileSync(own.key_file_name), cert: fs.readFileSync(own.cert_file_name) } : {};
        const socket = tls.connect({ socket: raw, rejectUnauthorized: false, ...files });
        await once(socket, 'secureConnect');
        socket.write('GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
        let answer = '';
        for await (const data of socket) answer += data;
        assert.equal(answer.split('\r\n\r\n')[1], `${before.length ? '10.1.2.3' : ''} ${own ? length : 0}`);
      }
    }
  }
});
