// The native addon: of a build in this folder, or of the package that npm installed for this platform.
'use strict';

const { existsSync } = require('node:fs');
const path = require('node:path');

const LIBCS = ['gnu', 'musl'];
const CPUS = ['x64', 'arm64'];

function load() {
  // Both have Node-API, but not all of libuv.
  const other = process.versions.bun ? 'Bun' : process.versions.deno ? 'Deno' : undefined;
  if (other !== undefined) {
    throw new Error(`standfast does not run on ${other} yet, whose event loop does not watch descriptors for addons (uv_poll): ` +
      'use Node.js 20 or newer');
  }
  const built = path.join(__dirname, '../standfast.node');
  if (existsSync(built)) return require(built);
  const { platform, arch } = process;
  if (platform !== 'linux' || !CPUS.includes(arch)) {
    throw new Error(`standfast does not support ${platform}-${arch} yet: it runs on linux-x64 and linux-arm64, on macOS ` +
      'and Windows in a container or a virtual machine with Linux');
  }
  const installed = LIBCS.map((libc) => [libc, resolve(`@standfast/node-linux-${arch}-${libc}/standfast.node`)])
    .filter(([, file]) => file);
  if (installed.length === 0) {
    const names = LIBCS.map((libc) => `@standfast/node-linux-${arch}-${libc}`).join(' or ');
    throw new Error(`the package ${names} is not installed, which has the addon of standfast: it is an optional ` +
      'dependency, so install again without --omit=optional and --no-optional');
  }
  const [, file] = installed.length === 1 ? installed[0] : installed.find(([libc]) => libc === ownLibc());
  try {
    return require(file);
  } catch (error) {
    throw new Error(`cannot load the addon of standfast, which needs glibc 2.28 or newer, or musl: ${error.message}`,
      { cause: error });
  }
}

function resolve(name) {
  try {
    return require.resolve(name);
  } catch {
    return undefined;
  }
}

/** Needed only where a package manager has installed both. */
function ownLibc() {
  return process.report.getReport().header.glibcVersionRuntime ? 'gnu' : 'musl';
}

module.exports = load();
