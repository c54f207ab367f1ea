// The service of notes.proto by @connectrpc/connect-node, over HTTP/1.1 (gRPC-Web and Connect) with MODE `http1` or
// HTTP/2 (gRPC and both) with `http2`. Each call is printed as a line of JSON when it ends.
// usage: node notes.js MODE     prints its port first, ends with its standard input
'use strict';
const http = require('node:http');
const http2 = require('node:http2');
const path = require('node:path');
const protobuf = require('protobufjs');
const descriptor = require('protobufjs/ext/descriptor');
const { create, createFileRegistry, fromBinary } = require('@bufbuild/protobuf');
const { FileDescriptorSetSchema } = require('@bufbuild/protobuf/wkt');
const { Code, ConnectError } = require('@connectrpc/connect');
const { connectNodeAdapter } = require('@connectrpc/connect-node');

const { FileDescriptorSet } = descriptor;
const set = protobuf.loadSync(path.join(__dirname, 'notes.proto')).toDescriptor('proto3');
// Its names of types have no package.
const whole = (name) => (name && !name.startsWith('.') ? `.notes.v1.${name}` : name);
for (const file of set.file) {
  for (const message of file.messageType) {
    for (const field of message.field) field.typeName = whole(field.typeName);
  }
  for (const method of file.service.flatMap((service) => service.method)) {
    [method.inputType, method.outputType] = [whole(method.inputType), whole(method.outputType)];
  }
}
const bytes = FileDescriptorSet.encode(set).finish();
const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, bytes));
const service = registry.getService('notes.v1.Notes');

const codes = { NOT_FOUND: Code.NotFound, INVALID_ARGUMENT: Code.InvalidArgument };

function noted(method, note, context) {
  const protocol = context.protocolName;
  const token = context.requestHeader.get('authorization');
  const deadline = context.timeoutMs();
  console.log(JSON.stringify({ method, protocol, text: note.text, count: note.count, token, deadline }));
  context.responseHeader.set('x-served', String(note.count));
  context.responseTrailer.set('x-left', note.text);
}

const routes = (router) =>
  router.service(service, {
    add(note, context) {
      noted('Add', note, context);
      if (codes[note.text]) throw new ConnectError(`no note ${note.text}`, codes[note.text]);
      return create(service.method.add.output, { text: note.text, count: note.count + 1, labels: note.labels });
    },
    async *list(note, context) {
      noted('List', note, context);
      for (let count = 0; count < note.count; count++) {
        yield create(service.method.list.output, { text: note.text, count });
      }
      if (codes[note.text]) throw new ConnectError(`no note ${note.text}`, codes[note.text]);
    },
  });

const handler = connectNodeAdapter({ routes });
const server = process.argv[2] === 'http2' ? http2.createServer(handler) : http.createServer(handler);
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.on('end', () => process.exit(0)).resume();
