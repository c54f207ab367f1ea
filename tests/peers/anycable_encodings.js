// AnyCable's client, @anycable/core, in MessagePack and in Protobuf: with the libraries that its own
// encoders use, and its public schema.
// usage: node anycable_encodings.js ws://PUBLIC http://ADMIN [app]
'use strict';
const assert = require('node:assert');
const { pathToFileURL } = require('node:url');
const msgpack = require('@ygoe/msgpack');
const protobuf = require('protobufjs');
const WebSocket = require('ws');

const [publicUrl, adminUrl, app] = process.argv.slice(2);

const { root } = protobuf.parse(`
syntax = "proto3";
package action_cable;
enum Type {
  no_type = 0; welcome = 1; disconnect = 2; ping = 3; confirm_subscription = 4; reject_subscription = 5;
  confirm_history = 6; reject_history = 7;
}
enum Command {
  unknown_command = 0; subscribe = 1; unsubscribe = 2; message = 3; history = 4; pong = 5; whisper = 6;
}
message StreamHistoryRequest { string epoch = 2; int64 offset = 3; }
message HistoryRequest { int64 since = 1; map<string, StreamHistoryRequest> streams = 2; }
message Message {
  Type type = 1; Command command = 2; string identifier = 3; string data = 4; bytes message = 5;
  string reason = 6; bool reconnect = 7; HistoryRequest history = 8;
}
message Reply {
  Type type = 1; string identifier = 2; bytes message = 3; string reason = 4; bool reconnect = 5;
  string stream_id = 6; string epoch = 7; int64 offset = 8; string sid = 9; bool restored = 10;
  repeated string restored_ids = 11;
}`, { keepCase: true });
const type = (name) => root.lookupType(`action_cable.${name}`);
const value = (name, key) => root.lookupEnum(`action_cable.${name}`).values[key] || 0;
const name = (enumeration, number) => root.lookupEnum(`action_cable.${enumeration}`).valuesById[number];

const packed = {
  encode: (message) => msgpack.encode(message),
  decode: (data) => msgpack.decode(new Uint8Array(data)),
};

class Protobuf {
  constructor(schema) {
    this.schema = type(schema);
  }
  encode(message) {
    const { command, data } = message;
    const fields = { ...message, command: value('Command', command) };
    // As AnyCable's encoder does: only text is left as it is.
    if (data !== undefined && typeof data !== 'string') fields.data = JSON.stringify(data);
    return type('Message').encode(type('Message').fromObject(fields)).finish();
  }
  decode(data) {
    const message = this.schema.decode(new Uint8Array(data));
    const { stream_id, epoch, sid, restored, restored_ids, identifier, reason, reconnect } = message;
    return {
      type: message.type ? name('Type', message.type) : undefined,
      identifier,
      reason,
      reconnect,
      stream_id,
      epoch,
      sid,
      restored,
      restored_ids,
      offset: Number(message.offset),
      message: message.message.length ? msgpack.decode(message.message) : undefined,
    };
  }
}

const once = (target, event) => new Promise((resolve) => target.once(event, resolve));

async function publish(topic, data) {
  const body = JSON.stringify({ topic, data: JSON.stringify(data) });
  const response = await fetch(`${adminUrl}/api/publish`, { method: 'POST', body });
  assert.ok(response.ok, `publish answered ${response.status}`);
}

const BODY = {
  text: 'héllo ✓ 😀',
  numbers: [0, -1, 300, -40000, 1.5, 2 ** 40, -(2 ** 40)],
  nested: { empty: {}, list: [[], [null, true, false]] },
  long: 'x'.repeat(40000),
};

