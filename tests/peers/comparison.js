// The page of a comparison in headless Chromium.
// usage: node comparison.js FILE
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
  page.on('request', (request) => {
    if (request.url() !== url && !request.url().startsWith('data:')) troubles.push(request.url());
  });
  await page.goto(url);
  assert.deepStrictEqual(troubles, []);
  return page;
}

const ink = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
const box = (node) => node.boundingBox();

async function main() {
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: flags });
  try {
    const page = await open(browser, { viewport: { width: 1200, height: 900 } });
    assert.match(await page.title(), /^WORSE: /);
    console.log('ok loaded');

    const text = await page.evaluate(() => document.documentElement.outerHTML);
    for (const wrong of ['NaN', 'Infinity', 'undefined', '>inf', '<0>']) assert.ok(!text.includes(wrong), wrong);
    console.log('ok numbers');

    const figures = new Map();
    for (const figure of await page.$$('figure')) {
      const name = await figure.$eval('figcaption', (caption) => caption.firstChild.textContent.trim());
      figures.set(name, figure);
      // The interval lies on its axis around the change, and can be read without being seen.
      const [axis, dot] = [await box(await figure.$('line.grid')), await box(await figure.$('circle.change'))];
      const interval = await box(await figure.$('line.interval'));
      assert.ok(interval.x >= axis.x - 1 && interval.x + interval.width <= axis.x + axis.width + 1, name);
      const centre = dot.x + dot.width / 2;
      assert.ok(interval.x <= centre + 1 && centre <= interval.x + interval.width + 1, name);
      assert.match(await figure.$eval('svg[role=img]', (svg) => svg.getAttribute('aria-label')), /95 % interval/);
    }
    const names = ['rate', 'p50', 'p90', 'p99', 'p999', 'max', 'connects', 'memory', 'cpu', 'errors'];
    assert.deepStrictEqual([...figures.keys()], names);
    console.log('ok figures');

    const runs = await figures.get('p99').$$eval('line.run', (lines) => lines.length);
    assert.strictEqual(runs, 6, 'a line for each run');
    const cells = await page.$$eval('tbody tr:first-child td', (all) => all.map((cell) => cell.textContent));
    assert.deepStrictEqual(cells, ['50,000/s', '50,400/s', '49,800/s', '50,000/s', '50,400/s', '49,800/s']);
    console.log('ok runs');

    const verdict = (name) => figures.get(name).$eval('.verdict', (mark) => mark.textContent);
    assert.deepStrictEqual([await verdict('p99'), await verdict('rate'), await verdict('max')],
      ['worse', 'not worse', 'not judged']);
    // 1.5 times as long, and its interval in the part that is not allowed.
    const [before, after] = await Promise.all((await figures.get('p99').$$('svg.length rect')).map(box));
    assert.ok(Math.abs(after.width / before.width - 1.5) < 0.02, `${before.width} ${after.width}`);
    const [beyond, interval] = [await box(await figures.get('p99').$('.beyond')), await box(await figures.get('p99').$('line.interval'))];
    assert.ok(interval.x > beyond.x && interval.x + interval.width < beyond.x + beyond.width);
    console.log('ok worse');

    const phone = await open(browser, { viewport: { width: 360, height: 780 } });
    const width = await phone.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(width <= 360, `${width} px wide`);
    const cut = await phone.$$eval('figure', (all) => all.flatMap((figure) => {
      const outer = figure.getBoundingClientRect();
      return [...figure.querySelectorAll('span, text')].filter((part) => {
        const inner = part.getBoundingClientRect();
        return inner.left < outer.left - 1 || inner.right > outer.right + 1;
      }).map((part) => part.textContent);
    }));
    assert.deepStrictEqual(cut, [], 'values and labels are whole');
    console.log('ok phone');

    const dark = await open(browser, { colorScheme: 'dark' });
    assert.notStrictEqual(await ink(dark), await ink(page));
    console.log('ok dark');

    assert.ok((await page.pdf()).length > 10_000);
    console.log('ok print');
  } finally {
    await browser.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
