import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { decodeJwt } from 'jose';
import { openOidcIssuer, signIn } from '../access/oidc-issuer.ts';
import { KEY, openStripe, signatureOf, WEBHOOK_SECRET } from '../billing/fake-stripe.ts';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { KEYS, openObjectStore } from '../transfer/object-store.ts';

const ROOT = join(import.meta.dirname, '../..');
const now = () => Math.floor(Date.now() / 1000);

/** The blocks of a page, in order: the settings, which come first, and the commands. */
function readPage(name: string): { settings: string; commands: string[] } {
  const text = readFileSync(join(ROOT, 'docs', name), 'utf8');
  const blocks = [...text.matchAll(/^```(yaml|sh)\n(.*?)^```/gms)].map(([, language, code]) => ({ language, code }));
  const [settings, ...rest] = blocks;
  assert.equal(settings?.language, 'yaml');
  const commands = rest.filter((it) => it.language === 'sh').map((it) => it.code as string);
  return { settings: settings.code as string, commands };
}

/** Starts the executable with a page's settings, in which only the addresses of the services are different. */
async function open(t: TestContext, settings: string, [from, to]: [string, string], env: Record<string, string> = {}) {
  assert(settings.includes(from), `the page's settings name ${from}`);
  const purser = installation(t, { settings: null, env });
  writeFileSync(join(purser.directory, 'purser.yaml'), `listen: 127.0.0.1:0\n${settings.replace(from, to)}`);
  const serving = await purser.serve();
  const directory = mkdtempSync(join(tmpdir(), 'purser-page-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const PATH = `${dirname(EXECUTABLE)}:${process.env.PATH}`;
  /** Runs a command as it is printed, where `purser` is found and knows its data directory. */
  const run = (command: string, more: Record<string, string>) =>
    new Promise<string>((resolve, reject) => {
      const all = { PATH, PURSER_DATA: purser.directory, PURSER: serving.url, ...env, ...more };
      execFile('sh', ['-ec', command], { cwd: directory, env: all }, (error, stdout, stderr) =>
        error ? reject(new Error(`${command}\n${stderr}`, { cause: error })) : resolve(stdout),
      );
    });
  return { purser, serving, run, directory };
}

test('the page on sign-in: its settings and commands, with a real issuer', async (t) => {
  if (!hasComponent(t, 'curl')) return;
  const issuer = await openOidcIssuer(t, { groups: ['staff', 'agents'] });
  const { settings, commands } = readPage('sign-in.md');
  const { purser, run } = await open(t, settings, ['https://id.example/realms/agents', issuer.url]);
  const [asPerson, link] = commands as [string, string];
  assert.equal(commands.length, 2);

  const { access_token: alice } = await signIn(issuer, 'alice');
  const [account, key] = (await run(asPerson.replace('\n', '\necho\n'), { ACCESS_TOKEN: alice })).trim().split('\n');
  assert.equal(JSON.parse(account as string).available_cents, 500);
  assert.match(JSON.parse(key as string).key, /^cnv_live_/);

  const { id } = await purser.json('account', 'create', 'by hand', '--credit-cents', '700');
  const { access_token: bob } = await signIn(issuer, 'bob');
  await run(link, { ACCOUNT: id, ISSUER: issuer.url, SUBJECT: decodeJwt(bob).sub as string });
  const [linked] = (await run(asPerson.replace('\n', '\necho\n'), { ACCESS_TOKEN: bob })).trim().split('\n');
  assert.equal(JSON.parse(linked as string).available_cents, 700);
});

test('the page on checkout: its settings and commands, from the session to the credit', async (t) => {
  if (!hasComponent(t, 'curl')) return;
  const stripe = await openStripe(t, now);
  const { settings, commands } = readPage('checkout.md');
  const here = 'success_url: https://agents.example/paid';
  const env = { STRIPE_KEY: KEY, STRIPE_WEBHOOK: WEBHOOK_SECRET };
  const { purser, serving, run } = await open(t, settings, [here, `${here}\n    api_base: ${stripe.url}`], env);
  const [pay, list] = commands as [string, string];
  assert.equal(commands.length, 2);
  const { key } = await purser.json('operator-key', 'mint');
  const asked = JSON.parse(await run(pay, { ACCESS_TOKEN: key }));
  assert.deepEqual([asked.status, asked.url], ['open', stripe.session(asked.id).url]);

  const body = JSON.stringify(stripe.pay(asked.id));
  const headers = { 'stripe-signature': signatureOf(body, WEBHOOK_SECRET, now()) };
  assert.equal((await serving.ask('POST', '/webhooks/stripe', { body, headers })).status, 200);
  const paid = JSON.parse(await run(pay, { ACCESS_TOKEN: key }));
  assert.deepEqual([paid.id, paid.status, paid.url], [asked.id, 'paid', null]);
  assert.equal((await serving.ask('GET', '/v1/account', { token: key })).body.available_cents, 2000);
  const shown = await run(list, {});
  assert.match(shown, new RegExp(`${asked.id} .* paid `));
  assert.match(shown, /\(none\)/);
});

test('the page on transfer: its settings and commands, and the bytes', async (t) => {
  if (!hasComponent(t, 'curl')) return;
  const store = await openObjectStore(t, now);
  const { settings, commands } = readPage('transfer.md');
  const env = { S3_KEY_ID: KEYS.access_key_id, S3_SECRET: KEYS.secret_access_key };
  const { purser, serving, run, directory } = await open(t, settings, ['https://s3.lan', store.url], env);
  const [signPut, signGet, move] = commands as [string, string, string];
  assert.equal(commands.length, 3);
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '500c');
  const opened = ['wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '100'];
  const wallet = await purser.json(...opened);
  assert.equal(wallet.env.SVC_BROKER_URL, serving.url);

  const put = JSON.parse(await run(signPut, wallet.env));
  const get = JSON.parse(await run(signGet, wallet.env));
  const text = 'what the agent found\n';
  writeFileSync(join(directory, 'run-1.txt'), text);
  const printed = await run(move, { PUT_URL: put.url, GET_URL: get.url });
  assert.equal(printed, text);
  assert.deepEqual([...store.objects.keys()], [`/agents/wallets/${wallet.id}/results/run-1.txt`]);
  assert.deepEqual(store.refused, []);
});
