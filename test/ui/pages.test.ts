import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { asAccount, asOperator, type Browser, EVIL, openSample, type Sample } from './sample.ts';

// Every page as it comes from the server, without a script that would mend it.

/** Pages of both kinds of session, and those of one alone. */
const BOTH = (sample: Sample) => [
  '/',
  '/wallets',
  '/wallets?state=frozen',
  '/wallets?name=agent',
  '/wallets/new',
  ...[...sample.wallets, sample.evil].map(({ id }) => `/wallets/${id}`),
  `/wallets/${sample.evil.id}?client=continue&model=chat`,
  `/wallets/${sample.evil.id}/freeze`,
  `/wallets/${sample.evil.id}/close`,
  '/leases',
  '/leases?state=all',
  ...['model', 'wallet', 'day', 'tag', 'kind'].map((by) => `/spend?by=${by}&range=30d`),
  '/spend?by=tag&and=wallet&range=30d&beside=before',
  '/spend?tag=none&from=2026-01-01',
  '/models',
];
const OPERATOR = (sample: Sample) => [
  '/accounts',
  '/accounts?state=suspended',
  `/accounts/${sample.accountId}`,
  `/accounts/${sample.accountId}/suspend`,
  '/operations',
  '/operations?state=uncertain',
  '/operations?state=reserved',
  '/operations?tag=team%3Dred&range=30d&min=0.0001&wallet=research+agent',
  `/operations?id=${encodeURIComponent(EVIL)}`,
  '/spend?by=account',
  '/journal',
  '/events',
  '/settings',
  '/settings/freeze',
];

/** The addresses of one kind on a page. */
const linksIn = (html: string, pattern: RegExp) => [
  ...new Set([...html.matchAll(pattern)].map(([, path]) => path as string)),
];

async function everyPage(sample: Sample, browser: Browser, isOperator: boolean): Promise<string[]> {
  const paths = [...BOTH(sample), ...(isOperator ? OPERATOR(sample) : ['/keys'])];
  const { html: leases } = await browser.get('/leases?state=all');
  paths.push(...linksIn(leases, /"(\/leases\/res_\w+)"/g));
  if (!isOperator) return paths;
  const { html: operations } = await browser.get('/operations');
  const { html: uncertain } = await browser.get('/operations?state=uncertain');
  paths.push(
    ...linksIn(operations, /"(\/operations\/op_\w+)"/g).slice(0, 5),
    ...linksIn(uncertain, /"(\/operations\/op_\w+)"/g),
  );
  paths.push(...linksIn(leases, /"(\/leases\/res_\w+\/stop)"/g));
  const { html: accounts } = await browser.get('/accounts');
  return [...paths, ...linksIn(accounts, /"(\/accounts\/acct_\w+)"/g)];
}

/** Elements that never have an end tag. */
const VOID = new Set(['meta', 'link', 'img', 'input', 'br', '!doctype']);

/** Returns the faults of a document: elements that are not closed in order, ids that stand twice, labels without a field. */
function faultsOf(html: string): string[] {
  const faults: string[] = [];
  const open: string[] = [];
  for (const [, close, name = ''] of html.matchAll(/<(\/?)([a-z!][a-z0-9]*)\b(?:"[^"]*"|[^">])*>/g)) {
    if (VOID.has(name)) continue;
    if (!close) open.push(name);
    else if (open.pop() !== name) faults.push(`</${name}> closes another element`);
  }
  if (open.length) faults.push(`not closed: ${open.join(' ')}`);
  const ids = [...html.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id as string);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) faults.push(`the id ${id} stands twice`);
  for (const [, id] of html.matchAll(/ (?:for|aria-describedby)="([^"]+)"/g))
    if (!ids.includes(id as string)) faults.push(`nothing has the id ${id}`);
  return faults;
}

