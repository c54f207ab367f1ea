// The types of standfast for Node.js: the API of uWebSockets.js. `server.d.ts` has those of `Server`. They need those of Node.js (@types/node).

/// <reference types="node" />

export { WebSocketServer } from './ws.js';
export * from './server.js';

/** Text, which is sent as UTF-8, or bytes. */
export type RecognizedString = string | ArrayBuffer | Uint8Array | Int8Array | Uint16Array | Int16Array | Uint32Array
  | Int32Array | Float32Array | Float64Array;

/** A listener, for {@link us_listen_socket_close} and {@link us_socket_local_port}. */
export interface us_listen_socket { readonly __listener: unique symbol }
export type us_socket = us_listen_socket;

/** A connection that asks for an upgrade, for {@link HttpResponse.upgrade}. */
export interface us_socket_context_t { readonly __context: unique symbol }

/** Stops a listener. Its connections stay. */
export function us_listen_socket_close(listener: us_listen_socket): void;

/** The port of a listener. */
export function us_socket_local_port(socket: us_socket): number;

/** A number by which apps of other threads know an app: {@link TemplatedApp.getDescriptor}. */
export type AppDescriptor = number;

/** A part of a multipart body. */
export interface MultipartField {
  data: ArrayBuffer;
  name: string;
  /** Its content type, if it has one. */
  type?: string;
  filename?: string;
}

/** Splits a `multipart/*` body into its parts; undefined for another content type. */
export function getParts(body: RecognizedString, contentType: RecognizedString): MultipartField[] | undefined;

/**
 * Strings and integers that all threads of the process share, by key and collection; without a collection, in one that has no
 * name. They stay until they are deleted. Strings are returned as text; without a value it is `''` or `0`. Integers have 32 bits.
 * Keys, names and values have at most 256 MiB.
 */
export function getString(key: RecognizedString, collection?: RecognizedString): string;
export function setString(key: RecognizedString, value: RecognizedString, collection?: RecognizedString): void;
export function getStringKeys(collection?: RecognizedString): string[];
export function deleteString(key: RecognizedString, collection?: RecognizedString): void;
export function deleteStringCollection(collection?: RecognizedString): void;
export function getInteger(key: RecognizedString, collection?: RecognizedString): number;
export function setInteger(key: RecognizedString, value: number, collection?: RecognizedString): void;
/** Adds to an integer, and returns the sum: no other thread comes between. */
export function incInteger(key: RecognizedString, change: number, collection?: RecognizedString): number;
export function getIntegerKeys(collection?: RecognizedString): string[];
export function deleteInteger(key: RecognizedString, collection?: RecognizedString): void;
export function deleteIntegerCollection(collection?: RecognizedString): void;
/**
 * Waits until no other thread has the lock, and takes it; the thread does nothing else meanwhile. The functions above do not
 * need it: it is for several calls that belong together. `unlock` has to be called as often, and throws without the lock; a thread
 * that ends gives it back, and one that is ended waits no longer.
 */
export function lock(): void;
export function unlock(): void;

/** Settings of a TLS server, as names of PEM files. */
export interface AppOptions extends TopicsOptions {
  /**
   * Threads that hold the sockets, 1 to 1024, each with a table of descriptors of its own: the limit of open files counts for each.
   * The same API with differences, which the README lists.
   */
  workers?: number;
  key_file_name?: RecognizedString;
  cert_file_name?: RecognizedString;
  /**
   * Certificates of authorities. Clients are asked for a certificate, and one that none of these has signed ends the handshake.
   * Who has none is let in: see `getX509Certificate` and `rejectUnauthorized`. Both options hold for all server names, and sessions
   * are not resumed.
   */
  ca_file_name?: RecognizedString;
  /** Refuses clients without a certificate, too. Default: false. uWebSockets.js does not have this option. */
  rejectUnauthorized?: boolean;
  passphrase?: RecognizedString;
  /** These are accepted for compatibility and not used. Connections have no buffers while they are idle. */
  dh_params_file_name?: RecognizedString;
  ssl_ciphers?: RecognizedString;
  ssl_prefer_low_memory_usage?: boolean;
}

