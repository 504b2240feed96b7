import assert from 'node:assert/strict';
import test from 'node:test';
import { ago, when } from '../../src/ui/times.ts';
import { collectGarbage } from '../helper/garbage.ts';
import { handClock, openTestServer } from '../helper/server.ts';
import { asAccount, asOperator, openBrowser, openSample, tableOf } from './sample.ts';

const at = (text: string) => Date.parse(text) / 1000;

test('a time is written in the zone of the reader, by its clocks at that time, with UTC as a hint', () => {
  const times: [text: string, zone: string, shown: string][] = [
    ['2026-03-30T22:30:05Z', 'UTC', '2026-03-30 22:30:05 UTC'],
    ['2026-03-30T22:30:05Z', 'Europe/Berlin', '2026-03-31 00:30:05 CEST'],
    ['2026-03-29T00:59:59Z', 'Europe/Berlin', '2026-03-29 01:59:59 CET'],
    ['2026-03-29T01:00:00Z', 'Europe/Berlin', '2026-03-29 03:00:00 CEST'],
    ['2026-10-25T00:30:00Z', 'Europe/Berlin', '2026-10-25 02:30:00 CEST'],
    ['2026-10-25T01:30:00Z', 'Europe/Berlin', '2026-10-25 02:30:00 CET'],
    ['2026-01-01T00:00:00Z', 'America/New_York', '2025-12-31 19:00:00 GMT-5'],
    ['2026-01-01T18:20:00Z', 'Asia/Kathmandu', '2026-01-02 00:05:00 GMT+5:45'],
    ['2026-01-01T10:00:00Z', 'Pacific/Kiritimati', '2026-01-02 00:00:00 GMT+14'],
  ];
  for (const [text, zone, shown] of times) {
    const utc = `${text.slice(0, 10)} ${text.slice(11, 19)} UTC`;
    const iso = text.replace('Z', '.000Z');
    const title = zone === 'UTC' ? '' : ` title="${utc}"`;
    assert.equal(String(when(at(text), { zone })), `<time datetime="${iso}"${title}>${shown}</time>`);
    const both = zone === 'UTC' ? utc : `${shown}, ${utc}`;
    const reader = { zone, now: at(text) + 65 };
    assert.equal(String(ago(at(text), reader)), `<time datetime="${iso}" title="${both}">1 min 5 s ago</time>`);
  }
  assert.match(String(ago(100, { zone: 'UTC', now: 40 })), />in 1 min</);
  assert.deepEqual([when(null, { zone: 'UTC' }), ago(undefined, { zone: 'UTC', now: 0 }, 'never')], ['–', 'never']);
});

test('the formats of zones that readers write in many ways are not all kept', async (t) => {
  const kept: WeakRef<object>[] = [];
  const { DateTimeFormat } = Intl;
  t.after(() => {
    Intl.DateTimeFormat = DateTimeFormat;
  });
  Intl.DateTimeFormat = class extends DateTimeFormat {
    constructor(...given: ConstructorParameters<typeof DateTimeFormat>) {
      super(...given);
      kept.push(new WeakRef(this));
    }
  } as typeof DateTimeFormat;
  for (let i = 0; i < 1000; i++) {
    const letters = [...'america/argentina'].map((it, place) => ((i >> place) & 1 ? it.toUpperCase() : it)).join('');
    assert.match(String(when(0, { zone: `${letters}/Ushuaia` })), /^<time/);
  }
  assert.ok(kept.length > 500);
  await collected();
  const alive = kept.filter((it) => it.deref() !== undefined).length;
  assert.ok(alive <= 200, `${alive} formats are kept`);
});

/** Collects what nothing refers to, after the turn in which weak references were made. */
async function collected(): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
  collectGarbage();
}

