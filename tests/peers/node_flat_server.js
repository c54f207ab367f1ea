// A server of echoes that tells its memory: of node_fuzz.js.
'use strict';

const uws = require(process.argv[2]);

uws.App()
  .ws('/*', { message: (ws, message, isBinary) => ws.send(message, isBinary) })
  .listen('127.0.0.1', 0, (listener) => process.send({ port: uws.us_socket_local_port(listener) }));

process.on('message', () => {
  globalThis.gc();
  globalThis.gc();
  const { rss, heapUsed, external } = process.memoryUsage();
  process.send({ rss, held: heapUsed + external });
});
