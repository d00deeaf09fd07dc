// The topology: few nodes as cards below their switches, with cables; many as a dense grid by switch, a cell a node, a stripe a port. Colour is how busy the busier
// direction is; what is hot, down or drained is also told by shape.

import { colour, el, svg, write } from './html.js';
import { DRAINED, HOT, UP, fabric } from './fabric.js';
import { count, gbps, heat, natural, percent, rate } from './units.js';

/** So many nodes are drawn as cards. */
const CARDS = 16;
/** Nodes of a group whose switches nobody knows. */
const TOGETHER = 32;

/** Nodes by the switches that they hang on; without any, by their order. */
function groups() {
  const found = new Map();
  const alone = [];
  for (const node of fabric.nodes) {
    const name = node.switches.join(' + ');
    if (!name) alone.push(node);
    else if (found.has(name)) found.get(name).push(node);
    else found.set(name, [node]);
  }
  const all = [...found].sort(([a], [b]) => natural(a, b)).map(([name, nodes]) => ({ name, short: brief(nodes[0].switches), nodes }));
  for (let at = 0; at < alone.length; at += TOGETHER) {
    const nodes = alone.slice(at, at + TOGETHER);
    const name = nodes.length > 1 ? `${nodes[0].name} … ${nodes.at(-1).name}` : nodes[0].name;
    all.push({ name, short: nodes.length > 1 ? range(nodes[0].name, nodes.at(-1).name) : name, nodes });
  }
  return all;
}

/** node128 to node159 as node128–159: the end of a range is what tells it from the next. */
function range(first, last) {
  const [a, b] = [first, last].map((name) => /^(.*?)(\d+)$/.exec(name));
  return a && b && a[1] === b[1] ? `${first}–${b[2]}` : `${first} … ${last}`;
}

/** leaf1 and leaf2 as leaf1+2. */
function brief(names) {
  const stem = /^(.*?)\d+$/.exec(names[0])?.[1];
  const alike = stem && names.every((name) => name.startsWith(stem) && /^\d+$/.test(name.slice(stem.length)));
  return [names[0], ...names.slice(1).map((name) => (alike ? name.slice(stem.length) : name))].join('+');
}

/** What a port looks like: its heat, and what is more than heat. */
export function looks(now) {
  const classes = [];
  if (!(now.flags & UP)) classes.push('down');
  if (now.flags & HOT) classes.push('hot');
  if (now.flags & DRAINED) classes.push('drained');
  return { heat: heat(Math.max(now.tx, now.rx)), classes: classes.join(' ') };
}

/** Several ports as one: as busy as the busiest, up if all are, hot or drained if any is. */
function together(all) {
  const flags = all.reduce((flags, now) => (flags & now.flags & UP) | ((flags | now.flags) & (HOT | DRAINED)), UP);
  return { tx: Math.max(...all.map((now) => now.tx)), rx: Math.max(...all.map((now) => now.rx)), flags };
}

/** The state of a port in a word. */
export function word(now) {
  if (!(now.flags & UP)) return 'down';
  return [now.flags & HOT ? 'hot' : 'up', now.flags & DRAINED ? 'drained' : null].filter(Boolean).join(', ');
}

/** A node in a sentence. */
function sentence(node) {
  const ports = node.ports.map((port) => {
    const now = fabric.of(port);
    return `${port.name} ▲ ${gbps(now.tx, port.rate_mbps)} ▼ ${gbps(now.rx, port.rate_mbps)} Gb/s, ${count(now.connections)} QPs${word(now) === 'up' ? '' : ` (${word(now)})`}`;
  });
  const most = 4;
  const more = ports.length > most ? ` and ${ports.length - most} ports more` : '';
  return `${node.name}: ${ports.slice(0, most).join('   ')}${more}`;
}

function legend() {
  const steps = [...Array(10)].map((_, step) => el('i', { class: 'swatch', data: { h: step }, title: `${step * 10} to ${step * 10 + 10} %` }));
  const mark = (kind, text) => [el('i', { class: `swatch ${kind}`, data: { h: kind === 'hot' ? 7 : 1 } }), el('span', { text })];
  return el('p', { class: 'legend' }, el('span', { text: '0 %' }), steps, el('span', { text: '100 %' }),
    mark('hot', 'hot'), mark('down', 'down'), mark('drained', 'drained'), el('i', { class: 'swatch', data: { h: 'u' } }), el('span', { text: 'nothing heard' }));
}

