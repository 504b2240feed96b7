import assert from 'node:assert/strict';
import test from 'node:test';
import { run } from '../helper/executable.ts';
import { length, SEED } from '../helper/random.ts';

const MINUTES = length(1, 5);

test(`nothing is lost, paid twice or forgotten in ${MINUTES} minutes of torture (seed ${SEED})`, async (t) => {
  const said = await run(['--minutes', String(MINUTES), '--seed', String(SEED)], {
    command: [process.execPath, 'torture/main.ts'],
    env: process.env as Record<string, string>,
  });
  t.diagnostic(said.stdout);
  assert.equal(said.code, 0, `${said.stdout}\n${said.stderr}`);
});
