import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { unitText } from '../../src/service/unit.ts';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE } from '../helper/executable.ts';

/** systemd's own measure of what a service may do: 10 is everything, 2 and less "OK". */
const EXPOSURE_MAX = 1.5;

test('the unit is well-formed, and leaves the service little that it could do', (t) => {
  if (!hasComponent(t, 'systemd')) return;
  const directory = mkdtempSync(join(tmpdir(), 'purser-unit-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const unit = join(directory, 'purser.service');
  const text = unitText(EXECUTABLE);
  writeFileSync(unit, text);
  execFileSync('systemd-analyze', ['verify', unit], { stdio: 'pipe' });
  const args = ['security', '--offline=yes', `--threshold=${EXPOSURE_MAX * 10}`, unit];
  const said = execFileSync('systemd-analyze', args, { encoding: 'utf8' });
  t.diagnostic(said.trim().split('\n').at(-1) as string);
  assert.match(text, /^Type=exec$/m);
  assert.doesNotMatch(text, /^MemoryDenyWriteExecute/m);
});
