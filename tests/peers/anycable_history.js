// AnyCable's client, @anycable/core, whose sockets are killed at random moments while others publish: each
// message arrives once, in order. With "application" the clients subscribe to a channel of cable_app.js, which
// has two streams: each message of each stream arrives once, in the order of its stream.
// usage: node anycable_history.js ws://PUBLIC http://ADMIN [application]
'use strict';
const assert = require('node:assert');
const { pathToFileURL } = require('node:url');
const WebSocket = require('ws');

const [publicUrl, adminUrl, application] = process.argv.slice(2);
const TOPICS = application ? ['pair:a', 'pair:b'] : ['news'];
const MESSAGES = 600;
const CLIENTS = 6;

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// The same moments in each run.
let state = 7;
function random(below) {
  state = (state * 48271) % 2147483647;
  return Math.floor(state / 1000) % below;
}

async function main() {
  const { createCable, Monitor } = await import(
    pathToFileURL(require.resolve('@anycable/core'))
  );
  // Clients name times in whole seconds, and the server knows nothing of the second in which it started.
  const began = Math.floor(Date.now() / 1000);
  while (Math.floor(Date.now() / 1000) === began) await sleep(20);
  const clients = [];
  for (let number = 0; number < CLIENTS; number++) {
    const cable = createCable(`${publicUrl}/cable?user=u${number}`, {
      protocol: 'actioncable-v1-ext-json',
      websocketImplementation: WebSocket,
      logLevel: 'error',
      monitor: new Monitor({ pingInterval: 3000, reconnectStrategy: () => 20 + random(80) }),
    });
    // Every other client does not resume its session, and subscribes again.
    if (number % 2) cable.protocol.disableSessionRecovery = true;
    const received = [];
    const news = application
      ? cable.subscribeTo('PairChannel', { name: 'pair' })
      : cable.streamFrom('news');
    const client = { cable, news, received, kills: 0, notFound: 0, restored: 0 };
    news.on('message', (message) => received.push(message));
    news.on('info', (event) => {
      if (event.type === 'history_not_found') client.notFound += 1;
    });
    cable.on('connect', (event) => (client.restored += event.restored ? 1 : 0));
    await news.ensureSubscribed();
    clients.push(client);
  }
  // Not from 0 on: the client drops messages that are false.
  for (let number = 1; number <= MESSAGES; number++) {
    const topic = TOPICS[number % TOPICS.length];
    const body = JSON.stringify({ topic, data: JSON.stringify(number) });
    const response = await fetch(`${adminUrl}/api/publish`, { method: 'POST', body });
    assert.ok(response.ok, `publish answered ${response.status}`);
    await sleep(random(5));
    if (number % 7 === 0) {
      const client = clients[random(CLIENTS)];
      // The client gives up a channel whose first answer is lost with the socket.
      if (client.cable.state === 'connected' && client.news.state === 'connected') {
        client.cable.transport.ws.terminate();
        client.kills += 1;
      }
    }
  }
  const deadline = Date.now() + 60_000;
  while (clients.some(({ received }) => received.length < MESSAGES)) {
    const counts = clients.map(({ received }) => received.length);
    assert.ok(Date.now() < deadline, `received ${counts} of ${MESSAGES}`);
    await sleep(20);
  }
  const all = Array.from({ length: MESSAGES }, (_, number) => number + 1);
  for (const { received, kills, notFound, restored } of clients) {
    for (const at of TOPICS.keys()) {
      const own = (number) => number % TOPICS.length === at;
      assert.deepStrictEqual(received.filter(own), all.filter(own));
    }
    assert.ok(kills > 0 && notFound === 0, `${kills} kills, ${notFound} times not found`);
    console.log(`${kills} kills, ${restored} restored`);
  }
  assert.ok(clients.some(({ restored }) => restored > 0), 'no session was resumed');
  console.log('ok each message once');
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
