// AnyCable's client for browsers, @anycable/web, in headless Chromium at /cable: the base protocol and
// the extended one, found by the page's meta tag; its connection is cut and it comes back.
// usage: node anycable_web.js ws://PUBLIC http://ADMIN
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const path = require('node:path');
const { once } = require('node:events');
const { chromium } = require('playwright-core');

const [publicUrl, adminUrl] = process.argv.slice(2);
const modules = path.join(path.dirname(require.resolve('@anycable/web')), '../..');
const imports = {
  '@anycable/web': '/@anycable/web/index.js',
  '@anycable/core': '/@anycable/core/index.js',
  nanoevents: '/nanoevents/index.js',
};

async function publish(topic, data) {
  const body = JSON.stringify({ topic, data: JSON.stringify(data) });
  const response = await fetch(`${adminUrl}/api/publish`, { method: 'POST', body });
  assert.ok(response.ok, `publish answered ${response.status}`);
}

// What stands between page and server, to be cut.
function link(sockets) {
  const { hostname, port } = new URL(publicUrl);
  return net.createServer((client) => {
    const server = net.connect(Number(port), hostname);
    sockets.add(client);
    const cut = () => {
      sockets.delete(client);
      client.destroy();
      server.destroy();
    };
    for (const end of [client, server]) end.on('error', cut).on('close', cut);
    client.pipe(server).pipe(client);
  });
}

function page(url) {
  return `<!doctype html><meta charset="utf-8"><meta name="cable-url" content="${url}">
    <script type="importmap">${JSON.stringify({ imports })}</script>
    <script type="module">
      import { createCable } from '@anycable/web';
      window.heard = [];
      window.begin = async (protocol) => {
        window.cable = createCable({ protocol, logLevel: 'error' });
        window.sessions = [];
        window.cable.on('connect', () => window.sessions.push(window.cable.sessionId));
        const news = window.cable.streamFrom('news');
        news.on('message', (message) => window.heard.push(message));
        await news.ensureSubscribed();
        window.news = news;
      };
      window.rejects = () => window.cable.subscribeTo('ChatChannel').ensureSubscribed().then(
        () => false, () => true);
      window.loaded = true;
    </script>`;
}

function answer(request, response, html) {
  const file = path.join(modules, request.url);
  const script = request.url.endsWith('.js') && file.startsWith(modules);
  response.setHeader('Content-Type', script ? 'text/javascript' : 'text/html; charset=utf-8');
  response.end(script ? fs.readFileSync(file) : html);
}

async function talk(tab, protocol, sockets) {
  const heard = (message) =>
    tab.waitForFunction((text) => window.heard.at(-1) === text, message, { polling: 20 });
  await tab.waitForFunction(() => window.loaded);
  await tab.evaluate((name) => window.begin(name), protocol);
  await publish('news', 'héllo ✓');
  await heard('héllo ✓');
  console.log(`ok ${protocol} receives`);

  assert.ok(await tab.evaluate(() => window.rejects()));
  console.log(`ok ${protocol} rejects`);

  // Cut without a word: the client notices, comes back by itself, and hears on.
  sockets.forEach((socket) => socket.destroy());
  await tab.waitForFunction(() => window.sessions.length === 2, null, { polling: 20 });
  await tab.evaluate(() => window.news.ensureSubscribed());
  await publish('news', 'still there');
  await heard('still there');
  const got = await tab.evaluate(() => window.heard);
  assert.deepStrictEqual(got, ['héllo ✓', 'still there'], 'each once');
  console.log(`ok ${protocol} comes back`);

  // The application ends the session and lets it come again.
  const sid = await tab.evaluate(() => window.cable.sessionId);
  if (protocol.includes('ext')) {
    const identifier = JSON.stringify({ sid });
    const body = JSON.stringify({ identifier, reconnect: true });
    const response = await fetch(`${adminUrl}/api/disconnect`, { method: 'POST', body });
    assert.strictEqual(response.status, 200);
    await tab.waitForFunction(() => window.sessions.length === 3, null, { polling: 20 });
    const sessions = await tab.evaluate(() => window.sessions);
    assert.strictEqual(new Set(sessions).size, 3, 'each connection is a session of its own');
    await tab.evaluate(() => window.news.ensureSubscribed());
    await publish('news', 'and here');
    await heard('and here');
    console.log(`ok ${protocol} is sent away and comes back`);
  }
}

async function main() {
  const sockets = new Set();
  const between = link(sockets).listen(0, '127.0.0.1');
  await once(between, 'listening');
  const html = page(`ws://127.0.0.1:${between.address().port}/cable`);
  const site = http.createServer((request, response) => answer(request, response, html));
  site.listen(0, '127.0.0.1');
  await once(site, 'listening');
  const args = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'];
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args });
  try {
    for (const protocol of ['actioncable-v1-json', 'actioncable-v1-ext-json']) {
      const tab = await browser.newPage();
      tab.on('console', (message) => console.log(message.text()));
      tab.on('pageerror', (error) => console.log(String(error)));
      await tab.goto(`http://127.0.0.1:${site.address().port}/`);
      await talk(tab, protocol, sockets);
      await tab.close();
    }
  } finally {
    await browser.close();
    site.close();
    between.close();
  }
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
