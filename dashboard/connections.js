// Connections: looked up by control, a page at a time, however many there are; and one connection with its moves and their why.

import { el, row, table } from './html.js';
import { fabric } from './fabric.js';
import { Failed, get } from './link.js';
import { explained } from './moves.js';
import { clock, count, named, natural, qp, rate } from './units.js';

// A record counts its states: connecting, up, and two for each move or rebuild.
const moves = (one) => Math.max(0, Math.floor((one.generation - 1) / 2));

export const COLUMNS = [
  ['Node', '', 'The end of the connection that is told of'], ['QP', 'num', 'Local QP number'], ['Peer QP', 'num'], ['Tenant', ''], ['Service', ''],
  ['Port', '', 'Port of the path in use'], ['State', ''], ['▲ sent', 'num', 'Of the 64 busiest connections of each node'], ['▼ received', 'num'],
  ['Moves', 'num', 'Moves and rebuilds since it was made'], ['Connection', ''],
];

/** The page of a connection. */
export const address = (one) => `#/connection?${new URLSearchParams({ node: one.node, process: one.process, origin: one.id.origin, serial: one.id.serial })}`;

/** A connection as a row. */
export function cells(one) {
  return [
    el('a', { href: `#/node/${encodeURIComponent(one.node)}`, text: one.node }), qp(one.qp_num), qp(one.peer_qp_num), one.tenant || '–', one.service || '–',
    `${one.path.device}/${one.path.port_num}`, el('span', { class: `state-${one.state}`, text: one.state }),
    one.load ? rate(one.load.tx_bps) : '–', one.load ? rate(one.load.rx_bps) : '–', count(moves(one)),
    el('a', { href: address(one), text: named(one.id) }),
  ];
}

/** Rows that are fetched page by page: `query` gives the parameters. */
export function pages(query, size = 50) {
  const box = el('div', { class: 'pages' });
  const back = el('button', { type: 'button', class: 'plain', text: '‹ Before', disabled: true });
  const next = el('button', { type: 'button', class: 'plain', text: 'Next ›', disabled: true });
  const where = el('span', { class: 'quiet', role: 'status' });
  const grid = table('Connections', COLUMNS, []);
  const body = grid.querySelector('tbody');
  let starts = [''];
  let after = null;
  let run = 0;
  const load = async () => {
    run += 1;
    const mine = run;
    const parameters = query();
    parameters.set('limit', size);
    if (starts.at(-1)) parameters.set('after', starts.at(-1));
    try {
      const page = await get(`/v1/connections?${parameters}`);
      if (mine !== run) return;
      after = page.next;
      body.replaceChildren(...page.connections.map((one) => row(COLUMNS, cells(one))));
      const first = (starts.length - 1) * size + 1;
      const shown = page.connections.length;
      where.textContent = shown === 0 ? 'No connection fits.' : `${count(first)} to ${count(first + shown - 1)}${after ? ', and more' : ', the last'}`;
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
      after = null;
      body.replaceChildren();
      where.textContent = error.message;
    }
    back.disabled = starts.length === 1;
    next.disabled = !after;
  };
  back.addEventListener('click', () => { starts.pop(); load(); });
  next.addEventListener('click', () => { starts.push(after); load(); });
  box.append(grid, el('p', { class: 'line' }, back, next, where));
  return { element: box, load, begin: () => { starts = ['']; return load(); } };
}

/** The view of all. */
export function connections(place, parameters) {
  const field = (name, title, hint) => el('label', {}, title, el('input', { name, placeholder: hint, autocomplete: 'off', list: name === 'node' ? 'node-names' : null, value: parameters.get(name) ?? '' }));
  const form = el('form', { class: 'filter' },
    field('node', 'Node', 'any'), field('qp_num', 'QP', '0x1a2b or 6699'), field('tenant', 'Tenant', 'any'), field('service', 'Service', 'any'),
    field('device', 'Device', 'any'), field('port_num', 'Port', '1'), el('button', { type: 'submit', text: 'Look up' }));
  const wanted = () => {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value.trim()) query.set(name, value.trim());
    return query;
  };
  const list = pages(wanted);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    history.replaceState(null, '', `#/connections?${wanted()}`);
    list.begin();
  });
  place.replaceChildren(el('h2', { text: 'Connections' }), form, list.element);
  list.begin();
  const timer = setInterval(list.load, 5_000);
  return () => clearInterval(timer);
}

