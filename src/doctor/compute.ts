import { type Finding, SLOTS, type Slot, tagPrefix } from '../compute/backend.ts';
import { finding } from '../compute/finding.ts';
import { openSlots } from '../compute/open.ts';
import { selfTest } from '../compute/self-test.ts';
import type { ConfiguredSlot } from '../compute/slots.ts';
import type { Config, Secrets } from '../config/config.ts';
import { files } from '../files/data-directory.ts';
import { inTime } from '../net/deadline.ts';

/** A backend's calls have limits of their own; these are for one that does not keep them. */
const CHECK_MILLISECONDS = 120_000;
const TRIAL_MILLISECONDS = 240_000;

/**
 * The backend of every configured slot: what it needs, and, where that costs nothing, whether it can make, find and
 * destroy a machine. Without an installation's id none is made, since nobody would know whose it is.
 */
export async function examineSlots(
  config: Config,
  secrets: Secrets,
  installationId: string | undefined,
  now: () => number,
): Promise<Finding[]> {
  const found = await Promise.all(SLOTS.map((slot) => examineSlot(slot, config, secrets, installationId, now)));
  return found.flat();
}

/** One slot, with a backend of its own beside the server's. */
async function examineSlot(
  slot: Slot,
  config: Config,
  secrets: Secrets,
  installationId: string | undefined,
  now: () => number,
): Promise<Finding[]> {
  const settings = config.compute[slot];
  if (!settings) return [];
  // Without a database nothing is this installation's.
  const prefix = tagPrefix(installationId ?? 'inst_none');
  const around = { leases: files(config.dataDirectory).leases, prefix, now };
  const named = (it: Finding) => ({ ...it, name: `${slot} ${settings.backend}: ${it.name}` });
  let configured: ConfiguredSlot | undefined;
  const opened = await finding('settings', async () => {
    [configured] = (await openSlots({ compute: { [slot]: settings } }, secrets, around)).list;
    return 'the backend can be opened';
  });
  if (!configured) return [named(opened)];
  const { backend } = configured;
  try {
    const found = await inTime(backend.check?.() ?? Promise.resolve([]), CHECK_MILLISECONDS, 'The check').catch(
      (error: Error) => [{ name: 'check', ok: false, detail: error.message }],
    );
    return [...found, ...(await trialOf(configured, installationId, now))].map(named);
  } finally {
    await backend.close();
  }
}

async function trialOf(
  configured: ConfiguredSlot,
  installationId: string | undefined,
  now: () => number,
): Promise<Finding[]> {
  const name = 'trial';
  const { trial } = configured.backend;
  if (trial === undefined) return [];
  if (trial === 'costs_money') return [{ name, ok: true, detail: 'No machine was made: here it would cost money' }];
  if (installationId === undefined)
    return [{ name, ok: true, detail: 'No machine was made: that needs the database of this installation' }];
  const tried = selfTest(configured, installationId, now);
  return [
    await inTime(tried, TRIAL_MILLISECONDS, 'The trial').catch(({ message }: Error) => ({
      name,
      ok: false,
      detail: `${message}. A running server takes what it made away within minutes.`,
    })),
  ];
}
