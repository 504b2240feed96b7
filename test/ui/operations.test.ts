import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { idsFrom } from '../../src/base/id.ts';
import { Nanos } from '../../src/base/money.ts';
import { placeHold } from '../../src/ledger/hold.ts';
import { settle } from '../../src/ledger/operation.ts';
import { writeWith } from '../helper/closures.ts';
import { handClock, openTestServer } from '../helper/server.ts';
import { completion, failure, gate, reset } from '../helper/upstream.ts';
import { openMemoryServer } from '../lease/leases.ts';
import { holdOrder } from '../ledger/books.ts';
import { asOperator, type Browser, tableOf } from './sample.ts';

const HOUR = 3600;
const rowsOf = (html: string) => tableOf(html, 'Operations');
const unescaped = (href: string | undefined) => href?.replaceAll('&amp;', '&');
const linkOf = (html: string, text: string) => unescaped(new RegExp(`href="([^"]+)">${text}<`).exec(html)?.[1]);

/** Operations of two wallets in two accounts at noon of two days, each of another kind. */
async function openLived(t: TestContext) {
  const time = handClock();
  time.leap(Date.UTC(2026, 2, 30, 12) / 1000 - time.wall() / 1000);
  const purser = await openTestServer(t, { time, unknownCountMax: 100 });
  const options = { budget_cents: 500, expires_in_seconds: 30 * 86_400 };
  const red = await purser.openWallet({ ...options, name: 'red agent' });
  const other = await purser.run('account.create', { name: 'other', creditCents: 5000 });
  const blue = await purser.run('wallet.create', { account: other.id, name: 'blue', ...options });
  const requests: string[] = [];
  const chat = async (token: string, model: string, metadata = {}) => {
    requests.push((await purser.chat(token, { model, metadata })).headers['x-request-id'] as string);
  };
  await chat(red.token, 'flat', { team: 'red', step: 'a=b' });
  await chat(red.token, 'chat', { team: 'red' });
  time.advance(24 * HOUR);
  await chat(blue.agent_token, 'flat', { team: 'blue' });
  purser.upstream.handle = failure(400);
  await chat(blue.agent_token, 'flat');
  purser.upstream.handle = reset;
  await chat(blue.agent_token, 'dear');
  purser.upstream.handle = completion({ prompt_tokens: 1234, completion_tokens: 5, total_tokens: 1239 });
  time.advance(60);
  return { purser, time, red, blue, other, requests, browser: await asOperator(purser) };
}

test('an operation is found by its id, the beginning of that, or its request; and what is not there is said', async (t) => {
  const { purser, browser, requests } = await openLived(t);
  const { operations } = await purser.run('operation.list', {});
  const [newest] = operations as [(typeof operations)[0]];
  for (const [id, to] of [
    [requests[0], operations.at(-1)?.id],
    [` ${newest.request_id} `, newest.id],
    [newest.id, newest.id],
    [newest.id.slice(0, -1), newest.id],
  ] as const) {
    const { status, headers } = await browser.get(`/operations?id=${encodeURIComponent(id as string)}`);
    assert.deepEqual([status, headers.location], [303, `/operations/${to}`], id);
  }
  for (const id of ['req_00000000000000000000000000', 'req_?', '<script>', 'op_']) {
    const { status, html } = await browser.get(`/operations?id=${encodeURIComponent(id)}`);
    assert.equal(status, 200);
    assert.match(
      html,
      /<p class="notice bad" role="alert">(There is no operation|&quot;op_&quot; may be more than one)/,
    );
    assert.deepEqual(rowsOf(html), []);
  }
  assert.match((await browser.get('/operations?id=%22x')).html, /name="id"[^>]* value="&quot;x"/);
});

