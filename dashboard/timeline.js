// The time line at the foot of every view: how busy the busiest port was in each second of the last ten minutes, with the events marked; moved back, all views show that
// moment.

import { colour, el, sharp, write } from './html.js';
import { fabric } from './fabric.js';
import { Failed, get } from './link.js';
import { family } from './events.js';
import { ago, clock, count, percent, rate } from './units.js';

const SPAN_MS = 600_000;

/** Draws it, once. */
export function timeline(place) {
  const canvas = el('canvas', { 'aria-hidden': 'true' });
  const range = el('input', { type: 'range', min: 0, max: 600, value: 600, step: 1, 'aria-label': 'Moment that is shown, in seconds of the last ten minutes', title: 'Drag, or use the arrow keys, to look at the past' });
  const label = el('output', { class: 'moment' });
  const now = el('button', { type: 'button', class: 'plain', text: 'Now', disabled: true });
  place.replaceChildren(el('div', { class: 'strip' }, canvas, range), el('div', { class: 'line' }, now, label));
  /** Seconds: [at_ms, busiest, hot, down, moves, tx_bps]. */
  let seconds = [];
  let wanted = null;
  let asked = 0;

  const load = async () => {
    try {
      const line = await get('/v1/timeline');
      seconds = line.at_ms.map((at, n) => [at, line.busiest[n], line.hot[n], line.down[n], line.moves[n], line.tx_bps[n]]);
      draw();
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
    }
  };

  const draw = () => {
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (width === 0) return;
    const context = sharp(canvas, width, height);
    const last = seconds.at(-1)?.[0] ?? fabric.now;
    const x = (at) => width - ((last - at) / SPAN_MS) * width;
    const floor = height - 12;
    const limit = (fabric.overview?.rebalance.hot_permille ?? 700) / 1000;
    const one = Math.max(1, width / 600);
    for (const [at, busiest, hot] of seconds) {
      context.fillStyle = colour(hot > 0 ? '--hot' : '--sent');
      const tall = Math.max(1, (Math.min(1000, busiest) / 1000) * (floor - 2));
      context.fillRect(x(at) - one, floor - tall, one + 0.5, tall);
    }
    context.fillStyle = colour('--hot');
    context.globalAlpha = 0.6;
    for (let at = 0; at < width; at += 8) context.fillRect(at, floor - limit * (floor - 2), 4, 1);
    context.globalAlpha = 1;
    context.fillStyle = colour('--line');
    context.fillRect(0, floor, width, 1);
    for (let minute = 1; minute < 10; minute += 1) context.fillRect(x(last - minute * 60_000), floor - 3, 1, 3);
    let marks = 0;
    for (let at = fabric.events.length - 1; at >= 0 && marks < 2_000; at -= 1) {
      const event = fabric.events[at];
      if (event.at_ms < last - SPAN_MS) break;
      const [name, , , shade] = family(event.kind);
      const lane = { nodes: 0, ports: 0, moves: 1, orders: 1, rules: 2, store: 2 }[name];
      context.fillStyle = colour(shade);
      context.fillRect(x(event.at_ms) - 1, floor + 2 + lane * 3, 2, 3);
      marks += 1;
    }
    if (wanted !== null) {
      context.fillStyle = colour('--text');
      context.fillRect(x(wanted) - 1, 0, 2, height);
    }
    tell();
  };

  const tell = () => {
    const second = fabric.shown;
    if (!second) return write(label, 'Nothing is recorded yet.');
    const all = second.summary;
    const when = wanted === null ? `Now, ${clock(fabric.date(second.at_ms))}` : `${clock(fabric.date(second.at_ms))}, ${ago(fabric.now - second.at_ms)}`;
    const near = wanted === null ? null : fabric.events.findLast((event) => event.at_ms <= second.at_ms + 1_000 && event.at_ms > second.at_ms - 4_000);
    write(label, `${when}: busiest port ${percent(all.busiest)}, ${count(all.hot)} hot, ${count(all.down)} down, ${rate(all.tx_bps)} sent, ${count(all.moves)} moves${near ? ` · ${near.text}` : ''}`);
    range.setAttribute('aria-valuetext', label.textContent);
  };

  const look = async (atMs) => {
    wanted = atMs;
    now.disabled = atMs === null;
    document.body.classList.toggle('past', atMs !== null);
    asked += 1;
    const mine = asked;
    draw();
    try {
      await fabric.look(atMs);
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
    }
    if (mine === asked) draw();
  };

  range.addEventListener('input', () => {
    const last = seconds.at(-1)?.[0];
    if (last === undefined) return;
    const back = 600 - Number(range.value);
    look(back <= 0 ? null : Math.max(seconds[0][0], last - back * 1_000));
  });
  now.addEventListener('click', () => { range.value = 600; look(null); });
  fabric.addEventListener('second', () => {
    const second = fabric.second;
    if (second && (seconds.length === 0 || second.at_ms > seconds.at(-1)[0])) {
      const all = second.summary;
      seconds.push([second.at_ms, all.busiest, all.hot, all.down, all.moves, all.tx_bps]);
      if (seconds.length > 600) seconds.splice(0, seconds.length - 600);
      if (wanted !== null && wanted < seconds[0][0]) { range.value = 600; look(null); }
    }
    draw();
  });
  fabric.addEventListener('restart', () => { seconds = []; range.value = 600; look(null); load(); });
  fabric.addEventListener('state', () => { if (fabric.state === 'live') load(); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  window.addEventListener('resize', draw);
}
