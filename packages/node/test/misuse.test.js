// What a program does wrong. uWebSockets.js ends the process for some of it, so each runs in a process of its own.
'use strict';

const assert = require('node:assert/strict');
const path = require('node:path');
const { once } = require('node:events');
const { spawn } = require('node:child_process');
const { uws, node, both, ours, listen, moduleName, program, Queue, Client, Raw } = require('./support.js');

const CLIENT = `
  const { WebSocket } = require('ws');
  const connect = (port, then) => { const c = new WebSocket('ws://127.0.0.1:' + port + '/'); c.on('error', () => {}); if (then) c.on('open', () => then(c)); return c; };`;

const HANDLERS = {
  upgrade: "upgrade() { throw new Error('planned'); }",
  open: "open() { throw new Error('planned'); }",
  message: "open(ws) { ws.send('go'); }, message() { throw new Error('planned'); }",
  ping: "open(ws) { ws.send('go'); }, ping() { throw new Error('planned'); }",
  pong: "open(ws) { ws.ping(); }, pong() { throw new Error('planned'); }",
  subscription: "open(ws) { ws.subscribe('a'); }, subscription() { throw new Error('planned'); }",
  close: "open(ws) { ws.send('bye'); }, close() { throw new Error('planned'); }",
};

const server = (handler) => `${CLIENT}
  const app = uws.App().ws('/*', { ${handler} });
  listen(app, (port) => {
    const c = connect(port);
    c.on('message', (data) => { if (String(data) === 'bye') { c.close(); } else { c.ping(); c.send('x'); } });
  });`;

for (const [name, handler] of Object.entries(HANDLERS)) {
  both(`an exception in ${name} is an uncaught exception`, async (t) => {
    const ended = await program(t, `process.on('uncaughtException', (error) => { log(error.message); process.exit(5); }); ${server(handler)}`);
    assert.deepEqual([ended.code, ended.lines[0]], [5, 'planned'], ended.stderr);
  });
}

both('an exception without a listener ends the process with its trace', async (t) => {
  const ended = await program(t, server(HANDLERS.message));
  assert.notEqual(ended.code, 0);
  assert.match(ended.stderr, /planned/);
});

ours('a server lives on after an exception that the program handles', async (t) => {
  const ended = await program(t, `${CLIENT}
    process.on('uncaughtException', (error) => log(error.message));
    const app = uws.App().ws('/*', {
      message(ws, message) { ws.send('before'); if (Buffer.from(message).toString() === 'throw') throw new Error('planned'); },
    });
    listen(app, (port) => connect(port, (c) => {
      let answers = 0;
      c.on('message', () => { answers += 1; if (answers === 2) { log('answered'); app.close(); } });
      c.send('throw'); c.send('fine');
    }));`);
  assert.deepEqual([ended.code, ended.lines], [0, ['planned', 'answered']], ended.stderr);
});

ours('a socket is closed although its subscription handler throws', async (t) => {
  const ended = await program(t, `${CLIENT}
    process.on('uncaughtException', (error) => log(error.message));
    let closed = 0;
    const app = uws.App().ws('/*', {
      open(ws) { ws.subscribe('a'); ws.subscribe('b'); },
      message(ws) { ws.close(); },
      subscription(ws, topic, now, before) { if (now < before) throw new Error('left ' + Buffer.from(topic)); },
      close() { closed += 1; if (closed === 2) { log('closed'); app.close(); } },
    });
    listen(app, (port) => { connect(port, (c) => c.terminate()); connect(port, (c) => c.send('close')); });`);
  assert.deepEqual([ended.code, ended.lines.sort()], [0, ['closed', 'left a', 'left a', 'left b', 'left b']], ended.stderr);
});

ours('an app closes all sockets although a close handler throws', async (t) => {
  const ended = await program(t, `${CLIENT}
    let opened = 0;
    const app = uws.App().ws('/*', {
      open() {
        opened += 1;
        if (opened < 3) return;
        setImmediate(() => { try { app.close(); } catch (error) { log(error.message); } });
      },
      close() { log('closed'); throw new Error('planned'); },
    });
    process.on('uncaughtException', (error) => log('uncaught ' + error.message));
    listen(app, (port) => { for (let n = 0; n < 3; n += 1) connect(port); });`);
  const expected = ['closed', 'closed', 'closed', 'planned', 'uncaught planned', 'uncaught planned'];
  assert.deepEqual([ended.code, ended.lines], [0, expected], ended.stderr);
});

both('a rejected promise of a handler is an unhandled rejection', async (t) => {
  const ended = await program(t, `
    process.on('unhandledRejection', (error) => { log(error.message); process.exit(5); });
    ${server("open(ws) { ws.send('go'); }, async message() { throw new Error('planned'); }")}`);
  assert.deepEqual([ended.code, ended.lines], [5, ['planned']], ended.stderr);
});

both('calls with too few arguments, or of a wrong type, throw', async (t) => {
  const ended = await program(t, `${CLIENT}
    const app = uws.App();
    const errors = [() => app.get('/a'), () => app.publish('a'), () => app.publish({}, 'x')];
    for (const call of errors) { try { call(); log('no error in ' + call); } catch (error) { log(error instanceof Error || typeof error); } }
    app.ws('/*', { open(ws) {
      for (const call of [() => ws.send({}), () => ws.publish('a')]) {
        try { call(); log('no error in ' + call); } catch (error) { log(error instanceof Error || typeof error); }
      }
      app.close();
    } });
    listen(app, (port) => connect(port));`);
  assert.equal(ended.code, 0, ended.stderr);
  assert.equal(ended.lines.filter((line) => line.startsWith('no error')).length, 0, ended.lines.join('\n'));
});

