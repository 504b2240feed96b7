import type { Backend, Created, Ref, SecretsOrder } from '../../backend.ts';
import type { Claim } from '../../kit/claim.ts';
import { refused } from '../../kit/created.ts';
import { IMAGE_ROOTS, ROOTS_BYTES_MAX, trustFiles } from '../../kit/trust.ts';
import { type Deadlines, hasWatchdog, WATCHDOG_PATH, watchdogFor } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { type LxdApi, LxdRefusal, LxdUnreachable, textOf } from './api.ts';
import { claimIn, describeInstance, nameOf } from './describe.ts';
import type { LxdHost } from './host.ts';
import { CHANGE_MILLISECONDS, type LxdInstances, stateOf } from './instances.ts';
import type { LxdSettings } from './settings.ts';

/** An image may have to be unpacked, and copied to another member of a cluster. */
const CREATE_MILLISECONDS = 120_000;

export type LxdOrder = Parameters<Backend['create']>[0];

/** The architectures of LXD in the words of the watchdog's files. */
const ARCHITECTURES: Record<string, string> = { x86_64: 'amd64', aarch64: 'arm64' };

/** Creates the call that makes an instance for a claim and starts it. */
export function createMaker(
  lxd: LxdApi,
  settings: LxdSettings,
  {
    host,
    instances,
    deadlines,
    now,
  }: { host: LxdHost; instances: LxdInstances; deadlines: Deadlines; now: () => number },
) {
  const { user, directory } = settings;
  const makeInTurn = createTurns();

  /** Makes an instance and starts it. Throws when the outcome is unknown. */
  async function make({ tag, deadline, secrets }: LxdOrder, claim: Claim): Promise<Created> {
    const ref = nameOf(tag);
    let isFresh = true;
    try {
      const isIncus = await host.isIncus();
      const wanted = describeInstance(settings, { claim, deadline, created: now(), isIncus, secrets });
      await makeInTurn(() => lxd.run('POST', '/1.0/instances', wanted, CREATE_MILLISECONDS));
    } catch (error) {
      if (error instanceof LxdUnreachable) return refused('The provider cannot be reached', textOf(error));
      // A member of a cluster may have received the request, and its answer was lost.
      if (!(error instanceof LxdRefusal) || error.status >= 500) throw error;
      const existing = await instances.look(ref);
      if (!existing) return refusedBy(error);
      if (claimIn(existing).tag !== tag) return refused('The provider has something else of this name', ref);
      // An earlier attempt has made it, and it has the deadline of that attempt.
      if (stateOf(existing) !== 'ended') return { kind: 'created', ref };
      isFresh = false;
    }
    const started = await start(ref, secrets);
    if (isFresh && started.kind === 'created') deadlines.note(ref, deadline);
    return started;
  }

  /** Puts the watchdog and the tenant's directory into an instance that has not started, and starts it. */
  async function start(ref: Ref, secrets: SecretsOrder | undefined): Promise<Created> {
    try {
      const instance = await instances.look(ref);
      if (!instance) return refused('The machine was removed before it started', ref);
      const architecture = ARCHITECTURES[instance.architecture] ?? instance.architecture;
      if (!hasWatchdog(architecture)) throw new LxdRefusal(`there is no watchdog for ${architecture}`, 400);
      await putFile(ref, WATCHDOG_PATH, watchdogFor(architecture), { owner: WATCHDOG_USER, mode: '0555' });
      await putDirectory(ref);
      if (secrets) await putTrust(ref, secrets);
      await lxd.run('PUT', `/1.0/instances/${ref}/state`, { action: 'start', timeout: 30 }, CHANGE_MILLISECONDS);
    } catch (error) {
      if (!(error instanceof LxdRefusal)) throw error;
      // It exists and does not run: it is removed, and only a confirmed removal is a clear no.
      await instances.remove(ref);
      if (await instances.look(ref)) throw error;
      return refused('The provider could not start the machine', textOf(error));
    }
    return { kind: 'created', ref };
  }

  const putFile = (ref: Ref, path: string, content: Buffer, { owner, mode }: { owner: number; mode: string }) =>
    lxd.ask('POST', filePath(ref, path), content, {
      headers: headersOf(owner, mode, 'file'),
    });

  /** Puts the authority of the lease's secrets beside the roots of its image. */
  async function putTrust(ref: Ref, secrets: SecretsOrder): Promise<void> {
    let roots: Buffer | undefined;
    for (const path of IMAGE_ROOTS) roots ??= await lxd.readFile(filePath(ref, path), ROOTS_BYTES_MAX);
    for (const { path, content } of trustFiles(secrets, roots))
      await putFile(ref, path, content, { owner: 0, mode: '0444' });
  }

  /** Makes the tenant's directory. Its parents belong to root. */
  async function putDirectory(ref: Ref): Promise<void> {
    const parts = directory.split('/').slice(1);
    for (let count = 1; count <= parts.length; count++) {
      const isLast = count === parts.length;
      const path = filePath(ref, `/${parts.slice(0, count).join('/')}`);
      await lxd.ask('POST', path, Buffer.alloc(0), {
        headers: headersOf(isLast ? user : 0, isLast ? '0700' : '0755', 'directory'),
      });
    }
  }

  return make;
}

/**
 * Creates a function that makes one instance after the other: LXD 5.0 chooses the users of an instance by those of the others, and
 * takes an instance that it is still making for one without any. Of several made at once some then cannot start.
 */
function createTurns() {
  let last: Promise<unknown> = Promise.resolve();
  return <T>(make: () => Promise<T>): Promise<T> => {
    const made = last.then(make);
    last = made.catch(() => {});
    return made;
  };
}

const filePath = (ref: Ref, path: string) => `/1.0/instances/${ref}/files?path=${encodeURIComponent(path)}`;

/** Returns the headers of a file for LXD, and for Incus. */
const headersOf = (owner: number, mode: string, type: string) =>
  Object.fromEntries(
    ['X-LXD', 'X-Incus'].flatMap((vendor) => [
      [`${vendor}-uid`, String(owner)],
      [`${vendor}-gid`, String(owner)],
      [`${vendor}-mode`, mode],
      [`${vendor}-type`, type],
    ]),
  );

/** Returns the refusal for an error of LXD that proves that nothing was made. */
function refusedBy(error: LxdRefusal): Created {
  // Every container has 65536 users of its own, and a host has enough for a limited number of containers.
  if (/not enough uid\/gid/i.test(error.message))
    return refused('No users are left for another container', error.message, 'capacity_unavailable');
  return refused('The provider refused the machine', error.message);
}
