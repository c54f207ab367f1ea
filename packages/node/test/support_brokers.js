// Redis and NATS for tests.
'use strict';

const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { once } = require('node:events');
const { spawn, spawnSync } = require('node:child_process');

/** How a broker is started on a port. */
const BROKERS = {
  redis: {
    program: 'redis-server',
    flags: (port) => ['--port', port, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'],
    scheme: 'redis',
  },
  nats: { program: 'nats-server', flags: (port, folder) => ['-a', '127.0.0.1', '-p', port, '-js', '-sd', folder], scheme: 'nats' },
};

/** Those that are installed, by name; in CI all have to be. */
function availableBrokers() {
  return Object.entries(BROKERS).filter(([, { program }]) => {
    const missing = spawnSync(program, ['--version']).error;
    if (missing && !process.env.CI) console.log(`# skipped: ${program} is not installed`);
    return !missing || process.env.CI;
  });
}

async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

/** Checks again and again, with the loop in between, until it is so. The test's own time limits it. */
async function until(check) {
  for (;;) {
    const result = await check();
    if (result) return result;
    await new Promise((resolve) => { setTimeout(resolve, 5); });
  }
}

/** A broker that ends with the test; it can be stopped and started again, also without what it kept. */
async function start(t, { program, flags, scheme }) {
  const port = await freePort();
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'standfast-node-broker-'));
  let child;
  const run = async () => {
    child = spawn(program, flags(String(port), folder), { cwd: folder, stdio: 'ignore' });
    const failed = once(child, 'error').then(([error]) => { throw error; });
    const connects = until(() => new Promise((resolve) => {
      const socket = net.connect(port, '127.0.0.1');
      socket.on('connect', () => { socket.destroy(); resolve(true); });
      socket.on('error', () => resolve(false));
    }));
    await Promise.race([failed, connects]);
  };
  const stop = async () => {
    const gone = once(child, 'exit');
    child.kill('SIGKILL');
    await gone;
  };
  t.after(async () => {
    if (child.exitCode === null && child.signalCode === null) await stop();
    fs.rmSync(folder, { recursive: true });
  });
  await run();
  const forget = () => fs.readdirSync(folder).forEach((name) => fs.rmSync(path.join(folder, name), { recursive: true }));
  return { url: `${scheme}://127.0.0.1:${port}`, run, stop, forget };
}

module.exports = { availableBrokers, freePort, start, until };
