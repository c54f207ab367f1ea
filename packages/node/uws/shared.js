'use strict';

const fs = require('node:fs');
const { text } = require('./bytes');

const BROKER_OPTIONS = ['url', 'prefix', 'spoolBytes', 'ca'];

/** What the addon is told of the options `topics`, `broker` and `missed`; undefined without them. */
function sharedTopics(options) {
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
  const [apps, refused, broker] = state;
  if (broker === undefined) return { apps, refused };
  const [trouble, topics, unconfirmed, waiting, published, lost, received, dropped, gaps, connected, others] = broker;
  return {
    apps,
    refused,
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

module.exports = { sharedTopics, topicsState };
