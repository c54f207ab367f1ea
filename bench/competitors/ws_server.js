// npm `ws` on Node with the same surface as ours: /echo echoes, /topics/NAME subscribes,
// POST /publish?topic=NAME publishes the body. No compression; other defaults stand.
//
// Usage: node ws_server.js PEERS_DIRECTORY [PORT]    prints {"listen":"127.0.0.1:PORT","pid":P} when ready

const http = require("node:http");
const path = require("node:path");
const { WebSocketServer } = require(path.resolve(process.argv[2], "node_modules", "ws"));

const topics = new Map();
const sockets = new WebSocketServer({ noServer: true, perMessageDeflate: false });

const server = http.createServer((request, response) => {
  const url = new URL(request.url, "http://localhost");
  if (request.method !== "POST" || url.pathname !== "/publish") return response.writeHead(404).end();
  const body = [];
  request.on("data", (part) => body.push(part));
  request.on("end", () => {
    const members = topics.get(url.searchParams.get("topic")) ?? [];
    const message = Buffer.concat(body);
    for (const socket of members) socket.send(message, { binary: false });
    response.end(String(members.size ?? 0));
  });
});

server.on("upgrade", (request, raw, head) => {
  const topic = request.url.startsWith("/topics/") ? request.url.slice(8) : undefined;
  if (!topic && request.url !== "/echo") return raw.destroy();
  sockets.handleUpgrade(request, raw, head, (socket) => {
    socket.on("error", () => {});
    if (!topic) return socket.on("message", (data, binary) => socket.send(data, { binary }));
    if (!topics.has(topic)) topics.set(topic, new Set());
    topics.get(topic).add(socket);
    socket.on("close", () => topics.get(topic).delete(socket));
  });
});

server.listen(Number(process.argv[3] ?? 0), "127.0.0.1", 4096, () =>
  console.log(JSON.stringify({ listen: `127.0.0.1:${server.address().port}`, pid: process.pid })),
);
