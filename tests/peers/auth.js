// An application that decides about clients of topics and knows nothing but the documentation: plain
// node:http, the signature verified over the raw body. It prints its port.
// usage: node auth.js SECRET
'use strict';
const { createHmac, timingSafeEqual } = require('node:crypto');
const { createServer } = require('node:http');

const secret = process.argv[2];
const TOLERANCE_S = 300;

function isGenuine(header, body) {
  const [, time, digest] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(header ?? '') ?? [];
  if (!digest || Math.abs(Date.now() / 1000 - Number(time)) > TOLERANCE_S) return false;
  const expected = createHmac('sha256', secret).update(`${time}.`).update(body).digest();
  return timingSafeEqual(expected, Buffer.from(digest, 'hex'));
}

function decide({ env, topic }) {
  const [, user] = /(?:^|; )user=([a-z]+)/.exec(env.headers.cookie ?? '') ?? [];
  if (!user) return { allow: false, status: 401, reason: 'log in first' };
  if (!topic.startsWith('rooms/')) return { allow: false, reason: 'rooms only' };
  return { allow: true, identity: { user }, topics: ['rooms/*'], publish: true, expires_in: 3600, ttl: 30 };
}

const server = createServer((request, response) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const body = Buffer.concat(parts);
    if (!isGenuine(request.headers['x-standfast-signature'], body)) {
      response.writeHead(400).end();
      return;
    }
    response.writeHead(200, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify(decide(JSON.parse(body))));
  });
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
