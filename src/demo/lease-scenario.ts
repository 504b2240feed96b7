import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { formatUsd, Nanos, parseUsd } from '../base/money.ts';
import type { Narrator } from './narrator.ts';
import { runBySsh } from './plain-ssh.ts';
import { CHIP, HOURLY, OFFER } from './providers.ts';

const SECONDS = 600;
const MORE_SECONDS = 300;
const CPUS = 2;
const MEMORY_GIB = 1;
/** The interval at which a lease is asked whether it has stopped. */
const STOPPING_MILLISECONDS = 200;
const SECONDS_PER_HOUR = 3600n;
const NOTE = 'What an agent brings is there, whole or not at all.\n';

/** Price of some seconds in nano-dollars, rounded up once. */
const priceOf = (hourly: bigint, seconds: number) =>
  (hourly * BigInt(seconds) + SECONDS_PER_HOUR - 1n) / SECONDS_PER_HOUR;
type Rented = { provider: string; id: string; expiresAt: number; cost: bigint };
const usd = (nanos: bigint) => formatUsd(Nanos(nanos));

/**
 * Shows leases over HTTP: rented, used, extended and stopped. One is left running for the end of the wallet. Returns their
 * cost in nano-dollars, and the id of the one that still runs.
 */
export async function rent(
  { step, note, check, ask }: Narrator,
  token: string,
  { directory, signal }: { directory: string; signal: AbortSignal },
): Promise<{ spent: bigint; running: string }> {
  let spent = 0n;
  const compute = (what: string, body: object, key?: string) =>
    ask('POST', `/v1/compute/${what}`, token, body, key && `demo-${what}-${key}`);
  async function create(provider: string, spec: object, hourly: bigint): Promise<Rented> {
    const { body } = await compute('create', { provider, spec: { ...spec, max_seconds: SECONDS } }, provider);
    const cost = priceOf(hourly, SECONDS);
    spent += cost;
    check('status', body.status, 'running');
    check('charged USD', body.charged_usd, usd(cost));
    check('seconds until its deadline', body.expires_at - body.ready_at, SECONDS);
    return { provider, id: body.id, expiresAt: body.expires_at, cost };
  }

  step('The agent lists what it can rent: here every lease is a process of this machine.');
  const { offers } = (await ask('GET', '/v1/compute/offers', token)).body;
  check(
    'offers',
    offers?.map((it: { provider: string }) => it.provider),
    ['provider_one', 'provider_two', 'provider_three'],
  );
  for (const it of offers ?? []) note(`${it.provider}: ${it.description}`);

  step('It rents ten minutes of provider_one, and pays them in advance.');
  const one = await create(
    'provider_one',
    { cpus: CPUS, memory_gib: MEMORY_GIB },
    BigInt(CPUS) * parseUsd(HOURLY.cpu) + BigInt(MEMORY_GIB) * parseUsd(HOURLY.memoryGib),
  );

  step('It runs a command there, uploads a file, and reads it back.');
  const ran = await compute('exec', { id: one.id, command: 'echo "$((6 * 7))"; echo no >&2; exit 3' });
  check('exit code', ran.body.exit_code, 3);
  check('standard output', ran.body.stdout?.trim(), '42');
  const content = Buffer.from(NOTE);
  const file = { id: one.id, path: 'work/note.txt', content_base64: content.toString('base64') };
  const uploaded = await compute('upload', file);
  check('SHA-256 of the file', uploaded.body.sha256, createHash('sha256').update(content).digest('hex'));
  const back = await compute('exec', { id: one.id, command: 'cat work/note.txt' });
  check('it reads the same', back.body.stdout === NOTE, true);

  step('Time at provider_one is not extended; time at provider_two is, at the same price.');
  const refused = await compute('extend', { id: one.id, additional_seconds: MORE_SECONDS }, 'one');
  check('refused with', refused.body.error?.code, 'extension_not_supported');
  const chipHourly = parseUsd(HOURLY.chip);
  const two = await create('provider_two', { chip: CHIP }, chipHourly);
  const extended = await compute('extend', { id: two.id, additional_seconds: MORE_SECONDS }, 'two');
  spent += priceOf(chipHourly, MORE_SECONDS);
  two.cost += priceOf(chipHourly, MORE_SECONDS);
  check('charged USD in all', extended.body.charged_usd, usd(two.cost));
  check('seconds its deadline moved', extended.body.expires_at - two.expiresAt, MORE_SECONDS);

  step('Plain ssh reaches it, with a key that opens nothing else.');
  const access = (await compute('ssh', { id: two.id })).body;
  const output = await runBySsh(access, 'echo "reached, in $(basename "$HOME")"', directory, signal);
  if (output === undefined) note('skipped: there is no ssh client here that this user can run');
  else check('it printed', output.trim(), 'reached, in home');

  step('It stops both early: they end at once, and nothing is refunded.');
  for (const { provider, id, cost } of [one, two]) {
    let stopped = await compute('stop', { id });
    // The answer waits for some seconds only, and a busy machine may take longer.
    while (stopped.body.status === 'stopping') {
      await sleep(STOPPING_MILLISECONDS, undefined, { signal });
      stopped = await compute('stop', { id });
    }
    check(provider, stopped.body.status, 'stopped');
    check('charged USD', stopped.body.charged_usd, usd(cost));
  }
  const late = await compute('exec', { id: one.id, command: 'true' });
  check('a command is refused with', late.body.error?.code, 'resource_not_active');

  step('It rents from provider_three, and leaves that running.');
  const three = await create('provider_three', { offer_id: OFFER, disk_gb: 1 }, parseUsd(HOURLY.offer));
  return { spent, running: three.id };
}
