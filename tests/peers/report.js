// A run's page in headless Chromium.
// usage: node report.js FILE
'use strict';
const assert = require('node:assert');
const { chromium } = require('playwright-core');

const flags = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'];
const url = `file://${process.argv[2]}`;

async function open(browser, options) {
  const page = await browser.newPage(options);
  const troubles = [];
  page.on('console', (message) => troubles.push(message.text()));
  page.on('pageerror', (error) => troubles.push(String(error)));
  page.on('dialog', (dialog) => troubles.push(dialog.message()));
  page.on('request', (request) => {
    if (request.url() !== url && !request.url().startsWith('data:')) troubles.push(request.url());
  });
  await page.goto(url);
  assert.deepStrictEqual(troubles, []);
  return page;
}

const ink = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

async function main() {
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: flags });
  try {
    const page = await open(browser, { viewport: { width: 1200, height: 900 } });
    assert.ok((await page.title()).length > 5);
    console.log('ok loaded');

    const figures = await page.$$('figure');
    for (const figure of figures) {
      const line = await figure.$('polyline');
      const box = await line.boundingBox();
      assert.ok(box.width > 50, 'a line that can be seen');
      assert.ok((await figure.$$('text.tick')).length >= 4, 'ticks');
    }
    console.log('ok charts');

    for (const figure of figures) {
      assert.ok((await figure.$eval('svg', (svg) => svg.getAttribute('aria-label'))).length > 10);
      await (await figure.$('summary')).click();
      assert.ok(await (await figure.$('tbody td')).isVisible(), 'values without a chart');
    }
    console.log('ok tables');

    const drawing = await page.$('svg[data-chart]');
    await drawing.hover();
    const shown = await page.$$eval('output', (all) => all.filter((one) => one.textContent).length);
    assert.ok(shown >= figures.length, 'each chart tells a value');
    console.log('ok crosshair');

    const phone = await open(browser, { viewport: { width: 360, height: 780 } });
    for (const summary of await phone.$$('summary')) await summary.click();
    const width = await phone.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 360, `${width} px wide`);
    const cut = await phone.$$eval('svg text.tick', (all) =>
      all.filter((text) => text.getBoundingClientRect().left < text.closest('svg').getBoundingClientRect().left - 1)
        .map((text) => text.textContent));
    assert.deepStrictEqual(cut, [], 'labels are whole');
    console.log('ok phone');

    const dark = await open(browser, { colorScheme: 'dark' });
    assert.notStrictEqual(await ink(dark), await ink(page));
    console.log('ok dark');

    const pdf = await page.pdf();
    assert.ok(pdf.length > 10_000);
    console.log('ok print');

    for (const figure of figures) {
      const caption = await figure.$eval('figcaption', (all) => all.firstChild.textContent.trim());
      console.log(`ok ${caption}`);
    }
  } finally {
    await browser.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
