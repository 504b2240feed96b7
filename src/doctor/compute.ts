import { type CheckFinding, tagPrefix } from '../compute/backend.ts';
import { checkBackend } from '../compute/check.ts';
import { finding, note, warning } from '../compute/finding.ts';
import { openBackend } from '../compute/open.ts';
import { selfTest, trialName } from '../compute/self-test.ts';
import { listBackends, type PlacedSettings } from '../compute/settings.ts';
import type { ConfiguredBackend } from '../compute/slots.ts';
import type { Config } from '../config/config.ts';
import { inTime } from '../net/deadline.ts';
import type { ServerExamination } from './server.ts';

/** The time limit for the trial of a backend that does not keep its own. */
const TRIAL_MILLISECONDS = 240_000;
/** Podman asks the package manager about itself before it answers. */
const IDENTITY_MILLISECONDS = 30_000;

/**
 * Checks every backend of the configured slots: its requirements, as the running server finds them if there is one with these
 * settings, and, if that costs nothing, whether it can make, find and destroy a machine. Without an installation id it makes no
 * machine, whose owner could not be identified. `now` is in Unix seconds.
 */
export async function examineSlots(
  config: Config,
  installationId: string | undefined,
  now: () => number,
  server: ServerExamination | undefined,
): Promise<CheckFinding[]> {
  const backends = listBackends(config.compute);
  const known: KnownEngine[] = [];
  const findings = await Promise.all(
    backends.map((it) => examineBackend(it, config, installationId, now, server, known)),
  );
  return [...findings.flat(), ...judgeEngines(known)];
}

/** The engine of a backend, by its own report, and the address at which it answered. */
type KnownEngine = { slotPath: string; identity: string; address: string };

/** Warns of engines at different addresses with one identity: a list of one would be taken for one of the other. */
export function judgeEngines(known: readonly KnownEngine[]): CheckFinding[] {
  return [...Map.groupBy(known, (it) => it.identity)].flatMap(([identity, same]) => {
    const addresses = [...new Set(same.map((it) => it.address))];
    if (addresses.length < 2) return [];
    const who = same.map((it) => `${it.slotPath} (${it.address})`).join(' and ');
    return note(
      'engines',
      `${who} answer with one identity (${identity}). That is right if they are one engine. Machines that were cloned have the same: give each its own (Docker: remove /etc/docker/key.json and engine-id of its data directory, and restart it), or leases of one count as gone where the other answers`,
    );
  });
}

/** Asks a backend which engine it has, and notes that where it has an address. */
function askEngine(
  { backend, slotPath }: ConfiguredBackend,
  settings: PlacedSettings['settings'],
  known: KnownEngine[],
) {
  return finding('identity', async () => {
    if (!backend.identity) return 'there is only one engine';
    const identity = await inTime(backend.identity(), IDENTITY_MILLISECONDS, 'The engine');
    if (identity === undefined)
      return warning(
        'the engine does not tell who it is: should Purser move to another machine, its leases are only reported. Let Purser read GET /info of an engine behind a proxy; on Kubernetes, the namespace kube-system (docs/backends.md)',
      );
    if ('socket' in settings) known.push({ slotPath, identity, address: settings.socket });
    return identity;
  });
}

/** Checks one backend: by the server's own look at what it depends on, if there is one, and a trial with another instance. */
async function examineBackend(
  placed: PlacedSettings,
  config: Config,
  installationId: string | undefined,
  now: () => number,
  server: ServerExamination | undefined,
  known: KnownEngine[],
): Promise<CheckFinding[]> {
  // Without a database no machine belongs to this installation.
  const prefix = tagPrefix(installationId ?? 'inst_none');
  const around = { dataDirectory: config.dataDirectory, prefix, now };
  const named = (it: CheckFinding) => ({ ...it, name: `${placed.slot} ${placed.name}: ${it.name}` });
  let configured: ConfiguredBackend | undefined;
  const opened = await finding('settings', async () => {
    configured = await openBackend(placed, around);
    return 'the backend can be opened';
  });
  if (!configured) return [named(opened)];
  const { backend } = configured;
  try {
    // A server that runs with other settings reports nothing of these.
    const { slot, name } = placed;
    const { digest } = configured;
    const seen = server?.backends.find((it) => it.slot === slot && it.name === name && it.digest === digest);
    const checked = seen?.findings ?? (await checkBackend(backend));
    return [
      ...checked,
      // An engine that cannot be asked has been found already.
      ...(checked.every(({ ok }) => ok) ? [await askEngine(configured, placed.settings, known)] : []),
      ...(await runSelfTest(configured, installationId, now)),
    ].map(named);
  } finally {
    await backend.close();
  }
}

/** Makes a trial of each runtime on offer, one after another. */
async function runSelfTest(
  configured: ConfiguredBackend,
  installationId: string | undefined,
  now: () => number,
): Promise<CheckFinding[]> {
  const name = 'trial';
  if (configured.backend.doctor.trial === 'costs_money')
    return [{ name, ok: true, detail: 'No machine was made: with this backend it would cost money' }];
  if (installationId === undefined)
    return [{ name, ok: true, detail: 'No machine was made: that needs the database of this installation' }];
  const offers = await inTime(configured.backend.offers(), TRIAL_MILLISECONDS, 'The list of offers').catch(() => []);
  const runtimes = [...new Set(offers.map((it) => it.runtime))];
  const findings: CheckFinding[] = [];
  for (const only of runtimes.length > 1 ? runtimes.map((runtime) => ({ runtime })) : [undefined]) {
    const tried = selfTest(configured, installationId, now, only);
    findings.push(
      await inTime(tried, TRIAL_MILLISECONDS, 'The trial').catch(({ message }: Error) => ({
        name: trialName(only),
        ok: false,
        detail: `${message}. A running server removes what it made within minutes.`,
      })),
    );
  }
  return findings;
}
