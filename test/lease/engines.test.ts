import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { readConfig } from '../../src/config/config.ts';
import { examine } from '../../src/doctor/doctor.ts';
import { findResource, type Resource } from '../../src/ledger/resource.ts';
import type { Memory } from '../compute/engines/memory.ts';
import { dieAt, LONG, openMemoryPool, openMemoryServer, PRICE } from './leases.ts';

/** Two engines, of which one answers at the address: `a`, until a test turns to the other. */
function twoEngines(memory: Memory) {
  const machines = { a: memory.machines, b: new Map() as Memory['machines'] };
  const turnTo = (engine: 'a' | 'b') => {
    memory.identity = `engine ${engine} `;
    memory.machines = machines[engine];
  };
  turnTo('a');
  return { machines, turnTo };
}

async function openOnTwo(t: TestContext) {
  const purser = await openMemoryServer(t);
  const { token, id: walletId } = await purser.openWallet(LONG);
  const row = (id: string) => findResource(purser.app.ledger.read, id) as Resource;
  /** Passes of the reaper, `seconds` apart: what waits for an engine asks again after a minute. */
  const pass = async (count = 3, seconds = 60) => {
    for (; count > 0; count--) {
      purser.clock.advance(seconds);
      await purser.app.reaper.runOnce();
    }
  };
  return { purser, token, walletId, row, pass, ...twoEngines(purser.memory) };
}

/** The create whose answer is lost: its operation and its row. */
async function loseCreate({ purser, token }: Awaited<ReturnType<typeof openOnTwo>>): Promise<string> {
  purser.memory.after.create = () => {
    throw new Error('the connection was reset');
  };
  const answer = await purser.lease(token, 'lost');
  assert.equal(answer.body.error.code, 'operation_uncertain');
  delete purser.memory.after.create;
  const { resources } = await purser.run('resource.list', {});
  return resources.find((it) => it.provider_id === null)?.id as string;
}

