// Moves, and why: what this replica decided, with all that it was made from; where another replica leads, what was seen of its moves.

import { el, table } from './html.js';
import { fabric } from './fabric.js';
import { Failed, get } from './link.js';
import { ago, clock, count, named, percent, rate } from './units.js';

const port = (path) => `${path.device}/${path.port_num}`;
const origin = (id) => id.origin.split('/')[0];

const OUTCOMES = {
  ordered: () => 'ordered', 'dry-run': () => 'dry run: not ordered', done: (outcome) => `done, data paused ${count(outcome.pause_us)} µs`,
  'rolled-back': (outcome) => `rolled back: ${outcome.reason}`, fenced: () => 'refused: another leads', 'no-answer': () => 'no answer in time',
};

/** Decisions with their explanation. */
export function explained({ decisions, now_ms: now }) {
  return el('ol', { class: 'decisions' }, decisions.map((one) => {
    const names = new Map(one.ports.map((input) => [input.sample.port, input]));
    const inputs = one.ports.map(({ name, sample, hot }) => [
      `${name.node}/${name.device}/${name.port_num}`, rate(sample.tx_bps), rate(sample.rx_bps),
      percent(sample.capacity_bps ? Math.round((Math.max(sample.tx_bps, sample.rx_bps) * 1000) / sample.capacity_bps) : -1),
      [sample.up ? (hot ? 'hot' : 'up') : 'down', one.wishes.drained.includes(sample.port) ? 'drained' : null].filter(Boolean).join(', ')]);
    const hot = one.hot.map(([name, way, permille]) => `${name.node}/${name.device}/${name.port_num} ${way === 'transmit' ? 'sends' : 'receives'} ${percent(permille)}`);
    const { effort, policy } = one;
    const best = effort.chosen <= effort.at_least ? 'no smaller set would do' : `at least ${effort.at_least} were needed`;
    const facts = [
      `It carried ▲ ${rate(one.sample.tx_bps)}, ▼ ${rate(one.sample.rx_bps)}; ${(one.sample.retransmit_ratio * 100).toFixed(2)} % of its packets were sent again. It had ${one.sample.routes.length} paths.`,
      hot.length ? `Hot at that moment: ${hot.slice(0, 8).join('; ')}${hot.length > 8 ? ` and ${hot.length - 8} more` : ''}.` : 'No port was hot at that moment.',
      `One of ${count(effort.chosen)} moves for load in that round; ${best} (${count(effort.steps)} steps of search).`,
      `Rules: hot above ${percent(policy.hot_permille)}, cool at ${percent(policy.cool_permille)}, filled up to ${percent(policy.fill_permille)}, after ${policy.samples} samples. Decision ${one.serial}, token ${one.token}.`,
    ];
    const outcome = (OUTCOMES[one.outcome.outcome] ?? (() => one.outcome.outcome))(one.outcome);
    const from = names.get(one.sample.routes.find((route) => route.key === one.sample.route)?.local);
    return el('li', { class: `outcome-${one.outcome.outcome}` }, el('details', {},
      el('summary', {},
        el('time', { text: clock(Date.now() - (now - one.at_ms)), title: ago(now - one.at_ms) }),
        el('span', { class: 'what' }, el('strong', { text: named(one.connection) }), ` ${origin(one.connection)}/${port(one.from)} → ${port(one.to)}`),
        el('span', { class: 'why', text: one.text }), el('span', { class: 'outcome', text: outcome })),
      el('div', { class: 'because' },
        from ? el('p', { text: `It left ${from.name.node}/${from.name.device}/${from.name.port_num}, which then sent ${rate(from.sample.tx_bps)} and received ${rate(from.sample.rx_bps)}.` }) : null,
        facts.map((text) => el('p', { text })),
        table('Ports of its paths at that moment', [['Port', ''], ['▲ sent', 'num'], ['▼ received', 'num'], ['Busier', 'num'], ['State', '']], inputs))));
  }));
}

/** The view. */
export function moves(place) {
  const list = el('div');
  const round = el('p', { class: 'quiet', text: ' ' });
  place.replaceChildren(el('h2', { text: 'Moves, and why' }), round, list);
  let shown = '';
  const load = async () => {
    try {
      const page = await get('/v1/rebalance/decisions?limit=100');
      const last = page.last_round;
      const leads = page.token !== null;
      round.textContent = leads
        ? `This replica, ${page.replica}, decides (token ${page.token}). Last round ${ago(page.now_ms - last.at_ms)}: ${count(last.moves)} moves, ${count(last.refusals.length)} not possible, ${count(last.doubts)} numbers not believed.`
        : `Replica ${fabric.overview?.leader ?? '(none now)'} decides. What it was made from is there; what this replica has seen:`;
      const print = JSON.stringify(page.decisions.map((one) => [one.serial, one.outcome]));
      if (print === shown && leads) return;
      shown = print;
      const open = new Set([...list.querySelectorAll('details[open]')].map((one) => one.dataset.serial));
      if (page.decisions.length > 0) {
        list.replaceChildren(explained(page));
        list.querySelectorAll('details').forEach((one, at) => {
          one.dataset.serial = page.decisions[at].serial;
          one.open = open.has(one.dataset.serial);
        });
      } else {
        const seen = fabric.events.filter((event) => event.kind === 'connection-moved').slice(-100).reverse();
        list.replaceChildren(seen.length === 0 ? el('p', { class: 'quiet', text: 'Nothing has moved.' })
          : table('Moves seen', [['Time', ''], ['What', ''], ['Why', '']], seen.map((event) => [clock(event.date_ms), event.text, event.why ?? 'no order: its application, or its peer'])));
      }
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
      round.textContent = error.message;
    }
  };
  load();
  const timer = setInterval(load, 2_000);
  return () => clearInterval(timer);
}