/** A Redis or a NATS by which processes share topics. */
export interface BrokerOptions {
  /**
   * `redis://HOST`, `rediss://HOST` (TLS) or `unix:/PATH`, `nats://HOST` or `tls://HOST`, with user and password where they are
   * needed. Several with commas: of Redis they share the topics, in the same order everywhere; of NATS any of a cluster is used.
   */
  url: RecognizedString;
  /** What names of channels begin with [`standfast`], the same in all processes: 1 to 64 letters, digits, `-`, `_`, `.`, `:`. */
  prefix?: RecognizedString;
  /** Bytes of publications that wait while there is no connection [0]. Beyond them they are lost for other processes. */
  spoolBytes?: number;
  /** PEM file with the authorities that its certificate is checked by [those of the machine]. */
  ca?: RecognizedString;
}

/** Options of topics. Without them topics are those of one app, as in uWebSockets.js. */
export interface TopicsOptions {
  /**
   * Apps with this name share their topics, in all threads of the process: `publish` of an app and of a WebSocket reaches the
   * subscribers of all of them.
   */
  topics?: string;
  /**
   * Topics are shared with other processes, by this broker. Without a name in {@link TopicsOptions.topics} they are those of all
   * apps with the same broker and prefix. They have at most 1024 bytes: `subscribe` and `publish` throw with longer ones.
   */
  broker?: RecognizedString | BrokerOptions;
  /** Called, in each app with subscribers of a topic, when publications of other processes to it may have been missed. */
  missed?: (topic: string) => void;
}

/** See {@link TemplatedApp.getTopicsState}. */
export interface TopicsState {
  /** Apps of this process that share the topics. */
  apps: number;
  /** Publications that nobody got, since an app or the broker was too far behind: `publish` returned false. */
  refused: number;
  /** With the option `history` of {@link Server}. */
  history?: {
    /** Topics, messages and bytes that are kept now. */
    topics: number;
    messages: number;
    bytes: number;
    /** Messages that were kept so far, those loaded from the broker included: `messages` and all of `evicted` together. */
    published: number;
    /** Messages that are not kept any more, by the limit; `released`: of topics that this process does not follow any more. */
    evicted: { messages: number; age: number; topicBytes: number; bytes: number; released: number };
    /** Requests with `since`, by their result. */
    requests: { recovered: number; epoch: number; ahead: number; evicted: number };
  };
  broker?: {
    /** All is connected and subscribed: from now on nothing of other processes is missed. */
    ready: boolean;
    /** Why publications do not reach other processes now. */
    trouble?: string;
    /** Topics subscribed at the broker, with those whose last subscriber left within 10 s. */
    topics: number;
    /** Those of them that the broker has not confirmed yet. */
    unconfirmed: number;
    /** Publications that wait to be sent, or are on their way. */
    waiting: number;
    /** Publications of this process that the broker has taken. */
    published: number;
    /** Publications of this process that did not reach the others. */
    lost: number;
    /** Publications that arrived, those of this process included. */
    received: number;
    /** Publications of others that could not be delivered in time. */
    dropped: number;
    /** Times that publications of others to a topic may have been missed. */
    gaps: number;
    /** Connections that were opened. */
    connected: number;
    /** Host names of other processes that were heard lately. */
    others: string[];
  };
}

/** An app without TLS. */
export function App(options?: AppOptions): TemplatedApp;

/**
 * An app with TLS.
 * @throws if a file cannot be read; the error names it.
 */
export function SSLApp(options: AppOptions): TemplatedApp;

/** Options of {@link TemplatedApp.listen}: 0, or {@link LIBUS_LISTEN_EXCLUSIVE_PORT}. */
export type ListenOptions = number;

/** Does not share the port. Otherwise several listeners, also of other processes, share it. */
export const LIBUS_LISTEN_EXCLUSIVE_PORT: ListenOptions;

type ListenCallback = (listener: us_listen_socket | false) => void;
type RouteHandler = (res: HttpResponse, req: HttpRequest) => void | Promise<void>;

