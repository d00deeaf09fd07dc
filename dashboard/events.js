// Events: what happened, the newest first, by kind and word.

import { el } from './html.js';
import { fabric } from './fabric.js';
import { clock } from './units.js';

const MOST = 500;

/** Kinds as people look for them, with the name of their colour. */
export const FAMILIES = [
  ['nodes', 'Nodes', /^(node|replica)-/, '--node'],
  ['ports', 'Ports', /^port-/, '--port'],
  ['moves', 'Moves', /^connection-/, '--move'],
  ['orders', 'Orders', /^order-/, '--order'],
  ['rules', 'Rules', /^(tenants|settings|keys|leader)-/, '--rule'],
  ['store', 'Store', /^store-/, '--hot'],
];

/** The family of a kind. */
export const family = (kind) => FAMILIES.find(([, , fits]) => fits.test(kind)) ?? FAMILIES[4];

function line(event) {
  const about = event.node ? el('a', { href: `#/node/${encodeURIComponent(event.node)}`, text: event.node }) : '';
  return el('tr', { class: `kind-${event.kind}` }, el('td', {}, el('time', { text: clock(event.date_ms) })),
    el('td', {}, el('span', { class: `tag family-${family(event.kind)[0]}`, text: event.kind.replace('-', ' ') })), el('td', {}, about),
    el('td', {}, event.text, event.why ? el('div', { class: 'why', text: event.why }) : null));
}

/** The view. */
export function events(place) {
  const word = el('input', { type: 'search', placeholder: 'Word, node, connection', 'aria-label': 'Only events with this word' });
  const boxes = FAMILIES.map(([name, title]) => el('label', { class: 'check' }, el('input', { type: 'checkbox', name, checked: true }), title));
  const shown = el('span', { class: 'quiet', role: 'status' });
  const body = el('tbody');
  const heads = ['Time', 'Kind', 'Node', 'What, and why'].map((text) => el('th', { scope: 'col', text }));
  const form = el('form', { class: 'filter' }, word, boxes, shown);
  place.replaceChildren(el('h2', { text: 'Events' }), form, el('div', { class: 'scroll' }, el('table', { class: 'events', 'aria-label': 'Events' }, el('thead', {}, el('tr', {}, heads)), body)));
  const fits = (event) => {
    if (!boxes[FAMILIES.indexOf(family(event.kind))].firstChild.checked) return false;
    const wanted = word.value.trim().toLowerCase();
    return !wanted || `${event.kind} ${event.text} ${event.why ?? ''} ${event.node ?? ''}`.toLowerCase().includes(wanted);
  };
  const tell = () => { shown.textContent = `${body.children.length} of ${fabric.events.length} that are kept here`; };
  const build = () => {
    const found = [];
    for (let at = fabric.events.length - 1; at >= 0 && found.length < MOST; at -= 1) if (fits(fabric.events[at])) found.push(line(fabric.events[at]));
    body.replaceChildren(...found);
    tell();
  };
  const listen = new AbortController();
  fabric.addEventListener('event', ({ detail }) => {
    if (!fits(detail)) return;
    body.prepend(line(detail));
    if (body.children.length > MOST) body.lastChild.remove();
    tell();
  }, { signal: listen.signal });
  fabric.addEventListener('restart', build, { signal: listen.signal });
  form.addEventListener('input', build);
  form.addEventListener('submit', (event) => event.preventDefault());
  build();
  return () => listen.abort();
}