/** Draws the view; gives what takes it down. */
export function topology(place) {
  const inspector = el('p', { class: 'inspector', text: ' ' });
  const ground = el('div', { class: 'ground' });
  place.replaceChildren(el('div', { class: 'line' }, el('h2', { text: 'Topology' }), legend()), inspector, ground);
  let paint = () => {};
  let looked = null;
  const inspect = (node) => {
    looked = node;
    write(inspector, node ? sentence(node) : fabric.nodes.length > CARDS ? 'Point at a node, or walk with the arrow keys; Enter opens it.' : ' ');
  };
  const build = () => {
    if (fabric.nodes.length === 0) {
      ground.replaceChildren(el('p', { class: 'quiet', text: 'No agent has joined. On each node: sfab agent --control http://…' }));
      paint = () => {};
      return;
    }
    paint = fabric.nodes.length <= CARDS ? cards(ground) : dense(ground, inspect);
    inspect(null);
    paint();
  };
  const second = () => {
    paint();
    if (looked) inspect(looked);
  };
  const listen = new AbortController();
  fabric.addEventListener('layout', build, { signal: listen.signal });
  fabric.addEventListener('second', second, { signal: listen.signal });
  window.addEventListener('resize', () => paint(true), { signal: listen.signal });
  build();
  return () => listen.abort();
}

/** Cells by group. */
function dense(ground, inspect) {
  const painters = [];
  const cells = [];
  const boxes = groups().map(({ name, short, nodes }) => {
    const load = el('span', { class: 'num', text: '' });
    const box = el('div', { class: 'cells' }, nodes.map((node) => {
      const stripes = node.ports.length <= 8 ? node.ports.map((port) => [port]) : [node.ports];
      const marks = stripes.map(() => el('i'));
      const cell = el('a', { class: 'cell', href: `#/node/${encodeURIComponent(node.name)}`, 'aria-label': node.name, tabindex: '-1' }, marks);
      cell.addEventListener('focus', () => {
        cell.setAttribute('aria-description', sentence(node));
        inspect(node);
      });
      cell.addEventListener('pointerenter', () => inspect(node));
      cells.push(cell);
      painters.push(() => stripes.forEach((ports, at) => {
        const { heat: step, classes } = looks(together(ports.map((port) => fabric.of(port))));
        const mark = marks[at];
        if (mark.dataset.h !== step) mark.dataset.h = step;
        if (mark.className !== classes) mark.className = classes;
      }));
      return cell;
    }));
    painters.push(() => {
      const ports = nodes.flatMap((node) => node.ports);
      const bps = ports.reduce((sum, port) => sum + Math.max(0, fabric.of(port).tx) * port.rate_mbps, 0) / 1e6;
      const most = ports.reduce((most, port) => Math.max(most, fabric.of(port).tx, fabric.of(port).rx), -1);
      write(load, `▲ ${rate(bps * 1e9)} · ${percent(most)}`);
      load.title = 'Sent by all its nodes; the busiest port';
    });
    return el('section', { class: 'group', 'aria-label': name }, el('h3', {}, el('span', { text: short, title: name }), load), box);
  });
  ground.replaceChildren(el('div', { class: 'groups' }, boxes));
  if (cells[0]) cells[0].tabIndex = 0;
  ground.onkeydown = (event) => walk(event, cells);
  ground.onpointerleave = () => inspect(null);
  return () => painters.forEach((paint) => paint());
}

