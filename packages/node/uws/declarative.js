'use strict';

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

  /** The body of the request follows, which ends the answer. */
  writeBody() {
    return this.#add((res) => {
      res.onAborted(() => {});
      res.onData((piece, isLast) => {
        if (isLast) res.end(piece);
        else res.write(piece);
      });
    });
  }

  end(value) {
    const steps = this.#steps.slice();
    return (res, req) => {
      res.cork(() => {
        for (const step of steps) step(res, req);
        res.end(value);
      });
    };
  }
}

module.exports = { DeclarativeResponse };
