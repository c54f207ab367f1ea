// The admin page of serve with its key.
// usage: node admin_page.js URL KEY
'use strict';
const assert = require('node:assert');
const { main, ok, figure, until, withKey } = require('./admin_browser.js');

const [url, key] = process.argv.slice(2);
const evil = '<img src=x onerror=alert(1)>';

main(async (open) => {
  const page = await open(url, { viewport: { width: 1280, height: 900 } });
  await page.waitForSelector('#gate:not([hidden])');
  assert.strictEqual(await page.locator('section.card:not(#gate)').count(), 0);
  ok('locked');

  await page.fill('#gate-key', 'wrong');
  await page.keyboard.press('Enter');
  await until(page.locator('#gate-note'), /not the key/);
  ok('wrong key');

  await page.fill('#gate-key', key);
  await page.keyboard.press('Enter');
  await until(page.locator('#status'), /Live/);
  await until(figure(page, 'WebSockets'), /\b3$/);
  await until(figure(page, 'Messages in'), /\d.*\/s/s);
  ok('live');

  // 1,200 messages were received; a worker's capacity has thousands.
  const capacity = await until(page.locator('#section-workers tbody tr').first(), /\d,\d{3}/);
  assert.ok(!/\d{4,}/.test(capacity), capacity);
  ok('separators');

  const topics = page.locator('#section-topics tbody tr');
  await until(topics.filter({ hasText: evil }), /img src=x/);
  assert.strictEqual(await page.locator('img').count(), 0);
  ok('escaped');

  await until(page.locator('#section-refusals'), /another origin.*--allow-origin/s);
  ok('refusals');

  await topics.filter({ hasText: evil }).locator('button.link').click();
  const found = page.locator('#section-connections tbody tr');
  await until(found, /topic.*img src=x/s);
  assert.strictEqual(await found.count(), 1);
  await until(page.locator('#section-connections .about'), /Subscribers\s+1/);
  ok('find a topic');

  await page.fill('#section-find_topics [name=prefix]', evil.slice(0, 4));
  await page.keyboard.press('Enter');
  const begins = page.locator('#section-find_topics tbody tr');
  await until(begins, /img src=x/);
  assert.strictEqual(await begins.count(), 1);
  await begins.locator('button.link').click();
  await until(found, /topic.*img src=x/s);
  ok('find topics by how they begin');

  await page.fill('#section-connections [name=topic]', '');
  await page.fill('#section-connections [name=identity]', '{"user_id":1}');
  await page.keyboard.press('Enter');
  await until(found, /cable.*user_id.*news/s);
  ok('find an identity');

  await found.first().getByRole('button', { name: 'Details' }).click();
  const details = await until(page.locator('dialog'), /State\s+websocket/);
  for (const part of ['user_id', 'news', 'Idle', 'Worker', 'Peer']) assert.ok(details.includes(part), details);
  await page.keyboard.press('Escape');
  await page.waitForSelector('dialog', { state: 'detached' });
  ok('details');

  await page.fill('#section-publish [name=topic]', 'told');
  await page.fill('#section-publish [name=data]', '<b>tëst</b>');
  await page.locator('#section-publish').getByRole('button', { name: 'Publish' }).click();
  await until(page.locator('#toast'), /Receivers: 1$/);
  ok('published');

  await found.first().getByRole('button', { name: 'End session' }).click();
  await page.locator('dialog [type=checkbox]').uncheck();
  await page.locator('dialog').getByRole('button', { name: 'End session' }).click();
  await until(page.locator('#section-connections .empty'), /No connection matches/);
  ok('ended');

  // Places of figures and rows stay while their values change. What is not shown has none.
  const places = () => page.evaluate(() => [...document.querySelectorAll('.tile, h2, #section-topics td')].filter((each) => each.getClientRects().length).map((each) => {
    const { x, y, width } = each.getBoundingClientRect();
    return [x, y + scrollY, width].map(Math.round).join(' ');
  }));
  await page.mouse.move(0, 0);
  const before = await places();
  const uptime = await page.locator('#uptime').innerText();
  await page.waitForFunction((old) => document.getElementById('uptime').textContent !== old, uptime);
  assert.deepStrictEqual(await places(), before);
  ok('steady');

  // Everything is reached by Tab, and what has the focus shows it.
  await page.evaluate(() => { document.activeElement.blur(); window.scrollTo(0, 0); });
  const reached = new Set();
  for (let step = 0; step < 60; step += 1) {
    await page.keyboard.press('Tab');
    const focus = await page.evaluate(() => {
      const node = document.activeElement;
      const outline = getComputedStyle(node).outlineStyle;
      const page = node === document.body || node === document.documentElement;
      return { text: page ? '' : (node.innerText || node.name || node.tagName).trim(), outline };
    });
    if (focus.text) assert.notStrictEqual(focus.outline, 'none', `no focus is seen at ${focus.text}`);
    reached.add(focus.text);
  }
  for (const name of ['Skip to content', 'Topics', 'Subscribers', 'Find', 'Publish', 'identity', evil]) {
    assert.ok(reached.has(name), `${name} of ${[...reached]}`);
  }
  ok('keyboard');

  const phone = await open(url, { viewport: { width: 360, height: 780 } }, withKey(key));
  await until(phone.locator('#section-topics'), /img src=x/);
  await phone.locator('#section-connections').getByRole('button', { name: 'Find' }).click();
  await until(phone.locator('#section-connections'), /Peer/);
  const width = await phone.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 360, `${width} px wide`);
  const cut = await phone.$$eval('.scroll', (all) => all.filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.innerText));
  assert.deepStrictEqual(cut, [], 'tables fit');
  ok('phone');

  const ink = (of) => of.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await open(url, { colorScheme: 'dark' }, withKey(key));
  await until(dark.locator('#status'), /Live/);
  assert.notStrictEqual(await ink(dark), await ink(page));
  ok('dark');

  assert.ok((await page.pdf()).length > 10_000);
  await page.emulateMedia({ media: 'print' });
  assert.strictEqual(await page.locator('#section-publish form').isVisible(), false);
  await page.emulateMedia({ media: 'screen' });
  ok('print');

  for (const each of [page, phone, dark]) {
    const foreign = each.requests.filter((request) => !request.startsWith(url) && !request.startsWith('data:'));
    assert.deepStrictEqual(foreign, []);
    assert.deepStrictEqual(each.troubles, []);
    assert.ok(each.requests.every((request) => !request.includes(key)), 'the key is in no URL');
  }
  assert.deepStrictEqual(await page.context().cookies(), []);
  ok('same origin');

  await page.getByRole('button', { name: 'Forget key' }).click();
  await page.waitForSelector('#gate:not([hidden])');
  ok('key forgotten');
});
