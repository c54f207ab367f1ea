'use strict';

const fs = require('node:fs');
const { randomUUID } = require('node:crypto');
const { text } = require('./bytes');

const BROKER_OPTIONS = ['url', 'prefix', 'spoolBytes', 'ca'];

/** What is kept by default. */
const HISTORY = { size: 100, ttl: 300, topicBytes: 1024 * 1024, bytes: 64 * 1024 * 1024 };
/** Seconds that brokers can keep messages for. */
const [TTL_MIN, TTL_MAX] = [0.001, 1_000_000_000];

/** What the addon is told of the options `topics`, `broker`, `history` and `missed`; undefined without them. */
function sharedTopics(options) {
  const history = historyOf(options);
  const shared = topicsOf(options);
  // A history is one of topics that apps share, if only of one app.
  return history ? { topics: `history ${randomUUID()}`, ...shared, ...history } : shared;
}

/** What the addon is told of the option `history` of a Server. */
function historyOf({ history } = {}) {
  if (history === undefined || history === false) return undefined;
  if (history === null || (history !== true && typeof history !== 'object')) {
    throw new TypeError('expected the option history to be true, or an object with limits');
  }
  const unknown = Object.keys(history).find((name) => !(name in HISTORY));
  if (unknown) throw new TypeError(`history has no option ${unknown}: there are ${Object.keys(HISTORY).join(', ')}`);
  const limits = { ...HISTORY, ...history };
  for (const [name, value] of Object.entries(limits)) {
    const isTtl = typeof value === 'number' && value >= TTL_MIN && value <= TTL_MAX;
    const isValid = name === 'ttl' ? isTtl : Number.isSafeInteger(value) && value > 0;
    const numbers = { size: 'a whole number of messages, more than 0', ttl: `a number of seconds from ${TTL_MIN} to ${TTL_MAX}` };
    const expected = numbers[name] ?? 'a whole number of bytes, more than 0';
    if (!isValid) throw new RangeError(`invalid ${name} ${value} of the history: expected ${expected}`);
  }
  const { size, ttl, topicBytes, bytes } = limits;
  return { historySize: size, historyTtl: ttl, historyTopicBytes: topicBytes, historyBytes: bytes };
}

function topicsOf(options) {
  const { topics, broker, missed } = options ?? {};
  if (missed !== undefined && typeof missed !== 'function') {
    throw new TypeError('expected the option missed to be a function (topic)');
  }
  if (missed && broker === undefined) throw new TypeError('the option missed is for apps with the option broker');
  if (topics !== undefined && (typeof topics !== 'string' || topics === '')) {
    throw new TypeError('expected the option topics to be a name: a string that is not empty');
  }
  if (broker === undefined) return topics === undefined ? undefined : { topics };
  const isText = typeof broker === 'string';
  if (!isText && (broker === null || typeof broker !== 'object')) {
    throw new TypeError('expected the option broker to be a URL, or an object with a url');
  }
  const own = isText ? { url: broker } : broker;
  const unknown = Object.keys(own).find((name) => !BROKER_OPTIONS.includes(name));
  if (unknown) throw new TypeError(`broker has no option ${unknown}: there are ${BROKER_OPTIONS.join(', ')}`);
  const url = text(own.url, 'the url of a broker');
  const prefix = text(own.prefix ?? 'standfast', 'the prefix of a broker');
  const spoolBytes = own.spoolBytes ?? 0;
  if (!Number.isSafeInteger(spoolBytes) || spoolBytes < 0) {
    throw new RangeError(`invalid spoolBytes ${spoolBytes}: expected a whole number of bytes`);
  }
  const authorities = own.ca === undefined ? undefined : readAuthorities(text(own.ca, 'the ca of a broker'));
  // Without a name, apps with the same broker share their topics.
  return { topics: topics ?? `${prefix} ${url}`, url, prefix, spoolBytes, authorities };
}

function readAuthorities(path) {
  try {
    return fs.readFileSync(path, 'utf8');
  } catch (error) {
    throw new Error(`cannot read the ca of a broker ${path}: ${error.message}`);
  }
}

/** The state of shared topics, from the list that the addon returns. */
function topicsState(state) {
  if (state === undefined) return undefined;
  const [apps, refused, broker, kept] = state;
  const history = kept && historyState(kept);
  if (broker === undefined) return { apps, refused, ...(history && { history }) };
  const [trouble, topics, unconfirmed, waiting, published, lost, received, dropped, gaps, connected, others] = broker;
  return {
    apps,
    refused,
    ...(history && { history }),
    broker: {
      ready: trouble === undefined && unconfirmed === 0,
      trouble,
      topics,
      unconfirmed,
      waiting,
      published,
      lost,
      received,
      dropped,
      gaps,
      connected,
      others,
    },
  };
}

function historyState([topics, messages, bytes, published, evictions, requests]) {
  const named = (names, values) => Object.fromEntries(names.map((name, at) => [name, values[at]]));
  return {
    topics,
    messages,
    bytes,
    published,
    evicted: named(['messages', 'age', 'topicBytes', 'bytes', 'released'], evictions),
    requests: named(['recovered', 'epoch', 'ahead', 'evicted'], requests),
  };
}

module.exports = { sharedTopics, topicsState };
