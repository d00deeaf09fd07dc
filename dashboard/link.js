// Calls to control, and the stream of what happens. The token, if control asks for one, is kept for this tab only (sessionStorage) and sent as a header.

import { askToken } from './controls.js';

const TOKEN = 'scalefabric-token';
/** Without a byte for so long a stream is dead: one comes each second. */
const SILENCE_MS = 15_000;

/** Why a call failed. */
export class Failed extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

let asking = null;

async function entered(path, options) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    const response = await fetch(path, { ...options, headers, cache: 'no-store', credentials: 'same-origin' });
    if (response.status !== 401) return response;
    // All that wait are let in by one answer. A token that another call has just brought is tried first.
    if (sessionStorage.getItem(TOKEN) === token) {
      asking ??= askToken(token !== null).finally(() => { asking = null; });
      sessionStorage.setItem(TOKEN, await asking);
    }
  }
}

/** Calls; gives the JSON and the headers. */
export async function call(path, options = {}) {
  let response;
  try {
    response = await entered(path, options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Failed(0, 'control does not answer');
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Failed(response.status, body?.detail ?? `control answered ${response.status}`);
  return { body, headers: response.headers };
}

/** The JSON of a call. */
export const get = async (path, options) => (await call(path, options)).body;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Follows the stream for ever: `hear(kind, data, id)` for each event, `state(text)` when it comes or breaks off. */
export async function follow(hear, state) {
  let last = null;
  let wait = 500;
  for (;;) {
    const controller = new AbortController();
    let watchdog = 0;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => controller.abort(), SILENCE_MS);
    };
    try {
      alive();
      const headers = last === null ? {} : { 'Last-Event-ID': last };
      const response = await entered('/v1/events?seconds=true&recent=2000', { headers, signal: controller.signal });
      if (!response.ok) throw new Failed(response.status, `control answered ${response.status}`);
      state('live');
      wait = 500;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        alive();
        const blocks = (rest + value).split('\n\n');
        rest = blocks.pop();
        for (const block of blocks) last = one(block, hear) ?? last;
      }
    } catch (error) {
      if (!(error instanceof Failed) && !(error instanceof TypeError) && error.name !== 'AbortError') console.error(error);
    } finally {
      clearTimeout(watchdog);
    }
    state('away');
    await pause(wait);
    wait = Math.min(wait * 2, 8_000);
  }
}

/** One event; gives its id. */
function one(block, hear) {
  let kind = 'message';
  let id = null;
  const data = [];
  for (const line of block.split('\n')) {
    const at = line.indexOf(':');
    if (at <= 0) continue;
    const value = line.slice(at + 1).replace(/^ /, '');
    const field = line.slice(0, at);
    if (field === 'event') kind = value;
    else if (field === 'id') id = value;
    else if (field === 'data') data.push(value);
  }
  if (data.length > 0) hear(kind, JSON.parse(data.join('\n')), id);
  return id;
}
