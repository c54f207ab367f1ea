// Two tabs of headless Chromium with one page: what is sent in one appears in both. With LATER this text appears
// afterwards, too, sent by another program.
// usage: node two_tabs.js URL SELECTOR [LATER], an element that exists when the page is connected
'use strict';
const { chromium } = require('playwright-core');

const [url, connected, later] = process.argv.slice(2);
const args = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'];

async function main() {
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args });
  try {
    const context = await browser.newContext();
    const tabs = [await context.newPage(), await context.newPage()];
    for (const tab of tabs) {
      tab.on('console', (message) => console.log(message.text()));
      await tab.goto(url);
      await tab.waitForSelector(connected, { state: 'attached' });
    }
    await tabs[0].fill('input[name=text]', 'héllo & <b>');
    await tabs[0].press('input[name=text]', 'Enter');
    const appears = (text) =>
      Promise.all(tabs.map((tab) => tab.waitForSelector(`#messages li:text-is("${text}")`)));
    await appears('héllo & <b>');
    console.log('ok both tabs');
    if (later) {
      await appears(later);
      console.log('ok later');
    }
  } finally {
    await browser.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
