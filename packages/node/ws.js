// `standfast/ws`: what `require('ws')` returns, of a server.
'use strict';

module.exports = require('./index.js').WebSocketServer.WebSocket;
