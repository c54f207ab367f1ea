#!/usr/bin/env node
// Runs the executable that npm installed for this platform, with the same arguments, streams and exit code.
'use strict';

const { spawn } = require('node:child_process');
const { closeSync, openSync } = require('node:fs');
const { constants } = require('node:os');

const platform = `${process.platform}-${process.arch}`;
const platformPackage = `@standfast/${platform}`;

function executable() {
  const supported = Object.keys(require('../package.json').optionalDependencies)
    .filter((name) => name.startsWith('@standfast/linux-'));
  if (!supported.includes(platformPackage)) {
    const platforms = supported.map((name) => name.split('/')[1]).join(', ');
    fail(`no executable for ${platform}: standfast runs on ${platforms}`);
  }
  try {
    return require.resolve(`${platformPackage}/bin/standfast`);
  } catch {
    fail(`the package ${platformPackage} is not installed, which has the executable\n` +
      'it is an optional dependency: install again without --omit=optional and --no-optional');
  }
}

function fail(message) {
  console.error(`standfast: ${message}`);
  process.exit(2);
}

/** Whether Ctrl-C reaches the executable without us: the terminal signals the whole process group. */
function hasTerminal() {
  try {
    closeSync(openSync('/dev/tty', 'r'));
    return true;
  } catch {
    return false;
  }
}

const child = spawn(executable(), process.argv.slice(2), { stdio: 'inherit' });
for (const signal of ['SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGHUP']) {
  // Passed on twice, SIGINT would end a drain: a second one means "exit now".
  const fromTerminal = signal === 'SIGINT' || signal === 'SIGQUIT';
  process.on(signal, () => {
    if (!(fromTerminal && hasTerminal())) child.kill(signal);
  });
}
child.on('error', (error) => fail(`cannot start ${child.spawnfile}: ${error.message}`));
child.on('exit', (code, signal) => {
  process.exitCode = code ?? 128 + constants.signals[signal];
});
