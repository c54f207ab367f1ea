// An application beside the server, by the libraries that applications use: AnyCable's
// serverless-js makes tokens and broadcasts, jose makes tokens of other algorithms, @anycable/core
// is the client, with its token in each place where it may ride.
// usage: node application.js keys PUBLIC_FILE PRIVATE_FILE
//        node application.js talk ws://PUBLIC http://ADMIN SECRET PRIVATE_FILE
'use strict';
const assert = require('node:assert');
const { createHmac } = require('node:crypto');
const fs = require('node:fs');
const { pathToFileURL } = require('node:url');
const jose = require('jose');
const WebSocket = require('ws');

const ALGORITHMS = ['RS256', 'PS512', 'ES384', 'EdDSA'];
const once = (target, event) => new Promise((resolve) => target.once(event, resolve));
const hmac = (secret, text) => createHmac('sha256', secret).update(text).digest('hex');

// Its entry needs a bundler: Node imports no folders.
async function part(name) {
  const entry = require.resolve('@anycable/core').replace(/@anycable.*/, '');
  return import(pathToFileURL(`${entry}@anycable/serverless-js/dist/${name}/index.js`));
}

async function makeKeys(publicFile, privateFile) {
  const all = { public: [], private: [] };
  for (const alg of ALGORITHMS) {
    const pair = await jose.generateKeyPair(alg, { extractable: true });
    const named = async (key) => ({ ...(await jose.exportJWK(key)), alg, kid: alg, use: 'sig' });
    all.public.push(await named(pair.publicKey));
    all.private.push(await named(pair.privateKey));
  }
  fs.writeFileSync(publicFile, JSON.stringify({ keys: all.public }));
  fs.writeFileSync(privateFile, JSON.stringify(all.private));
  console.log('ok keys');
}

async function talk(publicUrl, adminUrl, secret, privateFile) {
  const { createCable } = await import(pathToFileURL(require.resolve('@anycable/core')));
  const { identificator } = await part('jwt');
  const { broadcaster } = await part('broadcast');
  const connect = (token, websocketAuthStrategy) =>
    createCable(`${publicUrl}/cable`, {
      websocketImplementation: WebSocket,
      logLevel: 'error',
      websocketAuthStrategy,
      auth: { token },
    });
  const token = await identificator(secret, '1h').generateToken({ userId: 7 });
  const broadcast = broadcaster(`${adminUrl}/_broadcast`, hmac(secret, 'broadcast-cable'));
  const encoded = Buffer.from(JSON.stringify('chat/7')).toString('base64');
  const signed = `${encoded}--${hmac(secret, encoded)}`;

  for (const where of ['param', 'header', 'sub-protocol']) {
    const cable = connect(token, where);
    const chat = cable.streamFromSigned(signed);
    await chat.ensureSubscribed();
    const heard = once(chat, 'message');
    await broadcast('chat/7', { text: `by ${where}` });
    assert.deepStrictEqual(await heard, { text: `by ${where}` });
    cable.disconnect();
    console.log(`ok ${where}`);
  }

  for (const jwk of JSON.parse(fs.readFileSync(privateFile))) {
    const claims = { ext: JSON.stringify({ userId: 7 }) };
    const header = { alg: jwk.alg, kid: jwk.kid };
    const made = new jose.SignJWT(claims).setProtectedHeader(header).setExpirationTime('1h');
    const cable = connect(await made.sign(await jose.importJWK(jwk)), 'param');
    await cable.connect();
    cable.disconnect();
    console.log(`ok ${jwk.alg}`);
  }

  const wrong = await identificator('another', '1h').generateToken({ userId: 7 });
  await assert.rejects(connect(wrong, 'param').connect(), { reason: 'unauthorized' });
  const over = new jose.SignJWT({ ext: '{}' }).setProtectedHeader({ alg: 'HS256' });
  const old = await over.setExpirationTime(1).sign(new TextEncoder().encode(secret));
  await assert.rejects(connect(old, 'param').connect(), { reason: 'token_expired' });
  await assert.rejects(broadcaster(`${adminUrl}/_broadcast`, 'wrong')('chat/7', 1), /Unauthorized/);
  console.log('ok refused');

  // Ended from the application's side: whoever this is, wherever connected.
  const cables = [connect(token, 'param'), connect(token, 'header')];
  await Promise.all(cables.map((cable) => cable.connect()));
  const closed = cables.map((cable) => once(cable, 'close'));
  const identifier = JSON.stringify({ userId: 7 });
  const response = await fetch(`${adminUrl}/_broadcast`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${hmac(secret, 'broadcast-cable')}` },
    body: JSON.stringify({ command: 'disconnect', payload: { identifier, reconnect: false } }),
  });
  assert.strictEqual(response.status, 201);
  for (const event of await Promise.all(closed)) assert.strictEqual(event.reason, 'remote');
  console.log('ok disconnects');
  process.exit(0);
}

const [, , what, ...rest] = process.argv;
(what === 'keys' ? makeKeys : talk)(...rest).catch((error) => {
  console.error(error);
  process.exit(1);
});
