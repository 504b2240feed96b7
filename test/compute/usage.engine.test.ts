import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import type { Usage } from '../../src/compute/backend.ts';
import { until } from '../helper/waiting.ts';
import type { Subject } from './conformance.ts';
import { openDocker } from './engines/docker.ts';
import { LXD_PREFIX, lxdSubject, openLxd } from './engines/lxd.ts';
import { openPodman } from './engines/podman.ts';
import { containerSubject } from './engines/subject.ts';

/** What an engine tells of a machine that has worked: its processor time, and the memory of a file system in memory. */
async function usageOf(t: TestContext, { backend, spec }: Subject, tag: string): Promise<Usage> {
  const quote = await backend.quote(spec);
  const made = await backend.create({ tag, quote, deadline: Math.floor(Date.now() / 1000) + 600 });
  assert.equal(made.kind, 'created', JSON.stringify(made));
  const ref = made.kind === 'created' ? made.ref : '';
  await until('it runs', async () => (await backend.inspect(ref))?.state === 'running');
  const work =
    'i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; cd /dev/shm || cd /tmp; head -c 20000000 /dev/zero > file';
  const order = { command: work, timeoutSeconds: 60, streamBytesMax: 4096 };
  const { exitCode, stderr } = await backend.guest.exec(ref, order);
  assert.equal(exitCode, 0, stderr.toString());
  const usage = await backend.guest.usage?.(ref);
  assert.ok(usage, 'the engine tells');
  t.diagnostic(JSON.stringify(usage));
  const { cpuSeconds = 0, memoryBytes = 0 } = usage;
  assert.ok(cpuSeconds > 0.02 && cpuSeconds < 600, `${cpuSeconds} s`);
  assert.ok(memoryBytes > 20_000_000 && memoryBytes <= 0.25 * 1024 ** 3, `${memoryBytes} B`);
  await backend.destroy(ref);
  await assert.rejects(async () => backend.guest.usage?.(ref), 'of a machine that is gone nothing is told');
  return usage;
}

const freshTag = (prefix: string) => `${prefix}res-${randomBytes(13).toString('hex')}`;

for (const [name, open] of [
  ['Docker', (t: TestContext) => openDocker(t, { shared: true })],
  ['Podman', (t: TestContext) => openPodman(t)],
] as const)
  test(`${name} tells what a lease uses`, async (t) => {
    const engine = await open(t);
    if (!engine) return;
    const subject = containerSubject({ socket: engine.socket });
    t.after(async () => {
      await subject.backend.close();
      await engine.stop();
    });
    const { networkBytes } = await usageOf(t, subject, freshTag('purser-inst-conformance-'));
    assert.ok(!networkBytes, 'it has no network');
  });

test('LXD tells what a lease uses', async (t) => {
  const lxd = await openLxd(t);
  if (!lxd) return;
  const subject = lxdSubject(lxd.socket);
  t.after(async () => {
    await subject.backend.close();
    await lxd.stop();
  });
  await usageOf(t, subject, freshTag(LXD_PREFIX));
});
