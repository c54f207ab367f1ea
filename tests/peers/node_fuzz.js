// Clients that do anything for a server whose handlers do anything (node_fuzz_server.js); then the memory of a server of
// echoes by many messages. The first argument is the module under test. Prints `ok NAME`.
//
// NODE_FUZZ_SECONDS (20), NODE_FUZZ_SEED (the time), NODE_FUZZ_MESSAGES (1000000), all of the environment.
'use strict';

const { fork } = require('node:child_process');
const { once } = require('node:events');
const net = require('node:net');
const path = require('node:path');
const { random } = require('./node_fuzz_random.js');

const folder = process.argv[2];
const seconds = Number(process.env.NODE_FUZZ_SECONDS ?? 20);
const seed = Number(process.env.NODE_FUZZ_SEED ?? Date.now() % 2 ** 31);
const messages = Number(process.env.NODE_FUZZ_MESSAGES ?? 1_000_000);
const { chance, below, pick } = random(seed);

/** Clients at a time. */
const CLIENTS = 60;
/** Writes of a client, at most. */
const WRITES_MAX = 12;
/** Sessions of ports that have ended fail; so many of the newest are tried. */
const PORTS_KEPT = 4;

/** A frame with a mask; `tweak` changes its first byte. */
function frame(opcode, payload, tweak = 0x80) {
  const { length } = payload;
  const size = length < 126 ? 0 : length < 65_536 ? 2 : 8;
  const head = Buffer.alloc(2 + size + 4);
  head[0] = opcode | tweak;
  head[1] = 0x80 | (size === 0 ? length : size === 2 ? 126 : 127);
  if (size === 2) head.writeUInt16BE(length, 2);
  if (size === 8) head.writeBigUInt64BE(BigInt(length), 2);
  // A mask of zeros.
  return Buffer.concat([head, payload]);
}

const garbage = (length) => Buffer.from(Array.from({ length }, () => below(256)));

const TARGETS = ['/plain/room', '/decided', '/decided?a=b', '/none', '/plain/%ff'];
const handshake = () => `GET ${pick(TARGETS)} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n`
  + `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n`
  + (chance(0.5) ? 'Sec-WebSocket-Extensions: permessage-deflate\r\n' : '')
  + (chance(0.3) ? 'Sec-WebSocket-Protocol: a, b\r\n' : '') + '\r\n';

const FRAMES = [
  () => frame(1, Buffer.alloc(below(300), 'a')),
  () => frame(2, Buffer.alloc(below(70_000))),
  () => frame(1, Buffer.from('part'), 0),
  () => frame(0, Buffer.from('rest')),
  () => frame(9, Buffer.alloc(below(126))),
  () => frame(10, Buffer.alloc(below(10))),
  () => frame(8, Buffer.from([3, 232, ...Buffer.from('bye')])),
  () => frame(1, garbage(20)),
  () => frame(1, garbage(20), 0xc0),
  () => frame(below(16), garbage(below(200)), below(16) << 4),
  () => Buffer.concat(Array.from({ length: 200 }, () => frame(1, Buffer.from('many')))),
  () => garbage(below(100)),
];

const REQUESTS = [
  () => `GET /${below(100)} HTTP/1.1\r\nHost: a\r\n\r\n`,
  () => `GET / HTTP/1.1\r\nHost: a\r\n\r\n`.repeat(below(20)),
  () => `HEAD / HTTP/1.1\r\nHost: a\r\n\r\n`,
  () => 'GET / HTTP/1.0\r\n\r\n',
  () => `POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: ${below(5000)}\r\n\r\n${'b'.repeat(below(5000))}`,
  () => `POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n${pick(['0\r\n\r\n', 'x\r\n', ''])}`,
  () => `POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody`,
  () => garbage(below(100)),
];

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** A connection from its beginning to its end, whatever that is. */
async function client(port) {
  const socket = net.connect({ port, host: '127.0.0.1', allowHalfOpen: chance(0.3) });
  socket.on('error', () => {});
  const closed = new Promise((done) => socket.once('close', done));
  socket.on('connect', () => socket.setNoDelay(true));
  if (chance(0.1)) socket.pause();
  else socket.resume();
  const isSocket = chance(0.7);
  if (isSocket) socket.write(handshake());
  if (isSocket && chance(0.8)) await Promise.race([once(socket, 'data').catch(() => {}), closed, pause(200)]);
  for (let writes = below(WRITES_MAX); writes > 0 && socket.writable; writes -= 1) {
    const piece = Buffer.from(pick(isSocket ? FRAMES : REQUESTS)());
    socket.write(chance(0.1) ? piece.subarray(0, below(piece.length)) : piece);
    if (chance(0.5)) await pause(below(10));
  }
  pick([() => socket.destroy(), () => socket.resetAndDestroy(), () => socket.end(), () => {}])();
  await Promise.race([closed, pause(below(300))]);
  socket.destroy();
  await closed;
}

