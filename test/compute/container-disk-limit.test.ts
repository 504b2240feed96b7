import assert from 'node:assert/strict';
import test from 'node:test';
import { checkDisk } from '../../src/compute/engines/container/check.ts';
import type { Engine } from '../../src/compute/engines/container/engine.ts';

const MAPPED = { SecurityOptions: ['name=seccomp,profile=builtin', 'name=userns'] };
const CASES: [info: object, limited: string, detail: RegExp][] = [
  [{ Driver: 'zfs' }, 'all', /^disk_gb is enforced by zfs$/],
  [
    { Driver: 'overlay2', DriverStatus: [['Backing Filesystem', 'xfs']] },
    'some',
    /overlay2 on xfs, except outside of its project, /,
  ],
  [
    { Driver: 'overlay', DriverStatus: [['Backing Filesystem', 'xfs']] },
    'some',
    /overlay on xfs, except outside of its project, /,
  ],
  [{ Driver: 'overlay2', ...MAPPED }, 'all', /^disk_gb is enforced by overlay2$/],
  [{ Driver: 'overlay', Rootless: true }, 'all', /^disk_gb is enforced by overlay$/],
  [{ Driver: 'btrfs', ...MAPPED }, 'some', /btrfs, except in subvolumes, /],
  [{ Driver: 'overlayfs', DriverStatus: [['driver-type', 'io.containerd.snapshotter.v1']] }, 'nothing', /not enforced/],
];

/** No kernel here has project quotas: this engine accepts a limit and says by what. */
const engineThatSays = (info: object) =>
  ({
    request: async () => info,
    ask: async () => {},
  }) as unknown as Engine;

test('what a storage driver limits that accepts a limit is said, and what a lease can leave of it', async () => {
  for (const [info, limited, detail] of CASES) {
    const said = await checkDisk(engineThatSays(info), 'debian');
    assert.equal(said.limited, limited, JSON.stringify(info));
    assert.match(said.detail, detail);
  }
});