for (const isOperator of [true, false])
  test(`every page of ${isOperator ? 'the operator' : 'an account holder'} is a whole document, and no text from outside is markup`, async (t) => {
    const sample = await openSample(t);
    const browser = await (isOperator ? asOperator(sample) : asAccount(sample));
    const paths = await everyPage(sample, browser, isOperator);
    let escaped = 0;
    for (const path of paths) {
      const { status, headers, html } = await browser.get(path);
      assert.equal(status, 200, `${path}: ${html.slice(0, 2000)}`);
      assert.match(headers['content-type'] as string, /^text\/html/, path);
      assert.match(headers['content-security-policy'] as string, /^default-src 'none'; script-src 'self';/, path);
      assert.equal(headers['cache-control'], 'no-store', path);
      assert.deepEqual(faultsOf(html), [], path);
      assert.doesNotMatch(html, /<script>|<img src=x|onerror=alert\(2\)>|\bstyle=| on\w+="/, path);
      assert.doesNotMatch(html, /\b(undefined|NaN)\b|\[object|Infinity/, path); // The end of a key may be NaN6.
      if (html.includes('&lt;script&gt;alert(1)')) escaped++;
    }
    assert.ok(
      escaped >= (isOperator ? 15 : 8),
      `the script of the sample is shown on ${escaped} of ${paths.length} pages`,
    );
    assert.ok(EVIL.length <= 80);
    assert.deepEqual(sample.problems(), []);
  });

test('the page of a child below a frozen wallet names what freezes it', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ name: 'the parent' });
  const body = { name: 'child', budget_usd: '1' };
  const child = (await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body })).body.id;
  const browser = await asAccount(purser);
  const notice = async () =>
    /<p class="notice warn">Frozen .*?<\/p>/.exec((await browser.get(`/wallets/${child}`)).html)?.[0];
  assert.equal(await notice(), undefined);
  await purser.run('wallet.freeze', { id, reason: 'it loops' });
  assert.match((await notice()) ?? '', new RegExp(`with <a href="/wallets/${id}">the parent</a>: it loops`));
  await purser.run('wallet.freeze', { id: child, reason: 'its own' });
  assert.match((await notice()) ?? '', /ago<\/time>: its own/);
});

test('the question before a close tells what will go back: whole cents to an account, every nano to a parent', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500 });
  const order = { token, key: 'c', body: { name: 'child', budget_usd: '1.5' } };
  const child = (await purser.ask('POST', '/v1/run/wallets', order)).body;
  const browser = await asAccount(purser);
  for (const [it, credential] of [
    [child.id, child.agent_token],
    [id, token],
  ]) {
    assert.equal((await purser.chat(credential)).status, 200);
    const { html } = await browser.get(`/wallets/${it}/close`);
    const [, said] = /\$([\d.]+) goes back/.exec(html) ?? [];
    await purser.run('wallet.close', { id: it });
    const [event] = (await purser.run('events.list', { type: 'wallet.closed', wallet: it })).events;
    assert.equal(said, event?.data.returned_usd);
  }
});

test('closing and freezing are offered only while they do something, and what goes back is said whole', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500 });
  const browser = await asAccount(purser);
  const asked = async (what: string) => {
    const { status, html } = await browser.get(`/wallets/${id}/${what}`);
    return { status, html, isForm: html.includes(`action="/wallets/${id}/${what}"`) };
  };
  assert.match((await asked('close')).html, /\$5\.00 goes back to where it came from/);
  await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body: { name: 'child', budget_usd: '1.50' } });
  assert.match((await asked('close')).html, /\$3\.50, with what the children return, goes back/);
  for (const what of ['close', 'freeze']) assert.equal((await asked(what)).isForm, true, what);
  await purser.run('wallet.close', { id });
  for (const what of ['close', 'freeze']) {
    const { status, html, isForm } = await asked(what);
    assert.deepEqual([status, isForm], [409, false], what);
    assert.match(html, /is closed/);
  }
});

test('what has a name that nobody can see goes by the end of its id', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  for (const name of ['   ', '\u200b\u2060', '\u3164', '\u2800']) {
    const { id, token } = await purser.openWallet({ name });
    await purser.chat(token, { model: 'flat' });
    for (const path of ['/wallets', '/operations', '/spend?by=wallet', `/accounts/${purser.accountId}`])
      assert.match((await browser.get(path)).html, new RegExp(`href="/wallets/${id}">…${id.slice(-6)}<`), path);
    assert.match((await browser.get(`/wallets/${id}`)).html, new RegExp(`<h1>…${id.slice(-6)}</h1>`));
  }
  const family = '\u{1f468}\u200d\u{1f469}\u200d\u{1f467}';
  const { id } = await purser.openWallet({ name: family });
  assert.ok((await browser.get(`/wallets/${id}`)).html.includes(`<h1>${family}</h1>`), 'joined as it was written');
});

test('a model with a small share of what a wallet spent is not at 0 %', async (t) => {
  const sample = await openSample(t);
  const browser = await asOperator(sample);
  const { html } = await browser.get(`/wallets/${sample.wallets[0]?.id}`);
  assert.match(html, />&lt;1%</);
  assert.doesNotMatch(html, />0%</);
});
