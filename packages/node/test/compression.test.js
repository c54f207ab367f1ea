// permessage-deflate.
'use strict';

const assert = require('node:assert/strict');
const { uws, both, serve, Client, Raw, text } = require('./support.js');

const OFFER = { 'Sec-WebSocket-Extensions': 'permessage-deflate; client_max_window_bits' };
const LONG = 'a long text that repeats itself; '.repeat(100);

const echo = (compression) => (app) => app.ws('/*', {
  compression,
  maxPayloadLength: 1024 * 1024,
  message: (ws, message, isBinary) => ws.send(message, isBinary, true),
});

const compressing = {
  'shared compressor': uws.SHARED_COMPRESSOR,
  'shared compressor and decompressor': uws.SHARED_COMPRESSOR | uws.SHARED_DECOMPRESSOR,
  'dedicated compressor of 4 KiB': uws.DEDICATED_COMPRESSOR_4KB | uws.SHARED_DECOMPRESSOR,
  'dedicated compressor of 256 KiB and decompressor': uws.DEDICATED_COMPRESSOR_256KB | uws.DEDICATED_DECOMPRESSOR,
  'dedicated decompressor of 4 KiB': uws.SHARED_COMPRESSOR | uws.DEDICATED_DECOMPRESSOR_4KB,
};

for (const [name, compression] of Object.entries(compressing)) {
  both(`echo of compressed messages with a ${name}`, async (t) => {
    const port = await serve(t, echo(compression));
    const client = await Client.open(t, port, '/', [], { perMessageDeflate: { threshold: 0 } });
    assert.match(client.ws.extensions, /permessage-deflate/);
    for (const message of ['', 'short', LONG, LONG]) {
      client.send(message);
      assert.equal(await client.next(), message);
    }
  });
}

both('without compression nothing is negotiated', async (t) => {
  const port = await serve(t, echo(uws.DISABLED));
  const head = await new Raw(t, port).upgrade('/', OFFER);
  assert.doesNotMatch(head, /sec-websocket-extensions/i);
});

both('a client that does not offer it gets plain messages', async (t) => {
  const port = await serve(t, echo(uws.SHARED_COMPRESSOR));
  const client = await Client.open(t, port);
  client.send(LONG);
  assert.equal(await client.next(), LONG);
});

both('the third argument of send decides, and is false by default', async (t) => {
  const port = await serve(t, (app) => app.ws('/*', {
    compression: uws.SHARED_COMPRESSOR,
    open: (ws) => { ws.send(LONG); ws.send(LONG, false, false); ws.send(LONG, false, true); },
  }));
  const raw = new Raw(t, port);
  assert.match(await raw.upgrade('/', OFFER), /permessage-deflate/);
  const frames = [await raw.frame(), await raw.frame(), await raw.frame()];
  assert.deepEqual(frames.map((frame) => frame.compressed), [false, false, true]);
  assert.equal(text(frames[0].payload), LONG);
  assert.ok(frames[2].payload.length < LONG.length / 5);
});

both('publish compresses if asked', async (t) => {
  let app;
  const port = await serve(t, (given) => {
    app = given.ws('/*', { compression: uws.SHARED_COMPRESSOR, open: (ws) => ws.subscribe('a') });
  });
  const raw = new Raw(t, port);
  await raw.upgrade('/', OFFER);
  app.publish('a', LONG, false, true);
  assert.equal((await raw.frame()).compressed, true);
});

both('a message that inflates to more than maxPayloadLength ends the connection', async (t) => {
  const port = await serve(t, (app) => app.ws('/*', { compression: uws.SHARED_COMPRESSOR | uws.SHARED_DECOMPRESSOR, maxPayloadLength: 1000 }));
  const client = await Client.open(t, port, '/', [], { perMessageDeflate: { threshold: 0 } });
  client.send('a'.repeat(100_000));
  // This package says why by a close frame.
  assert.ok([1006, 1009].includes((await client.closed).code));
});