/** The view of one. */
export function connection(place, parameters) {
  const id = { origin: parameters.get('origin') ?? '', serial: parameters.get('serial') ?? '0' };
  const facts = el('dl', { class: 'facts' });
  const ways = el('div');
  const why = el('div');
  const seen = el('div');
  place.replaceChildren(el('h2', { text: `Connection ${id.origin} ${id.serial}` }), facts, el('h3', { text: 'Paths' }), ways, el('h3', { text: 'Why it moved' }), why, el('h3', { text: 'What happened to it' }), seen);
  const load = async () => {
    const about = new URLSearchParams({ origin: id.origin, serial: id.serial });
    try {
      const [found, decided, events] = await Promise.all([
        get(`/v1/connections?${new URLSearchParams({ ...Object.fromEntries(about), node: parameters.get('node') ?? '' })}`),
        get(`/v1/rebalance/decisions?${about}`), get(`/v1/events/recent?${about}`)]);
      const one = found.connections.find((end) => end.process === parameters.get('process')) ?? found.connections[0];
      if (!one) facts.replaceChildren(el('p', { text: 'It is not in the directory: it was closed, or its node is gone.' }));
      else {
        const fact = (name, value) => [el('dt', { text: name }), el('dd', {}, value)];
        facts.replaceChildren(...[
          fact('Node', el('a', { href: `#/node/${encodeURIComponent(one.node)}`, text: one.node })), fact('Process', one.process), fact('State', one.state), fact('QP', qp(one.qp_num)), fact('Peer’s QP', qp(one.peer_qp_num)),
          fact('Tenant', one.tenant || '–'), fact('Service', one.service || '–'), fact('Moves', count(moves(one))),
          fact('Sent', one.load ? rate(one.load.tx_bps) : 'not among the 64 busiest of its node'), fact('Received', one.load ? rate(one.load.rx_bps) : '–'),
          fact('Sent again', one.load ? `${(one.load.retransmit_ratio * 100).toFixed(2)} % of packets` : '–')].flat());
        const path = (way, use) => [use, `${way.device}/${way.port_num}`, String(way.sgid), String(way.dgid), String(way.flow_label), String(way.dscp)];
        const others = one.alternatives.filter((way) => JSON.stringify(way) !== JSON.stringify(one.path)).sort((a, b) => natural(a.device, b.device));
        ways.replaceChildren(table('Paths', [['', ''], ['Port', ''], ['Local GID', ''], ['Remote GID', ''], ['Flow label', 'num'], ['DSCP', 'num']], [path(one.path, 'in use'), ...others.map((way) => path(way, 'other'))]));
      }
      why.replaceChildren(decided.decisions.length ? explained(decided) : el('p', { class: 'quiet', text: `Replica ${decided.replica} has decided nothing about it. What another replica decided is at that replica.` }));
      seen.replaceChildren(events.events.length ? el('ul', { class: 'plain-list' }, events.events.map((event) => el('li', {}, el('time', { text: clock(event.date_ms) }), ` ${event.text}`, event.why ? el('span', { class: 'why', text: ` — ${event.why}` }) : null))) : el('p', { class: 'quiet', text: 'Nothing that is still remembered.' }));
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
      facts.replaceChildren(el('p', { text: error.message }));
    }
  };
  load();
  const listen = new AbortController();
  fabric.addEventListener('event', ({ detail }) => {
    if (detail.connection?.origin === id.origin && String(detail.connection.serial) === id.serial) load();
  }, { signal: listen.signal });
  const timer = setInterval(load, 3_000);
  return () => { clearInterval(timer); listen.abort(); };
}
