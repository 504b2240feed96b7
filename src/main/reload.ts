import { readFileSync } from 'node:fs';
import { Refusal } from '../base/refusal.ts';
import { recallBounds } from '../chat/learn.ts';
import { certificateOf } from '../config/certificate.ts';
import { type Change, changeOf, type Reload } from '../config/change.ts';
import type { Config } from '../config/config.ts';
import { ConfigurationFault } from '../config/fault.ts';
import { OpenToOthersError, refuseOpenToOthers } from '../config/strict-modes.ts';
import { outboxSettings } from '../ledger/outbox.ts';
import { createAddressReader } from '../net/address.ts';
import { CertificateFault } from '../net/certificate.ts';
import { createCatalogue } from '../router/catalogue.ts';
import type { Upstream } from '../router/upstream.ts';
import { type App, createLimits, openUpstreams } from './app.ts';

/**
 * Throws `conflict` where the file of the settings in force is gone or empty. At a start that means the defaults; while a
 * server runs, the file is being moved or written.
 */
function refuseLost({ file }: Config, next: Config): void {
  if (file === undefined) return;
  const isGone = next.file === undefined;
  if (!isGone && readFileSync(file, 'utf8').trim() !== '') return;
  throw new Refusal(
    'conflict',
    `Nothing was changed: ${file} is ${isGone ? 'gone' : 'empty'}. Put the settings back and reload, or restart Purser to run with the defaults.`,
  );
}

/**
 * Creates the reload of a running server. `read` reads the settings again. Checks and opens everything before anything changes. A
 * priced request keeps its model, price and upstreams. Unchanged upstreams keep their connections, limits their counts, and
 * receivers of events keep running.
 */
export function createReload(app: App, read: () => Config): Reload {
  let last: Promise<unknown> = Promise.resolve();

  function refuseStopping() {
    if (app.health.stopping) throw new Refusal('read_only', 'The server is stopping: nothing was changed.');
  }

  async function reload(): Promise<Change> {
    try {
      refuseStopping();
      const next = read();
      refuseLost(app.config, next);
      refuseOpenToOthers(next, () => {});
      const change = changeOf(app.config, next);
      const certificate = certificateOf(next);
      if (certificate) app.certificateWatch?.check(certificate);
      const catalogue = createCatalogue(next);
      recallBounds(app.ledger.read, catalogue, app.clock.now());
      const outdated = new Set([...change.upstreams.changed, ...change.upstreams.removed]);
      const kept = new Map([...app.upstreams].filter(([name]) => !outdated.has(name)));
      const upstreams = await openUpstreams(next, kept, app.upstreams);
      const receivers = await app.notifier.prepare(next.events);
      refuseStopping();
      const isOther = certificate && next.tls && app.certificateWatch?.use(certificate, next.tls);
      if (isOther && !change.settings.includes('tls')) change.settings.push('tls'); // The files have changed, not their names.
      apply(next, change, { catalogue, upstreams, receivers });
      app.events.reloaded(change);
      return change;
    } catch (error) {
      app.events.reloadRefused(error);
      const isOfSettings = [ConfigurationFault, OpenToOthersError, CertificateFault].some((it) => error instanceof it);
      if (isOfSettings)
        throw new Refusal('conflict', `Nothing was changed. ${(error as Error).message}`, { cause: error });
      throw error;
    }
  }

  /** Applies everything in one turn: no request sees a part of it. */
  function apply(
    config: Config,
    change: Change,
    { catalogue, upstreams, receivers }: Pick<App, 'catalogue' | 'upstreams'> & { receivers: () => void },
  ) {
    const retired = [...app.upstreams.values()].filter((it) => ![...upstreams.values()].includes(it));
    for (const upstream of upstreams.values()) app.openedUpstreams.add(upstream);
    Object.assign(app, {
      config,
      catalogue,
      upstreams,
      limits: limitsFor(config, app),
      addressOf: createAddressReader(config.trusted_proxies),
    } satisfies Partial<App>);
    Object.assign(app.outbox, outboxSettings(config.events));
    receivers();
    for (const name of change.upstreams.removed) app.upstreamOutages.forget(name);
    for (const name of [...change.upstreams.changed, ...change.upstreams.removed]) app.events.upstreamChanged(name);
    if (change.settings.includes('log_level')) app.log.level = config.log_level;
    app.wakeAt(app.clock.now()); // The policy for uncertain operations may decide earlier.
    void close(retired).catch((error) => app.events.failed('reload', error));
  }

  /** Closes pools once the requests that may use them have ended. */
  async function close(retired: readonly Upstream[]) {
    await app.inFlight.whenTheseEnd();
    if (app.health.stopping) return; // The stop closes all of them.
    recallBounds(app.ledger.read, app.catalogue, app.clock.now()); // Includes those learned by the retired catalogue.
    for (const upstream of retired) {
      app.openedUpstreams.delete(upstream);
      await upstream.close();
    }
  }

  return () => {
    const next = last.then(reload, reload);
    last = next;
    return next;
  };
}

const LIMITS = {
  wallet: 'wallet_requests_per_minute',
  account: 'account_requests_per_minute',
  failedAuth: 'failed_auth_per_minute',
  released: 'released_per_minute',
  unspent: 'released_per_minute',
} as const;

/** Creates the limits of new settings. A limit whose setting has not changed keeps its counts. */
function limitsFor(config: Config, before: Pick<App, 'config' | 'limits' | 'time'>): App['limits'] {
  const limits = createLimits(config, before.time);
  for (const [name, setting] of Object.entries(LIMITS))
    if (config.limits[setting] === before.config.limits[setting])
      limits[name as keyof typeof LIMITS] = before.limits[name as keyof typeof LIMITS];
  return { ...limits, webhook: before.limits.webhook };
}
