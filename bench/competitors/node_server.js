// Servers of Node.js with the same surface: /echo echoes, /topics/NAME subscribes, POST /publish?topic=NAME publishes
// the body, / says hello, /gc collects garbage if Node was started with --expose-gc.
//
// Usage: node node_server.js uws MODULE [deflate]      the API of uWebSockets.js, by the module with this path
//        node node_server.js uws MODULE workers=N      the same with threads for sockets; /pauses is JSON about garbage
//        node node_server.js http                      / and /gc by node:http
// Prints {"listen":"127.0.0.1:PORT","pid":P} when ready.

const [api, path, layer] = process.argv.slice(2);
const deflate = layer === "deflate";
const workers = Number(layer?.match(/^workers=(\d+)$/)?.[1] ?? 0);
const ready = (port) => console.log(JSON.stringify({ listen: `127.0.0.1:${port}`, pid: process.pid }));

if (api === "http") {
  const server = require("node:http").createServer((request, response) => {
    if (request.url === "/gc") globalThis.gc?.();
    response.end("Hello world!");
  });
  server.listen(0, "127.0.0.1", 4096, () => ready(server.address().port));
} else {
  const uws = require(path);
  const limits = {
    maxPayloadLength: 1024 * 1024,
    maxBackpressure: 16 * 1024 * 1024,
    idleTimeout: 0,
    compression: deflate ? uws.SHARED_COMPRESSOR : uws.DISABLED,
  };
  const topic = (req) => new URLSearchParams(req.getQuery()).get("topic");
  const app = workers > 0 ? uws.App({ workers }) : uws.App();
  const pauses = { count: 0, ms: 0, longest_ms: 0 };
  if (workers > 0) {
    const { PerformanceObserver } = require("node:perf_hooks");
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) {
        pauses.count += 1;
        pauses.ms += duration;
        pauses.longest_ms = Math.max(pauses.longest_ms, duration);
      }
    }).observe({ entryTypes: ["gc"] });
  }
  app
    .ws("/echo", { ...limits, message: (ws, message, isBinary) => ws.send(message, isBinary, deflate) })
    .ws("/topics/:name", {
      ...limits,
      upgrade(res, req, context) {
        res.upgrade(
          { name: req.getParameter(0) },
          req.getHeader("sec-websocket-key"),
          req.getHeader("sec-websocket-protocol"),
          req.getHeader("sec-websocket-extensions"),
          context,
        );
      },
      open: (ws) => ws.subscribe(ws.getUserData().name),
    })
    .post("/publish", (res, req) => {
      const name = topic(req);
      res.onAborted(() => {});
      let body = Buffer.alloc(0);
      res.onData((piece, isLast) => {
        body = Buffer.concat([body, Buffer.from(piece)]);
        if (isLast) res.end(String(app.publish(name, body)));
      });
    })
    .get("/pauses", (res) => res.end(JSON.stringify({ ...pauses, heap_bytes: process.memoryUsage().heapUsed })))
    .get("/gc", (res) => {
      globalThis.gc?.();
      res.end("collected");
    })
    .get("/", (res) => res.end("Hello world!"))
    .listen("127.0.0.1", 0, (listener) => ready(uws.us_socket_local_port(listener)));
}
