import { createHash, randomBytes } from 'node:crypto';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { type CryptoKey, exportJWK, generateKeyPair } from 'jose';
import Provider, { type JWKS } from 'oidc-provider';

export const CLIENT_ID = 'dashboard';
export const RESOURCE = 'https://purser.example/v1';
export const PAGE_CLIENT = { client_id: 'purser-page', client_secret: 'page-secret-canary-0123456789' };
/** Where the browser is sent back to; nothing has to listen there. */
export const REDIRECT_URI = 'http://127.0.0.1:65000/callback';

export type OidcIssuer = {
  url: string;
  /** Signs with another key from now on; `keep` still publishes the one before. */
  rotate(keep: boolean): Promise<void>;
  /** Registers the client PAGE_CLIENT, which has a secret and comes back to this address. */
  register(redirectUri: string): void;
};

async function signingKey(kid: string) {
  const { privateKey } = await generateKeyPair('RS256', { extractable: true });
  return { ...(await exportJWK(privateKey as CryptoKey)), kid, alg: 'RS256', use: 'sig' };
}

/**
 * A real issuer, certified as such, with its own pages to sign in and to consent. Its access tokens are JWTs for the
 * audience `purser` when a client asks for RESOURCE (RFC 8707), with `claims` beside what is usual.
 */
export async function openOidcIssuer(t: Pick<TestContext, 'after'>, claims: object = {}): Promise<OidcIssuer> {
  let handle: http.RequestListener = (_, response) => response.writeHead(503).end();
  // Long enough that no connection is closed just when it is reused, even if the test's process is busy.
  const server = http.createServer({ keepAliveTimeout: 60_000 }, (request, response) => handle(request, response));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const cookieKeys = [randomBytes(16).toString('hex')];
  let count = 0;
  let pages: string[] = [];
  const open = (keys: object[]) => {
    const provider = new Provider(url, {
      clients: [
        {
          client_id: CLIENT_ID,
          token_endpoint_auth_method: 'none',
          redirect_uris: [REDIRECT_URI],
          grant_types: ['authorization_code'],
          response_types: ['code'],
        },
        ...pages.map((redirectUri) => ({
          ...PAGE_CLIENT,
          redirect_uris: [redirectUri],
          grant_types: ['authorization_code'],
          response_types: ['code' as const],
        })),
      ],
      jwks: { keys } as JWKS,
      cookies: { keys: cookieKeys },
      pkce: { required: () => true },
      claims: { openid: ['sub'], email: ['email', 'email_verified'] },
      async findAccount(_, sub) {
        return { accountId: sub, claims: () => ({ sub, email: `${sub}@example.com`, email_verified: true }) };
      },
      extraTokenClaims: () => ({ ...claims }),
      features: {
        devInteractions: { enabled: true },
        resourceIndicators: {
          enabled: true,
          defaultResource: () => RESOURCE,
          useGrantedResource: () => true,
          getResourceServerInfo: () => ({ scope: 'api', audience: 'purser', accessTokenFormat: 'jwt' as const }),
        },
      },
    });
    handle = provider.callback();
  };
  let keys = [await signingKey('key-0')];
  open(keys);
  t.after(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return {
    url,
    async rotate(keep) {
      const fresh = await signingKey(`key-${++count}`);
      keys = keep ? [fresh, ...keys] : [fresh];
      open(keys);
    },
    register(redirectUri) {
      pages = [redirectUri];
      open(keys);
    },
  };
}

export type Tokens = { access_token: string; id_token: string };

/** Signs in as a browser does: authorization code with PKCE, cookies, redirects and forms. */
export async function signIn(issuer: OidcIssuer, login: string): Promise<Tokens> {
  const discovery = (await (await fetch(`${issuer.url}/.well-known/openid-configuration`)).json()) as {
    authorization_endpoint: string;
    token_endpoint: string;
  };
  const verifier = randomBytes(32).toString('base64url');
  const state = randomBytes(8).toString('hex');
  const asked = new URL(discovery.authorization_endpoint);
  asked.search = new URLSearchParams({
    client_id: CLIENT_ID,
    redirect_uri: REDIRECT_URI,
    response_type: 'code',
    scope: 'openid email api',
    resource: RESOURCE,
    code_challenge: createHash('sha256').update(verifier).digest('base64url'),
    code_challenge_method: 'S256',
    state,
    nonce: randomBytes(8).toString('hex'),
  }).toString();
  const back = await browse(asked, { login, password: 'any' }, REDIRECT_URI);
  if (back.searchParams.get('state') !== state) throw new Error(`not the state that was sent: ${back}`);
  const response = await fetch(discovery.token_endpoint, {
    method: 'POST',
    body: new URLSearchParams({
      client_id: CLIENT_ID,
      grant_type: 'authorization_code',
      code: back.searchParams.get('code') as string,
      code_verifier: verifier,
      redirect_uri: REDIRECT_URI,
      resource: RESOURCE,
    }),
  });
  if (response.status !== 200) throw new Error(`no token: ${response.status} ${await response.text()}`);
  return (await response.json()) as Tokens;
}

const STEP_COUNT_MAX = 15;

/** Follows redirects, keeps cookies and fills in the forms of the pages, until it is sent back to `until`. */
export async function browse(start: URL, fields: Record<string, string>, until: string): Promise<URL> {
  const cookies = new Map<string, string>();
  let next: { url: URL; form?: URLSearchParams } = { url: start };
  for (let step = 0; step < STEP_COUNT_MAX; step++) {
    const response = await fetch(next.url, {
      redirect: 'manual',
      headers: { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; '), accept: 'text/html' },
      ...(next.form ? { method: 'POST', body: next.form } : {}),
    });
    for (const line of response.headers.getSetCookie()) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
      if (value) cookies.set(name, value);
      else cookies.delete(name);
    }
    const page = await response.text();
    const location = response.headers.get('location');
    if (location) {
      const url = new URL(location, next.url);
      if (url.href.startsWith(until)) return url;
      next = { url };
      continue;
    }
    const [, action] = /<form[^>]* action="([^"]+)"/.exec(page) ?? [];
    if (!action) throw new Error(`a page without a form: ${response.status} ${page.slice(0, 500)}`);
    const names = [...page.matchAll(/<input[^>]* name="(\w+)"(?: value="([^"]*)")?/g)];
    const filled = names.map(([, name = '', value]): [string, string] => [name, value ?? fields[name] ?? '']);
    const form = new URLSearchParams(filled);
    next = { url: new URL(action.replaceAll('&amp;', '&'), next.url), form };
  }
  throw new Error('the browser was sent round and round');
}
