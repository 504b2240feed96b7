import assert from 'node:assert/strict';
import { WATCHDOG_PATH } from '../../src/compute/kit/watchdog.ts';
import { runAsRoot } from '../compute/engines/docker.ts';
import { openLeaseServer } from './docker-leases.ts';
import { conformLeaseSnapshots } from './snapshot-engine-shared.ts';

conformLeaseSnapshots('Docker', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return undefined;
  const { docker } = purser.engine;
  const repository = 'localhost/purser-snapshot';
  return Object.assign(purser, {
    kept: async () =>
      (await docker.listImages()).flatMap((it) => it.RepoTags ?? []).filter((it) => it.startsWith(repository)),
    async halt(ref: string) {
      assert.deepEqual(await runAsRoot(docker, ref, WATCHDOG_PATH, 'stop'), [0, '']);
    },
    async undo(tag: string) {
      const image = docker.getImage(`${repository}:${tag}`);
      await image.tag({ repo: repository, tag: `${tag}.raw` });
      await image.remove();
    },
  });
});