async function main() {
  const { createCable } = await import(pathToFileURL(require.resolve('@anycable/core')));
  const cables = [];
  const connect = (protocol, encoder, options) => {
    const cable = createCable(`${publicUrl}/cable?user=ann`, {
      protocol,
      encoder,
      websocketImplementation: WebSocket,
      logLevel: 'error',
      ...options,
    });
    cables.push(cable);
    return cable;
  };
  const protocols = [
    ['actioncable-v1-msgpack', packed],
    ['actioncable-v1-ext-msgpack', packed],
    ['actioncable-v1-protobuf', new Protobuf('Message')],
    ['actioncable-v1-ext-protobuf', new Protobuf('Reply')],
  ];
  for (const [protocol, encoder] of app ? protocols : []) {
    const cable = connect(protocol, encoder);
    const chat = cable.subscribeTo('ChatChannel', { room: '1' });
    const heard = [];
    chat.on('message', (message) => heard.push(message));
    await chat.ensureSubscribed();
    // The greeting may come before or after the client has noticed that it is subscribed.
    const until = async (count) => {
      while (heard.length < count) await once(chat, 'message');
    };
    await until(1);
    await chat.perform('speak', { text: 'héllo ✓' });
    await until(2);
    await publish('room:1', { n: 1 });
    await until(3);
    const expected = [{ hello: 'ann' }, { said: 'héllo ✓', by: 'ann' }, { n: 1 }];
    assert.deepStrictEqual(heard, expected);
    assert.strictEqual(cable.transport.ws.protocol, protocol);
    await assert.rejects(cable.subscribeTo('ChatChannel', { room: 'locked' }).ensureSubscribed());
    console.log(`ok ${protocol} performs`);
  }
  for (const [protocol, encoder] of app ? [] : protocols) {
    const cable = connect(protocol, encoder);
    const news = cable.streamFrom(`news of ${protocol}`);
    await news.ensureSubscribed();
    assert.strictEqual(cable.transport.ws.protocol, protocol);
    for (const message of [BODY, 'plain', 7, [1, 2]]) {
      const received = once(news, 'message');
      await publish(`news of ${protocol}`, message);
      assert.deepStrictEqual(await received, message);
    }
    console.log(`ok ${protocol} receives`);
    const refused = cable.subscribeTo('ChatChannel');
    await assert.rejects(refused.ensureSubscribed());
    console.log(`ok ${protocol} rejects`);
    const pinged = once(cable, 'keepalive');
    assert.ok((await pinged) > 1_700_000_000, 'a ping has the time');
    console.log(`ok ${protocol} is pinged`);
    // The socket is killed: the client comes back by itself, and with what it has missed.
    const back = once(cable, 'connect');
    const received = once(news, 'message');
    cable.transport.ws.terminate();
    const extended = protocol.includes('-ext-');
    if (extended) await publish(`news of ${protocol}`, 'missed');
    const event = await back;
    await news.ensureSubscribed();
    if (!extended) await publish(`news of ${protocol}`, 'missed');
    assert.strictEqual(await received, 'missed');
    assert.ok(!extended || event.restored, 'the session was resumed');
    console.log(`ok ${protocol} comes back`);
  }
  if (!app) {
    // Whispers, from each encoding to each other.
    const [one, two, three] = ['json', 'msgpack', 'protobuf'].map((own) => {
      const found = protocols.find(([protocol]) => protocol.endsWith(`ext-${own}`));
      return connect(`actioncable-v1-ext-${own}`, found && found[1]).streamFrom('room');
    });
    const all = [one, two, three];
    await Promise.all(all.map((channel) => channel.ensureSubscribed()));
    for (const from of all) {
      const others = all.filter((channel) => channel !== from);
      const heard = others.map((channel) => once(channel, 'message'));
      await from.whisper({ typing: [true, 'é'] });
      for (const message of await Promise.all(heard)) {
        assert.deepStrictEqual(message, { typing: [true, 'é'] });
      }
    }
    console.log('ok whispers');
    // Presence, which only Protobuf's schema lacks.
    const [ann, bob] = ['msgpack', 'json'].map((own) =>
      connect(`actioncable-v1-ext-${own}`, own === 'json' ? undefined : packed).streamFrom('hall'),
    );
    await Promise.all([ann.ensureSubscribed(), bob.ensureSubscribed()]);
    const joined = once(bob, 'presence');
    await ann.presence.join('ann', { name: 'Änn' });
    assert.deepStrictEqual(await joined, { type: 'join', id: 'ann', info: { name: 'Änn' } });
    assert.deepStrictEqual(await ann.presence.info(), { ann: { name: 'Änn' } });
    console.log('ok presence');
    // Missed messages from before the first connection, later than the start of the server.
    const since = Math.floor(Date.now() / 1000);
    for (const [protocol, encoder] of protocols.filter(([protocol]) => protocol.includes('ext'))) {
      await publish(`early ${protocol}`, 'one');
      await publish(`early ${protocol}`, 'two');
      const cable = connect(protocol, encoder, { historyTimestamp: since });
      const early = cable.streamFrom(`early ${protocol}`);
      const received = [];
      early.on('message', (message) => received.push(message));
      await early.ensureSubscribed();
      // Not the event of the confirmation: the client loses one that comes right behind the subscription's.
      while (received.length < 2) await once(early, 'message');
      assert.deepStrictEqual(received, ['one', 'two']);
      console.log(`ok ${protocol} gets the history`);
    }
  }
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
