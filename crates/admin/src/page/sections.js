// The kinds of sections. Each makes a node, and an `update` for its values if it has any.
// README.md beside this file describes what the program sends.

const KINDS = {};

const card = (section, ...children) => {
  const title = element('h2', { id: `title-${section.id}` }, section.title);
  const note = section.note ? element('p', { class: 'note' }, section.note) : null;
  const node = element('section', { class: 'card', id: `section-${section.id}`, 'aria-labelledby': `title-${section.id}` }, title, note, ...children);
  return node;
};

KINDS.figures = (section) => {
  const rates = new Rates();
  const items = section.items.map((item) => {
    const [number, unit, sub] = [element('span', {}, '–'), element('span', { class: 'unit' }), element('p', { class: 'sub' })];
    const spark = item.chart ? new Spark() : null;
    const node = spark
      ? element('div', { class: 'tile' }, element('p', { class: 'label' }, item.label), element('p', { class: 'value' }, number, unit), sub, spark.node)
      : element('div', {}, element('dt', {}, item.label), element('dd', {}, number, unit));
    return { item, number, unit, sub, spark, node };
  });
  const charts = items.filter((each) => each.spark).map((each) => each.node);
  const plain = items.filter((each) => !each.spark).map((each) => each.node);
  const node = card(section, element('div', { class: 'tiles' }, ...charts), plain.length ? element('dl', { class: 'facts-list' }, ...plain) : null);
  const update = (values, at) => {
    for (const { item, number, unit, sub, spark } of items) {
      const value = item.rate ? rates.of(item.id, values[item.id], at) : values[item.id];
      const [text, of] = shown(value, item.unit, item.rate);
      put(number, text);
      put(unit, of);
      if (!spark || typeof value !== 'number') continue;
      spark.add(value);
      const most = item.of ? `of ${joined(values[item.of], item.unit)}` : `peak ${joined(spark.peak(), item.unit, item.rate)}`;
      put(sub, most);
    }
  };
  return { node, update };
};

// The cells of a table. Rows keep their elements while they are there.
class Grid {
  constructor(section, context) {
    this.section = section;
    this.context = context;
    this.columns = section.columns.map((column) => ({ ...column, key: column.as || column.id }));
    this.key = section.key || ['id'];
    this.sort = section.sort || null;
    this.ascending = Boolean(section.ascending);
    this.rows = new Map();
    this.all = [];
    this.limit = section.limit || Infinity;
    this.rates = new Rates();
    this.actions = (section.actions || []).filter((action) => context.may(action));
    this.buttons = this.actions.length > 0 || Boolean(section.open);
    this.body = element('tbody', {});
    const head = this.columns.map((column) => this.header(column));
    if (this.buttons) head.push(element('th', { class: 'acts no-print' }));
    const texts = this.columns.filter((column) => column.wrap).length;
    const wide = this.columns.length > 5 || texts > 1 ? 'wide' : '';
    this.table = element('table', { class: wide, 'aria-labelledby': `title-${section.id}` }, element('thead', {}, element('tr', {}, ...head)), this.body);
    this.empty = element('p', { class: 'empty' }, 'Waiting for the first figures.');
    this.all_button = element('button', { type: 'button', hidden: true });
    this.all_button.addEventListener('click', () => { this.limit = this.limit === Infinity ? section.limit : Infinity; this.draw(); });
    this.node = element('div', {}, element('div', { class: 'scroll' }, this.table), this.empty, element('div', { class: 'more' }, this.all_button));
    this.table.hidden = true;
  }

  header(column) {
    const numeric = column.unit && column.unit !== 'state';
    const th = element('th', { class: numeric ? 'n' : column.wrap ? 'wrap' : '', scope: 'col' });
    if (!this.sort) { th.textContent = column.label; return th; }
    const button = element('button', { type: 'button' }, column.label);
    button.addEventListener('click', () => {
      this.ascending = this.sort === column.key ? !this.ascending : !numeric;
      this.sort = column.key;
      this.draw(true);
    });
    th.append(button);
    column.th = th;
    return th;
  }

  set(rows, at) {
    for (const row of rows) {
      row.$ = this.key.map((part) => row[part]).join('\n');
      for (const column of this.columns) {
        if (column.rate) row[column.key] = this.rates.of(`${column.id}\n${row.$}`, row[column.id], at);
      }
    }
    this.rates.keep(at);
    this.all = rows;
    this.draw();
  }

  // While somebody points at a row or has moved to one, rows keep their places.
  held() { return this.body.matches(':hover') || this.body.contains(document.activeElement); }

