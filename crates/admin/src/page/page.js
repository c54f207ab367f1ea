// The page: the key, the live stream, and what its sections share.

const byId = (id) => document.getElementById(id);
const KEY = 'standfast-key';
const RETRY_MS = [500, 1000, 2000, 5000];

const page = { sections: new Map(), columns: new Map(), key: null, may_change: false, may_publish: false, at: 0, since: 0, stop: null, failed: 0 };

// A browser may forbid storage; then the key lasts until the page is left.
const stored = (work) => { try { return work(sessionStorage); } catch { return null; } };

const headers = () => (page.key ? { Authorization: `Bearer ${page.key}` } : {});

let toastTimer = 0;
const toast = (text) => {
  put(byId('toast'), text);
  byId('toast').classList.add('shown');
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => byId('toast').classList.remove('shown'), 6000);
};

// A request to the API: what it answered, or nothing after telling why not.
const request = async (path, options = {}) => {
  try {
    const response = await fetch(path, { ...options, headers: headers(), cache: 'no-store', credentials: 'omit' });
    const answer = await response.json();
    if (response.ok) return answer;
    if (!options.quiet) toast(answer.message || `${path} answered ${response.status}`);
  } catch (error) {
    if (!options.quiet) toast(`No answer: ${error.message}`);
  }
  return null;
};

const may = (action) => (action.needs === 'publish' ? page.may_publish : page.may_change);
const why = (action) => (action.needs === 'publish'
  ? 'Publishing needs the key: enter it above.'
  : 'Read-only: changes need the key of --admin-key.');

// Sends an action with what was entered. Values that are a {name} alone keep their type.
const run = async (action, row, values, ask, done) => {
  const all = { ...row, ...values };
  if (ask && !(await confirmed(action, all))) return;
  const options = { method: action.method };
  if (action.body) {
    const body = { ...values };
    for (const [name, text] of Object.entries(action.body)) {
      const alone = /^\{(\w+)\}$/.exec(text);
      const value = alone ? all[alone[1]] : text;
      if (value !== null && value !== undefined) body[name] = value;
    }
    options.body = JSON.stringify(body);
  }
  const escaped = (value) => encodeURIComponent(value);
  const answer = await request(fill(action.path, all, escaped), options);
  if (!answer) return;
  toast(fill(action.done || 'Done', { ...all, ...answer }));
  if (done) done();
};

// A modal dialog: Escape closes it, the browser keeps the focus inside and returns it.
const dialog = (title, content, buttons) => {
  const node = element('dialog', { 'aria-label': title }, element('h2', {}, title), content);
  const form = content.tagName === 'FORM' ? content : null;
  const bar = element('div', { class: 'buttons' }, ...buttons);
  (form || node).append(bar);
  node.addEventListener('close', () => node.remove());
  document.body.append(node);
  node.showModal();
  return node;
};

const confirmed = (action, row) => new Promise((resolve) => {
  const cancel = element('button', { type: 'button' }, 'Cancel');
  const go = element('button', { type: 'button', class: 'main' }, action.label);
  const node = dialog(fill(action.confirm, row), element('p', {}), [cancel, go]);
  let answer = false;
  cancel.addEventListener('click', () => node.close());
  go.addEventListener('click', () => { answer = true; node.close(); });
  node.addEventListener('close', () => resolve(answer));
});

// An action on a row: its dialog asks for the fields, and whether it is meant.
const act = (action, row, done) => {
  if (!action.fields && !action.confirm) { run(action, row, {}, false, done); return; }
  const fields = inputs(action.fields || [], row);
  const cancel = element('button', { type: 'button' }, 'Cancel');
  const go = element('button', { type: 'submit', class: 'main' }, action.label);
  const form = element('form', {}, ...fields.map((each) => each.label));
  const node = dialog(fill(action.confirm || action.label, row), form, [cancel, go]);
  cancel.addEventListener('click', () => node.close());
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const values = entered(fields);
    node.close();
    run(action, row, values, false, done);
  });
};

// Everything that is known of one entry. It is read again each second while the dialog is open.
const open = (section, row, done) => {
  const list = element('dl', { class: 'pairs' });
  const named = new Map(section.columns.map((column) => [column.id, column]));
  const draw = (entry) => list.replaceChildren(...Object.entries(entry).filter(([name]) => name !== '$').map(([name, value]) => {
    const column = named.get(name) || { label: name.charAt(0).toUpperCase() + name.slice(1).replaceAll('_', ' ') };
    return element('div', {}, element('dt', {}, column.label), element('dd', {}, joined(value, column.unit)));
  }));
  draw(row);
  const close = element('button', { type: 'button' }, 'Close');
  const actions = (section.actions || []).filter((action) => may(action) && applies(action, row)).map((action) => {
    const button = element('button', { type: 'button' }, action.label);
    button.addEventListener('click', () => { node.close(); act(action, row, done); });
    return button;
  });
  const gone = element('p', { class: 'note', role: 'status' });
  const title = joined(row[section.columns[0].id]);
  const node = dialog(title === '–' ? section.title : title, element('div', {}, gone, list), [...actions, close]);
  close.addEventListener('click', () => node.close());
  if (!section.detail) return;
  const timer = setInterval(async () => {
    const entry = await request(fill(section.detail, row, encodeURIComponent), { quiet: true });
    if (entry) draw(entry);
    put(gone, entry ? '' : 'It has ended, or does not answer.');
  }, 1000);
  node.addEventListener('close', () => clearInterval(timer));
};

