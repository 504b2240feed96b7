import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import type { Snapshots } from '../../src/compute/backend.ts';
import { inTime, until } from '../helper/waiting.ts';
import type { Subject } from './conformance.ts';

const MEBIBYTE = 1024 ** 2;
export const GIB = 1024 ** 3;
const PREFIX = 'purser-inst-conformance-';
export const now = () => Math.floor(Date.now() / 1000);
export const nameOf = (kind: string) => `${PREFIX}${kind}-${randomBytes(13).toString('hex')}`;

/** Machines of an engine whose snapshots are tried. */
export type SnapshotSubject = Pick<Subject, 'backend' | 'spec'> & {
  /** Stops what runs in a machine, as a take that breaks off leaves it. */
  stop(ref: string): Promise<void>;
  /** Whether a snapshot cannot be removed while there is a machine made from it. */
  staysWhileNeeded: boolean;
};
export type OpenSubject<S extends SnapshotSubject> = (t: TestContext) => Promise<S | undefined>;

/** Machines of an engine, and its snapshots. All of it is removed after the test. */
export async function openOn<S extends SnapshotSubject>(t: TestContext, open: OpenSubject<S>) {
  const subject = await open(t);
  if (!subject) return undefined;
  const { backend, spec } = subject;
  const snapshots = backend.guest.snapshots as Snapshots;
  const made: string[] = [];
  const kept: string[] = [];
  t.after(async () => {
    for (const ref of made) await backend.destroy(ref).catch(() => {});
    for (const tag of kept) await snapshots.remove(tag);
    await backend.close();
  });
  async function machine(more: { snapshot?: string; seconds?: number; secrets?: object } = {}) {
    const { seconds = 600, ...order } = more;
    const deadline = now() + seconds;
    const quote = await backend.quote(spec);
    const created = await backend.create({ tag: nameOf('res'), quote, deadline, ...(order as object) });
    assert.equal(created.kind, 'created', JSON.stringify(created));
    const ref = created.kind === 'created' ? created.ref : '';
    made.push(ref);
    const sh = async (command: string) => {
      const { stdout, stderr } = await backend.guest.exec(ref, { command, timeoutSeconds: 60, streamBytesMax: 65_536 });
      return `${stdout}${stderr}`.trim();
    };
    return { ref, sh };
  }
  async function take(ref: string, isRunning = true, bytesMax = GIB) {
    const tag = nameOf('snap');
    kept.push(tag);
    const taken = await snapshots.take({ ref, tag, isRunning, bytesMax });
    assert.equal(taken.kind, 'taken', JSON.stringify(taken));
    return { tag, bytes: taken.kind === 'taken' ? taken.bytes : 0 };
  }
  return { ...subject, snapshots, machine, take };
}

