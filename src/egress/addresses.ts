import { isIP } from 'node:net';

/** An IP address, or the first of a network. An IPv4 address in IPv6's notation is that IPv4 address. */
export type IpAddress = { family: 4 | 6; value: bigint };
/** The addresses whose first `bits` bits are those of `value`. */
export type IpNetwork = IpAddress & { bits: number };

const LENGTH = { 4: 32, 6: 128 } as const;
const GROUP_BITS = 16n;
const MAPPED = 0xffffn; // The bits of ::ffff:0:0/96 before the IPv4 address.

/** Reads an address in its usual notation; undefined for anything else, such as 127.1, 0x7f000001 or an address with a zone. */
export function parseAddress(text: string): IpAddress | undefined {
  const family = isIP(text);
  if (family === 4) return { family, value: valueOfFour(text) };
  if (family !== 6 || text.includes('%')) return undefined;
  const value = valueOfSix(text);
  if (value >> 32n === MAPPED) return { family: 4, value: value & 0xffffffffn };
  return { family: 6, value };
}

const valueOfFour = (text: string) => text.split('.').reduce((sum, part) => (sum << 8n) | BigInt(part), 0n);

function valueOfSix(text: string): bigint {
  const [before = '', after] = text.split('::', 2) as [string, string?];
  const groupsOf = (part: string) =>
    part.split(':').flatMap((it): bigint[] => {
      if (it === '') return [];
      if (!it.includes('.')) return [BigInt(`0x${it}`)];
      const four = valueOfFour(it);
      return [four >> GROUP_BITS, four & 0xffffn];
    });
  const [head, tail] = [groupsOf(before), groupsOf(after ?? '')];
  const missing = Array<bigint>(8 - head.length - tail.length).fill(0n);
  return [...head, ...missing, ...tail].reduce((sum, group) => (sum << GROUP_BITS) | group, 0n);
}

/** Reads `ADDRESS` or `ADDRESS/BITS`. Undefined for anything else, and where the address has bits beyond the network's. */
export function parseNetwork(text: string): IpNetwork | undefined {
  const [, address = '', digits] = /^([^/]+)(?:\/(\d{1,3}))?$/.exec(text) ?? [];
  const first = parseAddress(address);
  // The bits of a mapped network would be counted in IPv6's notation.
  if (!first || (first.family === 4 && address.includes(':'))) return undefined;
  const length = LENGTH[first.family];
  const bits = digits === undefined ? length : Number(digits);
  if (bits > length) return undefined;
  const network = { ...first, bits };
  return prefixOf(first, bits) << BigInt(length - bits) === first.value ? network : undefined;
}

const prefixOf = ({ family, value }: IpAddress, bits: number) => value >> BigInt(LENGTH[family] - bits);

/** Returns whether an address lies in `network`. */
export const liesIn = (it: IpAddress, network: IpNetwork): boolean =>
  it.family === network.family && prefixOf(it, network.bits) === prefixOf(network, network.bits);

/** Returns whether all addresses of a network lie in another. */
export const isWithin = (it: IpNetwork, other: IpNetwork): boolean => it.bits >= other.bits && liesIn(it, other);

/** IPv4's special-purpose addresses (IANA's registry, RFC 6890), multicast and what is reserved. */
const SPECIAL_4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
  '168.63.129.16', // The metadata address of Azure, among its public ones.
].map((it) => parseNetwork(it) as IpNetwork);
// Not by parseNetwork: each start would compile Node's regular expression for IPv6.
const network6 = (first: string, bits: number): IpNetwork => ({ family: 6, value: valueOfSix(first), bits });
/** IPv6's addresses in use, and those among them that stand for others (Teredo, 6to4) or for none. NAT64 lies outside. */
const GLOBAL_6 = network6('2000::', 3);
const SPECIAL_6 = [network6('2001::', 23), network6('2001:db8::', 32), network6('2002::', 16), network6('3fff::', 20)];

/** Returns whether an address belongs to the public Internet, as far as it shows. */
export function isPublic(it: IpAddress): boolean {
  if (it.family === 6 && !liesIn(it, GLOBAL_6)) return false;
  const special = it.family === 4 ? SPECIAL_4 : SPECIAL_6;
  return !special.some((other) => liesIn(it, other));
}

/** Returns whether all addresses of a network belong to the public Internet, as far as it shows. */
export const isPublicNetwork = (it: IpNetwork): boolean =>
  isPublic(it) && ![...SPECIAL_4, ...SPECIAL_6].some((other) => isWithin(other, it));