const find = (id, values) => page.sections.get(id).find(values);

const build = (layout) => {
  const known = JSON.stringify([layout, page.may_change, page.may_publish]);
  if (known === page.known) return;
  page.known = known;
  for (const { node } of page.sections.values()) node.remove();
  page.sections.clear();
  const context = { may, why, run, act, open, find, get: (path) => request(path) };
  for (const section of layout.sections) {
    const kind = KINDS[section.kind];
    // A newer program may have kinds that this page does not know.
    if (kind) page.sections.set(section.id, kind(section, context));
  }
  byId('main').append(...[...page.sections.values()].map(({ node }) => node));
  const links = layout.sections.filter((section) => page.sections.has(section.id));
  byId('nav').replaceChildren(...links.map((section) => element('a', { href: `#section-${section.id}` }, section.title)));
  put(byId('program'), layout.program);
  put(byId('version'), layout.version);
  put(byId('host'), location.host);
  document.title = `${layout.program} at ${location.host}: standfast`;
  byId('banner').hidden = page.may_change;
  put(byId('banner'), page.key ? '' : 'Read-only. Start it with --admin-key KEY to make changes from this page.');
  byId('key-button').hidden = !page.key;
  put(byId('key-button'), 'Forget key');
};

const state = (text, dot) => {
  put(byId('live'), text);
  byId('dot').className = `dot ${dot}`;
};

const EVENTS = {
  page(event) {
    page.may_change = event.may_change;
    page.may_publish = event.may_publish;
    page.failed = 0;
    build(event.page);
  },
  sample(event) {
    put(byId('uptime'), `up ${joined(event.at, 'seconds')}`);
    state(event.status === 'ok' ? 'Live' : event.status, event.status === 'ok' ? 'good' : 'warn');
    for (const [id, values] of Object.entries(event.values)) {
      const section = page.sections.get(id);
      if (section && section.update) section.update(values, event.at);
    }
  },
};

const received = (text) => {
  const field = (name) => text.split('\n').filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join('\n');
  const handler = EVENTS[field('event')];
  if (handler) handler(JSON.parse(field('data')));
};

// Server-sent events by fetch: an EventSource cannot send the key.
const listen = async () => {
  page.stop = new AbortController();
  const response = await fetch('/api/live', { headers: headers(), cache: 'no-store', credentials: 'omit', signal: page.stop.signal });
  if (response.status === 401) { gate(true); return false; }
  if (!response.ok) throw new Error((await response.json()).message || `status ${response.status}`);
  gate(false);
  const [reader, decoder] = [response.body.getReader(), new TextDecoder()];
  let pending = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return true;
    pending += decoder.decode(value, { stream: true });
    for (let end = pending.indexOf('\n\n'); end >= 0; end = pending.indexOf('\n\n')) {
      received(pending.slice(0, end));
      pending = pending.slice(end + 2);
    }
  }
};

const follow = async () => {
  for (;;) {
    let again = true;
    let reason = '';
    try { again = await listen(); } catch (error) { reason = error.message; }
    if (!again) return;
    state(reason && !(reason.includes('fetch') || reason.includes('network')) ? reason : 'No connection', 'bad');
    const wait = RETRY_MS[Math.min(page.failed, RETRY_MS.length - 1)];
    page.failed += 1;
    await new Promise((resolve) => { setTimeout(resolve, wait); });
  }
};

const gate = (closed) => {
  byId('gate').hidden = !closed;
  for (const { node } of page.sections.values()) node.hidden = closed;
  if (!closed) return;
  const wrong = page.key !== null;
  page.key = null;
  stored((storage) => storage.removeItem(KEY));
  byId('key-button').hidden = true;
  put(byId('host'), location.host);
  state('Locked', 'warn');
  byId('gate-note').classList.toggle('bad-text', wrong);
  if (wrong) put(byId('gate-note'), 'This is not the key.');
  byId('gate-key').focus();
};

byId('gate-form').addEventListener('submit', (event) => {
  event.preventDefault();
  page.key = byId('gate-key').value;
  stored((storage) => storage.setItem(KEY, page.key));
  byId('gate-key').value = '';
  follow();
});

byId('key-button').addEventListener('click', () => {
  stored((storage) => storage.removeItem(KEY));
  location.reload();
});

page.key = stored((storage) => storage.getItem(KEY));
// The first paint does not wait for the figures. A tab in the background is not painted.
const start = () => setTimeout(follow);
if (document.hidden) start();
else requestAnimationFrame(start);