/** Registers the tests that the snapshots of every engine pass. */
export function conformSnapshots(name: string, open: OpenSubject<SnapshotSubject>): void {
  test(`${name}: a machine made from a snapshot has the files of the one that it was taken of`, async (t) => {
    const opened = await openOn(t, open);
    if (!opened) return;
    const { machine, take, snapshots, backend } = opened;
    const one = await machine();
    await one.sh(
      'mkdir -p /tmp/work && echo hello >/tmp/work/file && rm /bin/vi && head -c 3000000 /dev/urandom >/tmp/work/big',
    );
    const { tag, bytes } = await take(one.ref);
    assert.ok(bytes >= 3_000_000 && bytes < 3_000_000 + MEBIBYTE, `it takes ${bytes} bytes`);
    assert.equal(await snapshots.find(tag), bytes);
    const two = await machine({ snapshot: tag });
    assert.equal(
      await two.sh('cat /tmp/work/file; test -e /bin/vi || echo gone; wc -c </tmp/work/big'),
      'hello\ngone\n3000000',
    );
    await two.sh('echo more >/tmp/work/file');
    assert.equal(await one.sh('cat /tmp/work/file'), 'hello', 'each has a disk of its own');

    // And one of that again, which keeps all of it when the first is gone.
    const again = await take(two.ref);
    assert.ok(again.bytes >= bytes && again.bytes < bytes + MEBIBYTE, `it takes ${again.bytes} bytes`);
    await backend.destroy(two.ref);
    await snapshots.remove(tag);
    assert.equal(await snapshots.find(tag), undefined);
    const three = await machine({ snapshot: again.tag });
    assert.equal(await three.sh('cat /tmp/work/file; wc -c </tmp/work/big'), 'more\n3000000');
  });

  test(`${name}: what runs goes on after a snapshot, and what is paused stays paused`, async (t) => {
    const opened = await openOn(t, open);
    if (!opened) return;
    const { machine, take, snapshots, backend, stop } = opened;
    const { ref, sh } = await machine();
    await sh(
      '(while :; do date +%s%N >/tmp/tick.new; mv /tmp/tick.new /tmp/tick; sleep 0.05; done) </dev/null >/dev/null 2>&1 &',
    );
    const ticks = async () => {
      const before = await sh('cat /tmp/tick');
      await until('it ticks', async () => (await sh('cat /tmp/tick')) !== before);
    };
    await ticks();
    await take(ref);
    await ticks();
    // A take that broke off has stopped it.
    await stop(ref);
    const stopped = await sh('cat /tmp/tick');
    await take(ref, false);
    assert.equal(await sh('cat /tmp/tick'), stopped);
    await snapshots.letRun(ref);
    await ticks();
    assert.equal((await backend.inspect(ref))?.state, 'running');
  });

  test(`${name}: the deadline holds in a machine made from a snapshot, and in one whose take broke off`, async (t) => {
    const opened = await openOn(t, open);
    if (!opened) return;
    const { machine, take, backend, stop } = opened;
    const one = await machine();
    const { tag } = await take(one.ref);
    const short = await inTime((seconds) => machine({ snapshot: tag, seconds }));
    const broken = await inTime(async (seconds) => {
      const made = await machine({ seconds });
      await stop(made.ref); // As a Purser that is killed leaves it.
      return made;
    });
    for (const { ref } of [short, broken])
      await until('it has ended', async () => (await backend.inspect(ref))?.state === 'ended');
    assert.equal((await backend.inspect(one.ref))?.state, 'running');
  });

  test(`${name}: a snapshot is found, listed and removed by its tag, and no machine made from it is lost with it`, async (t) => {
    const opened = await openOn(t, open);
    if (!opened) return;
    const { machine, take, snapshots, backend } = opened;
    const one = await machine();
    const { tag } = await take(one.ref);
    const listed = async () => (await snapshots.list(PREFIX)).map((it) => it.tag).filter((it) => it === tag);
    assert.deepEqual(await listed(), [tag]);
    assert.deepEqual(await snapshots.list('purser-inst-other-'), []);
    const [{ createdAt } = { createdAt: 0 }] = (await snapshots.list(tag)) as { createdAt: number }[];
    assert.ok(Math.abs(createdAt - now()) < 120);
    const two = await machine({ snapshot: tag });
    if (opened.staysWhileNeeded) await assert.rejects(snapshots.remove(tag));
    await backend.destroy(one.ref);
    assert.equal(await two.sh('echo here'), 'here');
    await backend.destroy(two.ref);
    await snapshots.remove(tag);
    assert.deepEqual([await listed(), await snapshots.find(tag)], [[], undefined]);
    await snapshots.remove(tag);
    const quote = await backend.quote(opened.spec);
    const gone = await backend.create({ tag: nameOf('res'), quote, deadline: now() + 60, snapshot: tag });
    assert.deepEqual(
      [gone.kind, 'reason' in gone && gone.reason],
      ['refused', 'The snapshot is not on the engine. Nothing was charged.'],
    );
  });

  test(`${name}: a lease that has written more than its snapshot may take is refused, and nothing is left`, async (t) => {
    const opened = await openOn(t, open);
    if (!opened) return;
    const { machine, snapshots } = opened;
    const one = await machine();
    await one.sh('head -c 3000000 /dev/zero >/tmp/big');
    const tag = nameOf('snap');
    const taken = await snapshots.take({ ref: one.ref, tag, isRunning: true, bytesMax: MEBIBYTE });
    assert.deepEqual([taken.kind, 'code' in taken && taken.code], ['refused', 'lease_limit_exceeded']);
    assert.deepEqual([await snapshots.find(tag), await one.sh('echo runs')], [undefined, 'runs']);
  });
}
