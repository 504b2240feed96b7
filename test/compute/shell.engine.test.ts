import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { judgeUpload, RECEIVE } from '../../src/compute/machine/shell.ts';
import { hasComponent } from '../helper/component.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const SHELLS = [['dash'], ['bash'], ['busybox', 'sh']] as const;

test('an upload says in every shell what became of it', (t) => {
  if (!hasComponent(t, 'busybox')) return;
  for (const [shell, ...words] of SHELLS) {
    const home = temporaryDirectory(t);
    mkdirSync(join(home, 'folder'));
    writeFileSync(join(home, 'file'), 'old', { mode: 0o600 });
    const receive = (path: string, content = 'hello', length = content.length) => {
      const argv = [...words, '-c', RECEIVE, 'purser', path, String(length)];
      const { status, stderr } = spawnSync(shell, argv, { input: content, cwd: home });
      judgeUpload(status ?? 255, stderr);
    };
    for (const path of ['new/x', '-n', '-d/x', 'file', `${home}/there`, 'it\'s "$HOME"']) {
      receive(path);
      assert.equal(readFileSync(path.startsWith('/') ? path : join(home, path), 'utf8'), 'hello', `${shell}: ${path}`);
    }
    for (const [path, message] of [
      ['folder', /is a directory/],
      ['file/x', /cannot be written there: .*(exists|Not a directory)/],
      ['/proc/x', /must not lie in/],
      ['/dev/x', /must not lie in/],
    ] as const)
      assert.throws(() => receive(path), { code: 'invalid_request', message }, `${shell}: ${path}`);
    assert.throws(() => receive('short', 'hello', 6), /connection was lost/);
    assert.equal(existsSync(join(home, 'short')), false);
    assert.deepEqual(
      readdirSync(home).filter((it) => it.includes('.purser-')),
      [],
      'nothing unfinished is left',
    );
  }
});