test('operations are filtered by wallet, account, model, state, tag, time and cost, alike on the page and by commands', async (t) => {
  const { purser, browser, red, other } = await openLived(t);
  const { operations } = await purser.run('operation.list', {});
  const all = operations.map(({ id }) => id);
  const [day1, day2] = [Date.UTC(2026, 2, 30), Date.UTC(2026, 2, 31)].map((it) => it / 1000) as [number, number];
  const cases: [query: string, input: Parameters<typeof purser.run<'operation.list'>>[1], found: number[]][] = [
    ['wallet=red+agent', { wallet: red.id }, [3, 4]],
    ['account=other', { account: other.id }, [0, 1, 2]],
    ['model=flat', { model: 'flat' }, [1, 2, 4]],
    ['state=charged', { state: 'charged' }, [2, 3, 4]],
    ['state=released', { state: 'released' }, [1]],
    ['state=settled', { state: 'settled' }, [1, 2, 3, 4]],
    ['state=uncertain', { state: 'uncertain' }, [0]],
    ['state=reserved', { state: 'reserved' }, []],
    ['tag=team%3Dred', { tag: 'team=red' }, [3, 4]],
    ['tag=step%3Da%3Db', { tag: 'step=a=b' }, [4]],
    ['tag=team', { tag: 'team' }, []],
    ['from=2026-03-30&to=2026-03-30', { since: day1, until: day2 }, [3, 4]],
    ['range=today', { since: day2 }, [0, 1, 2]],
    ['range=1h&model=flat&max=0', { since: day2, model: 'flat', cost_max_usd: '0' }, [1]],
    ['min=0.01&state=settled', { cost_min_usd: '0.01', state: 'settled' }, [2, 4]],
    ['min=$0.0001&max=0.001', { cost_min_usd: '0.0001', cost_max_usd: '0.001' }, [3]],
  ];
  for (const [query, input, found] of cases) {
    const { status, html } = await browser.get(`/operations?${query}`);
    assert.equal(status, 200, query);
    const wanted = found.map((at) => all[at]);
    assert.deepEqual(
      [...html.matchAll(/<a href="\/operations\/(op_\w+)"/g)].map(([, id]) => id),
      wanted,
      query,
    );
    assert.deepEqual(
      (await purser.run('operation.list', input)).operations.map(({ id }) => id),
      wanted,
      query,
    );
  }
  const [unknown] = rowsOf((await browser.get('/operations?state=uncertain')).html);
  assert.match(unknown?.Reason as string, /ECONNRESET|UND_ERR_SOCKET/);
  assert.ok(rowsOf((await browser.get('/operations')).html)[0]?.For?.endsWith(unknown?.Reason as string));
  browser.cookies.set('purser-zone', 'Pacific/Kiritimati');
  assert.equal(rowsOf((await browser.get('/operations?from=2026-03-31&to=2026-03-31')).html).length, 2, 'their day');
  for (const query of [
    'min=1e3',
    'max=five',
    'min=0.02&max=0.01',
    'from=2026-02-30',
    'wallet=nobody',
    'account=nobody',
  ])
    assert.match((await browser.get(`/operations?${query}`)).html, /role="alert"/, query);
  const { html } = await browser.get('/operations?tag=team%3Dred&min=0.001&wallet=red+agent');
  for (const field of ['tag', 'min', 'wallet'])
    assert.match(
      html,
      new RegExp(`<details class="more" open>.*name="${field}"[^>]* value="[^"]+"`),
      'stays and is seen',
    );
});

test('where a filter leaves nothing, a page does not say that there is nothing', async (t) => {
  const { purser, browser } = await openLived(t);
  const emptied = async (path: string) =>
    [...(await browser.get(path)).html.matchAll(/<div class="empty">([^<]*)/g)].at(-1)?.[1];
  assert.equal(await emptied('/operations?state=uncertain&wallet=red+agent'), 'No operation is like that.');
  assert.equal(await emptied('/operations?state=uncertain&min=100'), 'No operation is like that.');
  assert.equal(await emptied('/events?type=wallet.closed'), 'No event is of this type.');
  const { operations } = await purser.run('operation.list', { uncertain: true });
  for (const { id } of operations) await purser.run('operation.resolve', { id, decision: 'release', reason: 'seen' });
  assert.match((await emptied('/operations?state=uncertain')) ?? '', /^No outcome is unknown/);
});

