// Clients of the soak, each with what it has received. They are killed and come back; one of three kinds:
// Extended (AnyCable's extended protocol, resumes or subscribes again with its positions), Base (Action Cable, no
// history: complete only while it is connected) and Events (server-sent events with Last-Event-ID).
'use strict';
const http = require('node:http');
const WebSocket = require('ws');
const { Reader } = require('./positions.js');

const between = (least, most) => least + Math.random() * (most - least);
const SILENT_MS = 15_000; // pings come every 3 s
const CONFIRM_MS = 20_000; // then the application has failed, and the client begins anew
const HISTORY_MS = 40_000; // no application takes part in it

class Client {
  constructor(number, topics, soak) {
    Object.assign(this, { number, topics, soak, open: false, stopped: false });
    this.readers = Object.fromEntries(
      topics.map((topic) => [topic, new Reader(topic, soak.published, soak.counts)]),
    );
    for (const reader of Object.values(this.readers)) reader.name = `${this.constructor.name} ${number}`;
  }

  // How long it stays away: mostly a moment, sometimes longer than its session is kept.
  away() {
    return Math.random() < 0.05 ? between(18_000, 30_000) : between(20, 3000);
  }

  count(what) {
    this.soak.events[what] = (this.soak.events[what] ?? 0) + 1;
  }

  get complete() {
    return this.open && Object.values(this.readers).every((reader) => reader.complete);
  }
}

class Cable extends Client {
  constructor(number, topics, soak) {
    super(number, topics, soak);
    this.identifier = JSON.stringify({ channel: 'Soak', topics });
    this.action = 0;
  }

  connect() {
    const query = this.query();
    const url = `${this.soak.url}/cable?user=u${this.number}${query}`;
    const socket = new WebSocket(url, this.protocol, { perMessageDeflate: false, handshakeTimeout: 60_000 });
    Object.assign(this, { socket, open: false, heard: Date.now(), due: null });
    const own = (handle) => (...args) => this.socket === socket && handle(...args);
    socket.on('error', () => {});
    socket.on('message', own((data) => this.message(JSON.parse(data))));
    socket.on('close', own(() => this.lost()));
  }

  lost() {
    this.open = false;
    this.socket = null;
    if (!this.stopped) setTimeout(() => this.connect(), this.leaving ?? between(200, 2000));
    this.leaving = null;
  }

  kill() {
    if (!this.socket) return;
    this.leaving = this.away();
    this.count('kills');
    if (Math.random() < 0.8) this.socket.terminate();
    else this.socket.close();
  }

  // Ends a connection without an answer, as clients do.
  check() {
    if (!this.socket) return;
    const late = this.due && Date.now() > this.due.at;
    if (late && this.due.what === 'history') this.count('unanswered history');
    if (late || Date.now() > this.heard + SILENT_MS) {
      this.count(late ? `without ${this.due.what}` : 'silent');
      this.socket.terminate();
    }
  }

  await(what, time) {
    this.due = what && { what, at: Date.now() + time };
  }

  send(message) {
    this.socket.send(JSON.stringify({ identifier: this.identifier, ...message }));
  }

  // An action: the application performs it at most once, in order.
  act() {
    if (!this.open) return;
    const id = `${this.number}.${++this.action}`;
    this.soak.actions.sent += 1;
    this.send({ command: 'message', data: JSON.stringify({ id }) });
  }

  message(message) {
    this.heard = Date.now();
    if (message.type === 'ping') return;
    if (message.message?.done) return void (this.soak.actions.answered += 1);
    if (message.message) return this.publication(message);
    switch (message.type) {
      case 'welcome':
        return this.welcome(message);
      case 'confirm_subscription':
        return this.confirmed();
      case 'reject_subscription':
        this.count('rejected');
        return this.socket.terminate();
      case 'confirm_history':
      case 'reject_history':
        return this.history(message.type);
      case 'disconnect':
        return this.count(`disconnect ${message.reason}`);
    }
  }

  // A message of a topic that it has not subscribed to.
  stranger(message) {
    Object.values(this.readers)[0].fault('wrong', JSON.stringify(message).slice(0, 100));
  }

  begin() {
    this.open = true;
    this.await(null);
    Object.values(this.readers).forEach((reader) => reader.begin());
  }
}

class Extended extends Cable {
  protocol = 'actioncable-v1-ext-json';

