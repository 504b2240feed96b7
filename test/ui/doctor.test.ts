import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { REFUSALS } from '../../src/base/refusal.ts';
import { WARNING } from '../../src/compute/finding.ts';
import { examine } from '../../src/doctor/doctor.ts';
import { createDoctor } from '../../src/doctor/run.ts';
import { openTestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { asAccount, asOperator } from './sample.ts';

/** Returns result and name of each finding that a page shows. */
const shownOn = (html: string) =>
  [...html.matchAll(/<tr[^>]*><td[^>]*><span class="badge \w+">(\w+)<\/span><\/td><td[^>]*>([^<]+)<\/td>/g)].map(
    ([, result, name]) => `${result} ${name}`,
  );

test('an operator examines the installation on the page and sees what `purser doctor` finds, the worst first', async (t) => {
  const purser = await openTestServer(t, {
    settings: {
      backup: { directory: '/nonexistent', every: '1d', keep: 3 },
      accounts: { default: {}, nobody: {} },
    },
  });
  const browser = await asOperator(purser);
  assert.match((await browser.get('/settings')).html, /action="\/settings\/doctor"/);
  const found = await examine(purser.app.config);
  const named = found.map(
    ({ name, ok, detail }) => `${ok ? (detail.startsWith(WARNING) ? 'warning' : 'good') : 'bad'} ${name}`,
  );
  const { status, html } = await browser.post('/settings/doctor');
  assert.equal(status, 200);
  const shown = shownOn(html);
  assert.deepEqual(shown.toSorted(), named.toSorted());
  assert(shown.includes('bad backups') && shown.includes('warning accounts.nobody'));
  assert(!shown.some((it) => it.endsWith('accounts.default')));
  const ranks = shown.map((it) => ['bad', 'warning', 'good'].indexOf(it.split(' ')[0] as string));
  assert.deepEqual(ranks, ranks.toSorted());
  assert.match(html, /\/nonexistent/);
  assert.match(html, /role="alert">\d+ faults?, \d+ warnings?\. Each finding names its remedy\./);
  assert.deepEqual(purser.problems(), []);
  assert.equal((await (await asAccount(purser)).post('/settings/doctor')).status, 404);
});

test('an examination that does not end in time is stopped, and the page says so', async (t) => {
  const purser = await openTestServer(t);
  purser.app.runDoctor = createDoctor(purser.app.config, new AbortController().signal, 1);
  const browser = await asOperator(purser);
  const { status, html } = await browser.post('/settings/doctor');
  assert.deepEqual([status, /did not end within 0.001 s, and was stopped/.test(html)], [409, true]);
});

test('examinations at the same time are one', async (t) => {
  const purser = await openTestServer(t);
  const examine = createDoctor(purser.app.config, new AbortController().signal);
  const [one, two] = [examine(), examine()];
  assert.equal(one, two);
  assert.notEqual((await one).length, 0);
  const later = examine();
  assert.notEqual(later, one, 'a later one is another');
  await later;
});

test('a stop ends an examination that runs, and its process', async (t) => {
  const purser = await openTestServer(t);
  const directory = temporaryDirectory(t);
  const [program, started] = [join(directory, 'node'), join(directory, 'pid')];
  writeFileSync(
    program,
    `#!/bin/sh\necho $$ > '${started}.new'; mv '${started}.new' '${started}'; exec tail -f /dev/null\n`,
    {
      mode: 0o755,
    },
  );
  const { execPath } = process;
  process.execPath = program;
  t.after(() => {
    process.execPath = execPath;
  });
  const browser = await asOperator(purser);
  const answer = browser.post('/settings/doctor');
  await until('the examination runs', () => existsSync(started));
  const pid = Number(readFileSync(started, 'utf8'));
  await purser.app[Symbol.asyncDispose]();
  const { status, html } = await answer;
  assert.deepEqual([status, /The server is stopping/.test(html)], [REFUSALS.read_only.status, true]);
  assert.throws(() => process.kill(pid, 0), { code: 'ESRCH' });
});