  draw(resort = false) {
    const found = new Map(this.all.map((row) => [row.$, row]));
    let rows = this.all;
    if (this.sort) {
      const sign = this.ascending ? 1 : -1;
      const order = (a, b) => sign * compare(a[this.sort], b[this.sort]) || compare(a.$, b.$);
      rows = [...rows].sort(order);
      for (const column of this.columns) {
        if (column.key === this.sort) column.th.setAttribute('aria-sort', this.ascending ? 'ascending' : 'descending');
        else column.th.removeAttribute('aria-sort');
      }
    }
    if (!resort && this.held()) {
      const kept = [...this.rows.keys()].filter((key) => found.has(key)).map((key) => found.get(key));
      const places = new Set(kept);
      rows = [...kept, ...rows.filter((row) => !places.has(row))];
    }
    const listed = rows.slice(0, this.limit);
    const most = {};
    for (const column of this.columns) {
      if (column.bar === true) most[column.key] = Math.max(0, ...this.all.map((row) => row[column.key] || 0));
    }
    const next = new Map();
    listed.forEach((row, place) => {
      const line = this.rows.get(row.$) || this.line();
      this.write(line, row, most);
      next.set(row.$, line);
      if (this.body.children[place] !== line.tr) this.body.insertBefore(line.tr, this.body.children[place] || null);
    });
    for (const [key, line] of this.rows) if (!next.has(key)) line.tr.remove();
    this.rows = next;
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    put(this.empty, this.section.empty || 'Nothing.');
    const cut = this.section.limit && rows.length > this.section.limit;
    this.all_button.hidden = !cut;
    if (cut) put(this.all_button, this.limit === Infinity ? `Show the first ${whole.format(this.section.limit)}` : `Show all ${whole.format(rows.length)}`);
  }

  line() {
    const line = { cells: [], row: null };
    const cells = this.columns.map((column) => {
      const classes = [column.unit && column.unit !== 'state' ? 'n' : '', column.wrap ? 'wrap' : '', column.bar ? 'barred' : ''];
      const td = element('td', { class: classes.filter(Boolean).join(' '), 'data-label': column.label });
      let target = td;
      let unit = null;
      if (column.unit === 'bytes') {
        target = element('span', {});
        unit = element('span', { class: 'u' });
        td.append(target, unit);
      }
      if (column.unit === 'state') { target = element('span', { class: 'pill' }); td.append(target); }
      const find = this.section.find;
      if (find && find.column === column.key) {
        target = element('button', { type: 'button', class: 'link' });
        target.addEventListener('click', () => this.context.find(find.section, { [find.field]: line.row[column.key] }));
        td.append(target);
      }
      line.cells.push({ td, target, unit, column });
      return td;
    });
    if (this.buttons) {
      line.acts = element('td', { class: 'acts no-print' });
      if (this.section.open) {
        const open = element('button', { type: 'button' }, 'Details');
        open.addEventListener('click', () => this.section.open(line.row));
        line.acts.append(open);
      }
      line.buttons = this.actions.map((action) => {
        const button = element('button', { type: 'button' }, action.label);
        button.addEventListener('click', () => this.context.act(action, line.row));
        line.acts.append(button);
        return { action, button };
      });
      cells.push(line.acts);
    }
    line.tr = element('tr', {}, ...cells);
    return line;
  }

  write(line, row, most) {
    line.row = row;
    for (const { td, target, unit, column } of line.cells) {
      const value = row[column.key];
      const [number, of] = shown(value, column.rate && column.unit === 'count' ? 'decimal' : column.unit);
      put(target, unit || !of ? number : `${number} ${of}`);
      if (unit) put(unit, of);
      if (column.bar) {
        const full = column.bar === true ? most[column.key] : row[column.bar];
        td.style.setProperty('--part', `${full > 0 ? Math.round(100 * Math.min(1, (value || 0) / full)) : 0}%`);
      }
      if (column.unit === 'state') {
        target.classList.toggle('good', (column.good || []).includes(value));
        target.classList.toggle('bad', (column.bad || []).includes(value));
      }
    }
    for (const { action, button } of line.buttons || []) button.hidden = !applies(action, row);
  }
}

const compare = (a, b) => {
  const [x, y] = [a === null || a === undefined ? -Infinity : a, b === null || b === undefined ? -Infinity : b];
  return x < y ? -1 : x > y ? 1 : 0;
};

const applies = (action, row) => {
  const { when, unless } = action;
  return (!when || when.values.includes(row[when.column])) && !(unless && unless.values.includes(row[unless.column]));
};

KINDS.table = (section, context) => {
  const grid = new Grid(section, context);
  return { node: card(section, grid.node), update: (rows, at) => grid.set(rows, at) };
};

