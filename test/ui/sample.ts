import { randomUUID } from 'node:crypto';
import type { TestContext } from 'node:test';
import { request } from 'undici';
import { addPasskey } from '../../src/access/writes.ts';
import { handClock, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { completion, type Handler, reset } from '../helper/upstream.ts';
import { openMemoryServer } from '../lease/leases.ts';

/** What everybody who can write a string tries to write. Short enough for a name. */
export const EVIL = `"'><script>alert(1)</script><img src=x onerror=alert(2)>`;

type Lived = Awaited<ReturnType<typeof openMemoryServer>>;
export type Sample = Lived & {
  wallets: { id: string; token: string; name: string }[];
  evil: { id: string; token: string };
};

/** The names in the sample, as a person would choose them. */
const NAMES = ['research agent', 'code review', 'nightly evals', 'support triage', 'translator'];
const MODELS = ['chat', 'flat', 'dear'];
const BATCH_COUNT = 500;

/** Answers with so many tokens. */
const tokens = (prompt: number, output: number): Handler =>
  completion({ prompt_tokens: prompt, completion_tokens: output, total_tokens: prompt + output });

/**
 * An installation with a past of three days: wallets that spend on three models, leases, a hold of unknown outcome, frozen and
 * closed wallets, a child, and one wallet in which every text is `text`: a script unless given.
 */
export async function openSample(t: TestContext, options: TestServerOptions = {}, text = EVIL): Promise<Sample> {
  const time = handClock();
  time.leap(-3 * 86_400);
  const purser = await openMemoryServer(t, {
    unknownCountMax: 1000,
    time,
    ...options,
    settings: { ...options.settings },
    change: (settings) => {
      const merged = { ...settings, router: { ...settings.router, uncertain: { after_seconds: 86_400 } } };
      return options.change?.(merged) ?? merged;
    },
  });
  const { clock, upstream } = purser;
  const wallets: Sample['wallets'] = [];
  for (const [at, name] of NAMES.entries())
    wallets.push({
      name,
      ...(await purser.openWallet({ name, budget_cents: 2000 - at * 300, expires_in_seconds: 30 * 86_400 })),
    });
  const evil = await purser.openWallet({ name: text, budget_cents: 500, expires_in_seconds: 0 });

  let turn = 0;
  for (let hour = 0; hour < 72; hour += 6) {
    for (const [at, wallet] of wallets.entries()) {
      if ((hour / 6 + at) % 3 === 2) continue;
      turn = (turn * 7 + 3 + at) % 97;
      upstream.handle = tokens(200 + turn * 20, 20 + turn);
      const model = MODELS[(turn + at) % MODELS.length] as string;
      await purser.chat(wallet.token, { model, metadata: { team: at % 2 ? 'blue' : 'red' } });
    }
    clock.advance(6 * 3600 - 60);
  }
  const [first, second, third] = wallets as [Sample['wallets'][0], Sample['wallets'][0], Sample['wallets'][0]];
  for (let minute = 0; minute < 40; minute++) {
    const wallet = wallets[minute % 4 === 0 ? 1 : 0] as Sample['wallets'][0];
    upstream.handle = tokens(500 + ((minute * 37) % 400), 30 + ((minute * 13) % 90));
    await purser.chat(wallet.token, { model: minute % 5 === 0 ? 'dear' : 'chat', metadata: { team: 'red' } });
    clock.advance(60);
  }
  await purser.rent(first.token);
  clock.advance(120);
  await purser.lease(second.token);
  const broken = await purser.rent(evil.token);
  purser.memory.before.destroy = () => {
    throw new Error(text);
  };
  await purser.run('resource.stop', { id: broken.body.id });

  await purser.ask('POST', '/v1/run/wallets', {
    token: first.token,
    key: randomUUID(),
    body: { name: 'sub-agent', budget_usd: '1.50', expires_in_seconds: 3600 },
  });
  await purser.run('wallet.freeze', { id: third.id, reason: `it loops: ${text}` });
  await purser.run('wallet.close', { id: (wallets[4] as { id: string }).id });
  upstream.handle = tokens(12, 34);
  await purser.chat(evil.token, { metadata: { evil: text } }, text);
  upstream.handle = reset;
  await purser.chat(evil.token, {}, `${text} 2`);
  await purser.run('account.create', { name: text, creditCents: 500 });
  await purser.run('account.credit', { id: purser.accountId, cents: 2000, reason: text });
  await purser.run('key.create', { account: purser.accountId, name: text });
  upstream.handle = tokens(10, 5);
  return Object.assign(purser, { wallets, evil });
}

/** The pages of the operator and of the holder of the account, with something on each. */
export async function pagesOf(sample: Sample): Promise<{ operator: string[]; account: string[] }> {
  const [wallet, , frozen] = sample.wallets as [{ id: string }, unknown, { id: string }];
  const { resources } = await sample.run('resource.list', { all: true });
  const leases = resources.map(({ id }) => `/leases/${id}`);
  const [running] = leases as [string];
  const { operations } = await sample.run('operation.list', { limit: 20 });
  const { operations: doubtful } = await sample.run('operation.list', { uncertain: true });
  const settled = operations.find((it) => it.state === 'settled');
  const [key] = (await sample.run('key.list', { account: sample.accountId })).keys;
  const [operatorKey] = (await sample.run('operator-key.list', {})).keys;
  await sample.ask('POST', '/v1/router/key', { token: sample.wallets[0]?.token as string, body: { models: ['chat'] } });
  const [gatewayKey] = (await sample.run('wallet.gateway-keys', { id: wallet.id })).keys;
  await sample.run('wallet.refill', { id: wallet.id, refill: { cents: 500, every: 'day' } });
  const now = sample.app.clock.now();
  const made = { name: 'laptop', origin: 'http://localhost:7420', subject: null, rule: null, useCount: 0 };
  const order = { ...made, credentialId: Buffer.alloc(32), publicKey: Buffer.alloc(91) };
  const passkey = await sample.app.ledger.write(addPasskey, { order, now });
  const account = `/accounts/${sample.accountId}`;
  const operator = [
    '/',
    '/wallets',
    '/wallets/new',
    `/wallets/${wallet.id}`,
    `/wallets/${wallet.id}?steps=all&movements=50`,
    `/wallets/${wallet.id}?client=claude`,
    `/wallets/${frozen.id}`,
    `/wallets/${sample.evil.id}`,
    `/wallets/${wallet.id}/freeze`,
    `/wallets/${wallet.id}/close`,
    '/leases',
    ...leases,
    `${running}/stop`,
    '/operations?state=uncertain',
    '/operations',
    `/operations/${settled?.id}`,
    `/operations/${doubtful[0]?.id}`,
    `/operations/${doubtful[0]?.id}/resolve?decision=charge`,
    `/operations/${doubtful[0]?.id}/resolve?decision=release`,
    '/accounts',
    account,
    `${account}/suspend`,
    `${account}/keys/${key?.id}/revoke`,
    '/spend?by=tag',
    '/spend?by=wallet&and=model&range=1d&beside=before&tag=team%3Dred',
    '/models',
    '/models/import',
    '/journal',
    '/events',
    '/settings',
    '/settings/freeze',
    `/wallets/${wallet.id}/gateway-keys/${gatewayKey?.id}/revoke`,
    `/settings/operator-keys/${operatorKey?.id}/revoke`,
    `/settings/passkeys/${passkey.id}/remove`,
  ];
  const own = ['/', '/wallets', `/wallets/${wallet.id}`, '/leases', ...leases, '/spend', '/keys', '/models'];
  return { operator, account: own };
}

/** Opens many wallets of the account, with the same life and budget. */
export async function openMany(purser: TestServer, count: number, name: (at: number) => string): Promise<void> {
  for (let at = 0; at < count; at += BATCH_COUNT)
    await Promise.all(
      Array.from({ length: Math.min(BATCH_COUNT, count - at) }, (_, i) =>
        purser.run('wallet.create', {
          account: purser.accountId,
          name: name(at + i),
          budget_cents: 100,
          expires_in_seconds: 0,
        }),
      ),
    );
}

export type Shown = { status: number; headers: Record<string, string | string[] | undefined>; html: string };

/** A browser as far as HTTP goes: it keeps cookies and says where a form comes from. It follows no redirect. */
export type Browser = {
  cookies: Map<string, string>;
  get(path: string, headers?: Record<string, string>): Promise<Shown>;
  head(path: string): Promise<Shown>;
  /** `headers` replace what the browser says by itself; undefined leaves it out. */
  post(path: string, fields?: Record<string, string>, headers?: Record<string, string | undefined>): Promise<Shown>;
};

export function openBrowser(purser: { url: string }): Browser {
  const cookies = new Map<string, string>();
  async function send(
    method: 'GET' | 'HEAD' | 'POST',
    path: string,
    headers: Record<string, string | undefined>,
    body?: string,
  ) {
    const response = await request(`${purser.url}${path}`, {
      method,
      headers: {
        ...(cookies.size ? { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') } : {}),
        ...headers,
      },
      body: body ?? null,
    });
    for (const line of [response.headers['set-cookie'] ?? []].flat()) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
      if (/Max-Age=0(;|$)/.test(line)) cookies.delete(name);
      else cookies.set(name, value);
    }
    return { status: response.statusCode, headers: response.headers, html: await response.body.text() };
  }
  return {
    cookies,
    get: (path, headers = {}) => send('GET', path, headers),
    head: (path) => send('HEAD', path, {}),
    post: (path, fields = {}, headers = {}) =>
      send(
        'POST',
        path,
        {
          'content-type': 'application/x-www-form-urlencoded',
          origin: new URL(purser.url).origin,
          'sec-fetch-site': 'same-origin',
          ...headers,
        },
        new URLSearchParams(fields).toString(),
      ),
  };
}

/** Signs a browser in as the operator, by a link of `purser ui`. */
export async function asOperator(purser: TestServer): Promise<Browser> {
  const browser = openBrowser(purser);
  const { url } = await purser.run('ui.link', {});
  await browser.get(new URL(url).pathname);
  return browser;
}

/** Signs a browser in with the account key. */
export async function asAccount(purser: TestServer): Promise<Browser> {
  const browser = openBrowser(purser);
  await browser.post('/sign-in/key', { key: purser.accountKey });
  return browser;
}

/** The rows of the table with this caption on a page, as the texts of their cells by the labels of the columns. */
export function tableOf(html: string, caption: string): Record<string, string>[] {
  const table = [...html.matchAll(/<table[^>]*><caption[^>]*>(.*?)<\/caption>(.*?)<\/table>/gs)].find(
    ([, it]) => it === caption,
  )?.[2];
  if (table === undefined) return [];
  const text = (cell: string) => cell.replace(/<span aria-hidden.*?<\/span>|<[^>]+>/g, '').trim();
  const labels = [...table.matchAll(/<th [^>]*>(.*?)<\/th>/g)].map(([, label = '']) => text(label));
  const rows = [...table.matchAll(/<tr[^>]*>(<td.*?)<\/tr>/gs)].map(([, row = '']) =>
    [...row.matchAll(/<td[^>]*>(.*?)<\/td>/gs)].map(([, cell = '']) => text(cell)),
  );
  return rows
    .map((row) => row.map((cell, at) => [labels[at], cell] as const))
    .filter((row) => row.every(([label]) => label !== undefined))
    .map((row) => Object.fromEntries(row as [string, string][]));
}
