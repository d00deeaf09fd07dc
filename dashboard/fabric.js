// What the page knows of the fabric: nodes and ports from /v1/overview, the newest second and the events from the stream, and the moment that is looked at. Views
// listen; nothing here touches the page.

import { Failed, follow, get } from './link.js';
import { natural } from './units.js';

const KEPT = 10_000;

export const UP = 1;
export const HOT = 2;
export const DRAINED = 4;

export const fabric = new (class extends EventTarget {
  overview = null;
  /** Nodes in the order of people: { name, version, replica, ports: [port], switches: [name] }. */
  nodes = [];
  byName = new Map();
  /** Ports in the order of the columns. */
  ports = [];
  /** The newest second. */
  second = null;
  /** The past second that is looked at, in today's order of ports; null: now. */
  past = null;
  /** The newest last. */
  events = [];
  state = 'connecting';
  /** How often somebody looked elsewhere: an answer that comes late is for nobody. */
  looks = 0;
  /** Milliseconds to add to control's clock for the date. */
  dateOffset = 0;

  /** What is shown: the moment that is looked at, or now. */
  get shown() {
    return this.past ?? this.second;
  }

  /** The date of a time of control's clock. */
  date(atMs) {
    return atMs + this.dateOffset;
  }

  /** Control's clock now. */
  get now() {
    return Date.now() - this.dateOffset;
  }

  tell(what, detail) {
    this.dispatchEvent(new CustomEvent(what, { detail }));
  }

  /** Loads and utilisation of a port of what is shown. */
  of(port) {
    const second = this.shown;
    if (!second || port.at >= second.tx.length) return { tx: -1, rx: -1, flags: 0, connections: 0 };
    return { tx: second.tx[port.at], rx: second.rx[port.at], flags: second.flags[port.at], connections: second.connections[port.at] };
  }

  start() {
    follow((kind, data) => this.hear(kind, data), (state) => {
      this.state = state;
      this.tell('state');
      if (state === 'live') this.load();
    });
  }

  /** Reads the overview anew, one at a time; `again` if it was asked for meanwhile. */
  async load() {
    if (this.loading) {
      this.again = true;
      return;
    }
    this.loading = true;
    try {
      do {
        this.again = false;
        this.take(await get('/v1/overview'));
      } while (this.again);
    } catch (error) {
      if (!(error instanceof Failed)) console.error(error);
    } finally {
      this.loading = false;
    }
  }

  take(overview) {
    const changed = overview.layout !== this.overview?.layout;
    this.overview = overview;
    this.dateOffset = overview.date_ms - overview.now_ms;
    if (changed) {
      this.ports = [];
      this.nodes = overview.nodes.map((node) => {
        const ports = node.ports.map((port) => {
          const named = { ...port, node: node.node, name: `${port.device}/${port.port_num}`, at: this.ports.length };
          this.ports.push(named);
          return named;
        });
        const switches = [...new Set(ports.map((port) => port.switch).filter(Boolean))].sort(natural);
        return { name: node.node, version: node.version, replica: node.replica, ports, switches };
      });
      this.nodes.sort((a, b) => natural(a.name, b.name));
      this.byName = new Map(this.nodes.map((node) => [node.name, node]));
      if (this.past) this.look(this.past.at_ms).catch(() => { this.past = null; });
    }
    if (overview.second && (!this.second || overview.second.at_ms >= this.second.at_ms || changed)) this.second = overview.second;
    if (changed) this.tell('layout');
    this.tell('overview');
    this.tell('second');
  }

  hear(kind, data) {
    if (kind === 'second') {
      if (!this.overview) return;
      if (data.layout !== this.overview.layout) {
        this.load();
        return;
      }
      this.second = data;
      this.dateOffset = data.date_ms - data.at_ms;
      this.tell('second');
      return;
    }
    if (kind === 'gap') {
      // Another run of control counts its time anew.
      if (data.lost === null) {
        this.events = [];
        this.past = null;
        this.tell('restart');
      }
      this.load();
      return;
    }
    this.events.push(data);
    if (this.events.length > KEPT) this.events.splice(0, this.events.length - KEPT);
    this.tell('event', data);
    if (/^(node|settings|leader|store|replica)/.test(kind)) this.load();
  }

  /** Looks at a moment of the past; null: now again. */
  async look(atMs) {
    this.looks += 1;
    const mine = this.looks;
    if (atMs === null) {
      this.past = null;
    } else {
      const moment = await get(`/v1/timeline/moment?at_ms=${Math.round(atMs)}`);
      // Somebody looks elsewhere by now.
      if (mine !== this.looks) return;
      if (moment.layout !== this.overview.layout) {
        const places = new Map(moment.ports.map((name, at) => [name, at]));
        const at = this.ports.map((port) => places.get(`${port.node}/${port.name}`));
        const moved = (values, none) => at.map((place) => (place === undefined ? none : values[place]));
        Object.assign(moment, { tx: moved(moment.tx, -1), rx: moved(moment.rx, -1), flags: moved(moment.flags, 0), connections: moved(moment.connections, 0) });
      }
      this.past = moment;
    }
    this.tell('moment');
    this.tell('second');
  }
})();
