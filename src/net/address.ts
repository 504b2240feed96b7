import { BlockList, isIP } from 'node:net';

/**
 * Returns a function that finds the client's address behind trusted proxies: the last address in the chain of X-Forwarded-For
 * that is not one of them.
 */
export function createAddressReader(
  trustedProxies: readonly string[],
): (peer: string | undefined, forwarded: string | undefined) => string {
  const trusted = new BlockList();
  for (const proxy of trustedProxies) {
    const [ip, bits] = proxy.split('/') as [string, string | undefined];
    const family = isIP(ip) === 6 ? 'ipv6' : 'ipv4';
    if (bits === undefined) trusted.addAddress(ip, family);
    else trusted.addSubnet(ip, Number(bits), family);
  }
  const isTrusted = (ip: string) => isIP(ip) !== 0 && trusted.check(ip, isIP(ip) === 6 ? 'ipv6' : 'ipv4');

  return (peer, forwarded) => {
    let address = plain(peer ?? 'unknown');
    if (!forwarded || !isTrusted(address)) return address;
    const hops = forwarded.split(',').map((hop) => plain(hop.trim()));
    while (hops.length && isTrusted(address)) {
      const hop = hops.pop() as string;
      if (!isIP(hop)) break; // Not written by a trusted proxy.
      address = hop;
    }
    return address;
  };
}

/** Returns the IPv4 address of an IPv4-mapped IPv6 address; any other address unchanged. */
function plain(address: string): string {
  return address.startsWith('::ffff:') ? address.slice('::ffff:'.length) : address;
}

/**
 * Returns the network whose connections and failures are counted together: an IPv4 address, or the /64 of an IPv6 address,
 * which is the smallest block that a site gets (RFC 6177).
 */
export function networkOf(address: string | undefined): string {
  const ip = plain(address ?? 'unknown');
  if (isIP(ip) !== 6) return ip;
  const [before = '', after] = ip.split('::', 2) as [string, string?];
  const head = before.split(':').filter(Boolean);
  const tail = after?.split(':').filter(Boolean) ?? [];
  const isShort = after !== undefined;
  const groups = isShort ? [...head, ...Array(Math.max(0, 8 - head.length - tail.length)).fill('0'), ...tail] : head;
  return `${groups
    .slice(0, 4)
    .map((it) => Number.parseInt(it, 16).toString(16))
    .join(':')}::/64`;
}
