// Tenants: what each has, and what it may have.

import { el, table } from './html.js';
import { Failed, get } from './link.js';
import { bytes, count, rate } from './units.js';

const COLUMNS = [
  ['Tenant', ''], ['P_Key', 'num'], ['QPs', 'num', 'Ends of connections in the directory'], ['of its quota', ''], ['▲ sent', 'num', 'Of the 64 busiest connections of each node'],
  ['Rate limit', 'num', 'Of each of its processes'], ['Memory regions', 'num', 'Quota'], ['Memory', 'num', 'Quota'], ['Services', ''], ['Nodes', ''],
];

function meter(has, may) {
  if (may === null || may === undefined) return el('span', { class: 'quiet', text: 'no limit' });
  const element = el('meter', { min: 0, max: Math.max(1, may), high: may * 0.9, value: has });
  return el('span', { class: 'use' }, element, ` ${may === 0 ? 'none allowed' : `${Math.round((has * 100) / may)} % of ${count(may)}`}`);
}

/** The view. */
export function tenants(place) {
  const list = el('div');
  place.replaceChildren(el('h2', { text: 'Tenants' }), list);
  const load = async () => {
    try {
      const { tenants: all, allow } = await get('/v1/tenants/use');
      const rows = all.map((one) => [
        one.name || el('span', { class: 'quiet', text: '(of none)' }), one.pkey ?? '–', count(one.ends), meter(one.ends, one.quota?.qps), rate(one.tx_bps),
        one.quota?.rate_bps ? rate(one.quota.rate_bps) : '–', one.quota?.mrs ? count(one.quota.mrs) : '–', one.quota?.memory_bytes ? bytes(one.quota.memory_bytes) : '–',
        one.services === null || one.services === undefined ? el('span', { class: 'quiet', text: 'no rules' }) : one.services.join(', ') || '–', one.nodes ? `${count(one.nodes.length)} nodes` : 'all']);
      const between = allow.map((one) => [one.from, one.to, one.services.join(', '), one.pkey]);
      list.replaceChildren(
        all.length ? table('Tenants', COLUMNS, rows) : el('p', { class: 'quiet', text: 'There are no tenants and no connections: without rules everybody may connect to everything.' }),
        between.length ? el('h3', { text: 'Leave between tenants' }) : '', between.length ? table('Leave between tenants', [['From', ''], ['To', ''], ['Services', ''], ['P_Key', 'num']], between) : '');
    } catch (error) {
      if (!(error instanceof Failed)) throw error;
      list.replaceChildren(el('p', { text: error.message }));
    }
  };
  load();
  const timer = setInterval(load, 5_000);
  return () => clearInterval(timer);
}