/** What is kept of the answers of a route: see {@link TemplatedApp.get}. */
export interface CacheOptions {
  /** Seconds from which on a request still gets the answer, while the handler is called for a new one: 0 to 1,000,000,000. */
  lowerExpiry: number;
  /** Seconds from which on requests wait for a new answer; at least `lowerExpiry`. */
  upperExpiry: number;
  /**
   * Bytes of the answers that are kept [16 MiB], with 512 for each and its URL. The oldest are dropped first; one that has no room is
   * sent and not kept. An option of standfast.
   */
  bytes?: number;
}

/**
 * The response of a route with a cache. It is for all who ask for the same URL while it is made, so what is one client's is not
 * there: each use of another member of {@link HttpResponse} throws. `onAborted` is never called, since who waits comes and goes;
 * `write` and `tryEnd` take everything.
 */
export type CachedResponse = Pick<HttpResponse, 'writeStatus' | 'writeHeader' | 'beginWrite' | 'write' | 'end' | 'endWithoutBody' | 'tryEnd' | 'close'
  | 'getWriteOffset' | 'onWritable' | 'onAborted' | 'cork'> & { [key: string]: any };
type CachedHandler = (res: CachedResponse, req: HttpRequest) => void | Promise<void>;

/**
 * Routes and listeners. A path of a route is exact (`/a`), has parameters (`/a/:b`) or ends with `/*`. Exact segments go
 * before parameters, and those before `*`; a route of a method goes before one of {@link TemplatedApp.any}.
 */
