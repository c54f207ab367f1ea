// The admin page of proxy with its key, before one upstream that is there and one that is not.
// usage: node admin_page_proxy.js URL KEY NODE DEAD
'use strict';
const assert = require('node:assert');
const { main, ok, until, withKey } = require('./admin_browser.js');

const [url, key, node, dead] = process.argv.slice(2);

main(async (open) => {
  const page = await open(url, { viewport: { width: 1280, height: 900 } }, withKey(key));
  const row = (name) => page.locator('#section-pools tbody tr').filter({ hasText: name });
  await until(row(node), /unchecked/);
  const state = await until(row(dead), /unchecked|ejected/);
  assert.ok(!/\bup\b/.test(state), state);
  ok('state');

  await row(node).getByRole('button', { name: 'Weight' }).click();
  assert.strictEqual(await page.inputValue('dialog [name=weight]'), '1');
  await page.fill('dialog [name=weight]', '7');
  await page.keyboard.press('Enter');
  await until(page.locator('#toast'), /Weight changed/);
  await until(row(node), /\b7\b/);
  ok('weight');

  await row(node).getByRole('button', { name: 'Drain' }).click();
  await page.locator('dialog').getByRole('button', { name: 'Drain' }).click();
  await until(page.locator('#toast'), /Open tunnels: 1$/);
  await until(row(node), /draining/);
  assert.strictEqual(await row(node).getByRole('button', { name: 'Drain' }).count(), 0);
  ok('drained');

  await row(node).getByRole('button', { name: 'Resume' }).click();
  await until(row(node), /unchecked/);
  ok('resumed');

  await row(node).locator('button.link').click();
  await until(page.locator('#section-tunnels tbody tr'), new RegExp(node));
  ok('tunnel');

  await page.fill('#section-close [name=percent]', '100');
  await page.locator('#section-close').getByRole('button', { name: 'Close tunnels' }).click();
  await page.locator('dialog').getByRole('button', { name: 'Close tunnels' }).click();
  await until(page.locator('#section-ended'), /By an operator\s+1\b/);
  assert.deepStrictEqual(page.troubles, []);
  ok('closed');
});
