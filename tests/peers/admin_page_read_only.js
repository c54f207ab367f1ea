// The admin page of serve without a key.
// usage: node admin_page_read_only.js URL
'use strict';
const assert = require('node:assert');
const { main, ok, figure, until } = require('./admin_browser.js');

main(async (open) => {
  const page = await open(process.argv[2], { viewport: { width: 1280, height: 900 } });
  await until(page.locator('#status'), /Live/);
  await until(figure(page, 'Connections'), /Connections\s+1\s/);
  ok('live');

  await until(page.locator('#banner'), /Read-only.*--admin-key/);
  await page.locator('#section-connections').getByRole('button', { name: 'Find' }).click();
  await until(page.locator('#section-connections tbody tr'), /news/);
  assert.strictEqual(await page.getByRole('button', { name: 'End session' }).count(), 0);
  ok('read-only');

  await page.fill('#section-publish [name=topic]', 'news');
  await page.fill('#section-publish [name=data]', 'hello');
  await page.locator('#section-publish').getByRole('button', { name: 'Publish' }).click();
  await until(page.locator('#toast'), /Receivers: 1$/);
  assert.deepStrictEqual(page.troubles, []);
  ok('published');
});
