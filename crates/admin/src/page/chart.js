// The last two minutes of one figure.

const POINTS = 120;
const SVG = 'http://www.w3.org/2000/svg';

class Spark {
  constructor() {
    this.values = [];
    this.node = document.createElementNS(SVG, 'svg');
    this.node.setAttribute('class', 'spark');
    this.node.setAttribute('viewBox', `0 0 ${POINTS - 1} 32`);
    this.node.setAttribute('preserveAspectRatio', 'none');
    this.node.setAttribute('aria-hidden', 'true');
    this.area = document.createElementNS(SVG, 'polygon');
    this.line = document.createElementNS(SVG, 'polyline');
    this.node.append(this.area, this.line);
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > POINTS) this.values.shift();
    const peak = this.peak();
    const scale = peak > 0 ? 29 / peak : 0;
    const first = POINTS - this.values.length;
    const points = this.values.map((each, at) => `${first + at},${(31 - each * scale).toFixed(2)}`);
    this.line.setAttribute('points', points.join(' '));
    this.area.setAttribute('points', `${first},32 ${points.join(' ')} ${POINTS - 1},32`);
  }

  peak() { return Math.max(...this.values); }
}
