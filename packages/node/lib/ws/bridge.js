// Connections that another server of this process has accepted (node:http, node:https), brought to an app: the app
// listens on a UNIX socket in a private folder as long as there are such connections, and bytes are passed on.
'use strict';

const { mkdtempSync, rmSync } = require('node:fs');
const { randomBytes } = require('node:crypto');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');

class Bridge {
  #uws;
  #app;
  #listener;
  #folder;
  #connections = 0;
  #expected = new Map();

  constructor(uws, app) {
    this.#uws = uws;
    this.#app = app;
  }

  /** Connects a client whose request was accepted; `accepted` is what the app's upgrade handler takes by its path. */
  connect(request, socket, head, accepted) {
    this.#connections += 1;
    const token = `/${randomBytes(16).toString('hex')}`;
    this.#expected.set(token, accepted);
    let inner;
    const ended = () => {
      this.#expected.delete(token);
      this.#connections -= 1;
      if (this.#connections === 0) this.#stop();
    };
    try {
      inner = net.connect(this.#listen());
    } catch (error) {
      ended();
      socket.destroy(error);
      return;
    }
    inner.once('close', () => { ended(); socket.destroy(); });
    socket.once('close', () => inner.destroy());
    inner.on('error', () => socket.destroy());
    socket.on('error', () => inner.destroy());
    if (typeof socket.setTimeout === 'function') socket.setTimeout(0);
    if (typeof socket.setNoDelay === 'function') socket.setNoDelay();
    inner.write(handshake(token, request));
    // uWebSockets.js loses what comes in one read with a handshake.
    inner.once('readable', () => {
      if (head.length > 0) inner.write(head);
      socket.pipe(inner);
      inner.pipe(socket);
    });
  }

  /** What was accepted under a path, once. */
  take(token) {
    const accepted = this.#expected.get(token);
    this.#expected.delete(token);
    return accepted;
  }

  #listen() {
    if (!this.#listener) {
      this.#folder = mkdtempSync(path.join(os.tmpdir(), 'standfast-'));
      this.#app.listen_unix((socket) => { this.#listener = socket; }, path.join(this.#folder, 'ws'));
      if (!this.#listener) throw new Error(`cannot listen on a UNIX socket in ${this.#folder}`);
    }
    return path.join(this.#folder, 'ws');
  }

  #stop() {
    if (this.#listener) this.#uws.us_listen_socket_close(this.#listener);
    this.#listener = undefined;
    if (this.#folder) rmSync(this.#folder, { recursive: true, force: true });
  }
}

function handshake(target, { headers }) {
  const lines = [`GET ${target} HTTP/1.1`, 'Host: localhost', 'Upgrade: websocket', 'Connection: Upgrade'];
  lines.push(`Sec-WebSocket-Key: ${headers['sec-websocket-key']}`, 'Sec-WebSocket-Version: 13');
  for (const name of ['sec-websocket-extensions', 'sec-websocket-protocol']) {
    if (headers[name]) lines.push(`${name}: ${headers[name]}`);
  }
  return `${lines.join('\r\n')}\r\n\r\n`;
}

module.exports = { Bridge };
