// A node: its ports with what they carried in the last ten minutes, its connections, its moves.

import { colour, el, sharp, write } from './html.js';
import { HOT, UP, fabric } from './fabric.js';
import { Failed, get } from './link.js';
import { drain, isDrained } from './controls.js';
import { pages } from './connections.js';
import { bar, word } from './topology.js';
import { clock, count, percent, speed } from './units.js';

/** Two areas, sent above the line and received below it, over ten minutes. */
function spark(canvas, times, tx, rx, limit) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const context = sharp(canvas, width, height);
  const middle = height / 2;
  const first = fabric.now - 600_000;
  const x = (at) => ((at - first) / 600_000) * width;
  const area = (values, sign, name) => {
    context.fillStyle = colour(name);
    values.forEach((value, at) => {
      if (value < 0) return;
      const tall = Math.max(value > 0 ? 1 : 0, (Math.min(1000, value) / 1000) * (middle - 1));
      context.fillRect(x(times[at]), sign > 0 ? middle - tall : middle, Math.max(1, width / 600 + 0.5), tall);
    });
  };
  area(tx, 1, '--sent');
  area(rx, -1, '--received');
  context.fillStyle = colour('--line');
  context.fillRect(0, middle, width, 1);
  context.strokeStyle = colour('--hot');
  context.setLineDash([2, 3]);
  for (const y of [middle - (limit / 1000) * (middle - 1), middle + (limit / 1000) * (middle - 1)]) {
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(width, y);
    context.stroke();
  }
}

/** The view. */
export function node(place, name) {
  const title = el('h2', { text: name });
  const facts = el('p', { class: 'quiet', text: ' ' });
  const ports = el('div');
  const list = pages(() => new URLSearchParams({ node: name }));
  const moved = el('ul', { class: 'plain-list' });
  place.replaceChildren(el('p', {}, el('a', { href: '#/', text: '‹ Topology' })), title, facts, el('h3', { text: 'Ports' }), ports, el('h3', { text: 'Connections' }), list.element, el('h3', { text: 'Moves' }), moved);
  let painters = [];
  let canvases = new Map();
  const build = () => {
    painters = [];
    canvases = new Map();
    const known = fabric.byName.get(name);
    if (!known) {
      write(facts, fabric.overview ? 'No agent of this node lives. What it had is gone from the directory; its connections may well work on.' : ' ');
      ports.replaceChildren();
      return;
    }
    write(facts, `Agent ${known.version} at replica ${known.replica}${known.switches.length ? ` · ${known.switches.join(', ')}` : ''}`);
    const rows = known.ports.map((port) => {
      const [tx, rx] = [bar(), bar()];
      const state = el('td');
      const uses = el('td', { class: 'num' });
      const busy = el('td', { class: 'num' });
      const button = el('button', { type: 'button', class: 'plain', on: { click: () => drain(port) } });
      const canvas = el('canvas', { class: 'spark', 'aria-label': `${port.name}: sent above, received below, ten minutes`, role: 'img' });
      canvases.set(port.name, canvas);
      painters.push(() => {
        const now = fabric.of(port);
        tx.set(now.tx, port.rate_mbps);
        rx.set(now.rx, port.rate_mbps);
        write(busy, percent(Math.max(now.tx, now.rx)));
        write(uses, count(now.connections));
        write(state, word(now));
        state.className = now.flags & UP ? (now.flags & HOT ? 'is-hot' : '') : 'is-down';
        write(button, isDrained(port) ? 'Use again' : 'Drain …');
        button.disabled = fabric.state !== 'live';
      });
      return el('tr', {}, el('th', { scope: 'row', text: port.name }), state, el('td', { class: 'num', text: speed(port.rate_mbps) }), el('td', {}, tx.element), el('td', {}, rx.element), busy, uses,
        el('td', { text: port.switch ? `${port.switch} ${port.switch_port}` : '–' }), el('td', { class: 'num', text: port.numa_node === null ? '–' : String(port.numa_node) }), el('td', {}, canvas), el('td', {}, button));
    });
    const heads = [['Port', ''], ['State', ''], ['Speed', 'num'], ['▲ Gb/s sent', 'num'], ['▼ Gb/s received', 'num'], ['Busier', 'num'], ['QPs', 'num'], ['Switch', ''], ['NUMA', 'num'], ['Ten minutes', ''], ['', '']];
    ports.replaceChildren(el('div', { class: 'scroll' }, el('table', { class: 'ports', 'aria-label': 'Ports' }, el('thead', {}, el('tr', {}, heads.map(([text, kind]) => el('th', { scope: 'col', class: kind, text })))), el('tbody', {}, rows))));
    paint();
    lines();
  };
  const paint = () => painters.forEach((one) => one());
  const lines = async () => {
    if (canvases.size === 0) return;
    try {
      const line = await get(`/v1/timeline?node=${encodeURIComponent(name)}`);
      for (const port of line.ports) {
        const canvas = canvases.get(`${port.device}/${port.port_num}`);
        if (canvas?.isConnected) spark(canvas, line.at_ms, port.tx, port.rx, fabric.overview.rebalance.hot_permille);
      }
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
    }
  };
  const history = async () => {
    try {
      const { events } = await get(`/v1/events/recent?node=${encodeURIComponent(name)}&kinds=connection-moved,connection-rebuilding,port-down,port-up,port-hot&limit=30`);
      moved.replaceChildren(...(events.length ? events.map((event) => el('li', {}, el('time', { text: clock(event.date_ms) }), ` ${event.text}`, event.why ? el('span', { class: 'why', text: ` — ${event.why}` }) : null)) : [el('li', { class: 'quiet', text: 'Nothing that is still remembered.' })]));
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
    }
  };
  const listen = new AbortController();
  fabric.addEventListener('layout', build, { signal: listen.signal });
  fabric.addEventListener('second', paint, { signal: listen.signal });
  fabric.addEventListener('overview', paint, { signal: listen.signal });
  build();
  list.begin();
  history();
  const timers = [setInterval(lines, 2_000), setInterval(list.load, 5_000), setInterval(history, 3_000)];
  return () => { timers.forEach(clearInterval); listen.abort(); };
}