both('closing in any handler and using other sockets there', async (t) => {
  const ended = await program(t, `${CLIENT}
    const sockets = new Set();
    let closed = 0;
    const app = uws.App().ws('/*', {
      open(ws) { sockets.add(ws); ws.subscribe('all'); if (sockets.size === 20) app.publish('all', 'everybody'); },
      message(ws) { for (const other of sockets) if (other !== ws) other.send('from a peer'); ws.close(); },
      close(ws) {
        sockets.delete(ws);
        closed += 1;
        const [next] = sockets;
        // Closes the next one from inside, so that all close in one nest.
        if (next) { next.publish('all', 'one less'); next.close(); } else { log(closed); app.close(); }
      },
    });
    listen(app, (port) => { for (let at = 0; at < 20; at += 1) connect(port).on('message', function () { if (this.readyState === 1) this.send('x'); }); });`);
  assert.deepEqual([ended.code, ended.lines], [0, ['20']], ended.stderr);
});

ours('a worker thread that ends with open sockets leaves the process well', async (t) => {
  const ended = await program(t, `${CLIENT}
    const { Worker } = require('node:worker_threads');
    const worker = new Worker(\`
      const uws = require(process.env.UWS_MODULE || process.cwd());
      const app = uws.App().ws('/*', { message(ws, m) { ws.send(m); } });
      app.listen('127.0.0.1', 0, (s) => require('node:worker_threads').parentPort.postMessage(uws.us_socket_local_port(s)));
    \`, { eval: true });
    worker.on('message', (port) => {
      const c = connect(port, () => c.send('x'));
      c.on('message', () => { c.send('x'); worker.terminate(); });
      c.on('close', () => log('closed'));
    });
    worker.on('exit', () => log('exit'));`);
  assert.equal(ended.code, 0, ended.stderr);
  assert.deepEqual(ended.lines.sort(), ['closed', 'exit']);
});

for (const workers of [undefined, 2]) {
  ours(`a socket that a handler opens while its app is closed is closed, too, workers: ${workers}`, async (t) => {
    const calls = [];
    const waits = new Queue();
    let open;
    const own = uws.App({ workers })
      .ws('/first', { close: () => { calls.push('close first'); open(); } })
      .ws('/later', {
        upgrade(res, req, context) {
          const key = req.getHeader('sec-websocket-key');
          res.onAborted(() => {});
          open = () => res.upgrade({}, key, '', '', context);
          waits.push();
        },
        open: () => calls.push('open later'),
        close: () => calls.push('close later'),
      });
    const port = await listen(own);
    await Client.open(t, port, '/first');
    new Raw(t, port).upgrade('/later').catch(() => {});
    await waits.next();
    own.close();
    assert.deepEqual(calls, ['close first', 'open later', 'close later']);
  });
}

/** Of how many clients that a program receives together, whose last handler ends it, the reply arrives; and its first line. */
async function repliesAtExit(t, source, count) {
  const child = spawn(node[0], [...node.slice(1), '-e', source], {
    env: { ...process.env, TESTED: moduleName },
    stdio: ['ignore', 'pipe', 'inherit'],
    cwd: path.join(__dirname, '..'),
  });
  t.after(() => child.kill('SIGKILL'));
  const { ports, ...told } = JSON.parse((await once(child.stdout, 'data'))[0]);
  const clients = [];
  for (let at = 0; at < count; at += 1) clients.push(await Client.open(t, ports[at % ports.length]));
  // Stopped meanwhile, it receives them together.
  child.kill('SIGSTOP');
  await Promise.all(clients.map((client, at) => new Promise((resolve) => client.ws.send(`${at}`, resolve))));
  child.kill('SIGCONT');
  await Promise.all(clients.map((client) => client.closed));
  return [clients.filter((client) => client.messages.size > 0).length, told];
}

both('replies are sent before a handler ends the process', async (t) => {
  const [replied] = await repliesAtExit(t, `
    const uws = require(process.env.TESTED);
    let count = 0;
    uws.App().ws('/*', {
      message: (ws, message) => { ws.send(message); count += 1; if (count === 5) process.exit(0); },
    }).listen('127.0.0.1', 0, (socket) => console.log(JSON.stringify({ ports: [uws.us_socket_local_port(socket)] })));
  `, 5);
  assert.ok(replied >= 4, `${replied} of 5 replies; the last one is that of the handler that ended the process`);
});

ours('replies of all copies of the module are sent before a handler ends the process, by one listener', async (t) => {
  const [replied, told] = await repliesAtExit(t, `
    const copy = () => {
      for (const name of Object.keys(require.cache)) delete require.cache[name];
      return require(process.env.TESTED);
    };
    const [one, two] = [copy(), copy()];
    let count = 0;
    const ports = [one, two].map((uws) => {
      let port;
      uws.App().ws('/*', {
        message: (ws, message) => { ws.send(message); count += 1; if (count === 6) process.exit(0); },
      }).listen('127.0.0.1', 0, (socket) => { port = uws.us_socket_local_port(socket); });
      return port;
    });
    console.log(JSON.stringify({ ports, isSame: one === two, listeners: process.listenerCount('exit') }));
  `, 6);
  assert.deepEqual(told, { isSame: false, listeners: 1 });
  assert.ok(replied >= 5, `${replied} of 6 replies; the last one is that of the handler that ended the process`);
});
