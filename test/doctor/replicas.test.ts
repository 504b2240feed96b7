import assert from 'node:assert/strict';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { judgeReplicas } from '../../src/doctor/disk.ts';
import { describeReplicas, type Replicas, readReplicas } from '../../src/files/drbd.ts';
import type { Mount } from '../../src/files/mount.ts';
import { openTestServer } from '../helper/server.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { asOperator } from '../ui/sample.ts';

/** What drbdsetup-9.0(8) documents of `status --json`: this disk (minor 3) and another, two peers and a box with a vote alone. */
const statusOf = (beta: { connection?: string; disk?: string } = {}) => [
  { name: 'other', devices: [{ volume: 0, minor: 2, 'disk-state': 'UpToDate' }], connections: [] },
  {
    name: 'purser',
    'node-id': 0,
    role: 'Primary',
    devices: [
      { volume: 0, minor: 9, 'disk-state': 'UpToDate' },
      { volume: 1, minor: 3, 'disk-state': 'UpToDate', quorum: true },
    ],
    connections: [
      {
        'peer-node-id': 1,
        name: 'beta',
        'connection-state': beta.connection ?? 'Connected',
        'peer-role': 'Secondary',
        peer_devices: [
          { volume: 0, 'peer-disk-state': 'Failed', 'peer-client': false },
          { volume: 1, 'peer-disk-state': beta.disk ?? 'UpToDate', 'peer-client': false },
        ],
      },
      {
        'peer-node-id': 2,
        name: 'vote',
        'connection-state': 'Connected',
        peer_devices: [{ volume: 1, 'peer-disk-state': 'Diskless', 'peer-client': true }],
      },
    ],
  },
];

/** A machine with a volume on a partition of drbd3, and a disk beside it. `program` is its drbdsetup, a shell script. */
function openMachine(t: TestContext, program?: string) {
  const at = temporaryDirectory(t);
  const device = (path: string) => mkdirSync(join(at, 'sys/devices', path, 'slaves'), { recursive: true });
  for (const path of ['vda', 'drbd3', 'drbd3/drbd3p1', 'dm-0']) device(path);
  writeFileSync(join(at, 'sys/devices/drbd3/drbd3p1/partition'), '1\n');
  symlinkSync('../../drbd3/drbd3p1', join(at, 'sys/devices/dm-0/slaves/drbd3p1'));
  mkdirSync(join(at, 'sys/dev/block'), { recursive: true });
  for (const [number, path] of [
    ['254:0', 'vda'],
    ['147:3', 'drbd3'],
    ['253:0', 'dm-0'],
  ])
    symlinkSync(`../../devices/${path}`, join(at, 'sys/dev/block', number as string));
  mkdirSync(join(at, 'bin'));
  if (program !== undefined) writeFileSync(join(at, 'bin/drbdsetup'), `#!/bin/sh\n${program}\n`, { mode: 0o755 });
  return (number: string) =>
    readReplicas({ at: '/', device: number, type: 'ext4', source: '/dev/it', options: [] } satisfies Mount, {
      searchPath: [join(at, 'bin')],
      sys: join(at, 'sys'),
    });
}

const saying = (status: unknown) =>
  `[ "$*" = "status --json" ] || exit 20\ncat <<'JSON'\n${JSON.stringify(status, undefined, 1)}\nJSON`;

test('the copies of a disk are found below volumes and partitions; a box without a disk is none', async (t) => {
  const ask = openMachine(t, saying(statusOf()));
  const upToDate = { device: 'drbd3', peers: [{ peer: 'beta', state: 'up_to_date' }], unknown: null };
  assert.deepEqual(await ask('147:3'), upToDate);
  assert.deepEqual(await ask('253:0'), upToDate);
  assert.equal(await ask('254:0'), undefined, 'a disk that is not under DRBD');
  assert.equal(await ask('0:45'), undefined, 'a number that no device has');
});

