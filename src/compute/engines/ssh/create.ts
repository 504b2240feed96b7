import { hash } from 'node:crypto';
import type { Created, MachineQuote, SpecTwo } from '../../backend.ts';
import { HostUnreachable } from './host.ts';
import type { Pool } from './pool.ts';
import { POOL_EXIT } from './script.ts';

/** Exit codes of a claim that left nothing on the host. */
const CLEAR_NO = new Set<number>([POOL_EXIT.occupied, POOL_EXIT.quarantined, POOL_EXIT.unfit, POOL_EXIT.busy]);
/** Creates the call that claims a host of a pool for a tenant. */
export function createClaimer({ hosts, records, find, list, end, forgetReport }: Pool, now: () => number) {
  async function create({
    tag,
    quote,
    deadline,
  }: {
    tag: string;
    quote: MachineQuote;
    deadline: number;
  }): Promise<Created> {
    const { chip } = quote.spec as SpecTwo;
    if (records.read(tag)) {
      const [earlier] = await find(tag);
      if (earlier) return { kind: 'created', ref: earlier.ref };
    }
    const user = userOf(tag);
    let anyAnswered = false;
    for (const host of hosts.filter((it) => it.chip === chip)) {
      forgetReport(host);
      records.write(tag, host, deadline);
      let hasAnswered = false;
      try {
        const { code, fault } = await host.ask('claim', [
          tag,
          user,
          String(deadline),
          String(host.gpus),
          String(now()),
        ]);
        forgetReport(host);
        if (code === 0) return { kind: 'created', ref: `${host.name}/${user}` };
        hasAnswered = true;
        anyAnswered = true;
        if (CLEAR_NO.has(code)) continue;
        await end(host, user); // The claim broke off half-way: only a host without this tenant is a certain refusal.
        if ((await list(host)).some((it) => it.tag === tag)) return { kind: 'unknown', reason: fault };
      } catch (error) {
        // If the host was unreachable for its claim, it made nothing; if it became unreachable after that, it may keep half of a tenant.
        if (hasAnswered || !(error instanceof HostUnreachable))
          return { kind: 'unknown', reason: (error as Error).message };
      }
    }
    return {
      kind: 'refused',
      code: anyAnswered ? 'capacity_unavailable' : 'provider_unavailable',
      reason: `No host with ${JSON.stringify(chip)} ${anyAnswered ? 'is free' : 'can be reached'}. Nothing was charged.`,
    };
  }

  return create;
}

/** Returns the name of a tenant's user: as unique as the tag, and short enough for every system. */
const userOf = (tag: string) => `purser-${hash('sha256', tag).slice(0, 20)}`;
