// Numbers as operators say them: Gb/s, percent, QP numbers in hexadecimal, times of day.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const collator = new Intl.Collator('en', { numeric: true });

/** 12345 as 12,345. */
export const count = (number) => whole.format(number);

/** Names in the order of people: node2 before node10. */
export const natural = (a, b) => collator.compare(a, b);

/** Bits a second. */
export function rate(bps) {
  if (!Number.isFinite(bps)) return '–';
  if (bps >= 1e12) return `${(bps / 1e12).toFixed(2)} Tb/s`;
  if (bps >= 1e9) return `${(bps / 1e9).toFixed(bps >= 1e11 ? 0 : bps >= 1e10 ? 1 : 2)} Gb/s`;
  if (bps >= 1e6) return `${(bps / 1e6).toFixed(bps >= 1e8 ? 0 : 1)} Mb/s`;
  return bps > 0 ? `${(bps / 1e3).toFixed(1)} kb/s` : '0 Gb/s';
}

/** A share of a port in Gb/s, without the unit: what stands in columns. */
export function gbps(permille, rateMbps) {
  if (permille < 0 || rateMbps === 0) return '–';
  const value = (permille * rateMbps) / 1e6;
  return value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

/** Thousandths as percent. */
export const percent = (permille) => (permille < 0 ? '–' : `${(permille / 10).toFixed(permille >= 100 || permille === 0 ? 0 : 1)} %`);

/** A port's speed. Ports of software NICs may have none. */
export const speed = (mbps) => (mbps === 0 ? 'unknown' : mbps >= 1000 ? `${+(mbps / 1000).toFixed(1)} Gb/s` : `${mbps} Mb/s`);

/** A QP number. */
export const qp = (number) => `0x${number.toString(16).padStart(6, '0')}`;

/** Bytes. */
export function bytes(number) {
  for (const [size, name] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']]) {
    if (number >= size) return `${+(number / size).toFixed(1)} ${name}`;
  }
  return `${number} B`;
}

/** Time of day. */
export function clock(dateMs) {
  const date = new Date(dateMs);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, '0')).join(':');
}

/** How long ago. */
export function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ago` : `${Math.floor(seconds / 3600)} h ago`;
}

/** Step of the heat scale, 0 to 9; `u`: unknown. */
export const heat = (permille) => (permille < 0 ? 'u' : String(Math.min(9, Math.floor(permille / 100))));

/** A connection's name. */
export const named = (id) => `${id.origin} ${id.serial}`;
