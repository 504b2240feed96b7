/**
 * Returns the name under which passkeys of the page at this origin are kept; undefined where browsers make none: they do
 * over TLS under a name, and on `localhost`.
 */
export function relyingPartyOf(origin: string): string | undefined {
  const { protocol, hostname } = new URL(origin);
  if (hostname === 'localhost') return hostname;
  const isAddress = hostname.startsWith('[') || /^[\d.]+$/.test(hostname);
  return protocol === 'https:' && !isAddress ? hostname : undefined;
}
