// What the tests share: the module under test, servers that end with their test, raw and WebSocket clients.
//
// UWS_MODULE names the module under test. Without it, it is this package; with `@uwsjs/core` or its package for a platform
// (uWebSockets.js 20.51.4 from npm) the same cases run on the original, whose behaviour they describe.
'use strict';

const { once } = require('node:events');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { execFileSync, spawn } = require('node:child_process');
const { test } = require('node:test');
const { WebSocket } = require('ws');

const moduleName = process.env.UWS_MODULE || path.join(__dirname, '..');
const uws = require(moduleName);
const isOriginal = moduleName.startsWith('@uwsjs/');

/** How Node.js is started: NODE_COMMAND, in JSON, where its executable does not start by itself, as under an emulator. */
const node = process.env.NODE_COMMAND ? JSON.parse(process.env.NODE_COMMAND) : [process.execPath];

/** A case that hangs fails; no case waits for a time. */
const TIME_MAX = 60_000;

/** A case that holds for this package and for uWebSockets.js. */
function both(name, body) {
  test(name, { timeout: TIME_MAX }, body);
}

/** A case in which this package differs from uWebSockets.js on purpose. */
function ours(name, body) {
  test(name, { timeout: TIME_MAX, skip: isOriginal && 'uWebSockets.js differs' }, body);
}

/** A port of an app on loopback. */
function listen(app) {
  return new Promise((resolve, reject) => {
    app.listen('127.0.0.1', 0, (socket) => {
      if (socket) resolve(uws.us_socket_local_port(socket));
      else reject(new Error('cannot listen'));
    });
  });
}

/** An app that `build` gives its routes, and that is closed after the test. */
async function serve(t, build, app = uws.App()) {
  build(app);
  t.after(() => app.close());
  return listen(app);
}

/** Promises of values that come one after another. */
class Queue {
  #values = [];
  #waiting = [];

  push(value) {
    const waiting = this.#waiting.shift();
    if (waiting) waiting(value);
    else this.#values.push(value);
  }