export interface TemplatedApp {
  /** Listens on all addresses. The callback is called before `listen` returns, with false if the port cannot be had. */
  listen(port: number, callback: ListenCallback): TemplatedApp;
  listen(port: number, options: ListenOptions, callback: ListenCallback): TemplatedApp;
  listen(host: RecognizedString, port: number, callback: ListenCallback): TemplatedApp;
  listen(host: RecognizedString, port: number, options: ListenOptions, callback: ListenCallback): TemplatedApp;
  /** Listens on a UNIX socket. */
  listen_unix(callback: ListenCallback, path: RecognizedString): TemplatedApp;
  get(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  /**
   * A route with a cache, or with a number of seconds as both its expiries. The answer to a URL, with its query, is sent again without a
   * call of the handler; requests that come while the handler works on it wait for it, and after 30 s the next one calls the handler
   * again. Not kept: answers with `set-cookie`, with `no-store` or `private` in `cache-control`, and with status 206, 304 or
   * from 500 on.
   * @throws with options that are wrong.
   */
  get(pattern: RecognizedString, handler: CachedHandler | DeclarativeAnswer, cache: CacheOptions | number): TemplatedApp;
  post(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  options(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  del(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  patch(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  put(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  head(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  connect(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  trace(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  /** Any method, also one that has no function here. */
  any(pattern: RecognizedString, handler: RouteHandler | DeclarativeAnswer): TemplatedApp;
  /** WebSockets. A request that is no handshake goes to the next route. */
  ws<UserData>(pattern: RecognizedString, behavior: WebSocketBehavior<UserData>): TemplatedApp;
  /**
   * Sends to all members of a topic. Whether there is one; with a broker true, as other processes may have some. False also if too
   * much waits for an app that shares the topics, or for the broker: nobody gets it then.
   */
  publish(topic: RecognizedString, message: RecognizedString, isBinary?: boolean, compress?: boolean): boolean;
  /** How many sockets of this app are members of a topic. */
  numSubscribers(topic: RecognizedString): number;
  /** State and counters of topics that are shared; undefined for others. */
  getTopicsState(): TopicsState | undefined;
  /** Adds a certificate for a server name (SNI), such as `example.org` or `*.example.org`. */
  addServerName(hostname: string, options: AppOptions): TemplatedApp;
  removeServerName(hostname: string): TemplatedApp;
  /** Routes that are added next are those of a server name; of all others with the empty name. */
  domain(domain: string): TemplatedApp;
  /** Called when a client asks for a server name without a certificate; it may add one before it returns. */
  missingServerName(callback: (hostname: string) => void): TemplatedApp;
  /** A number by which the app of another thread can make this one its child. It keeps its thread until it is closed. */
  getDescriptor(): AppDescriptor;
  /** From now on a child serves what this app's listeners accept, together with other children. Topics are those of each app. */
  addChildAppDescriptor(descriptor: AppDescriptor): TemplatedApp;
  /** Takes the listeners from a child. Without children the app accepts itself. */
  removeChildAppDescriptor(descriptor: AppDescriptor): TemplatedApp;
  /**
   * Called with 1 for each new connection and with -1 when it has ended. The response has the address of the client until the
   * filter returns, and `close` ends the connection.
   */
  filter(callback: (res: HttpResponse, count: number) => void): TemplatedApp;
  /**
   * Takes over a TCP connection that something else has accepted, by its descriptor, such as one that the process was started with. The
   * descriptor is the app's from then on: nothing else may use or close it, also not a `net.Socket`.
   * @throws with a descriptor of anything else, which stays with its owner; with the option `workers`.
   */
  adoptSocket(descriptor: number): TemplatedApp;
  /** Closes all listeners and connections. The close handlers are called before it returns. */
  close(): TemplatedApp;
}

/**
 * A request. It can be read until its handler has returned and the promise jobs that wait for nothing else have run: read
 * what you need before.
 */
export interface HttpRequest {
  /** The value of a header, or the empty string. Names are lower case. */
  getHeader(lowerCaseName: RecognizedString): string;
  /** A parameter of the route by its index or name, still encoded. */
  getParameter(index: number | RecognizedString): string | undefined;
  /** The path, without the query. */
  getUrl(): string;
  /** The method in lower case. */
  getMethod(): string;
  /** The method as it was sent. */
  getCaseSensitiveMethod(): string;
  /** What follows `?`, still encoded. */
  getQuery(): string;
  /** A decoded value of the query. */
  getQuery(key: string): string | undefined;
  forEach(callback: (name: string, value: string) => void): void;
  /** With true the next route that matches is asked. */
  setYield(yields: boolean): HttpRequest;
}

/**
 * The answer to a request. It is void when it has ended, and in {@link HttpResponse.onAborted}: each use throws then.
 * Whoever does not answer before the handler returns has to attach `onAborted`.
 */
export interface HttpResponse {
  /** The status, such as `404 Not Found`; first, or `200 OK` is written. */
  writeStatus(status: RecognizedString): HttpResponse;
  writeHeader(name: RecognizedString, value: RecognizedString): HttpResponse;
  /** Sends status and headers of an answer whose body follows by {@link HttpResponse.write}. */
  beginWrite(): HttpResponse;
  /** A chunk of a body of unknown length. False if it has to wait: go on in {@link HttpResponse.onWritable}. */
  write(chunk: RecognizedString): boolean;
  end(body?: RecognizedString, closeConnection?: boolean): HttpResponse;
  /** Ends without a body, for HEAD with the length that GET has. */
  endWithoutBody(reportedContentLength?: number, closeConnection?: boolean): HttpResponse;
  /**
   * Writes what the client takes of a body of `totalSize` bytes. Returns whether all of the chunk was taken, and whether
   * the answer has ended; if not, go on from {@link HttpResponse.getWriteOffset} in `onWritable`.
   */
  tryEnd(fullBodyOrChunk: RecognizedString, totalSize: number): [ok: boolean, done: boolean];
  /** Ends the connection at once. */
  close(): HttpResponse;
  /** How many bytes of the body are written. */
  getWriteOffset(): number;
  /** Called when the client takes more; return true if all that was tried is written. */
  onWritable(handler: (offset: number) => boolean): HttpResponse;
  /** Called when the client has gone before the answer has ended. */
  onAborted(handler: () => void): HttpResponse;
  /** Called with each piece of the body. The memory is taken back afterwards: copy what you keep. */
  onData(handler: (chunk: ArrayBuffer, isLast: boolean) => void): HttpResponse;
  /** As `onData`, with the bytes that are left at most: 0n with the last piece; 2n ** 64n - 1n if unknown, as in chunks. */
  onDataV2(handler: (chunk: ArrayBuffer, maxRemainingBodyLength: bigint) => void): HttpResponse;
  /** Calls `handler` with the whole body, or with null if it is longer than `maxSize` bytes. */
  collectBody(maxSize: number, handler: (body: ArrayBuffer | null) => void): HttpResponse;
  /** As {@link HttpResponse.cork}, under its name in uWebSockets.js 20.51; with a limit, as {@link HttpResponse.collectBody}. */
  collect(callback: () => void): HttpResponse;
  collect(maxSize: number, handler: (body: ArrayBuffer | null) => void): HttpResponse;
  /** 4 or 16 bytes. */
  getRemoteAddress(): ArrayBuffer;
  getRemoteAddressAsText(): ArrayBuffer;
  getRemotePort(): number;
  /**
   * The client's address in the PROXY header (version 2) that the connection began with: 4 or 16 bytes. Empty without a
   * header, or if it names no client. Any client can send one: trust it only if none but your proxy can connect.
   */
  getProxiedRemoteAddress(): ArrayBuffer;
  /** As text, such as `203.0.113.7` or `2001:0db8:0000:0000:0000:0000:0000:0001`. */
  getProxiedRemoteAddressAsText(): ArrayBuffer;
  /** The client's port in that header; 0 without one. */
  getProxiedRemotePort(): number;
  /** The client's certificate in PEM, checked by the authorities in `ca_file_name`; empty if it has sent none. */
  getX509Certificate(): string;
  /** Calls the function and sends what it has written at once. Use it in what is called later than the handler. */
  cork(callback: () => void): HttpResponse;
  /** Accepts a handshake. Key, protocol and extensions are those of the request's headers. */
  upgrade<UserData>(userData: UserData, secWebSocketKey: RecognizedString, secWebSocketProtocol: RecognizedString,
    secWebSocketExtensions: RecognizedString, context: us_socket_context_t): void;
  /** Reads no more of the body until {@link HttpResponse.resume}. */
  pause(): void;
  resume(): void;
  /** What the program keeps with the answer. */
  [key: string]: any;
}

/** A WebSocket, from `open` to `close`. Each use after that throws, but {@link WebSocket.getUserData}. */
export interface WebSocket<UserData> {
  /** 1: sent; 0: it waits behind {@link WebSocket.getBufferedAmount} bytes; 2: dropped, above `maxBackpressure`. */
  send(message: RecognizedString, isBinary?: boolean, compress?: boolean): number;
  /** A message in fragments: first, any number between, last. */
  sendFirstFragment(message: RecognizedString, isBinary?: boolean, compress?: boolean): number;
  sendFragment(message: RecognizedString, compress?: boolean): number;
  sendLastFragment(message: RecognizedString, compress?: boolean): number;
  /** Bytes that wait to be written. */
  getBufferedAmount(): number;
  /** Closes with a code and a reason of at most 123 bytes. The close handler is called before it returns. */
  end(code?: number, shortMessage?: RecognizedString): void;
  /** Ends the connection without a close frame. The close handler is called before it returns. */
  close(): void;
  /** Sends a ping; returns as {@link WebSocket.send} does. */
  ping(message?: RecognizedString): number;
  subscribe(topic: RecognizedString): boolean;
  /** Whether it was a member. */
  unsubscribe(topic: RecognizedString): boolean;
  isSubscribed(topic: RecognizedString): boolean;
  getTopics(): string[];
  /** Sends to all other members of a topic. Whether there is one; false if this socket is a member of no topic. */
  publish(topic: RecognizedString, message: RecognizedString, isBinary?: boolean, compress?: boolean): boolean;
  /** Calls the function and sends what it has sent at once. */
  cork(callback: () => void): WebSocket<UserData>;
  /** 4 or 16 bytes. */
  getRemoteAddress(): ArrayBuffer;
  getRemoteAddressAsText(): ArrayBuffer;
  getRemotePort(): number;
  /** What {@link HttpResponse.upgrade} was given. */
  getUserData(): UserData;
}

/** Limits and handlers of a route of WebSockets. */
export interface WebSocketBehavior<UserData> {
  /** Bytes of the largest message [16 KiB]. A longer one ends the connection: code 1006 in `close`. */
  maxPayloadLength?: number;
  /** Seconds without a message or pong after which a connection is closed [120]: 0 (never), or 8 to 960. */
  idleTimeout?: number;
  /** Whether clients are pinged before they are idle for too long [true]. */
  sendPingsAutomatically?: boolean;
  /** Minutes that a connection lasts at most [0, without limit]: at most 240. */
  maxLifetime?: number;
  /** Bytes that may wait to be written before messages are dropped [64 KiB]; 0 is no limit. */
  maxBackpressure?: number;
  /** Whether a connection is closed instead of dropping a message [false]. */
  closeOnBackpressureLimit?: boolean;
  /** permessage-deflate: a compressor and a decompressor, joined by `|` [DISABLED]. */
  compression?: CompressOptions;
  /**
   * Whether messages may be kept after their handler [false: their memory is taken back, as in uWebSockets.js].
   * An option of standfast.
   */
  keepMessages?: boolean;
  /** Asked before a handshake is accepted, by {@link HttpResponse.upgrade}; without it every handshake is. */
  upgrade?: (res: HttpResponse, req: HttpRequest, context: us_socket_context_t) => void | Promise<void>;
  open?: (ws: WebSocket<UserData>) => void | Promise<void>;
  /**
   * The bytes of the message can be read until the handler has returned and the promise jobs that wait for nothing else have
   * run, unless `keepMessages` is set.
   */
  message?: (ws: WebSocket<UserData>, message: ArrayBuffer, isBinary: boolean) => void | Promise<void>;
  /** A message that was dropped above `maxBackpressure`. */
  dropped?: (ws: WebSocket<UserData>, message: ArrayBuffer, isBinary: boolean) => void | Promise<void>;
  /** Some of what waited is written. */
  drain?: (ws: WebSocket<UserData>) => void;
  ping?: (ws: WebSocket<UserData>, message: ArrayBuffer) => void;
  pong?: (ws: WebSocket<UserData>, message: ArrayBuffer) => void;
  subscription?: (ws: WebSocket<UserData>, topic: ArrayBuffer, newCount: number, oldCount: number) => void;
  /** The connection has ended. 1005: without a code; 1006: without a close frame, and `message` says why. */
  close?: (ws: WebSocket<UserData>, code: number, message: ArrayBuffer) => void;
}

/** A compressor, a decompressor, or both. */
export type CompressOptions = number;
export const DISABLED: CompressOptions;
/** Compresses each message alone: no memory for a socket. */
export const SHARED_COMPRESSOR: CompressOptions;
/** Decompresses each message alone: no memory for a socket. */
export const SHARED_DECOMPRESSOR: CompressOptions;
/** Keeps a window between messages, of this size for each socket. */
export const DEDICATED_COMPRESSOR: CompressOptions;
export const DEDICATED_COMPRESSOR_3KB: CompressOptions, DEDICATED_COMPRESSOR_4KB: CompressOptions;
export const DEDICATED_COMPRESSOR_8KB: CompressOptions, DEDICATED_COMPRESSOR_16KB: CompressOptions;
export const DEDICATED_COMPRESSOR_32KB: CompressOptions, DEDICATED_COMPRESSOR_64KB: CompressOptions;
export const DEDICATED_COMPRESSOR_128KB: CompressOptions, DEDICATED_COMPRESSOR_256KB: CompressOptions;
export const DEDICATED_DECOMPRESSOR: CompressOptions;
export const DEDICATED_DECOMPRESSOR_512B: CompressOptions, DEDICATED_DECOMPRESSOR_1KB: CompressOptions;
export const DEDICATED_DECOMPRESSOR_2KB: CompressOptions, DEDICATED_DECOMPRESSOR_4KB: CompressOptions;
export const DEDICATED_DECOMPRESSOR_8KB: CompressOptions, DEDICATED_DECOMPRESSOR_16KB: CompressOptions;
export const DEDICATED_DECOMPRESSOR_32KB: CompressOptions;

interface DeclarativeAnswer { readonly __answer: unique symbol }

/** An answer that is prepared once and sent without a call of JavaScript. `end` makes what a route takes. */
export class DeclarativeResponse {
  writeHeader(name: string, value: string): this;
  write(value: string): this;
  writeBody(): this;
  writeQueryValue(key: string): this;
  writeHeaderValue(name: string): this;
  writeParameterValue(name: string): this;
  end(value?: string): DeclarativeAnswer;
}
