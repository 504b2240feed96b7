import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { AUTHORITY_FILE } from '../../src/compute/kit/trust.ts';
import { deadlineInside } from '../compute/engines/docker.ts';
import { until } from '../helper/waiting.ts';
import { dieOnEngine } from './death-shared.ts';
import { openLeaseServer, sharedDocker } from './docker-leases.ts';
import { dieEverywhere, type Mortal, type Story } from './mortal.ts';
import { ENGINE_SOCKET, openMortalOn } from './mortal-engine.ts';
import { keepingWarm, lease, STORIES, WARM } from './stories.ts';

dieOnEngine('Docker', { open: (t) => openLeaseServer(t) });

/** A purser that can die at each request to a real Docker that changes something. */
async function openMortal(t: TestContext, change?: typeof keepingWarm): Promise<Mortal | undefined> {
  const engine = await sharedDocker(t);
  if (!engine) return undefined;
  const { docker } = engine;
  const options = { settings: { drain_seconds: 0 }, socket: ENGINE_SOCKET, ...(change ? { change } : {}) };
  const open = async (env: Record<string, string>) => {
    const purser = await openLeaseServer(t, { ...options, env });
    assert(purser);
    return purser;
  };
  return openMortalOn(t, engine, open, (purser) => ({
    tags: async () => (await purser.machines()).map((it) => it.slice(1)),
    async faultOf({ tag, status, expiresAt }) {
      const container = docker.getContainer(tag);
      const { State, HostConfig } = await container.inspect();
      if (!State.Running) return `the container of ${tag} does not run`;
      const deadline = await deadlineInside(docker, tag);
      if (deadline !== expiresAt) return `${tag} ends at ${expiresAt}, and its container at ${deadline}`;
      const isPaused = status === 'paused';
      if (HostConfig.NanoCpus !== (isPaused ? 1e7 : 5e8)) return `${tag} is ${status}, and has ${HostConfig.NanoCpus}`;
      const { Processes } = (await container.top({ ps_args: '-eo pid,stat,args' })) as { Processes: string[][] };
      const odd = Processes.filter(
        ([, state = '', args = '']) => /sleep/.test(args) && state.startsWith('T') !== isPaused,
      );
      return odd.length ? `${tag} is ${status}, and ${odd}` : undefined;
    },
    async others() {
      const rows = purser.app.ledger.client.prepare('select tag from snapshot where ended_at is null').pluck().all();
      const images = (await docker.listImages()).flatMap((it) => it.RepoTags ?? []);
      return images.filter(
        (it) => /purser-snapshot:/.test(it) && !rows.some((tag) => it.replace('.raw', '').endsWith(`:${tag}`)),
      );
    },
  }));
}

/** Changes settings so that leases have a way out, and a secret for it: with that, an authority that their machines trust. */
function lettingOut(settings: Record<string, any>): Record<string, unknown> {
  const { provider_one: one, ...others } = settings.compute;
  const secrets = [{ name: 'TOKEN', host: 'a.test', header: 'Authorization', value: 'canary-of-a-death' }];
  return {
    ...settings,
    compute: { ...others, provider_one: { ...one, egress: ['a.test'] } },
    accounts: { default: { secrets } },
  };
}

/** Waits until the one machine has the program of one way out, and its files. */
async function hasOneWayOut({ machines }: Mortal): Promise<void> {
  const engine = await sharedDocker({} as TestContext); // It is there.
  const [name = ''] = await machines();
  const container = engine?.docker.getContainer(name.slice(1));
  assert(container);
  await until('it has one way out', async () => {
    const { Processes } = (await container.top({ ps_args: '-eo pid,args' })) as { Processes: string[][] };
    return Processes.filter(([, args = '']) => / egress \d+$/.test(args)).length === 1;
  });
  await container.infoArchive({ path: AUTHORITY_FILE });
}

/** Told here for the requests that they make; the gate tells all. */
const TOLD = [
  'a lease is paused',
  'a lease is resumed',
  'a snapshot is taken',
  'a snapshot is deleted',
] as const satisfies (keyof typeof STORIES)[];
type Change = typeof keepingWarm;
const ON_DOCKER: [name: string, story: Story, change?: Change][] = [
  ...TOLD.map((name) => [name, STORIES[name]] as [string, Story]),
  ...Object.entries(WARM).map(([name, story]) => [name, story, keepingWarm] as [string, Story, Change]),
  ['a lease with a way out is made', { act: lease, check: hasOneWayOut }, lettingOut],
];
for (const [name, story, change] of ON_DOCKER)
  test(`Docker: ${name}, and the server dies at any request of that`, async (t) => {
    const purser = await openMortal(t, change);
    if (purser) t.diagnostic(`${await dieEverywhere(purser, story)} deaths`);
  });
