import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { createGuest } from '../../src/compute/machine/guest.ts';
import type { Program, ProgramOrder } from '../../src/compute/machine/program.ts';
import { KILLED } from '../../src/compute/machine/shell.ts';

const ORDER = { command: 'true', timeoutSeconds: 0.2, streamBytesMax: 100 };

/** A program that has ended with `code` and said nothing, or that still runs. */
function program(code?: number): Program & { left: (Error | undefined)[] } {
  const ended = Promise.withResolvers<{ code: number }>();
  if (code !== undefined) ended.resolve({ code });
  const left: (Error | undefined)[] = [];
  return {
    ...{ stdin: new PassThrough(), stdout: new PassThrough().end(), stderr: new PassThrough().end(), left },
    ended: ended.promise,
    resize() {},
    kill() {},
    leave(reason) {
      left.push(reason);
      ended.reject(reason);
    },
  };
}

test('a killed command ran out of time if it had its time, counted from its begin where the engine knows that', async () => {
  const slowly = (it: Partial<Program>) =>
    createGuest(async () => {
      await pause(300);
      return { ...program(KILLED), ...it, ...('begunAt' in it ? { begunAt: performance.now() } : {}) };
    });
  assert.equal((await slowly({}).exec('x', ORDER)).timedOut, true);
  assert.equal((await slowly({ begunAt: 0 }).exec('x', ORDER)).timedOut, false);
});

test('a program that is waited for is left once it has ended, and with the reason when it takes too long', async () => {
  const quick = program(0);
  await createGuest(async () => quick).exec('x', ORDER);
  assert.deepEqual(quick.left, [undefined]);
  const guest = createGuest(async () => program(), { graceMilliseconds: 1, uploadMilliseconds: 1 });
  await assert.rejects(guest.exec('x', ORDER), { name: 'TimeoutError' });
  await assert.rejects(guest.upload('x', 'file', Buffer.from('x')), { name: 'TimeoutError' });
});

test('what the engine says of a result counts: its own words are no output, and a lost part is no result', async () => {
  const judged = (judge: Program['judge']) => createGuest(async () => ({ ...program(1), judge }) as Program);
  const { stderr } = await judged(() => Buffer.from('plain')).exec('x', ORDER);
  assert.equal(stderr.toString(), 'plain');
  const lost = judged(() => {
    throw new Error('a part was lost');
  });
  await assert.rejects(lost.exec('x', ORDER), /a part was lost/);
});

test('a session that is killed is not waited for longer than the killing, which finds it by its mark', async () => {
  const orders: ProgramOrder[] = [];
  const session = program();
  const guest = createGuest(
    async (_, order) => {
      orders.push(order);
      return order.purpose === 'session' ? session : program(0);
    },
    { killMilliseconds: 50 },
  );
  const { kill, ended } = await guest.session('x', { command: 'sleep 600', terminal: undefined });
  kill();
  await assert.rejects(Promise.race([ended, pause(10_000)]), /the session was killed/);
  assert.deepEqual(
    orders.map((it) => it.purpose),
    ['session', 'kill'],
  );
  assert.deepEqual(orders[1]?.args, [orders[0]?.marker]);
});

test('a proof is what the engine says is missing, or a command that runs', async () => {
  const begun: ProgramOrder[] = [];
  const guestWith = (proof: string | object) =>
    createGuest(
      async (_, order) => {
        begun.push(order);
        return program(0);
      },
      { proofOf: async () => proof },
    );
  assert.equal(await guestWith('the machine is gone').prove('x'), 'the machine is gone');
  assert.equal(begun.length, 0);
  assert.equal(await guestWith({ before: 'check || exit 1' }).prove('x'), undefined);
  assert.equal(begun[0]?.command, 'check || exit 1\ntrue');
});