test('a row has the tokens, the time it took, the route and the tags of its operation', async (t) => {
  const member = { id: 'pool', context_length: 32768, max_output_tokens: 1000, pricing: { request: '0.01' } };
  const purser = await openMemoryServer(t, {
    change: (all) => {
      const upstreams = ['one', 'two'].map((upstream_model) => ({ upstream: 'local', upstream_model }));
      return { ...all, router: { ...all.router, models: [...all.router.models, { ...member, upstreams }] } };
    },
  });
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 3600 });
  const slow = gate();
  purser.upstream.handle = slow.handler;
  const answer = purser.chat(token, { model: 'flat', metadata: { team: 'red', '<b>': 'x', note: '<script>' } });
  await purser.upstream.arrived(1);
  purser.clock.advance(64);
  slow.open();
  await answer;
  purser.upstream.handle = completion({ prompt_tokens: 1234, completion_tokens: 5, total_tokens: 1239 });
  await purser.chat(token, { model: 'pool' });
  await purser.rent(token);
  const browser = await asOperator(purser);
  const { html } = await browser.get('/operations');
  const cells = rowsOf(html).map((it) => [it.For, it.State, it.Took, it.Tokens, it.Route, it.Tags]);
  assert.deepEqual(cells.slice(1), [
    ['pool', 'charged', '&lt;1 s', '1,234 + 5', cells[1]?.[4], ''],
    ['flat', 'charged', '1 min 4 s', '10 + 5', 'local', 'team=red note=&lt;script&gt;'],
  ]);
  assert.match(cells[1]?.[4] as string, /^local (one|two)$/);
  assert.deepEqual([cells[0]?.[0], cells[0]?.[3]], ['provider_three', '']);
  const [lease] = (await purser.run('resource.list', {})).resources;
  assert.equal(cells[0]?.[4], lease?.backend);
  const narrowed = linkOf(html, 'note=&lt;script&gt;') as string;
  assert.deepEqual(
    rowsOf((await browser.get(narrowed)).html).map((it) => it.For),
    ['flat'],
  );
  const one = unescaped(/href="(\/operations\/op_\w+)">flat</.exec(html)?.[1]) as string;
  assert.match(
    (await browser.get(one)).html,
    /<dt>Route<\/dt><dd><span class="weak">local<.*by answer, after 1 min 4 s/s,
  );
});

async function walk(browser: Browser, path: string, ...words: string[]): Promise<[ids: string[], pages: string[]]> {
  const [ids, pages]: [string[], string[]] = [[], []];
  for (let at: string | undefined = path; at !== undefined; ) {
    const { html } = await browser.get(at);
    pages.push(html);
    ids.push(...[...html.matchAll(/<a href="\/operations\/(op_\w+)"/g)].map(([, id]) => id as string));
    at = words.map((word) => linkOf(html, word)).find((it) => it !== undefined);
  }
  return [ids, pages];
}

test('a rare operation among ten thousand is found by going on, and no page reads them all', async (t) => {
  const purser = await openTestServer(t);
  const { id: walletId, token } = await purser.openWallet({ budget_cents: 100_000 });
  const now = purser.app.clock.now();
  const count = 10_600;
  const rare = new Set([3, 150, 5000, count - 1]);
  for (let from = 0; from < count; from += 500)
    await writeWith(purser.app.ledger, (tx) => {
      for (let i = from; i < Math.min(count, from + 500); i++) {
        const id = `${idsFrom('op', now * 1000 + i)}${String(i).padStart(16, '0')}`;
        const order = holdOrder(walletId, 1000n, { id, tags: rare.has(i) ? '{"rare":"yes"}' : null });
        placeHold(tx, order, now);
        settle(tx, id, { kind: 'done', charge: Nanos(10n), usage: null, answer: null }, 'answer', now);
      }
    });
  const browser = await asOperator(purser);
  const [all, shown] = await walk(
    browser,
    `/operations?wallet=${walletId}&range=today&tag=rare%3Dyes`,
    'Search further',
  );
  assert.deepEqual(
    all.map((id) => Number(id.slice(-16))),
    [count - 1, 5000, 150, 3].slice(0, all.length),
  );
  assert.deepEqual(all.length, 4);
  const pages: number[][] = [];
  for (let before: string | undefined; before !== ''; ) {
    const query = `tag=rare%3Dyes&before=${before ?? ''}`;
    const { body } = await purser.ask('GET', `/v1/run/operations?${query}`, { token });
    pages.push(body.operations.map(({ id }: { id: string }) => Number(id.slice(-16))));
    before = body.next_cursor as string;
  }
  assert.deepEqual(
    pages,
    [
      [count - 1, 5000],
      [150, 3],
    ],
    'so the wallet itself',
  );
  assert.equal(shown.length, 2, 'ten thousand were looked at for the first page');
  assert.match(shown[0] as string, /Searched back to <time/);
  assert.doesNotMatch(shown[1] as string, /Searched back to|Search further/);
  const begun = process.cpuUsage();
  for (let i = 0; i < 3; i++) await browser.get('/operations?model=none');
  const { user, system } = process.cpuUsage(begun);
  t.diagnostic(`10,000 operations looked at: ${((user + system) / 3000).toFixed(0)} ms of CPU`);
  const { html } = await browser.get('/operations');
  assert.match(html, /50 of 10,600/);
  assert.equal(rowsOf(html).length, 50);
});
