import {
  type IpAddress,
  type IpNetwork,
  isPublic,
  isPublicNetwork,
  isWithin,
  liesIn,
  parseAddress,
  parseNetwork,
} from './addresses.ts';

/** A list of what a lease may reach: `public`, names, and addresses or networks, each with ports. */

/** An entry, of every public address, of one name, of all names below one, or of a network. */
export type ListEntry = { ports: readonly number[] } & (
  | { kind: 'public' }
  | { kind: 'name' | 'below'; name: string }
  | { kind: 'network'; network: IpNetwork }
);
export type List = readonly ListEntry[];

/** The target of a connection. */
type Host = { kind: 'name'; name: string } | { kind: 'address'; address: IpAddress };
export type Target = { host: Host; port: number };

/** The proxy's port on loopback inside each lease, beyond those that systems hand out by themselves. */
export const EGRESS_PORT = 63_541;
const USUAL_PORTS = [80, 443];
const NAME_LENGTH_MAX = 253;
/** Labels of letters, digits, `-` and `_`. The last one begins with a letter: other programs read the rest as numbers. */
const NAME = /^(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?$/;

/** Reads a port: 1 to 65535, without zeros before it. */
export function parsePort(text: string): number | undefined {
  return /^[1-9]\d{0,4}$/.test(text) && Number(text) <= 65_535 ? Number(text) : undefined;
}

/** Returns a name in lower case; undefined for what is no name of a host, such as one with a dot at its end. */
function parseName(text: string): string | undefined {
  const name = text.toLowerCase();
  return text.length <= NAME_LENGTH_MAX && NAME.test(name) ? name : undefined;
}

/** Reads the host of a request: a name, an IPv4 address, or an IPv6 address in brackets. */
export function parseHost(text: string): Host | undefined {
  const inBrackets = /^\[([0-9A-Fa-f:.]+)\]$/.exec(text)?.[1];
  const address = parseAddress(inBrackets ?? text);
  if (address && (inBrackets === undefined) !== text.includes(':')) return { kind: 'address', address };
  const name = parseName(text);
  return name === undefined ? undefined : { kind: 'name', name };
}

const SHAPES =
  'is no entry: write `public`, a name (pypi.org), all names below one (*.debian.org), or an address or a network (10.0.5.0/24, [fd00::/8]), each with :PORT unless it is for 80 and 443';

/** Reads an entry. An entry without a port is for the ports 80 and 443. Returns its fault where it is none. */
export function parseEntry(text: string): ListEntry | { fault: string } {
  const shown = JSON.stringify(text.slice(0, 80));
  const bare = (text.match(/:/g) ?? []).length > 1 && !text.startsWith('['); // IPv6 without a port.
  const [, inBrackets, plain, port] =
    (bare ? [0, undefined, text] : /^(?:\[([^\]]+)\]|([^:]+))(?::(.*))?$/.exec(text)) ?? [];
  const what = (inBrackets ?? plain ?? '') as string;
  const number = port === undefined ? undefined : parsePort(port as string);
  if (port !== undefined && number === undefined)
    return { fault: `${shown} has no port from 1 to 65535 after its colon` };
  const ports = number === undefined ? USUAL_PORTS : [number];
  if (inBrackets === undefined && what === 'public') return { kind: 'public', ports };
  const network = parseNetwork(what);
  if (network) return { kind: 'network', network, ports };
  if (/^[\d.]+\/\d+$/.test(what) || (what.includes(':') && what.includes('/')))
    return {
      fault: `${shown} is no network: its address must end in zeros where the network ends, such as 10.0.5.0/24`,
    };
  const isBelow = what.startsWith('*.');
  const name = inBrackets === undefined ? parseName(isBelow ? what.slice(2) : what) : undefined;
  if (name === undefined) return { fault: `${shown} ${SHAPES}` };
  return { kind: isBelow ? 'below' : 'name', name, ports };
}

/** Reads a list whose entries are known to be well-formed. */
export const parseList = (texts: readonly string[]): List =>
  texts.map((it) => {
    const entry = parseEntry(it);
    if ('fault' in entry) throw new Error(entry.fault);
    return entry;
  });

const isNameOf = (entry: ListEntry, name: string) =>
  (entry.kind === 'name' && entry.name === name) || (entry.kind === 'below' && name.endsWith(`.${entry.name}`));

/** Returns whether all that an entry stands for is in a list. */
export const covers = (list: List, entry: ListEntry): boolean =>
  entry.ports.every((port) => list.some((it) => it.ports.includes(port) && includes(it, entry)));

function includes(it: ListEntry, entry: ListEntry): boolean {
  if (entry.kind === 'network')
    return it.kind === 'network'
      ? isWithin(entry.network, it.network)
      : it.kind === 'public' && isPublicNetwork(entry.network);
  if (it.kind === 'public') return true;
  if (entry.kind === 'public' || it.kind === 'network') return false;
  const isSame = it.kind === entry.kind && it.name === entry.name;
  return isSame || (it.kind === 'below' && entry.name.endsWith(`.${it.name}`));
}

/** Returns whether a list lets a request for a target begin: a name in it may be looked up, and its addresses are checked then. */
export function admits(list: List, { host, port }: Target): boolean {
  return list.some((entry) => {
    if (!entry.ports.includes(port)) return false;
    if (host.kind === 'name') return entry.kind === 'public' || isNameOf(entry, host.name);
    if (entry.kind === 'network') return liesIn(host.address, entry.network);
    return entry.kind === 'public' && isPublic(host.address);
  });
}

/** Returns whether a list admits every public host at this port: then a name in TLS makes no difference. */
export const admitsPublic = (list: List, port: number): boolean =>
  list.some((it) => it.kind === 'public' && it.ports.includes(port));

/**
 * Returns whether a connection to an address may be made for an admitted target. A name opens public addresses alone, and none of
 * this machine's own (`isOwn`); a network in the list opens whatever is in it.
 */
export function opens(list: List, address: IpAddress, port: number, isOwn: (address: IpAddress) => boolean): boolean {
  const isListed = list.some((it) => it.kind === 'network' && it.ports.includes(port) && liesIn(address, it.network));
  return isListed || (isPublic(address) && !isOwn(address));
}