  query() {
    return this.sid && Math.random() < 0.6 ? `&sid=${this.sid}` : '';
  }

  positions() {
    const known = Object.values(this.readers).filter(({ last }) => last !== null);
    return Object.fromEntries(known.map(({ topic, epoch, last }) => [topic, { epoch, offset: last }]));
  }

  welcome({ sid, restored, restored_ids }) {
    this.sid = sid;
    if (restored && restored_ids?.includes(this.identifier)) {
      this.count('resumed');
      this.begin();
      this.send({ command: 'history', history: { streams: this.positions() } });
      return this.await('history', HISTORY_MS);
    }
    const streams = this.positions();
    const history = Object.keys(streams).length ? { history: { streams } } : {};
    this.asks = Boolean(history.history);
    this.send({ command: 'subscribe', ...history });
    this.await('confirmation', CONFIRM_MS);
  }

  confirmed() {
    this.count('subscribed');
    this.begin();
    if (this.asks) this.await('history', HISTORY_MS);
  }

  history(type) {
    this.await(null);
    this.count(type);
    if (type === 'confirm_history') return;
    // Explained only if the server cannot have kept what was missed.
    if (!Object.values(this.readers).some((reader) => this.soak.evicted(reader))) {
      this.soak.counts.lost += 1;
      this.soak.counts.faults.push(`${this.number} history rejected: ${JSON.stringify(this.positions())}`);
    }
    Object.values(this.readers).forEach((reader) => reader.restart());
  }

  publication({ message, stream_id, epoch, offset }) {
    const reader = this.readers[stream_id];
    if (!reader || message.t !== stream_id) return this.stranger(message);
    reader.receive(message.n, offset, epoch);
  }
}

class Base extends Cable {
  protocol = 'actioncable-v1-json';

  query() {
    return '';
  }

  welcome() {
    this.send({ command: 'subscribe' });
    this.await('confirmation', CONFIRM_MS);
  }

  confirmed() {
    this.count('subscribed');
    Object.values(this.readers).forEach((reader) => reader.restart());
    this.begin();
  }

  publication({ message }) {
    const reader = this.readers[message.t];
    if (!reader) return this.stranger(message);
    reader.receive(message.n);
  }
}

class Events extends Client {
  connect() {
    const [topic] = this.topics;
    const [reader] = Object.values(this.readers);
    const headers = { Accept: 'text/event-stream' };
    if (reader.last !== null) headers['Last-Event-ID'] = `${reader.epoch}:${reader.last}`;
    const url = new URL(`/events?topic=${topic}`, this.soak.url.replace('ws:', 'http:'));
    const request = http.get(url, { headers, agent: false });
    let rest = '';
    this.heard = Date.now();
    this.request = request;
    request.on('error', () => {});
    request.on('close', () => {
      this.open = false;
      if (this.request !== request || this.stopped) return;
      this.request = null;
      setTimeout(() => this.connect(), this.leaving ?? between(200, 2000));
    });
    request.on('response', (response) => {
      if (response.statusCode !== 200) this.count(`events ${response.statusCode}`);
      response.setEncoding('utf8');
      response.on('error', () => {});
      response.on('data', (text) => {
        if (this.request !== request) return;
        this.heard = Date.now();
        const events = (rest + text).split('\n\n');
        rest = events.pop();
        events.forEach((event) => this.event(reader, event));
      });
    });
  }

  event(reader, text) {
    const field = (name) => text.match(new RegExp(`^${name}: ?(.*)$`, 'm'))?.[1];
    const [epoch, offset] = (field('id') ?? '').split(':');
    if (field('event') === 'reset') {
      if (!this.soak.evicted(reader)) reader.fault('lost', `reset ${field('data')}`);
      return reader.restart();
    }
    if (!epoch) return;
    this.open = true;
    const data = field('data');
    if (!data) return reader.at(epoch, Number(offset));
    reader.receive(JSON.parse(data).n, Number(offset), epoch);
  }

  kill() {
    if (!this.request) return;
    this.leaving = this.away();
    this.count('kills');
    this.request.destroy();
  }

  check() {
    if (this.request && Date.now() > this.heard + SILENT_MS) {
      this.count('silent');
      this.request.destroy();
    }
  }
}

module.exports = { Extended, Base, Events, between };
