// A receiver of webhooks that knows nothing but the documentation: plain node:http, the signature
// verified over the raw body. It prints its port, then a line of JSON for each batch that it accepts.
// usage: node webhooks.js SECRET
'use strict';
const { createHmac, timingSafeEqual } = require('node:crypto');
const { createServer } = require('node:http');

// The secret itself, or the key that is derived from --secret.
const secret = process.argv[2];
const TOLERANCE_S = 300;

function isGenuine(header, body) {
  const [, time, digest] = /^t=(\d+),v1=([0-9a-f]{64})$/.exec(header ?? '') ?? [];
  if (!digest || Math.abs(Date.now() / 1000 - Number(time)) > TOLERANCE_S) return false;
  const expected = createHmac('sha256', secret).update(`${time}.`).update(body).digest();
  return timingSafeEqual(expected, Buffer.from(digest, 'hex'));
}

const seen = new Set();
const server = createServer((request, response) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const body = Buffer.concat(parts);
    if (!isGenuine(request.headers['x-standfast-signature'], body)) {
      response.writeHead(401).end();
      return;
    }
    const { id, dropped, events } = JSON.parse(body);
    // A batch whose answer was lost comes again, with the same ids.
    const fresh = events.filter((event) => !seen.has(event.id));
    fresh.forEach((event) => seen.add(event.id));
    console.log(JSON.stringify({ id, dropped, events: fresh }));
    response.writeHead(204).end();
  });
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