/** A server in a process of its own, and what it sends. */
function start(script, args) {
  const child = fork(path.join(__dirname, script), args, { execArgv: ['--expose-gc'], stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  child.exited = new Promise((done) => child.once('exit', (code, signal) => done({ code, signal })));
  child.exited.then(({ code, signal }) => {
    if (child.mayEnd) return;
    console.error(`the server has ended (${signal ?? code}): NODE_FUZZ_SEED=${seed}`);
    process.exit(1);
  });
  return child;
}

/** The answer to a message: the next one that is no port. It may come in one piece with a port before it. */
function ask(child, what) {
  const answer = new Promise((done) => {
    const take = (message) => {
      if (message.port !== undefined) return;
      child.off('message', take);
      done(message);
    };
    child.on('message', take);
  });
  child.send(what);
  return answer;
}

async function fuzz() {
  const server = start('node_fuzz_server.js', [folder, String(seed)]);
  const ports = [];
  server.on('message', ({ port }) => {
    if (port === undefined) return;
    ports.push(port);
    if (ports.length > PORTS_KEPT) ports.shift();
  });
  await once(server, 'message');
  const until = Date.now() + seconds * 1000;
  const samples = [];
  const sample = async () => {
    const { memory, counts } = await ask(server, 'sample');
    samples.push(memory);
    if (process.env.NODE_FUZZ_VERBOSE) console.log(new Date().toISOString(), JSON.stringify({ memory, counts }));
  };
  // One question at a time: a server under load may answer late.
  let sampled = Promise.resolve();
  const sampling = setInterval(() => { sampled = sampled.then(sample); }, Math.max(2, seconds / 10) * 1000);
  const endless = async () => {
    while (Date.now() < until) await client(pick(ports));
  };
  await Promise.all(Array.from({ length: CLIENTS }, endless));
  clearInterval(sampling);
  await sampled;
  server.mayEnd = true;
  const { counts, thrown } = await ask(server, 'end');
  console.log(JSON.stringify({ seed, counts, thrown, samples }));
  const { code } = await server.exited;
  if (code !== 0) throw new Error(`the server ended with ${code}`);
  if (counts.twice > 0) throw new Error(`${counts.twice} sockets were closed twice`);
  if (counts.opened !== counts.closed) throw new Error(`${counts.opened} sockets were opened, and ${counts.closed} closed`);
  const busy = ['opened', 'requests', 'messages', 'planned', 'thrown', 'workers'].filter((name) => counts[name] === 0);
  if (busy.length > 0) throw new Error(`nothing was tried of ${busy}`);
}

/** The server's memory after a tenth of the messages, and after all. */
async function flat() {
  const server = start('node_flat_server.js', [folder]);
  const [{ port }] = await once(server, 'message');
  const socket = net.connect(port, '127.0.0.1');
  await once(socket, 'connect');
  socket.write('GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n'
    + 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n');
  await once(socket, 'data');
  const batch = 1000;
  const burst = Buffer.concat(Array.from({ length: batch }, () => frame(2, Buffer.alloc(20, 'x'))));
  let received = 0;
  let wake = () => {};
  socket.on('data', (data) => { received += data.length; wake(); });
  const echo = async (count) => {
    for (let sent = 0; sent < count; sent += batch) {
      socket.write(burst);
      received -= batch * 22;
      while (received < 0) await new Promise((done) => { wake = done; });
    }
  };
  await echo(messages / 10);
  const before = await ask(server, 'sample');
  await echo(messages - messages / 10);
  const after = await ask(server, 'sample');
  server.mayEnd = true;
  server.disconnect();
  server.kill();
  console.log(JSON.stringify({ messages, before, after }));
  if (after.held > before.held + 1024 * 1024) throw new Error(`the heap grew from ${before.held} to ${after.held} bytes`);
  if (after.rss > before.rss + 32 * 1024 * 1024) throw new Error(`memory grew from ${before.rss} to ${after.rss} bytes`);
}

async function main() {
  if (seconds > 0) {
    await fuzz();
    console.log('ok anything');
  }
  await flat();
  console.log('ok flat memory');
  process.exit(0);
}

main().catch((error) => {
  console.error(`NODE_FUZZ_SEED=${seed}:`, error);
  process.exit(1);
});
