import assert from 'node:assert/strict';
import test from 'node:test';
import type { SessionOrder } from '../../src/compute/backend.ts';
import { hasComponent } from '../helper/component.ts';
import { until } from '../helper/waiting.ts';
import { openLease, processesWith } from './local-shared.ts';

test('a session with a terminal has one that can be resized, and dies when it is killed', async (t) => {
  if (!hasComponent(t, 'script')) return;
  const { backend, tag } = await openLease(t);
  const order: SessionOrder = { command: undefined, terminal: { term: 'vt100', columns: 91, rows: 17 } };
  const session = await backend.guest.session(tag, order);
  let said = '';
  session.stdout.on('data', (chunk: Buffer) => {
    said += chunk;
  });
  const type = (line: string, answer: RegExp) => {
    session.stdin.write(`${line}\n`);
    return until(`the terminal says ${answer}`, async () => answer.test(said));
  };
  await type('tty; stty size; echo "$TERM"', /\/dev\/pts\/\d+\s+17 91\s+vt100/);
  session.resize(120, 40);
  await until('the size is another', async () => {
    session.stdin.write('stty size\n');
    return said.includes('40 120');
  });
  await type('setsid sleep 4447 & echo "beg"un', /begun/);
  const marked = processesWith('PURSER_EXEC=').length;
  assert.ok(marked > 0);
  session.kill();
  await session.ended;
  await until('all of it is dead', async () => processesWith(`PURSER_LEASE=${tag}`).length === 0);
});
