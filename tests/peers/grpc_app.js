// An application that answers AnyCable's contract by gRPC, with @grpc/grpc-js. Each call is printed as a
// line of JSON; a room named after a gRPC status is answered with it.
// usage: node grpc_app.js PORT [CERT KEY]     prints its port first, ends with its standard input
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const { loadSync } = require('@grpc/proto-loader');

const [, , port, cert, key] = process.argv;
const file = path.join(__dirname, 'rpc.proto');
const { anycable } = grpc.loadPackageDefinition(loadSync(file, { keepCase: true, enums: String }));

function noted(method, answer) {
  return (call, reply) => {
    const { sid, protov } = call.metadata.getMap();
    console.log(JSON.stringify({ method, sid, protov, request: call.request }));
    answer(call.request, reply, sid);
  };
}

const server = new grpc.Server();
server.addService(anycable.RPC.service, {
  Connect: noted('connect', ({ env }, reply, sid) => {
    const user = /user=(\w+)/.exec(env.headers.cookie ?? '')?.[1];
    if (!user) return reply(null, { status: 'FAILURE' });
    const transmissions = [JSON.stringify({ type: 'welcome', sid })];
    const identifiers = JSON.stringify({ user });
    reply(null, { status: 'SUCCESS', identifiers, transmissions, env: { cstate: { n: '1' } } });
  }),
  Command: noted('command', ({ command, identifier, data }, reply) => {
    const { room } = JSON.parse(identifier);
    if (room in grpc.status) return reply({ code: grpc.status[room], details: 'wish' });
    if (command === 'subscribe') {
      const env = { istate: { room } };
      return reply(null, { status: 'SUCCESS', streams: [`room:${room}`], env });
    }
    const transmissions = data ? [JSON.stringify({ identifier, message: { echo: data } })] : [];
    reply(null, { status: 'SUCCESS', transmissions });
  }),
  Disconnect: noted('disconnect', (_, reply) => reply(null, { status: 'SUCCESS' })),
});
const credentials = cert
  ? grpc.ServerCredentials.createSsl(null, [
      { cert_chain: fs.readFileSync(cert), private_key: fs.readFileSync(key) },
    ])
  : grpc.ServerCredentials.createInsecure();
server.bindAsync(`127.0.0.1:${port}`, credentials, (error, bound) => {
  if (error) throw error;
  console.log(bound);
});
process.stdin.on('end', () => process.exit(0)).resume();
