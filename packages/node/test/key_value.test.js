// The key-value functions, in one thread and in several.
'use strict';

const assert = require('node:assert/strict');
const { once } = require('node:events');
const { Worker } = require('node:worker_threads');
const { uws, both, ours, moduleName, program } = require('./support.js');

/** A collection of a test. */
let collections = 0;
const fresh = () => `test ${(collections += 1)}`;

both('strings are kept by key and collection until they are deleted', () => {
  const [one, other] = [fresh(), fresh()];
  assert.equal(uws.setString('key', 'value', one), undefined);
  assert.equal(uws.getString('key', one), 'value');
  assert.equal(uws.getString('key', other), '');
  assert.equal(uws.getString('none', one), '');
  uws.setString(Buffer.from('ä'), new TextEncoder().encode('ö').buffer, other);
  assert.equal(uws.getString('ä', Buffer.from(other)), 'ö');
  uws.setString('long', 'x'.repeat(100_000), other);
  assert.equal(uws.getString('long', other), 'x'.repeat(100_000));
  assert.deepEqual(uws.getStringKeys(other).sort().slice(-2), ['long', 'ä']);
  uws.deleteString('long', other);
  assert.equal(uws.getString('long', other), '');
  uws.deleteStringCollection(other);
  assert.equal(uws.getString('ä', other), '');
  assert.equal(uws.getString('key', one), 'value');
});

both('without a collection values are in one that has no name', () => {
  uws.setString('key', 'value');
  assert.equal(uws.getString('key', ''), 'value');
  uws.deleteString('key');
  assert.equal(uws.getString('key'), '');
});

both('integers have 32 bits and wrap around', () => {
  const own = fresh();
  assert.equal(uws.getInteger('key', own), 0);
  assert.equal(uws.setInteger('key', 7, own), undefined);
  assert.equal(uws.getInteger('key', own), 7);
  assert.equal(uws.incInteger('key', 3, own), 10);
  assert.equal(uws.incInteger('key', -12, own), -2);
  assert.equal(uws.incInteger('other', 1.7, own), 1);
  uws.setInteger('key', 2 ** 31 - 1, own);
  assert.equal(uws.incInteger('key', 1, own), -(2 ** 31));
  assert.deepEqual(uws.getIntegerKeys(own).sort(), ['key', 'other']);
  assert.deepEqual(uws.getStringKeys(fresh()).filter((key) => key !== null), []);
  uws.deleteInteger('other', own);
  assert.equal(uws.getInteger('other', own), 0);
  uws.deleteIntegerCollection(own);
  assert.equal(uws.getInteger('key', own), 0);
});

ours('wrong arguments throw, and change nothing', () => {
  const own = fresh();
  uws.setInteger('key', 5, own);
  for (const value of ['5', undefined, null, {}, 5n]) {
    assert.throws(() => uws.setInteger('key', value, own), /expected a number/);
    assert.throws(() => uws.incInteger('key', value, own), /expected a number/);
  }
  assert.equal(uws.getInteger('key', own), 5);
  for (const value of [5, null, {}, Symbol('s')]) {
    assert.throws(() => uws.getString(value, own), /expected a key: a string, an ArrayBuffer or a view of one/);
    assert.throws(() => uws.setString('key', value, own), /expected a value/);
    assert.throws(() => uws.deleteStringCollection(value), /expected the name of a collection/);
  }
  assert.deepEqual(uws.getStringKeys(own), []);
});

ours('what is read is not kept', () => {
  const own = fresh();
  uws.getString('key', own);
  uws.getInteger('key', own);
  assert.deepEqual([...uws.getStringKeys(own), ...uws.getIntegerKeys(own)], []);
});

/** Runs a program in threads, which get `uws` and `workerData`. Returns what they have posted. */
async function threads(count, program, data) {
  const source = `const { workerData, parentPort } = require('node:worker_threads');
    const uws = require(workerData.moduleName); ${program}`;
  const workers = Array.from({ length: count }, () => new Worker(source, { eval: true, workerData: { moduleName, ...data } }));
  return Promise.all(workers.map(async (worker) => {
    const posted = once(worker, 'message');
    const [[answer]] = await Promise.all([posted, once(worker, 'exit')]);
    return answer;
  }));
}

ours('threads share values, and increments are not lost', async () => {
  const own = fresh();
  await threads(4, `for (let n = 0; n < 20000; n += 1) uws.incInteger('count', 1, workerData.own);
    uws.setString('last', 'thread', workerData.own); parentPort.postMessage(1);`, { own });
  assert.equal(uws.getInteger('count', own), 80_000);
  assert.equal(uws.getString('last', own), 'thread');
});

ours('the lock holds other threads off, and may be taken again by its own', async () => {
  const own = fresh();
  await threads(3, `for (let n = 0; n < 2000; n += 1) {
      uws.lock(); uws.lock(); uws.unlock();
      const value = uws.getInteger('count', workerData.own);
      for (let spins = 0; spins < 100; spins += 1);
      uws.setInteger('count', value + 1, workerData.own);
      uws.unlock();
    }
    parentPort.postMessage(1);`, { own });
  assert.equal(uws.getInteger('count', own), 6000);
  assert.throws(() => uws.unlock(), /this thread does not have the lock/);
});

ours('a thread that ends gives the lock back', async () => {
  await threads(1, 'uws.lock(); uws.lock(); parentPort.postMessage(1);');
  uws.lock();
  uws.unlock();
  assert.throws(() => uws.unlock(), /this thread does not have the lock/);
});

/** How a program of a thread begins. */
const asProgram = `const uws = require(${JSON.stringify(moduleName)}); const { Worker, parentPort } = require('node:worker_threads');`;

ours('a thread that waits for the lock can be ended, and does nothing to what it guards', async () => {
  const own = fresh();
  for (let round = 0; round < 10; round += 1) {
    uws.lock();
    const waits = new Worker(`${asProgram} parentPort.postMessage(1); uws.lock(); uws.incInteger('count', 1, ${JSON.stringify(own)}); uws.unlock();`, { eval: true });
    await once(waits, 'message');
    await new Promise((resolve) => setTimeout(resolve, 15 * round));
    await waits.terminate();
    uws.unlock();
    uws.lock();
    uws.unlock();
  }
  assert.equal(uws.getInteger('count', own), 0);
});

ours('a thread that has the lock can be ended while one of its own waits', async () => {
  const inner = `${asProgram} parentPort.postMessage(1); uws.lock();`;
  const outer = new Worker(`${asProgram} uws.lock();
    new Worker(${JSON.stringify(inner)}, { eval: true }).on('message', () => parentPort.postMessage(1));`, { eval: true });
  await once(outer, 'message');
  await outer.terminate();
  uws.lock();
  uws.unlock();
});

ours('a process ends though a thread waits for the lock that another has', async (t) => {
  const waits = `${asProgram} parentPort.postMessage(1); uws.lock();`;
  for (const [end, expected] of [['process.exit(0)', 0], ["throw new Error('planned')", 1]]) {
    const { code, stderr } = await program(t, `const { Worker } = require('node:worker_threads'); uws.lock();
      new Worker(${JSON.stringify(waits)}, { eval: true }).on('message', () => { ${end}; });`);
    assert.equal(code, expected, stderr);
  }
});
