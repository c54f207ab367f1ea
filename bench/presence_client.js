// Members of one topic who all join within two seconds: what each of them receives.
// usage: node presence_client.js ws://HOST:PORT MEMBERS SECONDS
// Prints a line of JSON: events per member, bytes, and seconds from the first join until each member knew
// of all.
'use strict';
const WebSocket = require('ws');

const [url, members, seconds] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const IDENTIFIER = JSON.stringify({ channel: '$pubsub', stream_name: 'bench' });
const AT_ONCE = 200;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function connect() {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(`${url}/cable`, 'actioncable-v1-ext-json', { perMessageDeflate: false });
    const member = { socket, events: 0, bytes: 0, total: 0, known: 0 };
    socket.on('error', reject);
    socket.on('close', () => (member.closed = true));
    socket.on('message', (data) => {
      // Most are pings.
      if (data.length < 60 && data.includes('"ping"')) return;
      const message = JSON.parse(data);
      if (message.type === 'welcome') {
        socket.send(JSON.stringify({ command: 'subscribe', identifier: IDENTIFIER }));
      } else if (message.type === 'confirm_subscription') {
        resolve(member);
      } else if (message.type === 'presence') {
        const { type, total } = message.message;
        member.events += 1;
        member.bytes += data.length;
        member.total = type === 'join' ? member.total + 1 : total ?? member.total;
        if (member.total === members) member.known = performance.now();
      }
    });
  });
}

async function main() {
  const all = [];
  while (all.length < members) {
    const count = Math.min(AT_ONCE, members - all.length);
    all.push(...(await Promise.all(Array.from({ length: count }, connect))));
  }
  const begin = performance.now();
  for (let next = 0; next < members; ) {
    const due = Math.min(members, Math.ceil(((performance.now() - begin) / 1000 / seconds) * members));
    for (; next < due; next++) {
      const presence = { id: `member-${next}`, info: { name: `Member ${next}` } };
      all[next].socket.send(JSON.stringify({ command: 'join', identifier: IDENTIFIER, presence }));
    }
    await sleep(1);
  }
  const joined = (performance.now() - begin) / 1000;
  const deadline = performance.now() + 120_000;
  const missing = () => all.filter(({ total }) => total !== members).length;
  while (missing() > 0 && performance.now() < deadline) await sleep(20);
  // Nothing more may follow.
  await sleep(2000);
  const events = all.map((member) => member.events).sort((a, b) => a - b);
  const sum = (of) => all.reduce((total, member) => total + of(member), 0);
  console.log(
    JSON.stringify({
      members,
      joined_seconds: joined,
      known_seconds: (Math.max(...all.map(({ known }) => known)) - begin) / 1000,
      missing: missing(),
      closed: all.filter(({ closed }) => closed).length,
      events_least: events[0],
      events_most: events[events.length - 1],
      events_all: sum(({ events }) => events),
      bytes_all: sum(({ bytes }) => bytes),
    }),
  );
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
