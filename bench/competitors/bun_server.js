// Bun's server (uWebSockets inside) with the same surface as ours: /echo echoes, /topics/NAME subscribes,
// POST /publish?topic=NAME publishes the body. No compression unless asked for; Bun's other defaults stand.
//
// Usage: bun bun_server.js [PORT [deflate | tls CERTIFICATE KEY]]    prints {"listen":"127.0.0.1:PORT","pid":P} when ready

const [layer, cert, key] = process.argv.slice(3);
const deflate = layer === "deflate";

const server = Bun.serve({
  ...(layer === "tls" && { tls: { cert: Bun.file(cert), key: Bun.file(key) } }),
  hostname: "127.0.0.1",
  port: Number(process.argv[2] ?? 0),
  async fetch(request, server) {
    const url = new URL(request.url);
    if (request.method === "POST" && url.pathname === "/publish") {
      const sent = server.publish(url.searchParams.get("topic"), await request.text());
      return new Response(String(sent));
    }
    const topic = url.pathname.startsWith("/topics/") ? url.pathname.slice(8) : undefined;
    if ((topic || url.pathname === "/echo") && server.upgrade(request, { data: topic })) return;
    return new Response("not found\n", { status: 404 });
  },
  websocket: {
    perMessageDeflate: deflate,
    open(socket) {
      if (socket.data) socket.subscribe(socket.data);
    },
    message(socket, message) {
      if (!socket.data) socket.send(message, deflate);
    },
  },
});
console.log(JSON.stringify({ listen: `127.0.0.1:${server.port}`, pid: process.pid }));