// The fields of a form, and what was entered: numbers as numbers, nothing for what was left empty.
const inputs = (fields, row = {}) => fields.map((field) => {
  let input;
  if (field.options) {
    input = element('select', { name: field.name }, element('option', { value: '' }, 'any'), ...field.options.map((each) => element('option', { value: each }, each)));
  } else if (field.type === 'lines') {
    input = element('textarea', { name: field.name, rows: 3, spellcheck: false });
  } else if (field.type === 'flag') {
    input = element('input', { name: field.name, type: 'checkbox', checked: true });
  } else {
    input = element('input', { name: field.name, type: field.type === 'number' ? 'number' : 'text', autocomplete: 'off', spellcheck: false });
    if (field.type === 'number') { input.min = field.min; input.max = field.max; input.step = 'any'; }
    if (field.placeholder) input.placeholder = field.placeholder;
  }
  input.required = Boolean(field.required);
  if (field.value) input.value = fill(field.value, row);
  const shape = field.type === 'lines' ? 'tall' : field.type === 'flag' ? 'flag' : '';
  const label = field.type === 'flag' ? element('label', { class: shape }, input, field.label) : element('label', { class: shape }, field.label, input);
  return { field, input, label };
});

const entered = (all) => Object.fromEntries(all.map(({ field, input }) => {
  if (field.type === 'flag') return [field.name, input.checked];
  if (input.value === '') return [field.name, null];
  return [field.name, field.type === 'number' ? Number(input.value) : input.value];
}).filter(([, value]) => value !== null));

KINDS.form = (section, context) => {
  const { action } = section;
  const fields = inputs(action.fields);
  const may = context.may(action);
  const button = element('button', { type: 'submit', class: 'main' }, action.label);
  const form = element('form', {}, element('fieldset', { disabled: !may }, ...fields.map((each) => each.label), button));
  const note = may ? null : element('p', { class: 'note' }, context.why(action));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    context.run(action, {}, entered(fields), Boolean(action.confirm));
  });
  return { node: card(section, note, form) };
};

KINDS.find = (section, context) => {
  const fields = inputs(section.fields);
  const button = element('button', { type: 'submit', class: 'main' }, 'Find');
  const form = element('form', { role: 'search' }, ...fields.map((each) => each.label), button);
  const about = element('dl', { class: 'about', hidden: true });
  const more = element('button', { type: 'button', hidden: true }, 'More');
  const told = element('span', { class: 'note', role: 'status' });
  let rows = [];
  let next = null;
  let wanted = {};
  const open = section.detail && ((row) => context.open(section, row, () => search()));
  const grid = new Grid({ ...section, limit: undefined, open }, { ...context, act: (action, row) => context.act(action, row, () => search()) });
  grid.empty.hidden = true;
  const results = element('div', { class: 'results', hidden: true }, about, grid.node, element('div', { class: 'more' }, more, told));
  const page = async (after) => {
    const query = new URLSearchParams({ ...wanted, limit: section.limit, ...(after ? { after } : {}) });
    const answer = await context.get(`${section.path}?${query}`);
    if (!answer) return;
    results.hidden = false;
    rows = after ? [...rows, ...answer[section.list]] : answer[section.list];
    next = answer.next;
    grid.set(rows, 0);
    more.hidden = !next;
    // A page of a filter may end early: there can be more after an empty one.
    if (next && rows.length === 0) put(grid.empty, 'None so far: there are more to look through.');
    const silent = (answer.silent_workers || []).length;
    put(told, `${whole.format(rows.length)} listed${silent ? `; workers that did not answer: ${silent}` : ''}`);
  };
  const describe = async () => {
    const topic = section.about && wanted[section.about.field];
    about.hidden = !topic;
    if (!topic) return;
    const answer = await context.get(fill(section.about.path, wanted, encodeURIComponent));
    about.replaceChildren(...(answer ? section.about.columns.map((column) =>
      element('div', {}, element('dt', {}, column.label), element('dd', {}, joined(answer[column.id], column.unit)))) : []));
  };
  const search = async () => {
    wanted = entered(fields);
    await Promise.all([describe(), page(null)]);
  };
  more.addEventListener('click', () => page(next));
  form.addEventListener('submit', (event) => { event.preventDefault(); search(); });
  const find = (values) => {
    for (const { field, input } of fields) input.value = values[field.name] === undefined ? '' : values[field.name];
    node.scrollIntoView();
    fields[0].input.focus({ preventScroll: true });
    search();
  };
  const node = card(section, form, results);
  return { node, find };
};
