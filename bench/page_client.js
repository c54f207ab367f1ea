// Opens the admin page in headless Chromium, LOADS times in a tab of its own, and then leaves it open until standard
// input ends. Prints a line of JSON for each load, in milliseconds since the navigation began: the first paint, and
// when the first figures were there. Then one when the page that stays has figures.
// usage: NODE_PATH=.peers/node_modules node bench/page_client.js URL LOADS
'use strict';
const { chromium } = require('playwright-core');

const [url, loads] = process.argv.slice(2);
const args = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'];
const figures = '#section-now .tile';

async function main() {
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args });
  const open = async () => {
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(url, { waitUntil: 'commit' });
    const times = await page.evaluate((selector) => new Promise((resolve) => {
      const look = () => {
        const paint = performance.getEntriesByName('first-paint')[0];
        const there = document.querySelector(selector) && /\d/.test(document.querySelector(selector).textContent);
        if (paint && there) resolve({ first_paint: paint.startTime, figures: performance.now() });
        else requestAnimationFrame(look);
      };
      look();
    }), figures);
    return { context, times };
  };
  for (let load = 0; load < Number(loads); load += 1) {
    const { context, times } = await open();
    console.log(JSON.stringify(times));
    await context.close();
  }
  await open();
  console.log(JSON.stringify({ open: true }));
  process.stdin.resume();
  await new Promise((resolve) => { process.stdin.on('end', resolve); });
  await browser.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
