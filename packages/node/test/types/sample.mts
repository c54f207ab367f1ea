// What programs write, checked by `tsc --noEmit`. An error that must be one is marked.
import uws, { App, SSLApp, Server, WebSocketServer, getParts, us_listen_socket_close, us_socket_local_port } from 'standfast';
import type { AppDescriptor, HttpRequest, HttpResponse, TemplatedApp, WebSocket, us_listen_socket, us_socket } from 'standfast';
import WsSocket, { WebSocketServer as FromWs } from 'standfast/ws';

interface User { name: string; joined: number }

const app: TemplatedApp = App().ws<User>('/rooms/:room', {
  compression: uws.SHARED_COMPRESSOR | uws.DEDICATED_DECOMPRESSOR_4KB,
  maxPayloadLength: 16 * 1024,
  idleTimeout: 120,
  upgrade(res: HttpResponse, req: HttpRequest, context) {
    const user: User = { name: req.getHeader('x-user'), joined: 0 };
    res.upgrade(user, req.getHeader('sec-websocket-key'), req.getHeader('sec-websocket-protocol'),
      req.getHeader('sec-websocket-extensions'), context);
  },
  open(ws: WebSocket<User>) { ws.subscribe(ws.getUserData().name); },
  async message(ws, message, isBinary) {
    const status: number = ws.send(message, isBinary);
    if (status === 0) ws.cork(() => ws.send(Buffer.from('slow')));
  },
  close(ws, code, message) { console.log(ws.getUserData().joined, code, message.byteLength); },
});

const descriptor: AppDescriptor = App().getDescriptor();
app.addChildAppDescriptor(descriptor).removeChildAppDescriptor(1);

app.post('/collected', (res) => {
  res.onAborted(() => {});
  res.onDataV2((chunk, left) => { if (left === 0n) res.beginWrite().write(`${chunk.byteLength} from ${res.getRemotePort()}`); });
}).put('/collected', (res) => { res.collectBody(1024, (body) => { res.end(body ?? 'too long'); }); });

// @ts-expect-error: no such option
app.ws('/wrong', { maxPayload: 1 });
// @ts-expect-error: a handler is missing
app.get('/wrong');
// @ts-expect-error: both expiries are needed
app.get('/wrong', () => {}, { lowerExpiry: 1 });
// @ts-expect-error: a cache is for GET
app.post('/wrong', () => {}, 5);

app.get('/', (res, req) => { res.writeStatus('200 OK').end(req.getQuery('a') ?? 'none'); })
  .post('/upload', (res) => {
    res.onAborted(() => {});
    res.onData((chunk, isLast) => { if (isLast) res.end(String(getParts(chunk, 'multipart/form-data')?.length)); });
  })
  .get('/price', (res) => { res.writeHeader('content-type', 'text/plain').end('1'); }, { lowerExpiry: 1, upperExpiry: 5, bytes: 1024 })
  .get('/seconds', new uws.DeclarativeResponse().end('1'), 5)
  .post('/collect', (res) => { res.onAborted(() => {}).collect(1024, (body) => { res.collect(() => { res.end(body ?? 'too long'); }); }); })
  .adoptSocket(3)
  .listen(0, (listener: us_listen_socket | false) => {
    if (listener) { const socket: us_socket = listener; console.log(us_socket_local_port(socket)); us_listen_socket_close(listener); }
  });
SSLApp({ key_file_name: 'key.pem', cert_file_name: 'cert.pem' }).listen('127.0.0.1', 1, () => {});

const server = new Server({ compress: true, workers: 2, fetch: () => new Response('hello') });
server.websocket<{ user: string }>('/*', async (socket) => {
  for await (const message of socket) {
    if (typeof message === 'string') await socket.send(`${socket.data.user}: ${message}`);
    else socket.publish('bytes', message.subarray(1));
  }
}, { authorize: async ({ query }) => (query.has('user') ? { data: { user: query.get('user') ?? '' } } : new Response('', { status: 401 })) });
const kept = new Server({ broker: 'redis://127.0.0.1', history: { size: 1000, ttl: 3600 } });
kept.websocket('/rooms/:room', async (socket) => {
  const { room } = socket.request.params;
  const { recovered, reason, position } = await socket.subscribe(room, { since: socket.request.query.get('since'), positions: true });
  if (!recovered) await socket.send(`${reason === 'epoch'} ${position?.length}`);
  const member: boolean = socket.subscribe(room);
  const { messages, more } = await kept.history(room, { since: new Date(0), limit: 10 });
  if (more && member) console.log(messages[0]?.position, messages[0]?.time.getTime(), kept.topicsState?.history?.evicted.bytes);
});
// @ts-expect-error: no such option
new Server({ history: { limit: 1 } });
const { port } = await server.listen({ port: 0, host: '127.0.0.1' }, { signal: AbortSignal.timeout(1000) });
console.log(port.toFixed());

const wss = new WebSocketServer({ port: 0, perMessageDeflate: { threshold: 10 } });
wss.on('connection', (ws: WsSocket) => {
  if (ws.readyState === WsSocket.OPEN) ws.send('hello', (error) => console.log(error?.message));
});
const other: FromWs = wss;
for (const client of other.clients) client.terminate();