test('leases of another engine are unreachable: nothing ends them, holds stay, and everything says where they are', async (t) => {
  const opened = await openOnTwo(t);
  const { purser, token, walletId, row, pass, machines, turnTo } = opened;
  const { id: running } = (await purser.rent(token)).body;
  const { id: stopped } = (await purser.rent(token)).body;
  const searched = await loseCreate(opened);
  assert.deepEqual(
    [running, stopped, searched].map((it) => row(it).engine),
    ['engine a ', 'engine a ', 'engine a '],
  );
  turnTo('b');
  await purser.reopen();
  assert.equal((await purser.stop(token, stopped)).body.status, 'stopping');
  await pass();
  assert.deepEqual([machines.a.size, purser.memory.calls.includes('destroy')], [3, false]);
  assert.deepEqual(
    [running, stopped, searched].map((it) => [row(it).endedAt, row(it).unreachableSince !== null]),
    [
      [null, true],
      [null, true],
      [null, true],
    ],
  );
  assert.equal((await purser.budget(token)).held_usd, PRICE, 'the price of the create whose answer was lost');
  assert.equal((await purser.lease(token, 'lost')).body.error.code, 'operation_uncertain');

  const { resources } = await purser.run('resource.list', {});
  for (const it of resources) assert.match(it.last_error ?? '', /unreachable: .*\(engine a \).*\(engine b \)/);
  const status = await purser.run('status', {});
  assert.deepEqual(
    status.leases.unreachable.map((it) => [it.slot, it.engine, it.leases]),
    [
      ['provider_one', 'engine a ', 1],
      ['provider_three', 'engine a ', 2],
    ],
  );
  assert.deepEqual(
    status.backends.map(({ up }) => up),
    [true, true],
    'the backends are well',
  );
  assert.ok(purser.log.some((it) => it.includes('lease.unreachable') && it.includes(running)));
  const leases = (await examine(readConfig({ data: purser.directory }, {}))).find((it) => it.name === 'leases');
  assert.match(leases?.detail ?? '', /3 of 3 live leases are unreachable: their machines are on engine a/);
  const closed = await purser.closeWallet(walletId);
  assert.deepEqual([closed.status, closed.body.error.code], [409, 'cleanup_pending']);
  assert.doesNotMatch(closed.text, /engine a/);

  const { orphans } = await purser.run('resource.reconcile', { apply: true });
  assert.deepEqual(orphans, []);
  await pass();
  assert.deepEqual([machines.a.size, (await purser.run('status', {})).leases.live], [3, 3]);
  await purser.run('resource.abandon', { id: stopped, reason: 'that box burned down' });
  assert.deepEqual(
    [row(stopped).status, row(stopped).engine, row(stopped).unreachableSince],
    ['stopped', 'engine a ', null],
  );

  turnTo('a');
  await pass(10, 60);
  assert.deepEqual([...machines.a.keys(), ...machines.b.keys()], [], 'the abandoned one is an orphan');
  assert.equal((await purser.closeWallet(walletId)).status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('the same engine is taken over without a word, and one that cannot be asked is not another one', async (t) => {
  const { purser, token, row, pass } = await openOnTwo(t);
  const { id } = (await purser.rent(token)).body;
  await purser.reopen();
  await pass();
  assert.deepEqual([row(id).status, row(id).lastError, row(id).unreachableSince], ['running', null, null]);
  purser.memory.before.identity = () => {
    throw new Error('the engine is down');
  };
  purser.clock.advance(60);
  const refused = await purser.rent(token);
  assert.equal(
    refused.body.error?.code,
    'provider_unavailable',
    'no machine is ordered of an engine that does not say who it is',
  );
  await purser.stop(token, id).catch(() => {});
  await pass(1);
  assert.deepEqual([row(id).endedAt, row(id).lastError, row(id).unreachableSince], [null, 'the engine is down', null]);
  assert.deepEqual(
    (await purser.run('status', {})).backends.map(({ up }) => up),
    [true, false],
  );
  delete purser.memory.before.identity;
  await pass(1);
  assert.equal(row(id).status, 'stopped');
  assert.deepEqual(purser.memory.machines.size, 0);
});

test('whatever call the engine changes at, in a life with a lost answer and a stop, no machine and no hold is left in the end', async (t) => {
  const { purser, pass, machines, turnTo } = await openOnTwo(t);
  purser.app.config = { ...purser.app.config, close_wait_seconds: 1 };
  for (const side of ['before', 'after'] as const)
    for (let at = 1, reached = true; reached; at++) {
      const where = `${side} call ${at}`;
      const { token } = await purser.openWallet(LONG);
      purser.app.answerSeconds = 0.05;
      let [count, isLost] = [0, false];
      const step = () => {
        if (++count === at) turnTo('b');
      };
      for (const name of ['identity', 'create', 'find', 'inspect', 'extend', 'destroy'] as const)
        purser.memory[side][name] = step;
      purser.memory.after.create = () => {
        if (side === 'after') step();
        isLost = !isLost;
        if (isLost) throw new Error('the connection was reset');
      };
      await purser.lease(token, 'one'); // Its answer is lost.
      await pass(2, 10);
      const made = [await purser.lease(token, 'two'), await purser.lease(token, 'one')];
      for (const { body } of made) if (body.id !== undefined) await purser.stop(token, body.id);
      reached = count >= at;
      purser.memory.before = {};
      purser.memory.after = {};
      await pass();
      const { live } = (await purser.run('status', {})).leases;
      assert.ok(machines.a.size <= live, `${where}: ${machines.a.size} machines, and ${live} rows`);
      for (const engine of ['a', 'b', 'a', 'b'] as const) {
        turnTo(engine);
        await pass(3, 300); // Also what is paid for is over, and what is an orphan is old enough.
      }
      assert.deepEqual([...machines.a.keys(), ...machines.b.keys()], [], where);
      for (const { id } of (await purser.run('resource.list', {})).resources)
        await purser.run('resource.abandon', { id, reason: 'it was ordered just when the engine changed' });
      assert.equal((await purser.budget(token)).held_usd, '0.00', where);
      turnTo('a');
    }
  assert.deepEqual(purser.problems(), []);
});

for (const when of ['before', 'after'] as const)
  for (const name of ['identity', 'create', 'find', 'inspect', 'extend', 'destroy'] as const)
    test(`where the process dies ${when} ${name}, another engine in between ends nothing, and the first one again leaves nothing`, async (t) => {
      const { purser, token, pass, machines, turnTo } = await openOnTwo(t);
      await dieAt(purser, token, when, name);
      const [made] = machines.a.values();
      if (made) made.deadline += 86_400; // What becomes of it is Purser's doing.
      const held = (await purser.budget(token)).held_usd;
      turnTo('b');
      await pass();
      const { live } = (await purser.run('status', {})).leases;
      assert.equal(machines.a.size, made ? 1 : 0);
      assert.ok(live >= machines.a.size, `${live} rows`);
      assert.equal((await purser.budget(token)).held_usd, held, 'what another engine says releases nothing');
      turnTo('a');
      await pass(4, 300);
      assert.deepEqual([...machines.a.keys(), ...machines.b.keys()], []);
      assert.equal((await purser.run('status', {})).leases.live, 0);
      assert.equal((await purser.budget(token)).held_usd, '0.00');
      assert.deepEqual(purser.problems(), []);
    });

test('an engine that is given another name, or that begins to tell it, is known by it before a lease ends', async (t) => {
  const { purser, token, row, pass } = await openOnTwo(t);
  delete purser.memory.identity;
  const { id: nameless } = (await purser.rent(token)).body;
  assert.equal(row(nameless).engine, null);
  purser.memory.identity = 'old name';
  purser.clock.advance(60);
  const { id: named } = (await purser.rent(token)).body;
  await pass(2);
  assert.deepEqual([row(nameless).engine, row(named).engine], ['old name', 'old name']);
  purser.memory.identity = 'new name';
  await pass(2);
  assert.equal(row(named).engine, 'new name');
  for (const id of [nameless, named]) assert.equal((await purser.stop(token, id)).body.status, 'stopped');
  assert.deepEqual(purser.memory.machines.size, 0);
});

test('a refusal that another engine may have answered is none, and the next backend is not asked', async (t) => {
  const purser = await openMemoryPool(t, ['one', 'two']);
  const { token } = await purser.openWallet(LONG);
  const { one, two } = purser.memories;
  Object.assign(one, { identity: 'engine a', room: 0 });
  two.identity = 'engine c';
  one.after.create = () => {
    one.identity = 'engine b';
  };
  assert.equal((await purser.lease(token, 'k')).body.error.code, 'operation_uncertain');
  assert.deepEqual([two.machines.size, (await purser.budget(token)).held_usd], [0, PRICE]);
  delete one.after.create;
  one.identity = 'engine a';
  for (let i = 0; i < 3; i++) {
    purser.clock.advance(60);
    await purser.app.reaper.runOnce();
  }
  assert.equal((await purser.budget(token)).held_usd, '0.00', 'that engine has shown that it has no machine');
  const { id } = (await purser.lease(token)).body;
  const found = findResource(purser.app.ledger.read, id);
  assert.deepEqual([found?.backend, found?.engine], ['two', 'engine c'], 'the row names each before it is asked');
  assert.deepEqual(purser.problems(), []);
});

test('an extension in doubt whose machine is on the other engine waits for that one: its deadline decides, and not the end of the time', async (t) => {
  for (const took of [true, false]) {
    const { purser, token, row, pass, machines, turnTo } = await openOnTwo(t);
    const { id, expires_at: end } = (await purser.rent(token)).body;
    purser.memory[took ? 'after' : 'before'].extend = () => {
      throw new Error('the box died');
    };
    assert.equal((await purser.extend(token, id, 3000)).body.error.code, 'operation_uncertain');
    purser.memory.before = {};
    purser.memory.after = {};
    turnTo('b');
    await pass(12); // The first time is over, and the second is not.
    assert.deepEqual([row(id).endedAt, row(id).unreachableSince !== null], [null, true]);
    assert.equal((await purser.budget(token)).held_usd, '0.30', 'what another engine says releases nothing');
    turnTo('a');
    await pass(2);
    const { used_usd: used, held_usd: held } = await purser.budget(token);
    assert.deepEqual([row(id).expiresAt - end, used, held], took ? [3000, '0.36', '0.00'] : [0, '0.06', '0.00']);
    assert.equal(machines.a.size, took ? 1 : 0);
    assert.deepEqual(purser.problems(), []);
  }
});

test('an engine that does not tell its identity any more, and has the machine, ends it; what it does not have is not gone', async (t) => {
  const opened = await openOnTwo(t);
  const { purser, token, row, pass, machines } = opened;
  const { id } = (await purser.rent(token)).body;
  const { id: lost } = (await purser.rent(token)).body;
  const searched = await loseCreate(opened);
  machines.a.delete(row(lost).ref as string);
  delete purser.memory.identity;
  for (const it of [id, lost]) await purser.stop(token, it);
  await pass();
  assert.deepEqual([row(id).status, row(lost).endedAt], ['stopped', null]);
  assert.match(row(lost).lastError ?? '', /does not tell whether it is engine a/);
  assert.deepEqual([row(searched).status, machines.a.size], ['failed', 0], 'found too late to be sold');
  purser.memory.identity = 'engine a ';
  await pass(1, 300);
  assert.equal((await purser.run('status', {})).leases.live, 0);
  assert.deepEqual(purser.problems(), []);
});

test('an extension that is refused while the engine changes is in doubt; one of a lease that is out of reach is refused', async (t) => {
  for (const took of [true, false]) {
    const { purser, token, row, pass, machines, turnTo } = await openOnTwo(t);
    const { id, expires_at: end } = (await purser.rent(token)).body;
    purser.memory.before.extend = () => {
      for (const it of machines.a.values()) if (took) it.deadline = end + 3000;
      turnTo('b');
    };
    assert.equal((await purser.extend(token, id, 3000)).body.error.code, 'operation_uncertain');
    assert.equal((await purser.budget(token)).held_usd, '0.30');
    purser.memory.before = {};
    turnTo('a');
    await pass(2);
    const { used_usd: used, held_usd: held } = await purser.budget(token);
    assert.deepEqual([row(id).expiresAt - end, used, held], took ? [3000, '0.36', '0.00'] : [0, '0.06', '0.00']);
    turnTo('b');
    await pass();
    assert.equal((await purser.extend(token, id, 300)).body.error.code, 'resource_not_active');
    assert.equal((await purser.budget(token)).held_usd, '0.00', 'its own engine was not asked');
    assert.deepEqual(purser.problems(), []);
  }
});
