// An application of AnyCable, by its library @anycable/serverless-js over HTTP RPC, and clients of it:
// @rails/actioncable and @anycable/core in both protocols.
// usage: node cable_app.js serve SECRET     prints its port, ends with its standard input
//        node cable_app.js talk ws://PUBLIC http://ADMIN
'use strict';
const assert = require('node:assert');
const { createHmac } = require('node:crypto');
const http = require('node:http');
const { register } = require('node:module');
const { pathToFileURL } = require('node:url');
const WebSocket = require('ws');

// The library imports folders, as bundlers allow.
register(
  'data:text/javascript,' +
    encodeURIComponent(`export async function resolve(name, context, next) {
      const folder = /^\\.\\.?\\//.test(name) && context.parentURL.includes('serverless-js');
      return next(folder && !name.endsWith('.js') ? name + '/index.js' : name, context);
    }`),
);

async function part(name) {
  const entry = require.resolve('@anycable/core').replace(/@anycable.*/, '');
  return import(pathToFileURL(`${entry}@anycable/serverless-js/dist/${name}/index.js`));
}

async function serve(secret) {
  const { Application } = await part('application');
  const { Channel } = await part('channel');
  const { handler } = await part('service');

  class ChatChannel extends Channel {
    async subscribed(handle, params) {
      if (params.room === 'locked') return handle.reject();
      handle.streamFrom(`room:${params.room}`);
      handle.transmit({ hello: handle.identifiers.user });
    }

    async speak(handle, _params, { text }) {
      handle.transmit({ said: text, by: handle.identifiers.user });
    }

    async mute(handle) {
      handle.stopAllStreams();
      handle.transmit({ muted: true });
    }
  }

  class PairChannel extends Channel {
    async subscribed(handle, { name }) {
      handle.streamFrom(`${name}:a`);
      handle.streamFrom(`${name}:b`);
    }
  }

  class App extends Application {
    async connect(handle) {
      const user = new URL(handle.env.url).searchParams.get('user');
      if (!user) return handle.reject();
      handle.identifiedBy({ user });
    }
  }

  const app = new App();
  app.registerChannel('ChatChannel', new ChatChannel());
  app.registerChannel('PairChannel', new PairChannel());
  const key = createHmac('sha256', secret).update('rpc-cable').digest('hex');
  const server = http.createServer(async (request, response) => {
    if (request.headers.authorization !== `Bearer ${key}`) return response.writeHead(401).end();
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const url = `http://${request.headers.host}${request.url}`;
    const { method, headers } = request;
    const body = Buffer.concat(chunks);
    try {
      const call = new Request(url, { method, headers, body, duplex: 'half' });
      response.end(JSON.stringify(await handler(call, app)));
    } catch (error) {
      response.writeHead(500).end(String(error));
    }
  });
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
  process.stdin.on('end', () => process.exit(0)).resume();
}

const once = (target, event) => new Promise((resolve) => target.once(event, resolve));

async function publish(adminUrl, topic, data) {
  const body = JSON.stringify({ topic, data: JSON.stringify(data) });
  const response = await fetch(`${adminUrl}/api/publish`, { method: 'POST', body });
  assert.ok(response.ok, `publish answered ${response.status}`);
}

async function rails(publicUrl, adminUrl) {
  const { adapters, createConsumer } = require('@rails/actioncable');
  adapters.WebSocket = WebSocket;
  global.addEventListener = global.removeEventListener = () => {};
  global.document = { addEventListener() {}, removeEventListener() {}, visibilityState: 'visible' };
  const consumer = createConsumer(`${publicUrl}/cable?user=ann`);
  const heard = [];
  let wake = () => {};
  const until = async (count) => {
    while (heard.length < count) await new Promise((resolve) => (wake = resolve));
  };
  const note = (what) => (heard.push(what), wake());
  const chat = consumer.subscriptions.create(
    { channel: 'ChatChannel', room: '1' },
    { connected: () => note('connected'), received: note },
  );
  await until(2);
  chat.perform('speak', { text: 'hi' });
  await until(3);
  await publish(adminUrl, 'room:1', { n: 1 });
  await until(4);
  chat.perform('mute');
  await until(5);
  const kinds = heard.map((what) => JSON.stringify(what)).sort();
  assert.deepStrictEqual(kinds, [
    '"connected"', '{"hello":"ann"}', '{"muted":true}', '{"n":1}', '{"said":"hi","by":"ann"}',
  ]);
  await new Promise((rejected) =>
    consumer.subscriptions.create({ channel: 'ChatChannel', room: 'locked' }, { rejected }),
  );
  consumer.disconnect();
  console.log('ok @rails/actioncable');
}

async function anycable(publicUrl, adminUrl, protocol) {
  const { createCable } = await import(pathToFileURL(require.resolve('@anycable/core')));
  const connect = (query) =>
    createCable(`${publicUrl}/cable${query}`, {
      protocol,
      websocketImplementation: WebSocket,
      logLevel: 'error',
    });
  const cable = connect('?user=bob');
  const chat = cable.subscribeTo('ChatChannel', { room: '2' });
  const hello = once(chat, 'message');
  await chat.ensureSubscribed();
  assert.deepStrictEqual(await hello, { hello: 'bob' });
  const said = once(chat, 'message');
  await chat.perform('speak', { text: 'hi' });
  assert.deepStrictEqual(await said, { said: 'hi', by: 'bob' });
  const published = once(chat, 'message');
  await publish(adminUrl, 'room:2', 'news');
  assert.strictEqual(await published, 'news');
  const locked = cable.subscribeTo('ChatChannel', { room: 'locked' });
  await assert.rejects(locked.ensureSubscribed());
  // The socket is killed: the client comes back by itself, and is called for again.
  const back = once(cable, 'connect');
  cable.transport.ws.terminate();
  await back;
  await chat.ensureSubscribed();
  cable.disconnect();
  await assert.rejects(connect('').connect(), { reason: 'unauthorized' });
  console.log(`ok @anycable/core ${protocol}`);
}

async function talk(publicUrl, adminUrl) {
  await rails(publicUrl, adminUrl);
  await anycable(publicUrl, adminUrl, 'actioncable-v1-json');
  await anycable(publicUrl, adminUrl, 'actioncable-v1-ext-json');
  process.exit(0);
}

const [, , what, ...rest] = process.argv;
(what === 'serve' ? serve : talk)(...rest).catch((error) => {
  console.error(error);
  process.exit(1);
});
