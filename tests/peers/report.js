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

    const text = await page.evaluate(() => document.documentElement.outerHTML);
    for (const wrong of ['NaN', 'Infinity', 'undefined', '>inf']) {
      assert.ok(!text.includes(wrong), wrong);
    }
    console.log('ok numbers');

    const figures = await page.$$('figure:has([data-chart])');
    for (const figure of figures) {
      // Where a second had no figure, a line has a gap; a value between two gaps is a dot.
      const boxes = await Promise.all((await figure.$$('polyline')).map((line) => line.boundingBox()));
      assert.ok(await figure.$('polyline.dot') || boxes.some((box) => box.width > 5), 'a line that can be seen');
      const ticks = await figure.$$eval('text.tick', (all) => all.map((one) => one.textContent));
      assert.ok(ticks.length >= 4 && ticks.includes('0'), `ticks: ${ticks}`);
      assert.match(await figure.innerText(), /time since the start/);
    }
    console.log('ok charts');

    const histogram = await page.$('figure:has(rect.bar)');
    if (histogram) {
      const ticks = await histogram.$$eval('text.tick.x', (all) => all.map((one) => one.textContent));
      assert.ok(ticks.length >= 1 && ticks.every((tick) => / (ms|s)$/.test(tick)), `ticks: ${ticks}`);
      for (const mark of ['p50', 'p95', 'p99']) assert.match(await histogram.innerHTML(), new RegExp(`>${mark}<`));
      console.log('ok histogram');
    }

    // Text is on the left, figures on the right, in columns whose right edges agree.
    for (const table of await page.$$('main > section > table, main > section > .scroll > table')) {
      const [names, values] = await table.evaluate((node) => [
        [...node.querySelectorAll('tbody th')].map((cell) => getComputedStyle(cell).textAlign),
        [...node.querySelectorAll('tbody td:not(.text)')].map((cell) => getComputedStyle(cell).textAlign),
      ]);
      assert.ok(names.every((align) => align === 'left'), `names: ${names}`);
      assert.ok(values.every((align) => align === 'right'), `figures: ${values}`);
    }
    console.log('ok alignment');

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
    // Each percentile is whole and visible, with its name.
    const hidden = await phone.$$eval('.percentiles td', (all) => all.filter((cell) => {
      const box = cell.getBoundingClientRect();
      return box.right > window.innerWidth || cell.scrollWidth > cell.clientWidth + 1 || !cell.dataset.name;
    }).map((cell) => cell.textContent));
    assert.deepStrictEqual(hidden, [], 'percentiles are whole');
    for (const each of [page, phone]) {
      const cut = await each.$$eval('svg text.tick', (all) => all.filter((text) => {
        const [inner, outer] = [text.getBoundingClientRect(), text.closest('svg').getBoundingClientRect()];
        return inner.left < outer.left - 1 || inner.right > outer.right + 1;
      }).map((text) => text.textContent));
      assert.deepStrictEqual(cut, [], 'labels are whole');
      const touching = await each.$$eval('svg', (all) => all.flatMap((svg) => {
        const boxes = [...svg.querySelectorAll('text.tick.x')].map((text) => text.getBoundingClientRect());
        return boxes.filter((box, at) => at > 0 && box.left < boxes[at - 1].right).map(() => svg.getAttribute('aria-label'));
      }));
      assert.deepStrictEqual(touching, [], 'labels do not overlap');
    }
    console.log('ok phone');

    const dark = await open(browser, { colorScheme: 'dark' });
    assert.notStrictEqual(await ink(dark), await ink(page));
    console.log('ok dark');

    const pdf = await page.pdf();
    assert.ok(pdf.length > 10_000);
    console.log('ok print');

    for (const figure of figures) {
      const caption = await figure.$eval('figcaption', (all) => all.firstChild.textContent.trim());
      // While other programs end, the kernel's memory does not grow.
      if (caption !== 'Kernel memory growth') console.log(`ok ${caption}`);
    }
  } finally {
    await browser.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
