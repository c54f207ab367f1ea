'use strict';

// The API of uWebSockets.js, on the engine of standfast.

const { createApp, closeListener, listenerPort } = require('./uws/app');
const { DeclarativeResponse } = require('./uws/declarative');
const { getParts } = require('./uws/parts');
const compression = require('./uws/compression');
const keyValue = require('./uws/key_value');

module.exports = {
  App: (options) => createApp(false, options),
  SSLApp: (options) => createApp(true, options),
  us_listen_socket_close: closeListener,
  us_socket_local_port: listenerPort,
  getParts,
  DeclarativeResponse,
  LIBUS_LISTEN_DEFAULT: 0,
  LIBUS_LISTEN_EXCLUSIVE_PORT: 1,
  ...compression,
  ...keyValue,
  // Messages are emptied after their handler, as those of uWebSockets.js, without `keepMessages: true`.
  _borrowsFrom: 0,
  _cfg() {},
};

// What this package has beside it.
Object.assign(module.exports, require('./lib')(module.exports));
