// Delivery by position: a message of a topic carries its number, which is its offset. Nothing is kept but the
// position of each reader, so that a run may be as long as one likes.
'use strict';

// What publishers have begun and what was acknowledged, by topic.
class Published {
  constructor(topics) {
    this.begun = Object.fromEntries(topics.map((topic) => [topic, 0]));
    this.acknowledged = { ...this.begun };
  }
}

// One reader of one topic: each message once, in order, none missing.
class Reader {
  constructor(topic, published, counts) {
    Object.assign(this, { topic, published, counts, last: null, epoch: null });
    this.owed = 0;
  }

  // It reads from now on. What has not begun to be published yet has to arrive.
  begin() {
    if (this.last === null) this.owed = this.published.begun[this.topic] + 1;
  }

  // The position from which the server sends, if there was none.
  at(epoch, offset) {
    if (this.last === null) [this.last, this.epoch] = [offset, epoch];
  }

  // It goes on without what it has missed.
  restart() {
    this.last = null;
    this.begin();
  }

  receive(number, offset = number, epoch = null) {
    const { counts } = this;
    counts.received += 1;
    if (number !== offset) return this.fault('wrong', `${number} at ${offset}`);
    if (number > this.published.begun[this.topic]) return this.fault('wrong', `${number} is not published`);
    const next = this.last === null ? Math.min(this.owed, number) : this.last + 1;
    if (number < next) return this.fault('doubled', `${number} after ${this.last}`);
    if (number > next) this.fault('lost', `${next} to ${number - 1}`, number - next);
    [this.last, this.epoch] = [number, epoch];
  }

  fault(kind, what, count = 1) {
    this.counts[kind] += count;
    if (this.counts.faults.length < 20) {
      this.counts.faults.push(`${new Date().toISOString()} ${this.name ?? ''} ${this.topic} ${kind}: ${what}`);
    }
  }

  // All that was acknowledged has arrived.
  get complete() {
    const acknowledged = this.published.acknowledged[this.topic];
    return (this.last ?? this.owed - 1) >= acknowledged;
  }
}

const counts = () => ({ received: 0, lost: 0, doubled: 0, wrong: 0, faults: [] });

module.exports = { Published, Reader, counts };
