// The gRPC servers of go-stress-testing's examples by grpc-js, upstream's and the fork's: HelloWorld answers with the
// code 200, and with 500 for the name "bad". Each call is printed as a line: the path and the name.
// usage: node grpc_api.js [CERT KEY]     prints its port first, ends with its standard input
'use strict';
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const { loadSync } = require('@grpc/proto-loader');

const [cert, key] = process.argv.slice(2).map((file) => fs.readFileSync(file));
const text = `service ApiServer { rpc HelloWorld (Request) returns (Response); }
message Request { string userName = 1; }
message Response { int32 code = 1; string msg = 2; string data = 3; }`;

const server = new grpc.Server();
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'grpc-api-'));
for (const pkg of ['', 'package protobuf;']) {
  const file = path.join(folder, `api${pkg.length}.proto`);
  fs.writeFileSync(file, `syntax = "proto3"; ${pkg}\n${text}`);
  const loaded = grpc.loadPackageDefinition(loadSync(file));
  const { service } = (loaded.protobuf ?? loaded).ApiServer;
  server.addService(service, {
    helloWorld: ({ request: { userName } }, reply) => {
      console.log(`${service.HelloWorld.path} ${userName}`);
      const code = userName === 'bad' ? 500 : 200;
      reply(null, { code, msg: 'success', data: `hello ${userName} !` });
    },
  });
}
fs.rmSync(folder, { recursive: true });
const credentials = cert
  ? grpc.ServerCredentials.createSsl(null, [{ cert_chain: cert, private_key: key }])
  : grpc.ServerCredentials.createInsecure();
server.bindAsync('127.0.0.1:0', credentials, (error, port) => {
  if (error) throw error;
  console.log(port);
});
process.stdin.on('end', () => process.exit(0)).resume();
