// Two people in two tabs of headless Chromium with the page of examples/chat. With PICTURE the first tab is
// saved there. usage: node chat_example.js http://HOST:PORT [PICTURE]
'use strict';
const assert = require('node:assert');
const { chromium } = require('playwright-core');

const [url, picture] = process.argv.slice(2);
const args = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'];
const problems = [];

async function enter(context, name) {
  const tab = await context.newPage();
  tab.on('console', (message) => problems.push(`${message.type()}: ${message.text()}`));
  tab.on('pageerror', (error) => problems.push(String(error)));
  await tab.goto(url);
  await tab.getByLabel('Name').fill(name);
  await tab.getByRole('button', { name: 'Log in' }).click();
  await tab.getByRole('status').getByText(`${name}, app 101`).waitFor();
  return tab;
}

async function say(tab, text) {
  await tab.getByRole('textbox', { name: /^To / }).fill(text);
  await tab.keyboard.press('Enter');
}

const sees = (tab, text) => tab.locator('#messages li').getByText(text, { exact: true }).waitFor();
const count = (tab, text) => tab.getByText(`People (${text})`, { exact: true }).waitFor();

async function main() {
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args });
  try {
    const context = await browser.newContext({ viewport: { width: 900, height: 520 } });
    const ada = await enter(context, 'Ada');
    const bob = await enter(context, 'Bób <b>');
    await sees(ada, 'Bób <b> entered');
    await Promise.all([count(ada, 2), count(bob, 2)]);
    console.log('ok both are in');

    await say(ada, 'héllo & <i>everyone</i>');
    await sees(bob, 'Ada: héllo & <i>everyone</i>');
    await sees(ada, 'héllo & <i>everyone</i>');
    await say(bob, 'hello Ada');
    await sees(ada, 'Bób <b>: hello Ada');
    console.log('ok both chat');

    const eve = await enter(context, 'Eve');
    await sees(ada, 'Eve entered');
    await ada.getByRole('button', { name: 'Bób <b>' }).click();
    await say(ada, 'only for you');
    await sees(bob, 'Ada (private): only for you');
    await say(bob, 'thanks');
    await sees(eve, 'Bób <b>: thanks');
    assert.strictEqual(await eve.locator('#messages').getByText('only for you').count(), 0);
    console.log('ok a private message');
    if (picture) await ada.screenshot({ path: picture });

    await bob.close();
    await sees(ada, 'Bób <b> left');
    await count(ada, 2);
    const again = await enter(context, 'Ada');
    await ada.getByRole('status').getByText('Ada logged in elsewhere').waitFor();
    await count(again, 2);
    console.log('ok a second login');

    const tab = await context.newPage();
    await tab.goto(url);
    await tab.getByLabel('Name').fill('一二三四五六七');
    await tab.getByRole('button', { name: 'Log in' }).click();
    await tab.getByRole('status').getByText('not logged in').waitFor();
    assert.deepStrictEqual(problems, []);
    console.log('ok a name that is too long');
  } finally {
    await browser.close();
  }
}

main().catch((error) => {
  console.error(error, problems);
  process.exit(1);
});
