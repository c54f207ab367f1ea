// Who waits until what a socket has queued is written.
'use strict';

/** Calls back in the order of what was queued; a place is how many bytes were queued before and with it. */
class Waiting {
  #list = [];
  #queued = 0;
  #buffered = 0;

  /** After a message was queued: `buffered` bytes are now waiting. */
  add(buffered, done) {
    this.#queued += Math.max(buffered - this.#buffered, 0);
    this.#buffered = buffered;
    this.#list.push([this.#queued, done]);
  }

  /** After something was written. */
  written(buffered) {
    this.#buffered = buffered;
    const written = this.#queued - buffered;
    let count = 0;
    while (count < this.#list.length && this.#list[count][0] <= written) count += 1;
    for (const [, done] of this.#list.splice(0, count)) done();
  }

  /** The socket is closed. */
  fail(error) {
    for (const [, done] of this.#list.splice(0)) done(error);
  }
}

module.exports = { Waiting };
