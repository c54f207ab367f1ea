// A page in headless Chromium as a client of /echo and /topics.
// usage: node browser.js ws://PUBLIC http://ADMIN
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { once } = require('node:events');
const { chromium } = require('playwright-core');

const [publicUrl, adminUrl] = process.argv.slice(2);

const flags = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

async function publish(message) {
  const body = JSON.stringify(message);
  const response = await fetch(`${adminUrl}/api/publish`, { method: 'POST', body });
  assert.ok(response.ok, `publish answered ${response.status}`);
}

async function main() {
  const html = fs.readFileSync(path.join(__dirname, 'browser.html'));
  const site = http.createServer((request, response) => {
    response.setHeader('Content-Type', 'text/html; charset=utf-8');
    response.end(html);
  });
  site.listen(0, '127.0.0.1');
  await once(site, 'listening');

  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: flags });
  try {
    const page = await browser.newPage();
    page.on('console', (message) => console.log(message.text()));
    await page.exposeFunction('publish', publish);
    await page.goto(`http://127.0.0.1:${site.address().port}/`);
    await page.evaluate((url) => window.run(url), publicUrl);
  } finally {
    await browser.close();
    site.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
