// Numbers as text, and elements. Text becomes text nodes only: names come from strangers.

// Thousands are separated. (Intl would take longer to load than the rest of the page.)
const rounded = (digits) => ({ format: (value) => value.toFixed(digits).replace(/\B(?=(\d{3})+(?!\d))/g, ',') });
const [whole, one, two] = [rounded(0), rounded(1), rounded(2)];
const SIZES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

function bytes(value) {
  let size = 0;
  while (value >= 1023.5 && size < SIZES.length - 1) { value /= 1024; size += 1; }
  return [(size === 0 ? whole : one).format(value), SIZES[size]];
}

function seconds(value) {
  if (value < 10) return [one.format(value), 's'];
  if (value < 60) return [whole.format(value), 's'];
  const total = Math.floor(value);
  const [days, hours, minutes] = [Math.floor(total / 86400), Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60];
  if (days > 0) return [`${whole.format(days)} d ${hours} h`, ''];
  if (hours > 0) return [`${hours} h ${minutes} min`, ''];
  return [`${minutes} min ${total % 60} s`, ''];
}

// A number and its unit. What is not known yet is a dash.
function shown(value, unit, rate) {
  if (value === null || value === undefined) return ['–', ''];
  if (Array.isArray(value)) return [value.length ? value.join(', ') : '–', ''];
  if (typeof value !== 'number') return [String(value), ''];
  const per = rate ? '/s' : '';
  switch (unit) {
    case 'bytes': { const [number, size] = bytes(value); return [number, size + per]; }
    case 'seconds': return seconds(value);
    case 'cores': return [two.format(value), value === 1 ? 'core' : 'cores'];
    case 'decimal': return [value > 0 && value < 0.05 ? '< 0.1' : one.format(value), ''];
    default: return [rate && value > 0 && value < 10 ? one.format(value) : whole.format(value), per];
  }
}

const joined = (value, unit, rate) => shown(value, unit, rate).filter(Boolean).join(' ');

const element = (tag, properties, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === 'class') node.className = value;
    else if (name.includes('-') || name === 'for' || name === 'role') node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };

// Fills in {names}. Values are escaped by `escape`.
const fill = (text, row, escape = String) =>
  text.replace(/\{(\w+)\}/g, (_, name) => escape(row[name] === null || row[name] === undefined ? '–' : joined(row[name])));

// Rates of counters between samples. One that goes back belongs to a new process.
class Rates {
  constructor() { this.last = new Map(); }

  of(name, value, at) {
    const last = this.last.get(name);
    if (typeof value !== 'number') return null;
    if (last && last.at === at) return last.rate;
    const grown = last && at > last.at && value >= last.value;
    const rate = grown ? (value - last.value) / (at - last.at) : null;
    this.last.set(name, { value, at, rate });
    return rate;
  }

  // Forgets what is no longer sampled.
  keep(at) {
    for (const [name, last] of this.last) if (last.at !== at) this.last.delete(name);
  }
}
