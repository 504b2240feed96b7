import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { createEgress } from '../../src/egress/egress.ts';
import { systemOutside } from '../../src/egress/outside.ts';
import { hold } from '../lease/leases.ts';
import { NO_SECRETS } from './proxy-shared.ts';

type Needs = Parameters<typeof createEgress>[0];

/** Ways out of leases that live, and that connect to nothing. */
const openWith = (needs: Pick<Needs, 'begin'> & Partial<Needs>) =>
  createEgress({
    outside: { ...systemOutside, lookUp: async () => [], dial: () => assert.fail(), isOwn: () => false },
    listsOf: () => undefined,
    secretsOf: () => NO_SECRETS,
    isLive: () => true,
    isPaused: () => false,
    enter: () => () => {},
    passed() {},
    refused() {},
    failed() {},
    ...needs,
  });

test('a program that starts after the time for it is ended', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const held = hold();
  const killed = Promise.withResolvers<void>();
  const egress = openWith({
    async begin() {
      await held.wait();
      const [stdin, stdout] = [new PassThrough(), new PassThrough()];
      return { stdin, stdout, ended: killed.promise, kill: killed.resolve };
    },
  });
  const opening = egress.open('res_1');
  await held.arrived;
  t.mock.timers.tick(20_000);
  await assert.rejects(opening, /took longer than 20 s/);
  egress.close();
  held.go();
  await killed.promise;
});

/** A program that listens at once, and `lose`, which ends it. */
function listening() {
  const [stdin, stdout] = [new PassThrough().resume(), new PassThrough()];
  stdout.write(Buffer.from([6, 0, 0, 0]));
  const ended = Promise.withResolvers<void>();
  return { session: { stdin, stdout, ended: ended.promise, kill: ended.resolve }, lose: ended.resolve };
}

test('a way out that was lost while its machine was paused is opened as soon as that runs again', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let isPaused = false;
  let begun = 0;
  const failures: unknown[] = [];
  let program = listening();
  const egress = openWith({
    isPaused: () => isPaused,
    async begin() {
      begun += 1;
      program = listening();
      return program.session;
    },
    failed: (_, error) => failures.push(error),
  });
  await egress.open('res_1');
  isPaused = true;
  program.lose();
  // The time of a long pause: meanwhile nothing is asked of the machine, and nothing is reported.
  for (let minute = 0; minute < 10; minute++) {
    for (let turn = 0; turn < 5; turn++) await setImmediate();
    t.mock.timers.tick(60_000);
  }
  assert.deepEqual([begun, failures], [1, []]);
  isPaused = false;
  await egress.open('res_1');
  assert.equal(begun, 2);
  egress.close();
});
