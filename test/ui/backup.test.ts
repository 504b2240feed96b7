import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { startProgramsQuickly } from '../helper/quick-programs.ts';
import { openTestServer } from '../helper/server.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { asAccount, asOperator } from './sample.ts';

test('an operator makes a backup at once, one for each form, and is told why there is none', async (t) => {
  startProgramsQuickly(t);
  const directory = join(temporaryDirectory(t), 'backups'); // Not there yet: what is planned fails.
  const purser = await openTestServer(t, { settings: { backup: { directory, every: '1d', keep: 3 } } });
  const browser = await asOperator(purser);
  const failed = await browser.post('/settings/backup');
  assert.equal(failed.status, 409);
  assert.match(failed.html, /No backup was made: There is no directory/);

  mkdirSync(directory);
  const made = () => readdirSync(directory).filter((it) => it.endsWith('.db'));
  const { html } = await browser.get('/settings');
  const key = /action="\/settings\/backup"[\s\S]*?name="key" value="([^"]*)"/.exec(html)?.[1] as string;
  for (let time = 0; time < 2; time++) {
    const { status, headers } = await browser.post('/settings/backup', { key });
    assert.deepEqual([status, headers.location], [303, '/settings?done=backed-up']);
  }
  const [file] = made() as [string];
  assert.deepEqual([made().length, file.includes(purser.app.installationId)], [1, true]);
  const shown = await browser.get('/settings?done=backed-up');
  assert.match(shown.html, /A backup was made and verified/);
  assert.ok(shown.html.includes(file));
  const more = [await purser.run('backup.now', {}), await purser.run('backup.now', {})];
  assert.deepEqual(
    made().sort(),
    [file, file.replace('-manual', '-manual-2'), file.replace('-manual', '-manual-3')].sort(),
    'of the same second',
  );
  assert.deepEqual(
    more.map((it) => it.file).sort(),
    made()
      .filter((it) => it !== file)
      .map((it) => join(directory, it))
      .sort(),
  );
  assert.equal((await (await asAccount(purser)).post('/settings/backup')).status, 404);
  rmSync(directory, { recursive: true });
});

test('without a directory in the settings no backup is offered, and the command says what to set', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  assert.doesNotMatch((await browser.get('/settings')).html, /Back up now/);
  const { status, html } = await browser.post('/settings/backup');
  assert.deepEqual([status, /set `backup` in purser.yaml/.test(html)], [409, true]);
});
