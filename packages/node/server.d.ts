// The types of `Server`, which `index.d.ts` exports.

import type { RecognizedString, BrokerOptions, TopicsState, AppOptions, TopicsOptions } from './index.js';

/** A message of {@link Server}: text, or bytes of a binary message. */
export type Message = string | Uint8Array;
/** What can be sent: text, or bytes as a binary message. */
export type Sendable = string | ArrayBuffer | ArrayBufferView;

export interface ServerOptions {
  /** Servers with this name share their topics, in all threads of the process. */
  topics?: string;
  /** Topics are shared with other processes, by this Redis or NATS: see {@link TopicsOptions.broker}. */
  broker?: RecognizedString | BrokerOptions;
  /**
   * Keeps recent messages of each topic [not], so that sockets get what they missed: {@link Socket.subscribe}. With a broker the broker
   * keeps them for all processes, else this process does.
   */
  history?: boolean | HistoryOptions;
  /** Threads that hold the sockets: see {@link AppOptions.workers}. The server then listens on a port, not on a path. */
  workers?: number;
  /** Bytes of the largest message [1 MiB]. A longer one closes the connection. */
  maxPayload?: number;
  /** Seconds without a message after which a client is pinged, and closed if it does not answer [120]; 0 is never. */
  idleTimeout?: number;
  /** Bytes that may wait to be written before {@link Socket.send} makes its caller wait [64 KiB]. */
  highWaterMark?: number;
  /** Bytes that may wait to be written before messages are dropped [1 MiB]. */
  maxBackpressure?: number;
  /** Bytes of messages that a socket keeps for a program that has not taken them [1 MiB]. */
  maxQueue?: number;
  /** Bytes of the largest body of a plain request [1 MiB]; a longer one is answered with 413. */
  maxBody?: number;
  /** permessage-deflate with clients that offer it [false]. */
  compress?: boolean;
  /** Names of PEM files. With `ca`, every client must have a certificate that one of its authorities has signed. */
  tls?: { key: string; cert: string; ca?: string; passphrase?: string };
  /** Answers plain requests. */
  fetch?: (request: Request, client: ClientInfo) => Response | Promise<Response>;
}

/**
 * How much is kept: beyond it the oldest is evicted first. With a broker `size` and `ttl` are for the broker, the same in all
 * processes, and `topicBytes` and `bytes` for this process's copy of the topics that it follows.
 */
export interface HistoryOptions {
  /** Messages of a topic [100]. */
  size?: number;
  /** Seconds for which a message is kept [300]: 0.001 to 1,000,000,000. */
  ttl?: number;
  /** Bytes of a topic's messages [1 MiB], each with 144 more, or 160 with a broker. A longer message is delivered but not kept, nor is what was before it. */
  topicBytes?: number;
  /** Bytes of all topics [64 MiB], with 384 for each and its name, or 480 with a broker. */
  bytes?: number;
}

/** The place of a message in its topic, `EPOCH:OFFSET`, such as `9f1c03aa:17`. */
export type Position = string;

/**
 * Why not all that was published is available: the position is of another epoch (the process was restarted, the broker has lost
 * its data, Redis was restarted, or the text is none), it is later than the last message, or some are not kept any more.
 */
export type NotRecovered = 'epoch' | 'ahead' | 'evicted';

/** Where messages begin: after the one with this position, or at this time. */
export type Since = Position | Date | null;

export interface SubscribeOptions {
  /** Sends what was published since then before what comes [only what comes]. */
  since?: Since;
  /**
   * Each message begins with its position and a line feed, in binary messages as ASCII, so that the client can tell where to go on;
   * with the line feed alone if it has no position [false].
   */
  positions?: boolean;
}

/** How a subscription has begun. */
export interface Subscribed {
  /** Nothing is missing. False: none of the missed messages is sent, or not all of them; those that come are. */
  recovered: boolean;
  /** Why something is missing; also if the socket was closed, or unsubscribed or subscribed anew, before all was sent. */
  reason?: NotRecovered | 'closed' | 'unsubscribed';
  /** That of the last message before those that come. */
  position?: Position;
}

/** What {@link Server.history} returns. */
export interface HistoryPage {
  /** Oldest first. */
  messages: { data: Message; position: Position; time: Date }[];
  /** That of the last of the messages; without any, that of the topic's last message. To go on from. */
  position?: Position;
  /** There are more: read on with `since: position`. */
  more: boolean;
  /** All that was published since then is available. False: no messages are returned. */
  recovered: boolean;
  reason?: NotRecovered;
}

/** Who sends a request. */
export interface ClientInfo {
  /** The address of the other end of the connection: the client's, or that of a proxy in front of it. */
  remoteAddress: string;
  /** What a proxy says of its client in a PROXY header of version 2; empty without one. Any client can send such a header. */
  proxiedAddress: string;
  /** With `tls.ca`: the client's certificate in PEM, which one of the authorities has signed. */
  certificate?: string;
}

/** The request of a handshake. */
export interface HandshakeRequest extends ClientInfo {
  path: string;
  query: URLSearchParams;
  /** Decoded parameters of the route. */
  params: Record<string, string>;
  headers: Headers;
  /** Subprotocols that the client offers. */
  protocols: string[];
}

