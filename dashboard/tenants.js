// Tenants: what each has, and what it may have.

import { el, table } from './html.js';
import { Failed, get } from './link.js';
import { bytes, count, rate } from './units.js';

const TOGETHER = 'On all nodes together, as their agents tell';
const COLUMNS = [
  ['Tenant', ''], ['P_Key', 'num'], ['QPs', '', TOGETHER], ['Memory regions', '', TOGETHER], ['Memory', '', TOGETHER], ['Connection ends', 'num', 'In the directory'],
  ['▲ sent', 'num', 'Of the 64 busiest connections of each node'], ['Rate limit', 'num', 'Of each of its processes'], ['Services', ''], ['Nodes', ''],
];

/** What a tenant has, and how much of its quota that is. */
function meter(has, may, say) {
  if (may === null || may === undefined) return el('span', { class: 'use', text: say(has) });
  const element = el('meter', { min: 0, max: Math.max(1, may), high: may * 0.9, value: has });
  return el('span', { class: 'use' }, `${say(has)} `, element, ` ${may === 0 ? 'none allowed' : `${Math.round((has * 100) / may)} % of ${say(may)}`}`);
}

/** The view. */
export function tenants(place) {
  const list = el('div');
  place.replaceChildren(el('h2', { text: 'Tenants' }), list);
  const load = async () => {
    try {
      const { tenants: all, allow } = await get('/v1/tenants/use');
      const rows = all.map((one) => [
        one.name || el('span', { class: 'quiet', text: '(of none)' }), one.pkey ?? '–', meter(one.holds.qps, one.quota?.qps, count),
        meter(one.holds.mrs, one.quota?.mrs, count), meter(one.holds.memory_bytes, one.quota?.memory_bytes, bytes), count(one.ends),
        el('span', { class: 'use', text: rate(one.tx_bps) }), el('span', { class: 'use', text: one.quota?.rate_bps ? rate(one.quota.rate_bps) : '–' }),
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
