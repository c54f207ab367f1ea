// SSLApp and server names.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
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
