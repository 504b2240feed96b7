import '../helper/on-disk.ts';
import assert from 'node:assert/strict';
import test from 'node:test';
import { leftOf } from '../demo/left.ts';
import { place, startServing } from './demo-shared.ts';

const RENTED = [
  /✓ status: running\n {2}✓ charged USD: 0\.014166667\n {2}✓ seconds until its deadline: 600\n/,
  /✓ standard output: 42\n/,
  /✓ it reads the same: true\n/,
  /✓ refused with: extension_not_supported\n/,
  /✓ charged USD in all: 0\.09\n {2}✓ seconds its deadline moved: 300\n/,
  /✓ because: wallet_closed\n/,
  /✓ faults in the books: 0\n\nEvery figure is what arithmetic says\.\n$/,
];

test('the demo shows a life with leases, counts every figure, and leaves neither a process nor a file', async (t) => {
  const { directory, purser } = place(t, {
    env: { PURSER_LISTEN: '192.0.2.1:1', PURSER_PUBLIC_URL: 'http://a.example' },
  });
  const { code, stdout, stderr } = await purser.cli('demo', '--once');
  assert.deepEqual([code, stderr], [0, '']);
  for (const it of RENTED) assert.match(stdout, it);
  assert.doesNotMatch(stdout, /✗/);
  assert.deepEqual(leftOf(directory), []);
  assert.deepEqual(JSON.parse((await purser.cli('--json', 'demo', '--once')).stdout), { ok: true, wrong: 0 });
  assert.deepEqual(leftOf(directory), []);
});

test('a demo that goes on serving rents out all three slots, and takes them with it when it ends', async (t) => {
  const { directory, demo, canary, compute, rent } = await startServing(t);
  const one = await rent('provider_one', { cpus: 1, memory_gib: 1 });
  await rent('provider_two', { chip: 'demo-chip' });
  await rent('provider_three', { offer_id: 'small', disk_gb: 1 });
  const list = 'env; ls -l /proc/self/fd /proc/$PPID/fd';
  const { stdout } = await compute('exec', { id: one, command: list });
  assert.match(stdout, /^HOME=/m);
  assert.ok(!stdout.includes(canary), 'nothing of the environment of Purser');
  const files = [...stdout.matchAll(/-> (\/.*)/g)].map(([, name]) => name as string);
  assert.deepEqual(
    files.filter((it) => it.startsWith(directory)),
    [],
    'no file of Purser is open in it',
  );
  demo.child.kill('SIGTERM');
  assert.deepEqual(await demo.ended, { code: 0, signal: null });
  assert.equal(demo.output.stderr, '');
  assert.deepEqual(leftOf(directory), []);
});
