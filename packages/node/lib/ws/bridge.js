// Connections that another server of this process has accepted (node:http, node:https), brought to an app. The app takes
// over sockets of TCP. For others, such as those with TLS, it listens on a UNIX socket in a private folder as long as there are
// such connections, and bytes are passed on.
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
    const token = `/${randomBytes(16).toString('hex')}`;
    this.#expected.set(token, accepted);
    if (socket.readableLength > 0) head = Buffer.concat([head, socket.read()]);
    if (typeof socket.setTimeout === 'function') socket.setTimeout(0);
    if (typeof socket.setNoDelay === 'function') socket.setNoDelay();
    const bytes = Buffer.from(handshake(token, request, accepted));
    if (!this.#adopt(token, bytes, socket, head, accepted)) this.#pass(token, bytes, socket, head);
  }

  /** Has the app serve a socket by a descriptor of its own. Returns false if it cannot. */
  #adopt(token, handshake, socket, head, accepted) {
    const handle = socket instanceof net.Socket && !socket.encrypted ? socket._handle : undefined;
    if (!this.#app._adopt || !(handle?.fd >= 0) || socket.writableLength > 0) return false;
    // Node.js keeps them once they were read.
    void [socket.remoteAddress, socket.localAddress];
    const ended = () => { this.#expected.delete(token); socket.destroy(); };
    if (!this.#app._adopt(handle.fd, Buffer.concat([handshake, head]), ended)) return false;
    accepted.socket = socket;
    socket.once('close', () => accepted.ws?.terminate());
    // Of `destroy(error)` of a program.
    socket.on('error', () => {});
    // Its object stays, for the program and for the server that counts it; its descriptor does not.
    socket._handle = null;
    handle.close();
    return true;
  }

  /** Connects a socket to the app's listener. */
  #pass(token, handshake, socket, head) {
    this.#connections += 1;
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
    inner.write(handshake);
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

/** What the app is to know of a request: extensions and a protocol only if they are used. */
function handshake(target, { headers }, { extensions, protocol }) {
  const lines = [`GET ${target} HTTP/1.1`, 'Host: localhost', 'Upgrade: websocket', 'Connection: Upgrade'];
  lines.push(`Sec-WebSocket-Key: ${headers['sec-websocket-key']}`, 'Sec-WebSocket-Version: 13');
  if (extensions) lines.push(`Sec-WebSocket-Extensions: ${headers['sec-websocket-extensions']}`);
  if (protocol) lines.push(`Sec-WebSocket-Protocol: ${headers['sec-websocket-protocol']}`);
  return `${lines.join('\r\n')}\r\n\r\n`;
}

module.exports = { Bridge };
