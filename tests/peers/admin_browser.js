// Opens the admin page in headless Chromium; any error of the page fails its test.
'use strict';
const assert = require('node:assert');
const { chromium } = require('playwright-core');

const flags = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'];

// Runs `test` with a function that opens pages.
exports.main = (test) => {
  const run = async () => {
    const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: flags });
    try {
      await test(async (url, options, init) => {
        const page = await browser.newPage(options);
        page.troubles = [];
        page.requests = [];
        page.on('console', (message) => {
          // A browser reports refused requests; the page expects this one.
          if (!message.text().includes('401')) page.troubles.push(message.text());
        });
        page.on('pageerror', (error) => page.troubles.push(String(error)));
        page.on('dialog', (dialog) => { page.troubles.push(dialog.message()); dialog.dismiss(); });
        page.on('request', (request) => page.requests.push(request.url()));
        if (init) await page.addInitScript(init.script, init.value);
        await page.goto(url);
        return page;
      });
    } finally {
      await browser.close();
    }
  };
  run().catch((error) => {
    console.error(error);
    process.exit(1);
  });
};

exports.ok = (name) => console.log(`ok ${name}`);

// The text of a figure with this label.
exports.figure = (page, label) => page.locator('.tile, .facts-list > div').filter({ hasText: label }).first();

// Waits until the text of an element matches.
exports.until = async (locator, pattern) => {
  const deadline = Date.now() + 30_000;
  for (;;) {
    const text = (await locator.count()) ? await locator.first().innerText() : '';
    if (pattern.test(text)) return text;
    assert.ok(Date.now() < deadline, `${pattern} in ${JSON.stringify(text)}`);
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
};

exports.withKey = (key) => ({ script: (value) => sessionStorage.setItem('standfast-key', value), value: key });
