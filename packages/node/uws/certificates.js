'use strict';

const fs = require('node:fs');
const { createPrivateKey } = require('node:crypto');
const { text } = require('./bytes');

function read(name, option) {
  const path = text(name, option);
  try {
    return fs.readFileSync(path, 'utf8');
  } catch (error) {
    throw new Error(`cannot read ${option} ${path}: ${error.message}`);
  }
}

/** Certificates and key of the files that options of TLS name, in PEM. */
function readCertificates(options) {
  if (!options?.key_file_name || !options.cert_file_name) {
    throw new TypeError('expected the options key_file_name and cert_file_name: files in PEM');
  }
  const certificate = read(options.cert_file_name, 'cert_file_name');
  let key = read(options.key_file_name, 'key_file_name');
  if (options.passphrase !== undefined) {
    const passphrase = text(options.passphrase, 'passphrase');
    key = createPrivateKey({ key, passphrase }).export({ type: 'pkcs8', format: 'pem' });
  }
  // Empty is none, as in uWebSockets.js.
  const asks = options.ca_file_name !== undefined && options.ca_file_name !== '';
  const authorities = asks ? read(options.ca_file_name, 'ca_file_name') : undefined;
  return { certificate, key, authorities, required: Boolean(options.rejectUnauthorized) };
}

module.exports = { readCertificates };
