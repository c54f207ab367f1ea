'use strict';

const WORKERS_MAX = 1024;

/** What an app with the option `workers` does not have, and why. */
const ABSENT = {
  listen_unix: 'it listens on TCP',
  removeServerName: 'its certificates are those of when it began to listen',
  missingServerName: 'its certificates are those of when it began to listen',
  filter: 'connections that are no WebSockets stay with the workers',
  getDescriptor: 'its workers accept the connections',
  adoptSocket: 'its workers accept the connections',
  addChildAppDescriptor: 'its workers accept the connections',
  removeChildAppDescriptor: 'its workers accept the connections',
};

/** The number of the option `workers`; 0 without it. */
function workersOf(options) {
  const workers = options?.workers;
  if (workers === undefined) return 0;
  if (!Number.isInteger(workers) || workers < 1 || workers > WORKERS_MAX) {
    throw new RangeError(`invalid option workers ${workers}: expected a whole number from 1 to ${WORKERS_MAX}`);
  }
  return workers;
}

/** Makes what an app with workers does not have throw. */
function withWorkers(app) {
  for (const [name, why] of Object.entries(ABSENT)) {
    app[name] = () => { throw new Error(`${name} is not for an app with the option workers: ${why}`); };
  }
}

module.exports = { workersOf, withWorkers };
