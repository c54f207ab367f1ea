// A gRPC server with reflection by @grpc/reflection, as MODE says: `v1` and v1alpha, `v1alpha` alone, `none`; or
// `https`, a server of HTTP/1.1 that refuses HTTP/2. Each call of reflection is printed as a line of JSON.
// usage: node grpc_shop.js MODE [CERT KEY]     prints its port first, ends with its standard input
'use strict';
const fs = require('node:fs');
const https = require('node:https');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const { loadSync } = require('@grpc/proto-loader');
const { ReflectionService } = require('@grpc/reflection');

const [, , mode, certFile, keyFile] = process.argv;
const [cert, key] = [certFile, keyFile].map((file) => file && fs.readFileSync(file));

function start() {
  const definition = loadSync(path.join(__dirname, 'shop.proto'), { includeDirs: [__dirname] });
  const { Orders } = grpc.loadPackageDefinition(definition).shop.v1;
  const noted = (methodDescriptor, call) =>
    new grpc.ServerInterceptingCall(call, {
      start: (next) =>
        next({
          onReceiveMetadata: (metadata, pass) => {
            const token = metadata.get('authorization')[0];
            console.log(JSON.stringify({ path: methodDescriptor.path, token }));
            pass(metadata);
          },
        }),
    });
  const server = new grpc.Server({ interceptors: [noted] });
  server.addService(Orders.service, {
    place: (call, reply) => {
      const failed = failure(call.request.customerName);
      if (failed) reply(failed);
      else reply(null, { text: 'thanks' });
    },
    import: (call, reply) => {
      let [orders, failed] = [0, null];
      call.on('data', (order) => {
        orders += 1;
        failed ??= failure(order.customerName);
      });
      call.on('end', () => (failed ? reply(failed) : reply(null, { text: `${orders}` })));
    },
    watch: (call) => {
      for (let number = 0; number < 3; number++) call.write({ customerName: `customer ${number}` });
      call.end();
    },
    negotiate: (call) => {
      let failed = null;
      call.on('data', (order) => {
        failed ??= failure(order.customerName);
        if (!failed) call.write({ text: order.customerName });
      });
      call.on('end', () => (failed ? call.emit('error', failed) : call.end()));
    },
  });
  if (mode === 'v1') addHealth(server);
  if (mode !== 'none') new ReflectionService(definition).addToServer(server);
  if (mode === 'v1alpha') {
    server.unregister('/grpc.reflection.v1.ServerReflection/ServerReflectionInfo');
  }
  const credentials = cert
    ? grpc.ServerCredentials.createSsl(null, [{ cert_chain: cert, private_key: key }])
    : grpc.ServerCredentials.createInsecure();
  server.bindAsync('127.0.0.1:0', credentials, (error, port) => {
    if (error) throw error;
    console.log(port);
  });
}

// A name of a status is that of the answer.
function failure(name) {
  if (name !== 'DETAILS') {
    return name in grpc.status ? { code: grpc.status[name], details: `no order of ${name}` } : null;
  }
  const metadata = new grpc.Metadata();
  const type = 'type.googleapis.com/google.rpc.Help';
  const detail = Buffer.concat([Buffer.from([0x1a, type.length + 2, 0x0a, type.length]), Buffer.from(type)]);
  const code = Buffer.from([8, grpc.status.INVALID_ARGUMENT]);
  metadata.set('grpc-status-details-bin', Buffer.concat([code, detail]));
  return { code: grpc.status.INVALID_ARGUMENT, details: 'no such customer', metadata };
}

// Of the server, and of two services: one serves, the other does not.
function addHealth(server) {
  const health = loadSync(path.join(__dirname, 'health.proto'));
  const { Health } = grpc.loadPackageDefinition(health).grpc.health.v1;
  const statuses = { '': 'SERVING', on: 'SERVING', off: 'NOT_SERVING' };
  server.addService(Health.service, {
    check: ({ request: { service = '' } }, reply) =>
      service in statuses
        ? reply(null, { status: statuses[service] })
        : reply({ code: grpc.status.NOT_FOUND, details: 'unknown service' }),
  });
}

if (mode === 'https') {
  const server = https.createServer({ cert, key }, (_, answer) => answer.end('hello'));
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
} else {
  start();
}
process.stdin.on('end', () => process.exit(0)).resume();
