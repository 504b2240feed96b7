import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import test from 'node:test';
import { keepDeadlines } from '../../src/compute/kit/watchdog.ts';
import { FOLDER } from './watchdog-shared.ts';

test('the watchdogs are those that SHA256SUMS names', () => {
  execFileSync('sha256sum', ['--check', '--strict', '--quiet', 'SHA256SUMS'], { cwd: FOLDER });
});

const NOT_STARTED = 126;
const NO_SUCH_FILE = 2;

for (const { what, exitCodes, moved, asked } of [
  {
    what: 'not started at first, then without its file',
    exitCodes: [NOT_STARTED, NO_SUCH_FILE, 0],
    moved: 'done',
    asked: 3,
  },
  { what: 'never started', exitCodes: [], moved: 'refused', asked: 10 },
  { what: 'killed, and may have moved it', exitCodes: [137, 0], moved: 'unknown', asked: 1 },
] as const)
  test(`a deadline is moved by a watchdog that is ${what}: ${moved}`, async () => {
    const told: string[] = [];
    const deadlines = keepDeadlines(
      async (_, deadline = '') => ({
        exitCode: exitCodes[told.push(deadline) - 1] ?? NOT_STARTED,
        stdout: 'OCI runtime\r\n',
      }),
      () => undefined,
    );
    const outcome = await deadlines.move('machine', 1000);
    assert.equal(outcome.kind, moved);
    if (outcome.kind === 'refused') assert.match(outcome.reason, /\(126\) OCI runtime$/);
    assert.deepEqual(told, Array(asked).fill('1000'));
  });