  next() {
    if (this.#values.length > 0) return Promise.resolve(this.#values.shift());
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  get size() {
    return this.#values.length;
  }
}

/** A client of `ws` with its messages as a queue. */
class Client {
  constructor(url, protocols, options) {
    this.messages = new Queue();
    this.pings = new Queue();
    this.pongs = new Queue();
    this.ws = new WebSocket(url, protocols, { perMessageDeflate: false, ...options });
    this.ws.on('message', (data, isBinary) => this.messages.push(isBinary ? data : data.toString()));
    this.ws.on('ping', (data) => this.pings.push(data.toString()));
    this.ws.on('pong', (data) => this.pongs.push(data.toString()));
    this.closed = new Promise((resolve) => {
      this.ws.on('close', (code, reason) => resolve({ code, reason: reason.toString() }));
    });
    this.ws.on('error', () => {});
  }

  /** A client whose handshake has succeeded. */
  static async open(t, port, target = '/', protocols = [], options = {}) {
    const client = new Client(`ws://127.0.0.1:${port}${target}`, protocols, options);
    t.after(() => client.ws.terminate());
    await new Promise((resolve, reject) => {
      client.ws.once('open', resolve);
      client.ws.once('error', reject);
    });
    return client;
  }

  send(data, options) {
    this.ws.send(data, options);
  }

  next() {
    return this.messages.next();
  }
}

/** A TCP client that sees each byte. */
class Raw {
  constructor(t, port) {
    this.socket = net.connect(port, '127.0.0.1');
    this.chunks = [];
    this.ended = false;
    this.socket.on('data', (data) => { this.chunks.push(data); });
    this.socket.on('error', () => {});
    this.closed = new Promise((resolve) => {
      this.socket.on('close', () => { this.ended = true; resolve(); });
    });
    t.after(() => this.socket.destroy());
  }

  write(...parts) {
    for (const part of parts) this.socket.write(part);
  }

  /** What has come and was not taken. Joined when it is asked for, as many megabytes come in small chunks. */
  get bytes() {
    if (this.chunks.length !== 1) this.chunks = [Buffer.concat(this.chunks)];
    return this.chunks[0];
  }

  set bytes(bytes) {
    this.chunks = [bytes];
  }

  /** Waits until `found` returns something for the bytes so far. */
  async until(found) {
    for (;;) {
      const result = found(this.bytes);
      if (result) return result;
      if (this.ended) throw new Error(`the connection ended after ${JSON.stringify(this.bytes.toString('latin1'))}`);
      await Promise.race([once(this.socket, 'data').catch(() => {}), this.closed]);
    }
  }

  /** Waits for the end of a head, and takes it. */
  async head() {
    const end = await this.until((bytes) => bytes.indexOf('\r\n\r\n') + 1) + 3;
    const head = this.bytes.subarray(0, end).toString('latin1');
    this.bytes = this.bytes.subarray(end);
    return head;
  }

  /** Waits for a frame of the server, and takes it. */
  async frame() {
    const { frame, size } = await this.until(parseFrame);
    this.bytes = this.bytes.subarray(size);
    return frame;
  }

  /** Sends a handshake and returns the answer's head. */
  async upgrade(target = '/', headers = {}) {
    const lines = Object.entries({ ...HANDSHAKE, ...headers }).filter(([, value]) => value !== null);
    this.write(`GET ${target} HTTP/1.1\r\n${lines.map(([name, value]) => `${name}: ${value}\r\n`).join('')}\r\n`);
    return this.head();
  }
}

const HANDSHAKE = {
  Host: '127.0.0.1',
  Upgrade: 'websocket',
  Connection: 'Upgrade',
  'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==',
  'Sec-WebSocket-Version': '13',
};

/** A masked frame of a client. */
function frame(opcode, payload = '', { fin = true } = {}) {
  const body = Buffer.from(payload);
  const mask = Buffer.from([1, 2, 3, 4]);
  const masked = Buffer.from(body.map((byte, at) => byte ^ mask[at % 4]));
  const head = [(fin ? 0x80 : 0) | opcode];
  if (body.length < 126) head.push(0x80 | body.length);
  else head.push(0x80 | 126, body.length >> 8, body.length & 255);
  return Buffer.concat([Buffer.from(head), mask, masked]);
}

function parseFrame(bytes) {
  if (bytes.length < 2) return undefined;
  let [at, length] = [2, bytes[1] & 127];
  if (length === 126) {
    if (bytes.length < 4) return undefined;
    [at, length] = [4, bytes.readUInt16BE(2)];
  } else if (length === 127) {
    if (bytes.length < 10) return undefined;
    [at, length] = [10, Number(bytes.readBigUInt64BE(2))];
  }
  if (bytes.length < at + length) return undefined;
  const payload = bytes.subarray(at, at + length);
  const frame = { fin: bytes[0] >> 7 === 1, compressed: (bytes[0] & 0x40) !== 0, opcode: bytes[0] & 15, payload };
  return { frame, size: at + length };
}

/** One request on its own connection, as head and body. */
async function request(t, port, text) {
  const raw = new Raw(t, port);
  raw.write(text);
  const head = await raw.head();
  const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
  await raw.until((bytes) => bytes.length >= length);
  return { head, status: head.split('\r\n')[0], body: raw.bytes.toString(), raw };
}

const get = (t, port, target, headers = '') => request(t, port, `GET ${target} HTTP/1.1\r\nHost: a\r\n${headers}\r\n`);

/** Runs a program with `uws` and `log` in scope, and returns what it printed and how it ended. `streams` are its descriptors from 3 on. */
async function program(t, source, env = {}, streams = []) {
  const prelude = `'use strict';
    const uws = require(${JSON.stringify(moduleName)});
    const log = (...values) => console.log(...values);
    const listen = (app, then) => app.listen('127.0.0.1', 0, (s) => then(uws.us_socket_local_port(s), s));\n`;
  const child = spawn(node[0], [...node.slice(1), '-e', prelude + source], {
    stdio: ['ignore', 'pipe', 'pipe', ...streams],
    env: { ...process.env, ...env },
    cwd: path.join(__dirname, '..'),
  });
  t.after(() => child.kill('SIGKILL'));
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (data) => { stdout += data; });
  child.stderr.on('data', (data) => { stderr += data; });
  const [code, signal] = await once(child, 'close');
  return { code, signal, lines: stdout.split('\n').filter(Boolean), stderr };
}

let folder;

/** A key and a certificate for a name, signed by itself or by another of these. */
function certificate(name, authority) {
  if (!folder) {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'uws-tls-'));
    process.on('exit', () => fs.rmSync(folder, { recursive: true, force: true }));
  }
  const [key, cert] = [path.join(folder, `${name}.key`), path.join(folder, `${name}.pem`)];
  if (!fs.existsSync(cert)) {
    const signed = authority ? ['-CA', authority.cert_file_name, '-CAkey', authority.key_file_name,
      '-addext', 'basicConstraints=critical,CA:FALSE'] : [];
    execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes',
      '-keyout', key, '-out', cert, '-days', '2', '-subj', `/CN=${name}`, '-addext', `subjectAltName=DNS:${name}`, ...signed],
    { stdio: 'ignore' });
  }
  return { key_file_name: key, cert_file_name: cert };
}

const text = (buffer) => Buffer.from(buffer).toString();

module.exports = {
  uws, node, isOriginal, both, ours, listen, serve, certificate, Queue, Client, Raw, request, get, frame, program, text, moduleName,
};
