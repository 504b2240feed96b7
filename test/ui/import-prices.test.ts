import assert from 'node:assert/strict';
import { appendFileSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { request } from 'undici';
import { Refusal } from '../../src/base/refusal.ts';
import { priceList } from '../helper/price-list.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { asAccount, asOperator, type Browser } from './sample.ts';

/** Sends the form with a price list, as a browser does. */
async function compare(purser: TestServer, browser: Browser, list: string, fields: Record<string, string> = {}) {
  const all = { names: '', add: '', upstream: 'local', ...fields };
  const body = [
    ...Object.entries(all).map(([name, value]) => `name="${name}"\r\n\r\n${value}`),
    `name="list"; filename="prices.json"\r\ncontent-type: application/json\r\n\r\n${list}`,
  ].map((part) => `--edge\r\ncontent-disposition: form-data; ${part}\r\n`);
  const cookie = [...browser.cookies].map(([name, value]) => `${name}=${value}`).join('; ');
  const type = 'multipart/form-data; boundary=edge';
  const headers = { cookie, origin: purser.url, 'sec-fetch-site': 'same-origin', 'content-type': type };
  const response = await request(`${purser.url}/models/import`, {
    method: 'POST',
    headers,
    body: `${body.join('')}--edge--\r\n`,
  });
  const html = await response.body.text();
  const preview = /name="preview" value="([^"]+)"/.exec(html)?.[1];
  return { status: response.statusCode, html, preview };
}

async function open(t: TestContext) {
  const purser = await openTestServer(t);
  const file = join(purser.directory, 'purser.yaml');
  appendFileSync(file, '# a note\n');
  const price = async () => {
    const { data } = await purser.run('models.list', {});
    return data.find(({ id }) => id === 'chat')?.pricing.prompt;
  };
  return { purser, file, price, browser: await asOperator(purser), read: () => readFileSync(file, 'utf8') };
}