test('every time of every page is in the zone of the reader, and one link shows the page in UTC', async (t) => {
  const sample = await openSample(t);
  const [wallet] = sample.wallets as [{ id: string }, ...unknown[]];
  const { resources } = await sample.run('resource.list', { all: true });
  const [operation] = (await sample.run('operation.list', { state: 'charged' })).operations;
  const pages = [
    ...['/', '/accounts', `/accounts/${sample.accountId}`, '/wallets', `/wallets/${wallet.id}`, '/leases'],
    ...[`/leases/${resources[0]?.id}`, '/operations', `/operations/${operation?.id}`, '/spend?range=7d', '/models'],
    ...['/journal', '/events', '/settings', `/wallets/${sample.evil.id}/freeze`],
  ];
  const browser = await asOperator(sample);
  const titles = /<time datetime="([^"]+)"(?: title="([^"]*)")?>([^<]*)</g;
  let exact = 0;
  for (const [zone, short] of [
    ['UTC', 'UTC'],
    ['Asia/Kathmandu', 'GMT+5:45'],
  ] as const)
    for (const path of pages) {
      browser.cookies.set('purser-zone', zone);
      const { status, html } = await browser.get(path);
      assert.equal(status, 200, path);
      for (const [element, iso = '', title, text = ''] of html.matchAll(titles)) {
        const isRelative = /ago$|^in /.test(text);
        const utc = `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
        const shown = isRelative ? title?.split(', ')[0] : text;
        assert.equal(
          at(`${shown?.replace(' ', 'T').replace(` ${short}`, short === 'UTC' ? 'Z' : '+05:45')}`),
          at(iso),
          element,
        );
        if (zone !== 'UTC') assert.ok(title?.endsWith(utc), element);
        exact++;
      }
      const rest = html.replace(titles, '').replace(/<footer>.*?<\/footer>/s, '');
      if (zone !== 'UTC') assert.doesNotMatch(rest.replace(/<select.*?<\/select>/gs, ''), /\d\d:\d\d UTC/, path);
      assert.match(html, new RegExp(`<footer>Purser \\S+ Times are ${zone}`), path);
      const other = /<footer>.*?href="([^"]+)">show UTC</s.exec(html)?.[1]?.replaceAll('&amp;', '&');
      assert.equal(other !== undefined, zone !== 'UTC', path);
      if (other === undefined) continue;
      const { html: inUtc } = await browser.get(other);
      assert.match(inUtc, /<footer>Purser \S+ Times are UTC \(<a href="[^"]*">show your time zone</, path);
      assert.doesNotMatch(inUtc, /GMT\+5:45/, path);
      assert.equal(
        /show your time zone/.test(inUtc) && /<a href="([^"]+)">show your/.exec(inUtc)?.[1]?.replaceAll('&amp;', '&'),
        path,
      );
    }
  assert.ok(exact > 300, String(exact));
});

test('a zone that is none is refused in an address and ignored in a cookie; moving figures are of the page’s zone', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asAccount(purser);
  for (const zone of ['Mars/Olympus', 'x'.repeat(100), '"><script>'])
    assert.equal((await browser.get(`/wallets?zone=${encodeURIComponent(zone)}`)).status, 400, zone);
  browser.cookies.set('purser-zone', 'Mars/Olympus');
  assert.match((await browser.get('/wallets')).html, /Times are UTC/);
  const operator = await asOperator(purser);
  assert.match(
    (await operator.get('/?zone=Etc/GMT%2B5')).html,
    /data-stream="\/live\?page=now&amp;zone=Etc%2FGMT%2B5"/,
  );
  assert.match((await openBrowser(purser).get('/sign-in')).html, /Times are UTC, /);
});

test('a refill says its zone, a budget of whole cents has no digits below them, and one of a child has all', async (t) => {
  const time = handClock();
  time.leap(at('2026-03-30T12:00:00Z') - time.wall() / 1000);
  const purser = await openTestServer(t, { time, creditCents: 200_000 });
  const { id, token } = await purser.openWallet({ budget_cents: 123_450, expires_in_seconds: 0, name: 'parent' });
  await purser.run('wallet.refill', { id, refill: { cents: 500, every: 'day', zone: 'Europe/Berlin' } });
  const browser = await asOperator(purser);
  browser.cookies.set('purser-zone', 'Europe/Berlin');
  const { html } = await browser.get(`/wallets/${id}`);
  assert.match(html, /<h2>Its life<.*?<div class="x" aria-hidden="true"><span>14:00 CEST</s, 'an axis of hours');
  assert.match(
    html,
    /every midnight \(Europe\/Berlin\), next <time [^>]*title="2026-03-30 22:00:00 UTC">2026-03-31 00:00:00 CEST</,
  );
  const body = { name: 'child', budget_usd: '0.1234', expires_in_seconds: 0 };
  assert.equal((await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body })).status, 201);
  const rows = tableOf((await browser.get('/wallets?sort=name')).html, 'Wallets');
  assert.deepEqual(
    rows.map((it) => [it.Name, it.Budget]),
    [
      ['child child', '0.123400000'],
      ['parent', '1,234.50'],
    ],
  );
});

test('the picture of a wallet stays in its frame while the clock is behind what the books have', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 0 });
  for (let i = 0; i < 3; i++) {
    purser.clock.advance(3600);
    assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
  }
  purser.clock.leap(-86_400);
  await purser.reopen();
  assert.equal(purser.app.clock.doubt()?.direction, 'behind');
  const { html } = await (await asOperator(purser)).get(`/wallets/${id}`);
  const line = /class="line" d="([^"]+)"/.exec(html)?.[1] as string;
  const places = [...line.matchAll(/[HM](-?[\d.]+)/g)].map(([, x]) => Number(x));
  assert.ok(places.length > 3);
  assert.deepEqual([Math.min(...places), Math.max(...places)], [0, 1000], line);
});
