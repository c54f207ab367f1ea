'use strict';

/** The step that writes the body of the request. */
const BODY = Symbol('body');

/** Writes the body of a request, and then what other steps write and the end. */
function echo(res, req, steps, value) {
  // The request can be read now only.
  const written = [];
  const later = { write: (chunk) => written.push(chunk), writeHeader: (...header) => res.writeHeader(...header) };
  for (const step of steps) step(later, req);
  res.onAborted(() => {});
  res.onData((piece, isLast) => res.cork(() => {
    if (piece.byteLength > 0) res.write(piece);
    if (!isLast) return;
    written.forEach((chunk) => res.write(chunk));
    res.end(value);
  }));
}

/** An answer that is described once: what `end` returns is a handler. */
class DeclarativeResponse {
  #steps = [];

  #add(step) {
    this.#steps.push(step);
    return this;
  }

  writeHeader(key, value) {
    return this.#add((res) => res.writeHeader(key, value));
  }

  write(value) {
    return this.#add((res) => res.write(value));
  }

  writeQueryValue(key) {
    return this.#add((res, req) => res.write(req.getQuery(key) ?? ''));
  }

  writeHeaderValue(key) {
    return this.#add((res, req) => res.write(req.getHeader(key)));
  }

  writeParameterValue(key) {
    return this.#add((res, req) => res.write(req.getParameter(key) ?? ''));
  }

  /** The body of the request follows, then the rest. */
  writeBody() {
    return this.#add(BODY);
  }

  end(value) {
    const body = this.#steps.indexOf(BODY);
    const steps = this.#steps.slice(0, body === -1 ? undefined : body);
    const rest = body === -1 ? [] : this.#steps.slice(body + 1).filter((step) => step !== BODY);
    return (res, req) => {
      res.cork(() => {
        for (const step of steps) step(res, req);
        if (body === -1) res.end(value);
      });
      if (body !== -1) echo(res, req, rest, value);
    };
  }
}

module.exports = { DeclarativeResponse };