/** Arrow keys from cell to cell: left and right in order, up and down to the nearest. */
function walk(event, cells) {
  const at = cells.indexOf(document.activeElement);
  if (at < 0) return;
  let to = null;
  if (event.key === 'ArrowRight') to = cells[at + 1];
  else if (event.key === 'ArrowLeft') to = cells[at - 1];
  else if (event.key === 'Home') to = cells[0];
  else if (event.key === 'End') to = cells.at(-1);
  else if (event.key === 'ArrowUp' || event.key === 'ArrowDown') {
    const sign = event.key === 'ArrowDown' ? 1 : -1;
    const from = cells[at].getBoundingClientRect();
    let best = Infinity;
    for (const cell of cells) {
      const box = cell.getBoundingClientRect();
      const down = sign * (box.top - from.top);
      if (down < from.height / 2) continue;
      const far = down * 4 + Math.abs(box.left - from.left);
      if (far < best) [best, to] = [far, cell];
    }
  } else return;
  event.preventDefault();
  if (!to) return;
  cells[at].tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

/** A bar of a direction. */
export function bar() {
  const fill = el('b');
  const text = el('span', { class: 'num' });
  const element = el('span', { class: 'bar' }, el('span', { class: 'track' }, fill), text);
  const set = (permille, rateMbps) => {
    fill.style.width = `${Math.min(100, Math.max(0, permille) / 10)}%`;
    const step = heat(permille);
    if (fill.dataset.h !== step) fill.dataset.h = step;
    write(text, gbps(permille, rateMbps));
  };
  return { element, set };
}

/** Cards below their switches. */
function cards(ground) {
  const painters = [];
  const cables = [];
  const drawing = svg('svg', { class: 'cables', 'aria-hidden': 'true' });
  const names = [...new Set(fabric.nodes.flatMap((node) => node.switches))].sort(natural);
  const boxes = new Map(names.map((name) => [name, el('div', { class: 'switch' }, el('strong', { text: name }), el('span', { class: 'num' }))]));
  const drawn = fabric.nodes.map((node) => {
    const rows = node.ports.map((port) => {
      const tx = bar();
      const rx = bar();
      const state = el('span', { class: 'state' });
      const uses = el('span', { class: 'num' });
      const row = el('div', { class: 'port' }, el('span', { class: 'name', text: port.name, title: port.switch ? `${port.switch} ${port.switch_port}` : 'No switch is known' }), tx.element, rx.element, uses, state);
      if (port.switch) {
        const line = svg('line');
        drawing.append(line);
        cables.push({ line, row, port, to: boxes.get(port.switch) });
      }
      painters.push(() => {
        const now = fabric.of(port);
        tx.set(now.tx, port.rate_mbps);
        rx.set(now.rx, port.rate_mbps);
        write(uses, `${count(now.connections)} QPs`);
        write(state, word(now));
        const { classes } = looks(now);
        row.className = `port ${classes}`;
      });
      return row;
    });
    return el('a', { class: 'card', href: `#/node/${encodeURIComponent(node.name)}` }, el('h3', { text: node.name }),
      el('div', { class: 'port head' }, el('span', { text: 'port' }), el('span', { class: 'num', text: '▲ Gb/s sent' }), el('span', { class: 'num', text: '▼ received' }), el('span'), el('span')), rows);
  });
  const hint = names.length === 0 ? el('p', { class: 'quiet', text: 'No switch is known: give [[neighbour]] in the agents’ configuration, or run lldpd.' }) : null;
  ground.onkeydown = null;
  ground.onpointerleave = null;
  ground.replaceChildren(el('div', { class: 'fabric' }, drawing, hint, el('div', { class: 'switches' }, [...boxes.values()]), el('div', { class: 'cards' }, drawn)));
  const lay = () => {
    const origin = ground.firstChild.getBoundingClientRect();
    drawing.setAttribute('width', origin.width);
    drawing.setAttribute('height', origin.height);
    const used = new Map();
    for (const { line, row, to } of cables) {
      const [from, box] = [row.parentElement.getBoundingClientRect(), to.getBoundingClientRect()];
      const all = cables.filter((cable) => cable.to === to).length;
      const nth = used.get(to) ?? 0;
      used.set(to, nth + 1);
      const siblings = [...row.parentElement.querySelectorAll('.port:not(.head)')];
      const x1 = from.left + (from.width * (siblings.indexOf(row) + 1)) / (siblings.length + 1);
      line.setAttribute('x1', x1 - origin.left);
      line.setAttribute('y1', from.top - origin.top);
      line.setAttribute('x2', box.left + (box.width * (nth + 1)) / (all + 1) - origin.left);
      line.setAttribute('y2', box.bottom - origin.top);
    }
  };
  let laid = false;
  return (again) => {
    painters.forEach((paint) => paint());
    if (!laid || again) lay();
    laid = true;
    for (const { line, port } of cables) {
      const now = fabric.of(port);
      line.setAttribute('stroke', now.flags & UP ? (now.flags & HOT ? colour('--hot') : colour(`--h${Math.max(3, Number(looks(now).heat) || 0)}`)) : colour('--down'));
      line.setAttribute('stroke-width', 1.5 + Math.max(0, now.tx, now.rx) / 250);
      line.setAttribute('stroke-dasharray', now.flags & UP ? 'none' : '3 5');
    }
    for (const [name, box] of boxes) {
      const through = cables.filter(({ port }) => port.switch === name).reduce((sum, { port }) => sum + Math.max(0, fabric.of(port).tx) * port.rate_mbps, 0) / 1e6;
      write(box.lastChild, `${through.toFixed(1)} Gb/s in`);
    }
  };
}
