import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { openSshd, type Sshd } from '../test/compute/engines/sshd.ts';
import type { Engine, Machine } from './engine.ts';
import { HOURLY_USD } from './prices.ts';
import type { Stage } from './site.ts';
import { resourceIdOf } from './tag.ts';

const CHIP = 'test-chip';
const HOSTS = 2;

export type PoolEngine = Engine & { hosts: Sshd[] };

/** Opens the SSH backend on real hosts, one tenant each. Returns undefined without sshd. */
export async function openPool(t: Stage): Promise<PoolEngine | undefined> {
  const hosts: Sshd[] = [];
  for (let i = 0; i < HOSTS; i++) {
    const host = await openSshd(t as TestContext, { chip: CHIP });
    if (!host) return undefined;
    hosts.push(host);
  }
  return {
    settings: {
      provider_two: { backend: 'ssh', hosts: hosts.map(({ host }) => ({ ...host, price_hourly_usd: HOURLY_USD })) },
    },
    kinds: [{ provider: 'provider_two', spec: (max_seconds) => ({ chip: CHIP, max_seconds }), canExtend: true }],
    graceSeconds: 30,
    hosts,
    list: async () => hosts.flatMap(leftOn),
  };
}

/** The tenant of a host, and what should be gone with it: its user, and a host that is never leased again. */
function leftOn({ pool }: Sshd): Machine[] {
  const tag = read(join(pool, 'tenant', 'tag'))?.trim();
  if (tag !== undefined) return [{ tag, resourceId: resourceIdOf(tag), running: true }];
  const left = (what: string): Machine => ({ tag: what, resourceId: '', running: false });
  const users = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .filter((it) => it.includes(`:purser ${pool}:`));
  const quarantine = join(pool, 'quarantine');
  return [
    ...users.map((it) => left(`the user ${it}`)),
    ...(existsSync(quarantine) ? [left(`a host in quarantine: ${read(quarantine)}`)] : []),
  ];
}

function read(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}
