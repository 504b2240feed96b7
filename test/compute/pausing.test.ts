import assert from 'node:assert/strict';
import test from 'node:test';
import type { Extended, Spec } from '../../src/compute/backend.ts';
import { createReservations } from '../../src/compute/kit/capacity.ts';
import { type Claim, sizeOf } from '../../src/compute/kit/claim.ts';
import { continueProcesses, createPausing } from '../../src/compute/kit/pausing.ts';

const ROOM = { takeRoom: async () => undefined, letGo() {} };
const [ORIGINAL, TARGET] = [1000, 9000];

type Fault = { at: number; when: 'before' | 'after' } | undefined;

/** A machine that is only remembered, and whose calls fail where a test says so. */
function machineOf() {
  const machine = { isStopped: false, cpu: 'sold', deadline: ORIGINAL };
  const calls = { count: 0, fault: undefined as Fault, areMovesRefused: false };
  const call = async <T>(act: () => T): Promise<T> => {
    const at = calls.count++;
    const fails = (when: 'before' | 'after') => calls.fault?.at === at && calls.fault.when === when;
    if (fails('before')) throw new Error('the process died before it');
    const result = act();
    if (fails('after')) throw new Error('the process died after it');
    return result;
  };
  const pausing = createPausing(
    {
      limitCpu: (_, to) =>
        call(() => {
          machine.cpu = to;
        }),
      signal: (_, what) =>
        call(() => {
          machine.isStopped = what === 'stop';
          return 0;
        }),
      look: () => call(() => (machine.isStopped ? 0 : 16)),
    },
    {
      move: (_, deadline) =>
        call(() => {
          if (calls.areMovesRefused) return { kind: 'refused', reason: 'no process is left' } as const;
          machine.deadline = deadline;
          return { kind: 'done' } as const;
        }),
    },
    ROOM,
  );
  return { machine, calls, pausing };
}

const RUNNING = { isStopped: false, cpu: 'sold', deadline: ORIGINAL };
const PAUSED = { isStopped: true, cpu: 'least', deadline: TARGET };

test('a machine with the deadline of its pause has stopped and can be completed, wherever the pause broke off', async () => {
  for (let at = 0; at < 4; at++)
    for (const when of ['before', 'after'] as const) {
      const { machine, calls, pausing } = machineOf();
      calls.fault = { at, when };
      await assert.rejects(pausing.begin('x', TARGET), `${when} call ${at}`);
      if (machine.deadline === TARGET) {
        assert.ok(machine.isStopped);
        await pausing.complete('x');
        assert.deepEqual(machine, PAUSED);
      } else assert.deepEqual([machine.deadline, machine.cpu], [ORIGINAL, 'sold']);
      assert.deepEqual(await pausing.end('x', ORIGINAL), { kind: 'done' });
      assert.deepEqual(machine, RUNNING, 'it is undone');
    }
});

test('a machine that may run has the deadline of its resumption, wherever that broke off', async () => {
  for (let at = 0; at < 3; at++)
    for (const when of ['before', 'after'] as const) {
      const { machine, calls, pausing } = machineOf();
      assert.deepEqual(await pausing.begin('x', TARGET), { kind: 'done' });
      assert.deepEqual(machine, PAUSED);
      calls.fault = { at: calls.count + at, when };
      await assert.rejects(pausing.end('x', ORIGINAL), `${when} call ${at}`);
      if (machine.deadline === TARGET) assert.ok(machine.isStopped);
      assert.deepEqual(await pausing.end('x', ORIGINAL), { kind: 'done' });
      assert.deepEqual(machine, RUNNING, 'it is finished');
    }
});

test('a machine that is refused its resumption stays paused, wherever that broke off', async () => {
  for (let at = 0; at < 3; at++)
    for (const when of ['before', 'after'] as const) {
      const { machine, calls, pausing } = machineOf();
      await pausing.begin('x', TARGET);
      calls.areMovesRefused = true;
      calls.fault = { at: calls.count + at, when };
      await assert.rejects(pausing.end('x', ORIGINAL), `${when} call ${at}`);
      assert.deepEqual([machine.isStopped, machine.deadline], [true, TARGET]);
      assert.equal((await pausing.end('x', ORIGINAL)).kind, 'refused');
      assert.deepEqual(machine, PAUSED);
    }
});

test('a machine whose processes do not all stop is not paused', async () => {
  for (const [looked, words] of [
    [16, /not all of its processes stop/],
    [64, /earlier version/],
    [127, /not all of its processes stop/],
  ] as const) {
    const asked: string[] = [];
    const pausing = createPausing(
      {
        limitCpu: async () => void asked.push('cpu'),
        signal: async () => 0,
        look: async () => looked,
      },
      { move: async () => ({ kind: 'done' }) },
      ROOM,
    );
    const begun = await pausing.begin('x', TARGET);
    assert.match(begun.kind === 'refused' ? begun.reason : begun.kind, words);
    assert.deepEqual(asked, []);
  }
});

