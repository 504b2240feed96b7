import { BlockList, isIP } from 'node:net';

/** Finds whose request it is behind trusted proxies: the last address in the chain that is not one of them. */
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
      if (!isIP(hop)) break; // Whatever a proxy did not write is not believed.
      address = hop;
    }
    return address;
  };
}

/** An IPv4 address that arrived on an IPv6 socket is the IPv4 address. */
function plain(address: string): string {
  return address.startsWith('::ffff:') ? address.slice('::ffff:'.length) : address;
}
