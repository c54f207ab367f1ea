// AnyCable's client, @anycable/core, by long polling: a transport of our own, as AnyCable's is not in the
// npm registry.
// usage: node long_polling.js ws://PUBLIC http://ADMIN
'use strict';
const assert = require('node:assert');
const { EventEmitter } = require('node:events');
const { pathToFileURL } = require('node:url');

const [socketUrl, adminUrl] = process.argv.slice(2);
const publicUrl = socketUrl.replace(/^ws/, 'http');

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// From 1: the library takes 0 for no message.
const upTo = (last) => Array.from({ length: last }, (_, n) => n + 1);
const once = (target, event) => new Promise((resolve) => target.once(event, resolve));

async function publish(topic, data) {
  const body = JSON.stringify({ topic, data: JSON.stringify(data) });
  const response = await fetch(`${adminUrl}/api/publish`, { method: 'POST', body });
  assert.ok(response.ok, `publish answered ${response.status}`);
}

// One request after the other. With `aborts` a command ends the one that waits, as AnyCable's transport does;
// otherwise it goes with the next one, so that no answer is ever given up.
class Polling {
  constructor(url, { aborts = false } = {}) {
    this.url = new URL(url);
    this.aborts = aborts;
    this.events = new EventEmitter();
    this.commands = [];
    this.isOpen = false;
  }

  displayName() {
    return `long polling at ${this.url}`;
  }

  on(event, callback) {
    this.events.on(event, callback);
    return () => this.events.off(event, callback);
  }

  once(event, callback) {
    this.events.once(event, callback);
    return () => this.events.off(event, callback);
  }

  setURL(url) {
    this.url = new URL(url);
  }

  setParam(key, value) {
    this.url.searchParams.set(key, value);
  }

  setToken(value, param = 'jid') {
    this.setParam(param, value);
  }

  async open() {
    const response = await fetch(this.url, { method: 'POST' });
    const lines = await response.text();
    this.id = response.headers.get('x-anycable-poll-id');
    this.isOpen = response.ok;
    if (response.ok) this.events.emit('open');
    this.hear(lines);
    if (!response.ok) throw new Error(`refused: ${response.status}`);
    // Its monitor wants a sign of life every three seconds.
    this.beat = setInterval(() => this.hear('{"type":"ping"}\n'), 1000);
    this.poll();
  }

  send(data) {
    assert.ok(this.isOpen);
    this.commands.push(data);
    if (!this.aborts || this.commands.length > 1) return;
    queueMicrotask(() => {
      if (!this.isOpen) return;
      this.controller.abort();
      this.poll();
    });
  }

  async poll() {
    const controller = (this.controller = new AbortController());
    const body = this.commands.splice(0).join('\n');
    const headers = { 'X-Anycable-Poll-ID': this.id };
    const { signal } = controller;
    try {
      const response = await fetch(this.url, { method: 'POST', body, headers, signal });
      const lines = await response.text();
      if (signal.aborted) return;
      this.hear(lines);
      if (!response.ok) throw new Error(`answered ${response.status}`);
    } catch (error) {
      if (!signal.aborted) this.ended(error);
      return;
    }
    if (this.isOpen && controller === this.controller) this.poll();
  }

  // Sends nothing for a while, as a machine that sleeps.
  async pause(ms) {
    this.controller.abort();
    await sleep(ms);
    this.poll();
  }

  hear(lines) {
    for (const line of lines.split('\n').filter(Boolean)) this.events.emit('data', line);
  }

  ended(error) {
    if (!this.isOpen) return;
    this.stop();
    this.events.emit('close', error);
  }

  stop() {
    this.isOpen = false;
    clearInterval(this.beat);
    this.controller?.abort();
  }

  async close() {
    if (!this.isOpen) return;
    this.stop();
    this.events.emit('close');
  }
}

async function main() {
  const { createCable } = await import(pathToFileURL(require.resolve('@anycable/core')));
  const connect = (protocol, options) => {
    const transport = new Polling(`${publicUrl}/lp`, options);
    const reconnectStrategy = () => 50;
    return createCable({ protocol, transport, reconnectStrategy, logLevel: 'error' });
  };

  for (const protocol of ['actioncable-v1-json', 'actioncable-v1-ext-json']) {
    for (const aborts of [false, true]) {
      const cable = connect(protocol, { aborts });
      const topic = `news-${protocol}-${aborts}`;
      const news = cable.streamFrom(topic);
      await news.ensureSubscribed();
      for (const message of [{ text: 'héllo ✓\n' }, 'plain', 7]) {
        const received = once(news, 'message');
        await publish(topic, message);
        assert.deepStrictEqual(await received, message);
      }
      const refused = cable.subscribeTo('ChatChannel');
      await assert.rejects(refused.ensureSubscribed());
      cable.disconnect();
    }
    console.log(`ok ${protocol} receives and is rejected`);
  }

  const [one, two] = [connect('actioncable-v1-ext-json'), connect('actioncable-v1-ext-json')];
  const [mine, theirs] = [one.streamFrom('room'), two.streamFrom('room')];
  await Promise.all([mine.ensureSubscribed(), theirs.ensureSubscribed()]);
  const own = [];
  mine.on('message', (message) => own.push(message));
  const heard = once(theirs, 'message');
  await mine.whisper({ typing: true });
  assert.deepStrictEqual(await heard, { typing: true });
  const last = once(mine, 'message');
  await publish('room', 'last');
  await last;
  assert.deepStrictEqual(own, ['last']);
  await theirs.presence.join('paul', { name: 'Paul' });
  const present = await theirs.presence.info();
  assert.deepStrictEqual(present, { paul: { name: 'Paul' } });
  console.log('ok whispers and presence');

  // Commands all the time, while others publish: each message once and in order.
  const numbers = [];
  const counter = one.streamFrom('numbers');
  await counter.ensureSubscribed();
  counter.on('message', (message) => numbers.push(message));
  let talks = true;
  const talker = (async () => {
    while (talks) {
      await mine.whisper({ typing: true });
      await sleep(7);
    }
  })();
  for (let n = 1; n < 300; n += 1) await publish('numbers', n);
  while (numbers.at(-1) !== 299) await sleep(10);
  talks = false;
  await talker;
  assert.deepStrictEqual(numbers, upTo(299));
  console.log('ok each message once while it sends commands');

  // Away for longer than its session is kept: it resumes it, with what it has missed.
  const back = once(one, 'connect');
  const away = one.transport.pause(1500);
  for (let n = 300; n < 320; n += 1) await publish('numbers', n);
  await away;
  assert.strictEqual((await back).restored, true);
  while (numbers.at(-1) !== 319) await sleep(10);
  assert.deepStrictEqual(numbers, upTo(319));
  console.log('ok resumes with what it has missed');
  process.exit(0);
}

setTimeout(() => {
  console.error('not all has come in time');
  process.exit(1);
}, 60000).unref();

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