test('processes whose continuation the engine did not start are continued', async () => {
  const codes = [126, 127, 0];
  const continued = await continueProcesses({ signal: async () => codes.shift() ?? 1 }, 'x');
  assert.deepEqual([continued, codes], [{ kind: 'done' }, []]);
});

test('paused machines give their processors back, and no memory', async () => {
  const settings = {
    limits: { disk_gb: 1, gpus: 0 },
    prices: { cpu_hourly_usd: 1n, memory_gib_hourly_usd: 1n, gpu_hourly_usd: {} },
    capacity: { cpus: 2, memory_gib: 8 },
  };
  const spec: Spec = { gpu: null, gpus: 0, cpus: 2, memory_gib: 1, max_seconds: 60 };
  const size = sizeOf(settings as never, spec);
  const claims = new Map<string, Claim>();
  const paused = new Set<string>();
  const around = { prefix: 'us-', isPaused: (tag: string) => paused.has(tag) };
  const reservations = createReservations(settings as never, around, {
    list: async () => [...claims.values()],
    capacity: async () => settings.capacity,
  });
  const make = async (tag: string) => {
    const claim = await reservations.reserve(tag, size);
    if ('lacking' in claim) return claim.lacking;
    claims.set(tag, claim);
    reservations.release(tag);
    return 'made';
  };
  assert.equal(await make('us-a'), 'made');
  assert.equal(await make('us-b'), '2 of 2 cpus are leased');
  paused.add('us-a');
  assert.equal((await reservations.free())(size), 1);
  assert.equal(await make('us-b'), 'made');
  assert.equal(await reservations.takeRoom('us-a'), '2 of 2 cpus are leased');

  paused.add('us-b');
  const [first, second] = await Promise.all([reservations.takeRoom('us-a'), reservations.takeRoom('us-b')]);
  assert.deepEqual([first, second], [undefined, '2 of 2 cpus are leased'], 'two never share the last');
  assert.equal((await reservations.free())(size), 0);
  reservations.release('us-a'); // Its row still says that it is paused.
  assert.equal((await reservations.free())(size), 1);
  claims.set('other-c', { ...(claims.get('us-a') as Claim), tag: 'other-c' });
  assert.equal(await reservations.takeRoom('us-gone'), undefined);

  settings.capacity.memory_gib = 2;
  assert.equal(await make('us-d'), '2 of 2 memory_gib are leased');
});

test('a paused machine keeps the place of its offer, even one that is no longer sold', async () => {
  const settings = { limits: {}, offers: [] as object[] };
  const claim = { tag: 'us-a', cpus: 2, memoryGib: 1, offer: 'gone', devices: [], diskGb: 1 };
  const reservations = createReservations(
    settings as never,
    { prefix: 'us-', isPaused: () => true },
    { list: async () => [claim], capacity: async () => ({ cpus: 1, memory_gib: 1 }) },
  );
  assert.equal(await reservations.takeRoom('us-a'), undefined);
});

/** A pause whose calls are noted, and whose deadline is moved with this outcome. */
function notedPausing(moved: Extended) {
  const asked: string[] = [];
  const pausing = createPausing(
    {
      limitCpu: async (_, to) => void asked.push(to),
      signal: async (_, what) => asked.push(what) && 0,
      look: async () => asked.push('look') && 0,
    },
    {
      async move() {
        asked.push('move');
        return moved;
      },
    },
    ROOM,
  );
  return { asked, pausing };
}

test('what a pause has left is noted once all has stopped, and before anything else is done', async () => {
  const { asked, pausing } = notedPausing({ kind: 'done' });
  await pausing.begin('x', TARGET, async () => void asked.push('stopped'));
  assert.deepEqual(asked, ['stop', 'look', 'stopped', 'move', 'least']);
});

test('a machine keeps its processor where the deadline of its pause is refused', async () => {
  const refused: Extended = { kind: 'refused', reason: 'it has ended' };
  const { asked, pausing } = notedPausing(refused);
  assert.deepEqual(await pausing.begin('x', TARGET), refused);
  assert.deepEqual(asked, ['stop', 'look', 'move']);
});

test('nothing is run in a machine that is resumed before it has its processor again', async () => {
  const { asked, pausing } = notedPausing({ kind: 'done' });
  assert.deepEqual(await pausing.end('x', ORIGINAL), { kind: 'done' });
  assert.deepEqual(asked, ['sold', 'move', 'continue']);
});

test('a machine that is not resumed loses its processor again', async () => {
  const refused = { kind: 'refused', reason: 'no process is left' } as const;
  const { asked, pausing } = notedPausing(refused);
  assert.deepEqual(await pausing.end('x', ORIGINAL), refused);
  assert.deepEqual(asked, ['sold', 'move', 'least']);
});
