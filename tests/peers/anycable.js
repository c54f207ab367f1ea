// AnyCable's client, @anycable/core, at /cable: the base protocol and the extended one.
// usage: node anycable.js ws://PUBLIC http://ADMIN
'use strict';
const assert = require('node:assert');
const { pathToFileURL } = require('node:url');
const WebSocket = require('ws');

const [publicUrl, adminUrl] = process.argv.slice(2);

async function publish(topic, data) {
  const body = JSON.stringify({ topic, data: JSON.stringify(data) });
  const response = await fetch(`${adminUrl}/api/publish`, { method: 'POST', body });
  assert.ok(response.ok, `publish answered ${response.status}`);
}

const once = (target, event) => new Promise((resolve) => target.once(event, resolve));

async function main() {
  const { createCable } = await import(pathToFileURL(require.resolve('@anycable/core')));
  const connect = (protocol) =>
    createCable(`${publicUrl}/cable`, {
      protocol,
      websocketImplementation: WebSocket,
      logLevel: 'error',
    });

  for (const protocol of ['actioncable-v1-json', 'actioncable-v1-ext-json']) {
    const cable = connect(protocol);
    const news = cable.streamFrom('news');
    await news.ensureSubscribed();
    for (const message of [{ text: 'héllo ✓' }, 'plain', 7]) {
      const received = once(news, 'message');
      await publish('news', message);
      assert.deepStrictEqual(await received, message);
    }
    console.log(`ok ${protocol} receives`);

    const refused = cable.subscribeTo('ChatChannel');
    await assert.rejects(refused.ensureSubscribed());
    console.log(`ok ${protocol} rejects`);

    // The socket is killed: the client comes back by itself and hears on.
    const back = once(cable, 'connect');
    cable.transport.ws.terminate();
    await back;
    await news.ensureSubscribed();
    const received = once(news, 'message');
    await publish('news', 'still there');
    assert.strictEqual(await received, 'still there');
    console.log(`ok ${protocol} comes back`);
    cable.disconnect();
  }

  const [one, two] = [connect('actioncable-v1-ext-json'), connect('actioncable-v1-ext-json')];
  const [mine, theirs] = [one.streamFrom('room'), two.streamFrom('room')];
  await Promise.all([mine.ensureSubscribed(), theirs.ensureSubscribed()]);
  const heard = once(theirs, 'message');
  const own = [];
  mine.on('message', (message) => own.push(message));
  await mine.whisper({ typing: true });
  assert.deepStrictEqual(await heard, { typing: true });
  const last = once(mine, 'message');
  await publish('room', 'last');
  await last;
  assert.deepStrictEqual(own, ['last']);
  console.log('ok whispers');
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
