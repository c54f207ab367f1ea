// Echo by the API of uWebSockets.js, with permessage-deflate: the server of `cargo xtask autobahn node`. The first argument
// is the module. Prints {"listen":"127.0.0.1:PORT"} when ready.
'use strict';

const uws = require(process.argv[2]);

uws.App()
  .ws('/*', {
    maxPayloadLength: 32 * 1024 * 1024,
    maxBackpressure: 64 * 1024 * 1024,
    compression: uws.DEDICATED_COMPRESSOR | uws.DEDICATED_DECOMPRESSOR,
    message: (ws, message, isBinary) => ws.send(message, isBinary, true),
  })
  .listen('127.0.0.1', 0, (listener) => {
    console.log(JSON.stringify({ listen: `127.0.0.1:${uws.us_socket_local_port(listener)}` }));
  });
