import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import type { ApiObject } from '../compute/engines/kubernetes.ts';
import { NAMESPACE, settingsOn, sharedKubernetes } from '../compute/engines/kubernetes-subject.ts';
import { until } from '../helper/waiting.ts';
import { dieAt, LONG, openWith } from './leases.ts';

/** A purser whose leases are Jobs of a real cluster. */
async function openLeaseServer(t: TestContext) {
  const shared = await sharedKubernetes(t);
  if (!shared) return undefined;
  const { cluster, kubeconfig } = shared;
  const { prices, limits, ...common } = settingsOn(cluster, kubeconfig);
  const offers = [{ id: 'small', cpus: 0.25, memory_gib: 0.25, max_disk_gb: 1, price_hourly_usd: '0.36' }];
  const compute = { provider_one: { ...common, prices, limits }, provider_three: { ...common, offers } };
  const purser = await openWith(t, 'unix:///nowhere/docker.sock', cluster.image, {
    settings: { compute, close_wait_seconds: 1 },
  });
  return Object.assign(purser, {
    /** The tags of which the cluster has anything. */
    async machines() {
      const args = ['get', 'jobs,pods', '-n', NAMESPACE, '-l', 'purser.lease', '-o', 'json'];
      const items: ApiObject[] = JSON.parse(await cluster.kubectl(args)).items;
      const tags = new Set(items.map((it) => it.metadata.annotations['purser.tag'] as string));
      return [...tags].filter((it) => it.startsWith(tagPrefix(purser.app.installationId)));
    },
  });
}

/** Every await of a life at which the process may die: the wrapped call never returns. */
const DEATHS = ['create', 'inspect', 'extend', 'destroy', 'find'] as const;
for (const [when, name] of DEATHS.flatMap(
  (it) =>
    [
      ['before', it],
      ['after', it],
    ] as const,
))
  test(`kubernetes: dying ${when} ${name} leaves no machine that no row knows, and the books balance`, async (t) => {
    const purser = await openLeaseServer(t);
    if (!purser) return;
    const { id, token } = await purser.openWallet(LONG);
    const lease = () => purser.lease(token, 'k');
    await dieAt(purser, token, when, name);
    const again = await lease();
    assert.ok([200, 503].includes(again.status), again.text);
    const pass = async () => {
      purser.clock.advance(purser.backend.absence.apartSeconds);
      await purser.app.reaper.runOnce();
    };
    for (let i = 0; i < 3; i++) await pass();
    await until('every machine has a row, and every row a machine that runs', async () => {
      await pass();
      const answer = await purser.ask('GET', `/v1/wallets/${id}/resources`, { token: purser.accountKey });
      const live = answer.body.resources.filter((it: { ended_at: number | null }) => it.ended_at === null);
      // A pod that is deleted while its container is made is gone after a minute only: kubelet comes back to it no sooner.
      const isSettled = live.every((it: { status: string }) => it.status === 'running');
      return isSettled && (await purser.machines()).length === live.length;
    });
    assert.deepEqual(purser.problems(), []);
    const closed = await until('the wallet is closed', async () => {
      purser.clock.advance(10);
      const answer = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
      return answer.status === 200 && answer;
    });
    assert.ok(closed.body.used_cents <= 1);
    assert.deepEqual(await purser.machines(), []);
    assert.deepEqual(purser.problems(), []);
  });
