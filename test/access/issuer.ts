import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { type CryptoKey, exportJWK, generateKeyPair, type JWK, SignJWT } from 'jose';

/** A key of an issuer: its private half signs, its public half is published. */
export type Key = { kid: string; alg: string; privateKey: CryptoKey; jwk: JWK };

export async function newKey(kid: string, alg = 'RS256'): Promise<Key> {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true });
  return { kid, alg, privateKey, jwk: { ...(await exportJWK(publicKey)), kid, alg, use: 'sig' } };
}

/** The first key of every issuer in a test file: an RSA key takes a tenth of a second to find. */
let first: Promise<Key> | undefined;
async function firstKey(): Promise<Key> {
  first ??= newKey('one');
  const key = await first;
  return { ...key, jwk: { ...key.jwk } };
}

/** An issuer in a test's hand: it publishes what it is told to, breaks when it is told to, and counts who asks. */
export type FakeIssuer = {
  url: string;
  keys: Key[];
  /** Replaces members of the discovery document. */
  discovery: Record<string, unknown>;
  /** Undefined answers as it should. */
  broken: 'down' | 'slow' | '500' | 'garbage' | undefined;
  asked: { discovery: number; keys: number };
  /** What it answers at further paths, such as its token endpoint. */
  answers: Record<string, () => Promise<object>>;
  /** An access token as most issuers shape it; undefined takes a claim out. */
  token(claims?: Record<string, unknown>, header?: Record<string, unknown>, key?: Key): Promise<string>;
};

export const AUDIENCE = 'purser';

/** `now` is Unix seconds. */
export async function openIssuer(t: Pick<TestContext, 'after'>, now: () => number): Promise<FakeIssuer> {
  // Long enough that no connection is closed just when it is reused, even if the test's process is busy.
  const server = http.createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
    const answer = issuer.answers[request.url as string];
    if (answer) return void answer().then((body) => response.end(JSON.stringify(body)));
    const isDiscovery = request.url === '/.well-known/openid-configuration';
    issuer.asked[isDiscovery ? 'discovery' : 'keys']++;
    if (issuer.broken === 'down') return request.socket.destroy();
    if (issuer.broken === 'slow') return;
    if (issuer.broken === '500') return response.writeHead(500).end('no');
    if (issuer.broken === 'garbage') return response.end('<html>maintenance</html>');
    const body = isDiscovery
      ? { issuer: issuer.url, jwks_uri: `${issuer.url}/jwks`, ...issuer.discovery }
      : { keys: issuer.keys.map((it) => it.jwk) };
    response.setHeader('content-type', 'application/json');
    return response.end(JSON.stringify(body));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const issuer: FakeIssuer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    keys: [await firstKey()],
    discovery: {},
    broken: undefined,
    asked: { discovery: 0, keys: 0 },
    answers: {},
    token(claims = {}, header = {}, key = issuer.keys[0] as Key) {
      const payload = { iss: issuer.url, aud: AUDIENCE, sub: 'alice', iat: now(), exp: now() + 300, ...claims };
      return new SignJWT(JSON.parse(JSON.stringify(payload)))
        .setProtectedHeader({ alg: key.alg, kid: key.kid, typ: 'at+jwt', ...header })
        .sign(key.privateKey, { crit: { 'x-mine': true } });
    },
  };
  t.after(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return issuer;
}
