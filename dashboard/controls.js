// What asks and what changes: the token, freeze, dry run, drained ports. Every change is confirmed, names what it does, and is refused by control if somebody else has
// changed the settings since they were read.

import { el } from './html.js';
import { call, Failed } from './link.js';
import { fabric } from './fabric.js';

const dialog = () => document.getElementById('dialog');
let queue = Promise.resolve();

/** Shows a dialog and waits for what its form says; null: not done. One at a time. */
function ask(build) {
  const shown = queue.then(() => new Promise((resolve) => {
    const box = dialog();
    const { content, value } = build(box);
    box.replaceChildren(content);
    box.returnValue = '';
    box.addEventListener('close', () => resolve(box.returnValue === 'yes' ? value() : null), { once: true });
    box.showModal();
  }));
  queue = shown.catch(() => {});
  return shown;
}

const buttons = (yes) => el('menu', {},
  el('button', { type: 'button', class: 'plain', text: 'Cancel', on: { click: () => dialog().close('') } }),
  el('button', { type: 'submit', value: 'yes', text: yes }));

/** Asks for the token until there is one. */
export async function askToken(wrong) {
  for (;;) {
    const token = await ask(() => {
      const input = el('input', { type: 'password', id: 'token', autocomplete: 'off', required: true, minlength: 16 });
      const content = el('form', { method: 'dialog' },
        el('h2', { text: 'Who are you?' }),
        el('p', { text: wrong ? 'Control did not take that token.' : 'This control asks for its token: the text of its token_file.' }),
        el('label', { for: 'token', text: 'Token' }), input,
        el('p', { class: 'quiet', text: 'It is kept for this tab only, and forgotten when the tab is closed.' }),
        buttons('Enter'));
      return { content, value: () => input.value.trim() };
    });
    if (token) return token;
    wrong = false;
  }
}

/** Asks whether to do something. */
function confirm(title, text, yes) {
  return ask(() => ({
    content: el('form', { method: 'dialog' }, el('h2', { text: title }), text.map((line) => el('p', { text: line })), buttons(yes)),
    value: () => true,
  }));
}

/** A sentence for a while. */
export function notice(text, good = false) {
  const box = document.getElementById('notice');
  box.textContent = text;
  box.className = good ? 'good' : '';
  box.hidden = false;
  clearTimeout(notice.timer);
  notice.timer = setTimeout(() => { box.hidden = true; }, 10_000);
}

/** Changes the settings of rebalancing: reads, lets `edit` change, writes if nobody else has. */
async function change(edit, said) {
  try {
    const { body, headers } = await call('/v1/rebalance');
    edit(body);
    await call('/v1/rebalance', {
      method: 'PUT',
      headers: { 'Content-Type': 'application/json', 'If-Match': headers.get('etag') },
      body: JSON.stringify(body),
    });
    notice(said, true);
    await fabric.load();
  } catch (error) {
    notice(error instanceof Failed ? `Not done: ${error.message}` : String(error));
  }
}

const FREEZE = {
  no: ['Nothing is frozen', ['Connections leave hot ports again by themselves.']],
  optional: ['Freeze what can wait', ['Connections no longer leave hot or lossy ports.', 'They still leave ports that are down or drained, and the moves that you wish are made.']],
  all: ['Freeze everything', ['Control orders no move at all, not even off ports that are down.', 'Connections still leave a port that fails by themselves.']],
};

/** The buttons of the head. */
export function controls(place) {
  const freeze = el('select', { 'aria-label': 'Freeze', title: 'What control may move' },
    el('option', { value: 'no', text: 'Moves: free' }), el('option', { value: 'optional', text: 'Frozen: what can wait' }), el('option', { value: 'all', text: 'Frozen: everything' }));
  const dry = el('button', { type: 'button', class: 'toggle', 'aria-pressed': 'false', text: 'Dry run', title: 'Decide and explain, order nothing' });
  freeze.addEventListener('change', async () => {
    const wanted = freeze.value;
    const [title, text] = FREEZE[wanted];
    show();
    if (await confirm(title, text, 'Do it')) await change((settings) => { settings.freeze = wanted; }, `${title}: it holds within two seconds.`);
  });
  dry.addEventListener('click', async () => {
    const on = !fabric.overview?.rebalance.dry_run;
    const text = on ? 'Control goes on deciding and explaining, and orders nothing. What it would do is under Moves.' : 'Control orders what it decides.';
    if (await confirm(on ? 'Begin a dry run' : 'End the dry run', [text], 'Do it')) await change((settings) => { settings.dry_run = on; }, `Dry run ${on ? 'on' : 'off'}.`);
  });
  const show = () => {
    const settings = fabric.overview?.rebalance;
    const able = fabric.state === 'live' && Boolean(settings);
    freeze.disabled = !able;
    dry.disabled = !able;
    if (!settings) return;
    freeze.value = settings.freeze;
    freeze.classList.toggle('set', settings.freeze !== 'no');
    dry.setAttribute('aria-pressed', String(settings.dry_run));
  };
  place.replaceChildren(freeze, dry);
  fabric.addEventListener('overview', show);
  fabric.addEventListener('state', show);
  show();
}

const same = (a, b) => a.node === b.node && a.device === b.device && a.port_num === b.port_num;

/** Whether the operator wants a port empty. */
export const isDrained = (port) => Boolean(fabric.overview?.rebalance.drained.some((one) => same(one, port)));

/** Drains a port, or lets it be used again. */
export async function drain(port) {
  const on = !isDrained(port);
  const name = `${port.node}/${port.name}`;
  const text = on
    ? [`All connections are ordered off ${name}, where they have another path; none comes to it.`, 'Data goes on flowing. It stays so until you let the port be used again.']
    : [`Connections may come to ${name} again.`];
  if (!await confirm(on ? `Drain ${name}` : `Use ${name} again`, text, on ? 'Drain it' : 'Use it')) return;
  await change((settings) => {
    settings.drained = settings.drained.filter((one) => !same(one, port));
    if (on) settings.drained.push({ node: port.node, device: port.device, port_num: port.port_num });
  }, on ? `${name} is being drained.` : `${name} may be used again.`);
}
