import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, copyFileSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { hasComponent } from './helper/component.ts';

const SETUP = join(import.meta.dirname, 'setup');

/** Creates a machine with next to nothing installed, whose apt-get only prints its arguments. */
function bareMachine(t: TestContext, ...programs: string[]) {
  const bin = mkdtempSync(join(tmpdir(), 'purser-setup-'));
  t.after(() => rmSync(bin, { recursive: true, force: true }));
  chmodSync(bin, 0o755);
  symlinkSync('/usr/bin/env', join(bin, 'env'));
  copyFileSync(SETUP, join(bin, 'setup')); // Every user can read it there.
  for (const name of programs) writeFileSync(join(bin, name), '#!/bin/bash\necho "asked: $0 $*"\n', { mode: 0o755 });
  return (identity: { uid?: number } = {}) =>
    spawnSync('/bin/bash', [join(bin, 'setup')], { env: { PATH: bin }, encoding: 'utf8', ...identity });
}

test('the set-up installs what is missing, says what, and asks root for it', (t) => {
  if (!hasComponent(t, 'root')) return;
  const setUp = bareMachine(t, 'apt-get', 'npm');
  const { status, stdout } = setUp();
  assert.equal(status, 0, stdout);
  assert.match(stdout, /asked: \S+\/apt-get update --quiet\n/);
  const installed = /asked: \S+\/apt-get install --yes --quiet --no-install-recommends (.*)/
    .exec(stdout)?.[1]
    ?.split(' ');
  assert.ok(installed?.includes('strace') && installed.includes('slurm-client'), stdout);
  assert.ok(stdout.includes(`installing ${installed?.join(' ')}\n`));

  assert.match(stdout, /asked: \S+\/npm install --prefix \S+\/agents --no-save --ignore-scripts/);

  const nobody = setUp({ uid: 65_534 });
  assert.equal(nobody.status, 1);
  assert.match(nobody.stderr, /^To be installed: .*strace.*run this as root, or install sudo\.$/m);
  assert.match(
    bareMachine(t, 'apt-get', 'sudo')({ uid: 65_534 }).stdout,
    /asked: \S+\/sudo env \S+ apt-get install .*strace/,
  );
});

test('where there is no apt-get the set-up says what to install', (t) => {
  const { status, stderr } = bareMachine(t)();
  assert.equal(status, 1);
  assert.match(stderr, /There is no apt-get here\. Install what these packages of Debian bring: .*strace/);
});

test('there is one list: what runs everything takes it from the set-up', () => {
  const all = readFileSync(join(import.meta.dirname, '../.ci/run'), 'utf8');
  assert.match(all, /^source test\/setup\b/m);
  assert.doesNotMatch(all, /apt-get/);
});
