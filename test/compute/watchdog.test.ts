import { execFileSync } from 'node:child_process';
import test from 'node:test';
import { FOLDER } from './watchdog-shared.ts';

test('the watchdogs are those that SHA256SUMS names', () => {
  execFileSync('sha256sum', ['--check', '--strict', '--quiet', 'SHA256SUMS'], { cwd: FOLDER });
});
