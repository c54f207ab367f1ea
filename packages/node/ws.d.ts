// `standfast/ws`: the server side of the package `ws`.

/// <reference types="node" />

import { EventEmitter } from 'node:events';
import type { IncomingMessage, Server as HttpServer } from 'node:http';
import type { Server as HttpsServer } from 'node:https';
import type { Duplex } from 'node:stream';

export interface PerMessageDeflateOptions {
  /** Messages of fewer bytes are not compressed [1024]. */
  threshold?: number;
  serverNoContextTakeover?: boolean;
  clientNoContextTakeover?: boolean;
}

type VerifyInfo = { origin: string | undefined; secure: boolean; req: IncomingMessage };
type Decide = (verified: boolean, code?: number, message?: string, headers?: Record<string, string>) => void;

/** One of `port`, `server` and `noServer` is needed. */
export interface WebSocketServerOptions {
  host?: string;
  port?: number;
  /** Connections that may wait to be accepted, with `port` [511]. */
  backlog?: number;
  /** A server of node:http or node:https whose upgrades are handled. */
  server?: HttpServer | HttpsServer;
  noServer?: boolean;
  path?: string;
  clientTracking?: boolean;
  verifyClient?: ((info: VerifyInfo) => boolean) | ((info: VerifyInfo, decide: Decide) => void);
  handleProtocols?: (protocols: Set<string>, request: IncomingMessage) => string | false;
  perMessageDeflate?: boolean | PerMessageDeflateOptions;
  /** Bytes of the largest message [100 MiB]; 0 is no limit. */
  maxPayload?: number;
  WebSocket?: typeof WebSocket;
}

type SendOptions = { binary?: boolean; compress?: boolean; fin?: boolean };
type SendCallback = (error?: Error) => void;

/** A socket of {@link WebSocketServer}, as that of the package `ws`. It is no client. */
export class WebSocket extends EventEmitter {
  static readonly WebSocket: typeof WebSocket;
  static readonly WebSocketServer: typeof WebSocketServer;
  static readonly Server: typeof WebSocketServer;
  static readonly CONNECTING: 0;
  static readonly OPEN: 1;
  static readonly CLOSING: 2;
  static readonly CLOSED: 3;
  readonly CONNECTING: 0;
  readonly OPEN: 1;
  readonly CLOSING: 2;
  readonly CLOSED: 3;
  readonly readyState: 0 | 1 | 2 | 3;
  readonly bufferedAmount: number;
  readonly protocol: string;
  readonly extensions: string;
  readonly url: string;
  readonly isPaused: boolean;
  binaryType: 'nodebuffer' | 'arraybuffer' | 'fragments' | 'blob';
  onopen: ((event: { type: string; target: WebSocket }) => void) | null;
  onmessage: ((event: { data: any; type: string; target: WebSocket }) => void) | null;
  onclose: ((event: { code: number; reason: string; wasClean: boolean; type: string; target: WebSocket }) => void) | null;
  onerror: ((event: { error: any; message: string; type: string; target: WebSocket }) => void) | null;
  send(data: any, callback?: SendCallback): void;
  send(data: any, options: SendOptions, callback?: SendCallback): void;
  ping(data?: any, mask?: boolean, callback?: SendCallback): void;
  pong(data?: any, mask?: boolean, callback?: SendCallback): void;
  close(code?: number, reason?: string | Buffer): void;
  terminate(): void;
  pause(): void;
  resume(): void;
  addEventListener(type: string, handler: (event: any) => void, options?: { once?: boolean }): void;
  removeEventListener(type: string, handler: (event: any) => void): void;
}

/** The server of the package `ws`. */
export class WebSocketServer extends EventEmitter {
  static readonly WebSocket: typeof WebSocket;
  constructor(options: WebSocketServerOptions, callback?: () => void);
  readonly options: WebSocketServerOptions;
  readonly clients: Set<WebSocket>;
  address(): { address: string; family: string; port: number } | string | null;
  close(callback?: (error?: Error) => void): void;
  shouldHandle(request: IncomingMessage): boolean;
  handleUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer,
    callback: (ws: WebSocket, request: IncomingMessage) => void): void;
}

export { WebSocketServer as Server };