for (const [what, beta, state, says] of [
  ['not connected', { connection: 'Connecting', disk: 'UpToDate' }, 'away', 'is not connected'],
  ['being synchronised', { disk: 'Inconsistent' }, 'behind', 'is behind'],
  ['outdated', { disk: 'Outdated' }, 'behind', 'is behind'],
] as const)
  test(`a copy that is ${what} is no copy to take over from, and the doctor says so`, async (t) => {
    const found = (await openMachine(t, saying(statusOf(beta)))('147:3')) as Replicas;
    assert.deepEqual(found.peers, [{ peer: 'beta', state }]);
    assert.throws(() => judgeReplicas(found), new RegExp(`the copy of drbd3 on beta ${says}: no box could take over`));
  });

for (const [what, program, reason] of [
  ['is missing', undefined, /not installed/],
  [
    'is refused',
    'echo "drbdsetup: Operation not permitted" >&2; exit 10',
    /failed: drbdsetup: Operation not permitted/,
  ],
  ['is killed', 'kill -9 $$', /drbdsetup failed/],
  ['hangs', 'exec sleep 600', /did not answer within 5 s/],
  ['says nothing', 'exit 0', /does not describe drbd3/],
  ['says something else', 'echo "{}"; exit 0', /does not describe drbd3/],
  ['says half of it', 'echo "[{\\"name\\": "', /does not describe drbd3/],
  ['does not know the disk', saying([]), /does not describe drbd3/],
] as const)
  test(`a drbdsetup that ${what}: the copies are unknown, which is a warning`, async (t) => {
    const found = (await openMachine(t, program)('147:3')) as Replicas;
    assert.match(String(found.unknown), reason);
    assert.deepEqual(found.peers, []);
    assert.match(judgeReplicas(found), /^Warning: whether another copy of drbd3 is up to date is not known: /);
  });

test('metrics, status, log and page say whether another copy is up to date', async (t) => {
  let found: Replicas | undefined;
  const purser = await openTestServer(t, {
    storage: { readMount: () => undefined, readReplicas: async () => found, isAnyAccepted: true },
  });
  const metrics = async () => {
    await purser.app.replicas.look();
    const all = (await purser.app.events.registry.metrics()).split('\n');
    return all.filter((line) => line.startsWith('purser_storage_replicas'));
  };
  const browser = await asOperator(purser);
  const SAYS = /Copies of the disk.*the copy of drbd3 on beta is not connected/s;
  const logged = (event: string) => purser.log.filter((line) => line.includes(`"event":"storage.${event}"`)).length;
  assert.deepEqual(await metrics(), [], 'a disk that does not replicate itself');

  const of = (state: 'up_to_date' | 'away'): Replicas => ({
    device: 'drbd3',
    peers: [{ peer: 'beta', state }],
    unknown: null,
  });
  const counts = (upToDate: number, away: number) => [
    `purser_storage_replicas{state="up_to_date"} ${upToDate}`,
    'purser_storage_replicas{state="behind"} 0',
    `purser_storage_replicas{state="away"} ${away}`,
  ];
  found = of('up_to_date');
  assert.deepEqual(await metrics(), counts(1, 0));
  assert.deepEqual([logged('alone'), logged('replicated')], [0, 0]);
  assert.doesNotMatch((await browser.get('/')).html, /Copies of the disk/, 'it needs nobody');
  found = of('away');
  assert.deepEqual(await metrics(), counts(0, 1));
  for (const path of ['/', '/settings']) assert.match((await browser.get(path)).html, SAYS);
  assert.deepEqual(await metrics(), counts(0, 1));
  assert.deepEqual([logged('alone'), logged('replicated')], [1, 0], 'once');
  assert.deepEqual((await purser.run('status', {})).disk.replicas, found);
  found = { device: 'drbd3', peers: [], unknown: 'drbdsetup is not installed' };
  assert.deepEqual(await metrics(), ['purser_storage_replicas{state="unknown"} 1']);
  found = of('up_to_date');
  await metrics();
  assert.deepEqual([logged('alone'), logged('replicated')], [1, 1]);
  assert.equal(describeReplicas(found), 'the copy of drbd3 on beta is up to date');
});

test('every commit is timed', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await purser.chat(token);
  const count = async () => {
    const all = await purser.app.events.registry.metrics();
    return Number(/^purser_storage_commit_seconds_count (\d+)$/m.exec(all)?.[1]);
  };
  const before = await count();
  assert(before >= 3, 'a wallet, a hold and a settlement');
  await purser.chat(token);
  assert((await count()) >= before + 2);
});
