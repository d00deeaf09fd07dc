// Elements without a framework: made by name, with properties and children. Text is always text: nothing here parses HTML, so that no name that a
// process chose becomes part of the page.

/** An element. `props`: `class`, `text`, `data`, `on`, and any attribute; false and null leave an attribute out. */
export function el(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === 'text') element.textContent = value;
    else if (name === 'class') element.className = value;
    else if (name === 'data') Object.assign(element.dataset, value);
    else if (name === 'on') for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An SVG element. */
export function svg(tag, attributes = {}) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** A table. `columns`: [title, 'num' or '', explanation]; `rows`: arrays of cells, each text or an element. */
export function table(caption, columns, rows) {
  const head = columns.map(([title, kind, why]) => el('th', { scope: 'col', class: kind, title: why, text: title }));
  const body = el('tbody', {}, rows.map((cells) => row(columns, cells)));
  return el('div', { class: 'scroll' }, el('table', { 'aria-label': caption }, el('thead', {}, el('tr', {}, head)), body));
}

/** A row of such a table. */
export function row(columns, cells) {
  return el('tr', {}, cells.map((cell, at) => el('td', { class: columns[at][1] }, cell ?? '')));
}

/** Sets text only if it is another, so that what is selected stays selected. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A canvas that is as sharp as the screen, and its context in CSS pixels. */
export function sharp(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** A colour of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