test('an operator sees what a price list would change, and writes exactly that', async (t) => {
  const { purser, file, browser, price, read } = await open(t);
  const [before, priceBefore] = [read(), await price()];
  assert.match((await browser.get('/models')).html, /href="\/models\/import"/);
  assert.match((await browser.get('/models/import')).html, /enctype="multipart\/form-data"/);
  const seen = await compare(purser, browser, priceList(0.000123), { add: '' });
  assert.equal(seen.status, 200, seen.html);
  assert.match(seen.html, /<code>chat<\/code>.*\$123\.00/);
  assert.match(seen.html, /<code>flat<\/code>: not in the list/);
  assert.deepEqual([read(), await price()], [before, priceBefore], 'a comparison writes nothing');

  const { mode } = statSync(file);
  const written = await browser.post('/models/import/write', { preview: seen.preview as string });
  assert.deepEqual([written.status, written.headers.location], [303, '/models?done=imported']);
  assert.match(read(), /# a note\n$/);
  assert.equal(statSync(file).mode, mode);
  assert.equal(await price(), '0.000123');
  assert.match((await browser.get('/models?done=imported')).html, /\$123\.00/);
  const again = await browser.post('/models/import/write', { preview: seen.preview as string });
  assert.equal(again.status, 409, 'once');
  const same = await compare(purser, browser, priceList(0.000123));
  assert.deepEqual([/No price differs/.test(same.html), same.preview], [true, undefined]);
  assert.deepEqual(purser.problems(), []);
});

test('models of the list are added, and found under another name', async (t) => {
  const { purser, browser } = await open(t);
  const list = { ...JSON.parse(priceList(0.000001, 'vendor/new')), ...JSON.parse(priceList(0.000777, 'vendor/other')) };
  const seen = await compare(purser, browser, JSON.stringify(list), { add: 'vendor/new', names: 'chat=vendor/other' });
  assert.equal((await browser.post('/models/import/write', { preview: seen.preview as string })).status, 303);
  const { data } = await purser.run('models.list', {});
  assert.deepEqual(data.find(({ id }) => id === 'vendor/new')?.upstreams, ['local']);
  assert.equal(data.find(({ id }) => id === 'chat')?.pricing.prompt, '0.000777');
});

test('what changed since it was seen is not written over, and what the server refuses is put back', async (t) => {
  const { purser, file, browser, price, read } = await open(t);
  const first = await compare(purser, browser, priceList(0.000123));
  appendFileSync(file, '# mine\n');
  const changed = read();
  const late = await browser.post('/models/import/write', { preview: first.preview as string });
  assert.deepEqual([late.status, /was changed since/.test(late.html), read()], [409, true, changed]);

  writeFileSync(file, changed.replace('close_wait_seconds: 300', 'close_wait_seconds: 300\nui: false')); // Needs a restart.
  const [pending, priceBefore] = [read(), await price()];
  assert.notEqual(pending, changed);
  const second = await compare(purser, browser, priceList(0.000123));
  const refused = await browser.post('/models/import/write', { preview: second.preview as string });
  assert.deepEqual([refused.status, /needs a restart/.test(refused.html)], [409, true]);
  assert.deepEqual([read(), await price()], [pending, priceBefore]);
});

test('an edit that arrives while the server reads its settings again is kept, and what cannot be put back is told', async (t) => {
  const { purser, file, browser, read } = await open(t);
  const refusing = (meanwhile: () => void) => {
    purser.app.reload = () => {
      meanwhile();
      throw new Refusal('conflict', 'Nothing was changed.');
    };
  };
  const send = async () => {
    const { preview } = await compare(purser, browser, priceList(0.000123));
    return browser.post('/models/import/write', { preview: preview as string });
  };
  refusing(() => appendFileSync(file, '# mine\n'));
  const edited = await send();
  assert.deepEqual([edited.status, /Nothing was changed/.test(edited.html)], [409, true]);
  assert.match(read(), /123[\s\S]*# mine\n$/);

  writeFileSync(file, read().replaceAll('123', '124'));
  refusing(() => rmSync(file));
  const gone = await send();
  assert.deepEqual([gone.status, /could not be put back \(ENOENT\)/.test(gone.html)], [409, true]);
});

test('a price that stands in a variable is shown by its name', async (t) => {
  const { purser, file, browser, read } = await open(t);
  writeFileSync(file, read().replace('"0.000001"', `"$\{PROMPT_PRICE}"`));
  assert.match(read(), /PROMPT_PRICE/);
  const { html } = await compare(purser, browser, priceList(0.000123));
  assert.match(html, />\$\{PROMPT_PRICE\}</);
});

test('a server that may not write its settings says which command does', async (t) => {
  const { purser, browser, read } = await open(t);
  const before = read();
  const seen = await compare(purser, browser, priceList(0.000123));
  t.mock.method(process as { getuid(): number }, 'getuid', () => 54_321);
  const { html, preview } = await compare(purser, browser, priceList(0.000123));
  assert.equal(preview, undefined);
  assert.match(html, /\$123\.00[\s\S]*it belongs to another user[\s\S]*purser models import FILE/);
  const refused = await browser.post('/models/import/write', { preview: seen.preview as string });
  assert.deepEqual([refused.status, read()], [409, before]);
});

test('a comparison is its session’s, and the newest two stay', async (t) => {
  const { purser, browser, read } = await open(t);
  const before = read();
  const previews = [];
  for (let at = 1; at <= 3; at++)
    previews.push((await compare(purser, browser, priceList(at / 1000))).preview as string);
  const other = await asOperator(purser);
  for (const [who, preview] of [
    [other, previews[2]],
    [browser, previews[0]],
    [browser, 'none'],
  ] as const)
    assert.equal((await who.post('/models/import/write', { preview: preview as string })).status, 409);
  assert.equal(read(), before);
  assert.equal((await browser.post('/models/import/write', { preview: previews[1] as string })).status, 303);
});

test('what is no price list, or cannot be read, is refused', async (t) => {
  const { purser, browser, read } = await open(t);
  const before = read();
  const cases: [list: string, fields: Record<string, string>, why: RegExp][] = [
    ['', {}, /This is no price list: it is not JSON/],
    ['{}', {}, /This is no price list: it has no prices/],
    [priceList(0.001), { names: 'chat' }, /chat is not MODEL=NAME/],
    [priceList(0.001), { add: 'nothing' }, /the list has no &quot;nothing&quot;/],
    [priceList(0.001, 'new'), { add: 'new', upstream: 'nowhere' }, /there is no upstream &quot;nowhere&quot;/],
  ];
  for (const [list, fields, why] of cases) {
    const { status, html } = await compare(purser, browser, list, fields);
    assert.deepEqual([status, why.test(html)], [400, true], html);
  }
  const large = await compare(purser, browser, ' '.repeat(8 * 1024 * 1024));
  assert.equal(large.status, 413);
  const broken = await browser.post('/models/import', {}, { 'content-type': 'multipart/form-data; boundary=x' });
  assert.deepEqual([broken.status, /The form cannot be read/.test(broken.html)], [400, true]);
  const account = await asAccount(purser);
  assert.equal((await compare(purser, account, priceList(0.001))).status, 404);
  assert.equal((await compare(purser, account, ' '.repeat(100_000))).status, 413, 'an account sends little');
  assert.equal((await account.post('/models/import/write', { preview: 'x' })).status, 404);
  assert.equal(read(), before);
});
