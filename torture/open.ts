import { mkdirSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { hasComponent, hasProgram } from '../test/helper/component.ts';
import { MODELS } from '../test/helper/server.ts';
import { openSmallDisk } from '../test/helper/small-disk.ts';
import type { Chance } from './chance.ts';
import { openEngines, type Second } from './engine.ts';
import { newJournal } from './journal.ts';
import { openModels } from './models.ts';
import { POOLED } from './prices.ts';
import type { Rig } from './rig.ts';
import { openSite, openWallClock, type Stage } from './site.ts';

export const CREDIT_CENTS = 100_000_000;
/** The size of the small disk, which is in memory. */
const [DISK_MEBIBYTES, MEBIBYTES_PER_MINUTE] = [128, 16];

/** Sets everything up: model server, engine, disk, clock and an installation with an account that has credit. */
export async function openRig(stage: Stage, chance: Chance, minutes: number, second: Second | undefined): Promise<Rig> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-torture-kept-'));
  const models = await openModels(stage, chance.apart('models'));
  const engines = await openEngines(stage, chance.apart('engines'), second);
  const disk = openSmallDisk(stage as TestContext, DISK_MEBIBYTES + Math.ceil(minutes) * MEBIBYTES_PER_MINUTE);
  const clock = openWallClock(stage, directory);
  hasComponent(stage as TestContext, 'strace', () => hasProgram('strace'));
  const data = join(disk?.directory ?? directory, 'data');
  mkdirSync(data, { mode: 0o700 });
  const upstreams = ['local', 'other'].map((name) => ({ name, base_url: models.url, timeout_seconds: 3 }));
  const pooled = MODELS.map(({ upstream, ...it }) =>
    it.id === POOLED ? { ...it, upstreams: ['local', 'other'] } : { ...it, upstream },
  );
  const settings = {
    close_wait_seconds: 2,
    drain_seconds: 2,
    router: {
      upstreams,
      models: pooled,
      uncertain: { after_seconds: 4, policy: 'charge' },
      cancel_grace_seconds: 1, // A call takes three seconds at most.
    },
    ...(engines.all.length
      ? { compute: Object.assign({}, ...engines.all.map((it) => it.settings)), ssh: { listen: '127.0.0.1:0' } }
      : {}),
  };
  const log = join(directory, 'server.log');
  const site = openSite(stage, { directory: data, env: clock?.env ?? {}, settings }, log);
  await site.server();
  const { accounts } = await site.purser.json('account', 'list');
  const accountId: string = accounts[0].id;
  await site.purser.json('account', 'credit', accountId, `${CREDIT_CENTS}c`);
  const { key: accountKey } = await site.purser.json('key', 'create', '--account', accountId, '--name', 'clients');
  return { site, journal: newJournal(), models, engines, disk, clock, accountId, accountKey, directory };
}
