// Plain requests of `Server`, as web-standard Request and Response.
'use strict';

const { STATUS_CODES } = require('node:http');

/** Written by the addon, by the size of the body. */
const FRAMING = ['content-length', 'transfer-encoding', 'connection'];

/** Bytes of a stream that are written in one turn of the loop. */
const TURN = 256 * 1024;
/** How an address of IPv4 begins as one of IPv6. */
const MAPPED = '0000:0000:0000:0000:0000:ffff:';

/** Who sends a request: read at once, as the response may be over later. `asks`: clients have certificates. */
function clientOf(res, asks) {
  const client = { remoteAddress: addressOf(res), proxiedAddress: Buffer.from(res.getProxiedRemoteAddressAsText()).toString() };
  if (asks) client.certificate = res.getX509Certificate();
  return client;
}

/** The address of the other end as text; that of IPv4 also where the listener is one of IPv6. */
function addressOf(res) {
  const text = Buffer.from(res.getRemoteAddressAsText()).toString();
  if (!text.startsWith(MAPPED)) return text;
  return new Uint8Array(res.getRemoteAddress(), 12).join('.');
}

/** Answers a request by `fetch`. */
function serve(res, req, { fetch, isSecure, asks, maxBody, failed }) {
  const state = { aborted: false, wake: undefined, abort: new AbortController() };
  res.onAborted(() => {
    state.aborted = true;
    state.abort.abort();
    state.wake?.();
  });
  const described = describe(req, isSecure);
  const client = clientOf(res, asks);
  const act = async () => {
    const hasBody = described.method !== 'GET' && described.method !== 'HEAD';
    const body = hasBody ? await collect(res, maxBody) : undefined;
    if (body === null) {
      simple(res, state, '413 Payload Too Large');
      return;
    }
    const { url, method, headers } = described;
    const request = new Request(url, { method, headers, body, signal: state.abort.signal });
    const response = await fetch(request, client);
    if (!(response instanceof Response)) throw new TypeError('fetch must return a Response');
    await answer(res, state, response, method === 'HEAD');
  };
  act().catch((error) => {
    if (state.aborted) return;
    // Too late for another status if the answer has begun.
    if (state.begun) res.close();
    else simple(res, state, '500 Internal Server Error');
    failed(error);
  });
}

function describe(req, isSecure) {
  const method = req.getCaseSensitiveMethod();
  const headers = new Headers();
  req.forEach((name, value) => headers.append(name, value));
  const query = req.getQuery();
  const origin = `http${isSecure ? 's' : ''}://${headers.get('host') || 'localhost'}`;
  return { url: `${origin}${req.getUrl()}${query ? `?${query}` : ''}`, method, headers };
}

/** Reads a body of at most `max` bytes; null if there is more. */
function collect(res, max) {
  return new Promise((resolve) => {
    const chunks = [];
    let size = 0;
    res.onData((chunk, isLast) => {
      size += chunk.byteLength;
      if (size > max) {
        chunks.length = 0;
        resolve(null);
        return;
      }
      chunks.push(Buffer.from(chunk.slice(0)));
      if (isLast) resolve(size > 0 ? Buffer.concat(chunks) : undefined);
    });
  });
}

function simple(res, state, status) {
  if (!state.aborted) res.cork(() => res.writeStatus(status).end(status, true));
}

/** Writes a Response. A body of one chunk has a length; a stream is read as fast as the client takes it. */
async function answer(res, state, response, isHead) {
  const head = () => {
    state.begun = true;
    res.writeStatus(`${response.status} ${response.statusText || STATUS_CODES[response.status] || 'Unknown'}`);
    for (const [name, value] of response.headers) {
      if (!FRAMING.includes(name)) res.writeHeader(name, value);
    }
  };
  const end = (body) => { if (!state.aborted) res.cork(() => { head(); res.end(body); }); };
  if (!response.body || isHead || state.aborted) {
    response.body?.cancel().catch(() => {});
    end();
    return;
  }
  const reader = response.body.getReader();
  const cancel = () => { reader.cancel().catch(() => {}); };
  state.abort.signal.addEventListener('abort', cancel);
  try {
    await stream(res, state, reader, { head, end });
  } finally {
    cancel();
  }
}

/** Writes a body as it comes. */
async function stream(res, state, reader, { head, end }) {
  /** The next chunk, which may be awaited later: its error is that of whoever awaits it. */
  const read = () => {
    const reading = reader.read();
    reading.catch(() => {});
    return reading;
  };
  const first = await reader.read();
  if (first.done) {
    end();
    return;
  }
  let reading = read();
  const soon = await Promise.race([reading, new Promise((resolve) => setImmediate(resolve))]);
  if (soon?.done) {
    end(first.value);
    return;
  }
  let goesOn = true;
  let inTurn = 0;
  const write = (value) => {
    inTurn += value.byteLength ?? value.length;
    res.cork(() => {
      if (!state.begun) head();
      goesOn = res.write(value);
    });
  };
  for (let value = first.value; !state.aborted;) {
    write(value);
    if (!goesOn) await writable(res, state);
    // A stream that always has more would keep the loop from turning.
    if (inTurn > TURN) {
      inTurn = 0;
      await new Promise(setImmediate);
    }
    const next = await reading;
    if (next.done) {
      if (!state.aborted) res.cork(() => res.end());
      return;
    }
    ({ value } = next);
    reading = read();
  }
}

function writable(res, state) {
  return new Promise((resolve) => {
    state.wake = resolve;
    res.onWritable(() => {
      resolve();
      return true;
    });
  });
}

module.exports = { clientOf, serve };