/** What `authorize` returns: true or nothing to accept, what to accept, false for 403, or the answer that refuses. */
export type Authorization<Data> = boolean | void | null | { data?: Data; protocol?: string } | Response;

/** Why a socket has closed. */
export interface Closed { code: number; reason: string }

interface SocketEvents {
  message: Event & { data: Message };
  close: Event & Closed;
  drain: Event;
  ping: Event & { data: Uint8Array };
  pong: Event & { data: Uint8Array };
}

/** A WebSocket of {@link Server}. Nothing of it throws when it is closed: sending settles with false. */
export interface Socket<Data = any> extends AsyncIterable<Message> {
  readonly request: HandshakeRequest;
  /** The subprotocol that was chosen, or the empty string. */
  readonly protocol: string;
  /** What `authorize` has returned; the program's. */
  data: Data;
  readonly isOpen: boolean;
  /** Bytes that wait to be written. */
  readonly bufferedAmount: number;
  readonly topics: string[];
  readonly closed: Promise<Closed>;
  /** Aborted when the socket is closed. */
  readonly signal: AbortSignal;
  /** Settles when at most `highWaterMark` bytes wait: with false if the message was dropped, or the socket is closed. */
  send(message: Sendable, options?: { compress?: boolean }): Promise<boolean>;
  /** Sends to all other members of a topic. Whether there are any; with a history as {@link Server.publish}. */
  publish(topic: string, message: Sendable, options?: { compress?: boolean }): boolean;
  /** Whether it is subscribed. */
  subscribe(topic: string): boolean;
  /**
   * Where the server has a history: subscribes, and sends what was published since `since`, in order, then what comes: none is
   * missing and none comes twice. A long history is sent as fast as the client reads; the promise settles when all is sent. If the socket is
   * subscribed already, that ends: give `since`, or what is on its way is lost.
   * @throws (rejects) without the option `history`, if the broker does not confirm the topic within 10 s, or with a topic of more than
   * 1024 bytes where there is a broker.
   */
  subscribe(topic: string, options: SubscribeOptions): Promise<Subscribed>;
  /** Whether it was subscribed. A call of `subscribe` with options that waits is ended, too. */
  unsubscribe(topic: string): boolean;
  ping(message?: Sendable): boolean;
  /** Closes with a code [1000] and a reason of at most 123 bytes. */
  close(code?: number, reason?: string): Promise<Closed>;
  /** Ends the connection without a close frame. */
  terminate(): void;
  addEventListener<Type extends keyof SocketEvents>(type: Type, listener: (event: SocketEvents[Type]) => void,
    options?: AddEventListenerOptions | boolean): void;
  removeEventListener<Type extends keyof SocketEvents>(type: Type, listener: (event: SocketEvents[Type]) => void): void;
}

type AddEventListenerOptions = { once?: boolean; signal?: AbortSignal };

/** A server with async iteration and promises. Events: `connection`, and `error` for exceptions of handlers. */
export class Server {
  constructor(options?: ServerOptions);
  /** What has happened: `paused` and `overflowed` by `maxQueue`, `dropped` by `maxBackpressure`. */
  readonly counters: {
    open: number; accepted: number; refused: number; paused: number; overflowed: number; dropped: number;
  };
  readonly sockets: IterableIterator<Socket>;
  /** Serves WebSockets on a path such as `/rooms/:room` or `/*`. Closed with 1011 if the handler fails. */
  websocket<Data = any>(pattern: string, handler: (socket: Socket<Data>) => void | Promise<void>, options?: {
    authorize?: (request: HandshakeRequest) => Authorization<Data> | Promise<Authorization<Data>>;
  }): this;
  /** Listens on a port (0 for any) or a UNIX socket. An aborted signal closes the server. */
  listen(port: number, options?: { signal?: AbortSignal }): Promise<{ host: string; port: number }>;
  listen(where: { port: number; host?: string }, options?: { signal?: AbortSignal }): Promise<{ host: string; port: number }>;
  listen(where: { path: string }, options?: { signal?: AbortSignal }): Promise<{ path: string }>;
  /**
   * Sends to all members of a topic. Whether there are any; with a history, whether it was published: false if too much waits, or
   * there is no connection to the broker.
   */
  publish(topic: string, message: Sendable, options?: { compress?: boolean }): boolean;
  /**
   * What is kept of a topic: the latest `limit` messages [100], or with `since` those from then on. At most 4 MiB, if they are several.
   * @throws (rejects) as {@link Socket.subscribe}.
   */
  history(topic: string, options?: { since?: Since; limit?: number }): Promise<HistoryPage>;
  subscribers(topic: string): number;
  /** State and counters of topics that are shared; undefined for others. */
  readonly topicsState: TopicsState | undefined;
  /**
   * Stops listening and closes all sockets [1001]. Without a broker its history stays until it is collected as garbage: a server with
   * the same `topics` continues it, and one with another `history` throws.
   */
  close(code?: number, reason?: string): Promise<void>;
  addEventListener(type: 'connection', listener: (event: Event & { socket: Socket }) => void): void;
  /** Publications of other processes to a topic may have been missed. */
  addEventListener(type: 'missed', listener: (event: Event & { topic: string }) => void): void;
  addEventListener(type: 'error', listener: (event: Event & { error: unknown }) => void): void;
}
