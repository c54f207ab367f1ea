// `WebSocketServer` for programs that were written for the package `ws`.
'use strict';

const { EventEmitter } = require('node:events');
const { STATUS_CODES, createServer } = require('node:http');
const { createHash } = require('node:crypto');
const { Bridge } = require('./bridge.js');
const { WebSocket } = require('./socket.js');
const { owner } = require('../bytes.js');

const KEY = /^[+/0-9A-Za-z]{22}==$/;
const TOKEN = /^[\^_`a-zA-Z\-0-9!#$%&'*+.|~]+$/;
const WINDOW_BITS = /^(8|9|1[0-5])$/;
const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
/** Messages of fewer bytes are not compressed. */
const THRESHOLD = 1024;
const MAX_PAYLOAD = 100 * 1024 * 1024;
/** What `maxPayload: 0` means. */
const MAX_PAYLOAD_OF_THE_ADDON = 2 ** 31 - 1;
const UNSUPPORTED = { autoPong: false, skipUTF8Validation: true };

const RUNNING = 0;
const CLOSING = 1;
const CLOSED = 2;

module.exports = (uws) => {
  const own = owner(uws);

  class WebSocketServer extends EventEmitter {
    #bridge;
    #state = RUNNING;
    #open = 0;
    #removeListeners = () => {};

    constructor(options, callback) {
      super();
      this.options = {
        autoPong: true, maxPayload: MAX_PAYLOAD, skipUTF8Validation: false, perMessageDeflate: false, handleProtocols: null,
        clientTracking: true, verifyClient: null, noServer: false, backlog: null, server: null, host: null, path: null,
        port: null, WebSocket: ServerSocket, ...options,
      };
      const { port, server, noServer } = this.options;
      if ([port != null, Boolean(server), Boolean(noServer)].filter(Boolean).length !== 1) {
        throw new TypeError('One and only one of the "port", "server", or "noServer" options must be specified');
      }
      for (const [name, value] of Object.entries(UNSUPPORTED)) {
        if (this.options[name] === value) throw new TypeError(`standfast does not support ${name}: ${value}`);
      }
      if (this.options.workers !== undefined) {
        throw new TypeError('workers is an option of App and Server: a WebSocketServer has connections that Node.js accepts');
      }
      if (this.options.perMessageDeflate === true) this.options.perMessageDeflate = {};
      if (this.options.clientTracking) this.clients = new Set();
      this.#bridge = new Bridge(uws, this.#app());
      if (server) this.#attach(server);
      if (port != null) this.#listen(port, callback);
    }

    /** What serves the sockets, of connections that the bridge brings. */
    #app() {
      const { perMessageDeflate, maxPayload } = this.options;
      const app = uws.App();
      app.ws('/*', {
        compression: perMessageDeflate ? compression(uws, perMessageDeflate) : uws.DISABLED,
        maxPayloadLength: maxPayload > 0 ? maxPayload : MAX_PAYLOAD_OF_THE_ADDON,
        // As with `ws`, which neither ends idle connections nor limits what is queued.
        idleTimeout: 0,
        sendPingsAutomatically: false,
        maxBackpressure: 0,
        keepMessages: true,
        upgrade: (res, req, context) => this.#upgrade(res, req, context),
        open: (raw) => this.#opened(raw),
        message: (raw, message, isBinary) => raw.peer._message(own(message), isBinary),
        drain: (raw) => raw.peer._drain(),
        ping: (raw, message) => raw.peer.emit('ping', Buffer.from(message.slice(0))),
        pong: (raw, message) => raw.peer.emit('pong', Buffer.from(message.slice(0))),
        close: (raw, code, message) => raw.peer?._close(code, message),
      });
      return app;
    }

    #listen(port, callback) {
      const { host, backlog } = this.options;
      const server = createServer((request, response) => {
        const body = STATUS_CODES[426];
        response.writeHead(426, { 'Content-Length': body.length, 'Content-Type': 'text/plain' });
        response.end(body);
      });
      this.#attach(server);
      server.listen(port, host, backlog, callback);
    }

    #attach(server) {
      this._server = server;
      const listeners = {
        listening: () => this.emit('listening'),
        error: (error) => this.emit('error', error),
        upgrade: (request, socket, head) => {
          this.handleUpgrade(request, socket, head, (ws, given) => this.emit('connection', ws, given));
        },
      };
      for (const [name, listener] of Object.entries(listeners)) server.on(name, listener);
      this.#removeListeners = () => {
        for (const [name, listener] of Object.entries(listeners)) server.removeListener(name, listener);
      };
    }

    get _state() {
      return this.#state;
    }

    address() {
      if (this.options.noServer) throw new Error('The server is operating in "noServer" mode');
      return this._server ? this._server.address() : null;
    }

    close(callback) {
      if (this.#state === CLOSED) {
        if (callback) this.once('close', () => callback(new Error('The server is not running')));
        process.nextTick(() => this.emit('close'));
        return;
      }
      if (callback) this.once('close', callback);
      if (this.#state === CLOSING) return;
      this.#state = CLOSING;
      this.#removeListeners();
      const server = this._server;
      this._server = null;
      // Its own ends when its connections have.
      if (this.options.port != null) server.close(() => this.#closed());
      else if (this.#open === 0) process.nextTick(() => this.#closed());
    }

    #closed() {
      if (this.#state !== CLOSING) return;
      this.#state = CLOSED;
      this.emit('close');
    }

    /** Whether a request is for this server, by its path. */
    shouldHandle(request) {
      const { path } = this.options;
      if (!path) return true;
      const query = request.url.indexOf('?');
      return (query === -1 ? request.url : request.url.slice(0, query)) === path;
    }

    /** A client that a server of node:http has accepted. */
    handleUpgrade(request, socket, head, callback) {
      const onError = () => socket.destroy();
      socket.on('error', onError);
      const refuse = (code, message, headers, error) => {
        if (error && this.listenerCount('wsClientError') > 0) {
          this.emit('wsClientError', error, socket, request);
          return;
        }
        socket.once('finish', () => socket.destroy());
        socket.end(refusal(code, message, headers));
      };
      const problem = invalid(request) ?? (this.shouldHandle(request) ? undefined : [400]);
      if (problem) {
        const [code, message, headers] = problem;
        refuse(code, message, headers, message && new Error(message));
        return;
      }
      this.#decide(request, { refuse, accept: (accepted) => {
        socket.removeListener('error', onError);
        if (!socket.readable || !socket.writable) { socket.destroy(); return; }
        if (socket[USED]) {
          throw new Error('server.handleUpgrade() was called more than once with the same socket, possibly due to a misconfiguration');
        }
        socket[USED] = true;
        this.#bridge.connect(request, socket, head, { ...accepted, request, callback });
      } });
    }

    /** The handshake that the bridge has sent for a client. */
    #upgrade(res, req, context) {
      const bridged = this.#bridge.take(req.getUrl());
      if (!bridged || bridged.socket?.destroyed) { res.close(); return; }
      const key = req.getHeader('sec-websocket-key');
      const extensions = req.getHeader('sec-websocket-extensions');
      res.writeStatus('101 Switching Protocols');
      for (const [name, value] of bridged.headers) res.writeHeader(name, value);
      res.upgrade({ accepted: bridged }, key, bridged.protocol, extensions, context);
    }

    /** Asks `verifyClient` and `handleProtocols`. */
    #decide(request, { refuse, accept }) {
      const goOn = () => {
        if (this.#state > RUNNING) { refuse(503); return; }
        const accepted = this.#accepted(request);
        if (typeof accepted === 'string') refuse(400, accepted, undefined, new Error(accepted));
        else accept(accepted);
      };
      const { verifyClient } = this.options;
      if (!verifyClient) { goOn(); return; }
      const { headers } = request;
      const origin = headers.origin ?? headers['sec-websocket-origin'];
      const secure = Boolean(request.socket?.authorized || request.socket?.encrypted);
      const info = { origin, secure, req: request };
      if (verifyClient.length === 2) {
        verifyClient(info, (verified, code, message, extra) => {
          if (verified) goOn();
          else refuse(code || 401, message, extra);
        });
      } else if (verifyClient(info)) goOn();
      else refuse(401);
    }

    /** What the answer to a handshake says, or what is wrong with its lists. */
    #accepted(request) {
      const { handleProtocols, perMessageDeflate } = this.options;
      const offered = request.headers['sec-websocket-protocol'];
      let protocol = '';
      if (offered !== undefined) {
        const names = offered.split(',').map((name) => name.trim());
        if (new Set(names).size < names.length || !names.every((name) => TOKEN.test(name))) {
          return 'Invalid Sec-WebSocket-Protocol header';
        }
        const chosen = handleProtocols ? handleProtocols(new Set(names), request) : names[0];
        protocol = chosen || '';
      }
      const extensions = request.headers['sec-websocket-extensions'];
      if (perMessageDeflate && extensions !== undefined && !areExtensions(extensions)) {
        return 'Invalid or unacceptable Sec-WebSocket-Extensions header';
      }
      const deflates = perMessageDeflate && /permessage-deflate/.test(extensions ?? '');
      const accept = createHash('sha1').update(request.headers['sec-websocket-key'] + GUID).digest('base64');
      const lines = ['HTTP/1.1 101 Switching Protocols', 'Upgrade: websocket', 'Connection: Upgrade', `Sec-WebSocket-Accept: ${accept}`];
      const fixed = lines.length;
      this.emit('headers', lines, request);
      return {
        protocol,
        extensions: deflates ? 'permessage-deflate' : '',
        threshold: deflates ? perMessageDeflate.threshold ?? THRESHOLD : undefined,
        headers: lines.slice(fixed).map((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()]),
      };
    }

    #opened(raw) {
      const { accepted } = raw;
      raw.accepted = undefined;
      const ws = new this.options.WebSocket(raw, accepted.request, accepted);
      raw.peer = ws;
      accepted.ws = ws;
      this.#open += 1;
      this.clients?.add(ws);
      ws.on('close', () => {
        this.#open -= 1;
        this.clients?.delete(ws);
        if (this.#open === 0 && this.#state === CLOSING && this.options.port == null) process.nextTick(() => this.#closed());
      });
      accepted.callback(ws, accepted.request);
    }
  }

  class ServerSocket extends WebSocket {}
  Object.assign(ServerSocket, { WebSocket: ServerSocket, WebSocketServer, Server: WebSocketServer });
  WebSocketServer.WebSocket = ServerSocket;
  return { WebSocketServer };
};

const USED = Symbol('used');

/** What is wrong with a handshake, as status, message and headers. */
function invalid({ method, headers }) {
  if (method !== 'GET') return [405, 'Invalid HTTP method'];
  if (headers.upgrade?.toLowerCase() !== 'websocket') return [400, 'Invalid Upgrade header'];
  if (!KEY.test(headers['sec-websocket-key'] ?? '')) return [400, 'Missing or invalid Sec-WebSocket-Key header'];
  if (!['8', '13'].includes(headers['sec-websocket-version'])) {
    return [400, 'Missing or invalid Sec-WebSocket-Version header', { 'Sec-WebSocket-Version': '13, 8' }];
  }
  return undefined;
}

/** Whether a list of extensions is one, and parameters of permessage-deflate have values that are allowed. */
function areExtensions(text) {
  return text.split(',').every((extension) => {
    const [name, ...parameters] = extension.split(';').map((part) => part.trim());
    return TOKEN.test(name) && parameters.every((parameter) => {
      const [key, quoted] = parameter.split('=').map((part) => part.trim());
      const value = quoted?.replace(/^"(.*)"$/, '$1');
      if (!TOKEN.test(key) || (value !== undefined && !TOKEN.test(value))) return false;
      if (name !== 'permessage-deflate') return true;
      if (key === 'client_max_window_bits') return value === undefined || WINDOW_BITS.test(value);
      if (key === 'server_max_window_bits') return WINDOW_BITS.test(value ?? '');
      return /^(client|server)_no_context_takeover$/.test(key) && value === undefined;
    });
  });
}

function refusal(code, message, headers) {
  const body = message ?? STATUS_CODES[code];
  const all = { Connection: 'close', 'Content-Type': 'text/html', 'Content-Length': Buffer.byteLength(body), ...headers };
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${code} ${STATUS_CODES[code]}\r\n${lines.join('')}\r\n${body}`;
}

/** The addon's options for those of `ws`. Contexts are kept unless the server declines to. */
function compression(uws, { serverNoContextTakeover, clientNoContextTakeover }) {
  const compressor = serverNoContextTakeover ? uws.SHARED_COMPRESSOR : uws.DEDICATED_COMPRESSOR_32KB;
  const decompressor = clientNoContextTakeover ? uws.SHARED_DECOMPRESSOR : uws.DEDICATED_DECOMPRESSOR_32KB;
  return compressor | decompressor;
}
