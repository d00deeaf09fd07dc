// The page: head, summary, view by address, foot. Each view is a function that draws into a place and gives what takes it down again.

import { connection, connections } from './connections.js';
import { controls } from './controls.js';
import { el, write } from './html.js';
import { events } from './events.js';
import { fabric } from './fabric.js';
import { moves } from './moves.js';
import { node } from './node.js';
import { tenants } from './tenants.js';
import { timeline } from './timeline.js';
import { topology } from './topology.js';
import { count, rate } from './units.js';

const view = document.getElementById('view');
let takeDown = () => {};

function route() {
  const [path, query = ''] = (location.hash.slice(1) || '/').split('?');
  const parameters = new URLSearchParams(query);
  takeDown();
  view.scrollTop = 0;
  const parts = path.split('/').slice(1);
  const draw = {
    connections: () => connections(view, parameters), connection: () => connection(view, parameters), moves: () => moves(view), tenants: () => tenants(view), events: () => events(view),
    node: () => node(view, decodeURIComponent(parts[1] ?? '')),
  }[parts[0]] ?? (() => topology(view));
  takeDown = draw() ?? (() => {});
  const here = `#/${{ node: '', connection: 'connections' }[parts[0]] ?? parts[0]}`;
  for (const link of document.querySelectorAll('#views a')) {
    if (link.getAttribute('href') === here) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
}

/** Tiles of the head: name, value, whether it deserves a look. */
const TILES = [
  ['Nodes', (all) => [count(all.nodes)]],
  ['Ports up', (all) => [`${count(all.up)} of ${count(all.ports)}`]],
  ['Hot', (all) => [count(all.hot), all.hot > 0]],
  ['Down', (all) => [count(all.down), all.down > 0]],
  ['Connections', (all) => [count(Math.round(all.ends / 2)), false, `${count(all.ends)} QPs in the directory`]],
  ['Moves / min', (all) => [count(all.moves_per_minute)]],
  ['Sent', (all) => [rate(all.tx_bps)]],
  ['Store', (_, { store }) => [`${store.kind}, ${store.health.replace('-', ' ')}`, store.health !== 'in-sync', store.reason]],
  ['Leader', (_, { leader, replicas }) => [leader ?? 'none', !leader, `${replicas.length} replicas: ${replicas.map((one) => one.name).join(', ')}`]],
  ['Moves are', (_, { rebalance: { freeze, dry_run: dry } }) => {
    const text = { no: 'free', optional: 'frozen, but what must', all: 'frozen' }[freeze];
    return [dry ? `${text}, dry run` : text, freeze !== 'no' || dry];
  }],
];

function summary(place) {
  const tiles = TILES.map(([name]) => el('div', { class: 'tile' }, el('span', { class: 'quiet', text: name }), el('strong', { text: '–' })));
  place.replaceChildren(...tiles);
  const show = () => {
    const { overview, shown } = fabric;
    if (!overview || !shown) return;
    TILES.forEach(([, of], at) => {
      const [text, look, title] = of(shown.summary, overview);
      write(tiles[at].lastChild, text);
      tiles[at].classList.toggle('look', Boolean(look));
      tiles[at].title = title ?? '';
    });
  };
  fabric.addEventListener('overview', show);
  fabric.addEventListener('second', show);
}

function link(place) {
  const show = () => {
    const text = { connecting: 'connecting', live: 'live', away: 'control does not answer' }[fabric.state];
    write(place, text);
    place.className = fabric.state;
  };
  fabric.addEventListener('state', show);
  show();
}

function jump(form) {
  const input = form.elements[0];
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!text) return;
    location.hash = fabric.byName.has(text) ? `#/node/${encodeURIComponent(text)}` : /^(0x[0-9a-f]+|\d+)$/i.test(text) ? `#/connections?qp_num=${text}` : `#/connections?node=${encodeURIComponent(text)}`;
    input.value = '';
    view.focus();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === '/' && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? '')) {
      event.preventDefault();
      input.focus();
    }
  });
  const names = document.getElementById('node-names');
  fabric.addEventListener('layout', () => names.replaceChildren(...fabric.nodes.map((one) => el('option', { value: one.name }))));
}

summary(document.getElementById('summary'));
controls(document.getElementById('controls'));
link(document.getElementById('link'));
jump(document.getElementById('jump'));
timeline(document.getElementById('time'));
window.addEventListener('hashchange', route);
route();
fabric.start();
