// Clients that are killed, an application that is killed, slow and wrong, and publishers that note what was
// acknowledged: is each message delivered once, and each action performed at most once?
// usage: node soak.js CLIENTS SECONDS HISTORY_LIMIT HISTORY_SECONDS LOG
// Prints {"app":PORT}, reads a line `ws://PUBLIC http://ADMIN`, prints its counts every minute and at the end, there
// with "ended": true.
'use strict';
const { fork } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');
const { Extended, Base, Events, between } = require('./clients.js');
const { Published, counts } = require('./positions.js');

const [clients, seconds, limit, ttl] = process.argv.slice(2, 6).map(Number);
const log = process.argv[6];
const TOPICS = Array.from({ length: 8 }, (_, number) => `soak:${number}`);
const PER_SECOND = 5; // and topic
const KILL_EVERY_MS = 20_000; // and client
const ACT_EVERY_MS = 10_000;
const SETTLE_MS = 120_000;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const one = (list) => list[Math.floor(Math.random() * list.length)];

const soak = {
  published: new Published(TOPICS),
  counts: counts(),
  events: {},
  actions: { sent: 0, answered: 0 },
  publishing: { acknowledged: 0, refused: 0, wrong: 0 },
  faults: {},
  // What the server need not have any more.
  evicted({ topic, last }) {
    const missed = soak.published.begun[topic] - (last ?? 0);
    return missed >= limit || missed >= ttl * PER_SECOND;
  },
};
let running = true;

async function publish(topic, admin) {
  const form = TOPICS.indexOf(topic) % 2;
  for (let number = 1; running; ) {
    soak.published.begun[topic] = number;
    const data = JSON.stringify({ t: topic, n: number, fill: 'x'.repeat(between(0, 200)) });
    const body = JSON.stringify(form ? { topic, data } : { stream: topic, data });
    const response = await fetch(`${admin}${form ? '/api/publish' : '/_broadcast'}`, { method: 'POST', body });
    const text = await response.text();
    if (response.ok) {
      const offset = JSON.parse(text).offsets[0];
      if (offset !== number) soak.publishing.wrong += 1;
      soak.published.acknowledged[topic] = number++;
      soak.publishing.acknowledged += 1;
    } else if ([429, 503].includes(response.status)) {
      soak.publishing.refused += 1;
    } else {
      throw new Error(`publish: ${response.status} ${text}`);
    }
    // Now and then many at once.
    if (number % 100 > 20) await sleep(between(0, 2000 / PER_SECOND));
  }
}

let app;
async function startApp(port) {
  app = fork(path.join(__dirname, 'app.js'), [port, log], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
  const started = app;
  return new Promise((done, failed) => {
    started.once('message', (message) => done(message.port));
    started.once('exit', (code) => started === app && failed(new Error(`the application ended: ${code}`)));
  });
}

async function killApp(port, away) {
  const ended = new Promise((done) => app.once('exit', done));
  const old = app;
  app = null;
  old.kill('SIGKILL');
  await ended;
  await sleep(away);
  await startApp(port);
}

const FAULTS = [
  'slow', 'late', 'silent', 'garbage', 'status', 'overloaded', 'types', 'huge', 'cut', 'reset', 'twice', 'error',
  'refuses', 'restart', 'restart', 'restart', 'slow',
];

// A fault for a while, then none for a while.
async function disturb(port) {
  while (running) {
    await sleep(between(5_000, 20_000));
    if (!running) break;
    const mode = one(FAULTS);
    soak.faults[mode] = (soak.faults[mode] ?? 0) + 1;
    if (mode === 'restart') {
      await killApp(port, Math.random() < 0.2 ? between(5000, 20_000) : between(50, 2000));
    } else {
      app.send({ mode, share: one([2, 5, 10]) });
      await sleep(between(3_000, 12_000));
      app.send({ mode: 'well', share: 10 });
    }
  }
}

async function each(all, every, act) {
  while (running) {
    await sleep(between(0, (2 * every) / all.length));
    if (running) act(one(all));
  }
}

// Of what the application noted: actions performed twice or out of order, ends told twice.
function judgeApp() {
  const performed = new Map();
  const ended = new Set();
  const result = { performed: 0, performed_twice: 0, out_of_order: 0, connects: 0, disconnects: 0, ended_twice: 0 };
  for (const line of fs.readFileSync(log, 'utf8').split('\n')) {
    const [what, id] = line.split(' ');
    if (what === 'connect') result.connects += 1;
    if (what === 'perform') {
      const [client, number] = id.split('.').map(Number);
      const last = performed.get(client) ?? 0;
      result.performed += 1;
      if (number === last) result.performed_twice += 1;
      if (number < last) result.out_of_order += 1;
      performed.set(client, Math.max(last, number));
    }
    if (what === 'disconnect') {
      result.disconnects += 1;
      if (ended.has(id)) result.ended_twice += 1;
      ended.add(id);
    }
  }
  return result;
}

const report = (more) => {
  const { counts: delivered, events, actions, publishing, faults } = soak;
  console.log(JSON.stringify({ delivered, events, actions, publishing, faults, ...more }));
};

async function main() {
  const port = await startApp(0);
  console.log(JSON.stringify({ app: port }));
  const [line] = await new Promise((done) => readline.createInterface(process.stdin).once('line', (text) => done([text])));
  const [url, admin] = line.split(' ');
  soak.url = url;
  const kinds = [Extended, Extended, Extended, Base, Events];
  const all = Array.from({ length: clients }, (_, number) => {
    const Kind = kinds[number % kinds.length];
    const first = number % TOPICS.length;
    const topics = [TOPICS[first], TOPICS[(first + 3) % TOPICS.length]];
    return new Kind(number, Kind === Events ? topics.slice(0, 1) : topics, soak);
  });
  all.forEach((client) => client.connect());
  const actors = all.filter((client) => client.act);
  const checks = setInterval(() => all.forEach((client) => client.check()), 1000);
  const minutes = setInterval(() => report({}), 60_000);
  const work = [
    ...TOPICS.map((topic) => publish(topic, admin)),
    disturb(port),
    each(all, KILL_EVERY_MS, (client) => client.kill()),
    each(actors, ACT_EVERY_MS, (client) => client.act()),
  ];
  setTimeout(() => (running = false), seconds * 1000);
  await Promise.all(work);
  // Everyone comes back and gets what is missing.
  const until = Date.now() + SETTLE_MS;
  const incomplete = () => all.filter((client) => !client.complete);
  while (incomplete().length && Date.now() < until) await sleep(100);
  for (const client of incomplete()) {
    const readers = Object.values(client.readers).filter((reader) => !reader.complete);
    if (!client.open) soak.counts.faults.push(`${client.number} is not connected`);
    for (const reader of readers) {
      reader.fault('lost', `after ${reader.last}`, reader.published.acknowledged[reader.topic] - (reader.last ?? 0));
    }
  }
  const unconnected = all.filter(({ open }) => !open).length;
  // Nothing more may follow.
  await sleep(2000);
  clearInterval(checks);
  clearInterval(minutes);
  const metrics = await (await fetch(`${admin}/metrics`)).text();
  const broken = Number(metrics.match(/^standfast_invariant_broken(?:_total)? (\d+)/m)?.[1] ?? NaN);
  report({ ended: true, unconnected, broken, app: judgeApp() });
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
