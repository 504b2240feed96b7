import assert from 'node:assert/strict';
import test from 'node:test';
import { LONG, openMemoryServer } from '../lease/leases.ts';
import { asAccount, asOperator } from './sample.ts';

const FIGURE = /<div class="figure "><div class="name">([^<]*)<.*?href="\/leases\/(res_\w+)"/gs;

test('the leases begin with the next and the latest deadline of those that run on', async (t) => {
  const purser = await openMemoryServer(t);
  const leases: Record<string, string> = {};
  for (const [name, max_seconds] of Object.entries({ early: 600, late: 1800, over: 3600 })) {
    const { token } = await purser.openWallet({ ...LONG, name });
    const { body } = await purser.lease(token, name, { cpus: 0.5, memory_gib: 0.25, max_seconds });
    leases[name] = body.id;
    if (name === 'over') await purser.stop(token, body.id);
  }
  const { token } = await purser.openWallet({ ...LONG, name: 'stuck' });
  const { body } = await purser.lease(token, 'stuck', { cpus: 0.5, memory_gib: 0.25, max_seconds: 3600 });
  purser.memory.before.destroy = () => {
    throw new Error('the engine is away');
  };
  await purser.run('resource.stop', { id: body.id });
  const { resources } = await purser.run('resource.list', { all: true });
  assert.deepEqual(
    resources.filter((it) => it.ended_at !== null).map(({ id }) => id),
    [leases.over],
  );
  for (const browser of [await asOperator(purser), await asAccount(purser)]) {
    const { html } = await browser.get('/leases');
    assert.deepEqual(
      [...html.matchAll(FIGURE)].map(([, name, lease]) => [name, lease]),
      [
        ['Next deadline', leases.early],
        ['Latest deadline', leases.late],
      ],
    );
    assert.ok(html.includes(`<div class="value"><span data-live="${leases.late}.left">`));
  }
});

test('without a lease that runs there is no deadline', async (t) => {
  const purser = await openMemoryServer(t);
  const { html } = await (await asOperator(purser)).get('/leases');
  assert.doesNotMatch(html, /deadline/);
});
