// `adoptSocket`: connections that another program has accepted.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const fs = require('node:fs');
const net = require('node:net');
const tls = require('node:tls');
const { uws, both, ours, program, Raw, certificate } = require('./support.js');

/** A program with a connection as its descriptor 3, and the client's end of it. */
async function adopting(t, source) {
  const server = net.createServer({ pauseOnConnect: true }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const client = new Raw(t, server.address().port);
  const [socket] = await once(server, 'connection');
  const ended = program(t, source, {}, [socket]);
  // The program has its own.
  socket.destroy();
  return { client, ended };
}

both('a connection that another program has accepted is served, and closed', async (t) => {
  const { client, ended } = await adopting(t, `
    const fs = require('node:fs');
    const target = (number) => { try { return fs.readlinkSync('/proc/self/fd/' + number); } catch { return undefined; } };
    const own = target(3);
    const app = uws.App()
      .get('/*', (res, req) => res.end('adopted ' + req.getUrl() + ' ' + Buffer.from(res.getRemoteAddressAsText())))
      .filter((res, count) => {
        log('filter', count);
        if (count < 0) setImmediate(() => { log(fs.readdirSync('/proc/self/fd').some((number) => target(number) === own)); process.exit(0); });
      });
    log(app.adoptSocket(3) === app);`);
  for (const target of ['/one', '/two']) {
    client.write(`GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`);
    assert.match(await client.head(), /^HTTP\/1.1 200 OK\r\n/);
    await client.until((bytes) => bytes.toString() === `adopted ${target} 127.0.0.1` && (client.bytes = Buffer.alloc(0), true));
  }
  client.socket.end();
  const { code, lines, stderr } = await ended;
  assert.equal(code, 0, stderr);
  assert.deepEqual(lines, ['filter 1', 'true', 'filter -1', 'false']);
});

both('an app with TLS does so with what it takes over', async (t) => {
  const options = certificate('localhost');
  const { client, ended } = await adopting(t, `
    uws.SSLApp(${JSON.stringify(options)})
      .get('/*', (res, req) => res.end('adopted ' + req.getUrl()))
      .filter((res, count) => { if (count < 0) process.exit(0); })
      .adoptSocket(3);`);
  const secure = tls.connect({ socket: client.socket, ca: fs.readFileSync(options.cert_file_name), servername: 'localhost' });
  await once(secure, 'secureConnect');
  secure.write('GET /one HTTP/1.1\r\nHost: localhost\r\n\r\n');
  let answer = '';
  while (!answer.endsWith('adopted /one')) answer += (await once(secure, 'data'))[0];
  secure.end();
  assert.equal((await ended).code, 0);
});

ours('a program ends when the connections that it has taken over have ended', async (t) => {
  const { client, ended } = await adopting(t, `
    uws.App().ws('/*', { message: (ws, message, isBinary) => ws.send(message, isBinary), close: () => log('closed') }).adoptSocket(3);`);
  assert.match(await client.upgrade(), /^HTTP\/1.1 101 /);
  client.socket.destroy();
  assert.deepEqual((await ended).lines, ['closed']);
});

ours('a wrong descriptor is told, and stays with its owner', async (t) => {
  const app = uws.App();
  t.after(() => app.close());
  for (const wrong of [undefined, null, '3', 1.5, -1, NaN, 2 ** 31, {}]) {
    assert.throws(() => app.adoptSocket(wrong), /expected the descriptor of a connected TCP socket/, String(wrong));
  }
  assert.throws(() => app.adoptSocket(1_000_000), /cannot take over a socket/);
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  assert.throws(() => app.adoptSocket(server._handle.fd), /cannot take over a socket/);
  // It listens as before.
  const client = new Raw(t, server.address().port);
  const [socket] = await once(server, 'connection');
  socket.end('here');
  await client.until((bytes) => bytes.toString() === 'here');
  const udp = require('node:dgram').createSocket('udp4');
  t.after(() => udp.close());
  udp.connect(server.address().port, '127.0.0.1');
  await once(udp, 'connect');
  assert.throws(() => app.adoptSocket(udp[Object.getOwnPropertySymbols(udp).find((own) => udp[own]?.handle)].handle.fd),
    /cannot take over a socket/);
  assert.throws(() => uws.App({ workers: 1 }).adoptSocket(3), /not for an app with the option workers/);
  const secure = uws.SSLApp(certificate('localhost')).removeServerName('');
  t.after(() => secure.close());
  assert.throws(() => secure.adoptSocket(3), /needs key_file_name/);
});
