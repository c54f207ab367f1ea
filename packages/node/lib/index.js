// What this package has beside the API of uWebSockets.js. All of it is written upon that API.
'use strict';

module.exports = (uws) => {
  const { WebSocketServer } = require('./ws/server.js')(uws);
  const { Server } = require('./server/server.js')(uws);
  return { Server, WebSocketServer };
};
