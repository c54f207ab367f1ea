// The page of examples/turbo in headless Chromium: what is posted appears.
// usage: node turbo.js ws://PUBLIC http://ADMIN
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { once } = require('node:events');
const { chromium } = require('playwright-core');

const [publicUrl, adminUrl] = process.argv.slice(2);
const example = path.join(__dirname, '../../examples/turbo');
const turbo = require.resolve('@hotwired/turbo-rails');

function answer(request, response) {
  const script = request.url.endsWith('/turbo.js');
  const file = script ? turbo : path.join(example, 'index.html');
  const text = fs.readFileSync(file, 'utf8').replace('ws://127.0.0.1:8080', publicUrl);
  response.setHeader('Content-Type', script ? 'text/javascript' : 'text/html; charset=utf-8');
  response.end(text);
}

async function broadcast(body) {
  const response = await fetch(`${adminUrl}/_broadcast`, { method: 'POST', body });
  assert.strictEqual(response.status, 201, await response.text());
}

async function main() {
  const site = http.createServer(answer);
  site.listen(0, '127.0.0.1');
  await once(site, 'listening');
  const args = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'];
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args });
  try {
    const page = await browser.newPage();
    page.on('console', (message) => console.log(message.text()));
    await page.goto(`http://127.0.0.1:${site.address().port}/`);
    await page.waitForSelector('turbo-cable-stream-source[connected]');
    console.log('ok connected');

    const hello = fs.readFileSync(path.join(example, 'hello.json'), 'utf8');
    await broadcast(hello);
    await page.waitForSelector('#messages li:has-text("Hello from curl")');
    console.log('ok appended');

    const replace = '<turbo-stream action="update" target="messages"><template><li>✓</li></template></turbo-stream>';
    await broadcast(JSON.stringify({ stream: 'messages', data: JSON.stringify(replace) }));
    await page.waitForSelector('#messages li:has-text("✓")');
    assert.strictEqual(await page.locator('#messages li').count(), 1);
    console.log('ok replaced');
    const shot = process.env.STANDFAST_SCREENSHOT;
    if (shot) await page.screenshot({ path: shot });
  } finally {
    await browser.close();
    site.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
