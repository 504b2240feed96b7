import { readFileSync } from 'node:fs';
import { formatUsd, Nanos } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { unreadyReason } from '../books/readiness.ts';
import { files } from '../files/data-directory.ts';
import { VERSION } from '../files/version.ts';
import { figures, type Holds } from '../ledger/figures.ts';
import { countFrozen, describeFrozen, frozenSince } from '../ledger/frozen.ts';
import { installationOf } from '../ledger/installation.ts';
import { waitingOf } from '../ledger/outbox.ts';
import { unreachableResources } from '../ledger/resource.ts';
import { whyUnreachable } from '../net/reach.ts';
import { command, NOTHING, type OperatorApp } from './command.ts';

const NO_SERVER = 'no server is running on this data directory';

const holdsBody = ({ count, amount, oldestAt }: Holds) => ({
  count,
  amount_usd: formatUsd(amount),
  oldest_at: oldestAt,
});

export const status = {
  /**
   * Returns the state of the installation in one answer (design, section 16). Without a server it
   * gives that as the reason, beside the figures of the books.
   */
  status: command(NOTHING, async (app) => {
    const { ledger, health, clock, config } = app;
    const now = clock.now();
    const reason = health.serving ? unreadyReason(app) : (health.fault ?? NO_SERVER);
    const { accounts, wallets, reserved, uncertain, leases } = figures(ledger.read);
    const frozen = countFrozen(ledger.read, now);
    return {
      version: VERSION,
      uptime_seconds: health.serving ? Math.floor(process.uptime()) : null,
      ready: reason === undefined,
      reason: reason ?? null,
      frozen: {
        installation: frozen.installation === 1,
        accounts: frozen.account,
        wallets: frozen.wallet,
        sentence: describeFrozen(ledger.read, now) ?? null,
        since: frozenSince(ledger.read, now),
      },
      moved: movedOf(ledger.read),
      clock: { now, holds_blocked: clock.holdsBlocked() ?? null, expiry_blocked: clock.expiryBlocked() },
      disk: {
        free_bytes: app.diskReserve.freeBytes(),
        shortage: app.diskReserve.shortage() ?? null,
        short_since: shortSince(app, now),
        replicas: app.replicas.now() ?? null,
      },
      backup: lastBackup(config.dataDirectory),
      accounts: {
        count: accounts.count,
        available_usd: formatUsd(accounts.available),
        reserved_usd: formatUsd(accounts.reserved),
        in_wallets_usd: formatUsd(accounts.inWallets),
        spent_usd: formatUsd(accounts.spent),
        owed_usd: formatUsd(accounts.owed),
      },
      wallets: {
        open: wallets.count,
        // A wallet's grants to its children are in their budgets.
        budget_usd: formatUsd(Nanos(wallets.budget - wallets.delegated)),
        used_usd: formatUsd(wallets.spent),
        held_usd: formatUsd(wallets.held),
        available_usd: formatUsd(Nanos(wallets.budget - wallets.spent - wallets.held - wallets.delegated)),
      },
      holds: { ...holdsBody(reserved), waiting: app.fundsQueue.count() },
      uncertain: holdsBody(uncertain),
      leases: {
        live: Object.values(leases).reduce((sum, it) => sum + it, 0),
        by_status: leases,
        unreachable: unreachableResources(ledger.read),
      },
      upstreams: await upstreamsOf(app),
      backends: backendsOf(app),
      events: eventsOf(app),
      faults: faultsOf(app, now),
    };
  }),
};

/**
 * Returns for each model server whether something listens at its address, and since when it has been down as far as is known.
 * Sends no request: a server that listens may still have failed at its last call.
 */
function upstreamsOf({ config, upstreamOutages }: OperatorApp) {
  return Promise.all(
    config.router.upstreams.map(async ({ name, base_url: url }) => {
      const reason = await whyUnreachable(url);
      const up = reason === undefined;
      const outage = upstreamOutages.outageOf(name, up);
      return {
        name,
        base_url: url,
        up,
        reason: reason ?? null,
        failing_since: outage?.since ?? null,
        failure: outage?.reason ?? null,
      };
    }),
  );
}

/** Returns since when the disk has been low, as far as this process knows; null while it is not. */
function shortSince({ diskReserve }: OperatorApp, now: number): number | null {
  const seconds = diskReserve.shortSeconds();
  return seconds === undefined ? null : now - seconds;
}

/** Returns the last start on another machine than before, or null. */
function movedOf(read: OperatorApp['ledger']['read']) {
  const { movedFrom: from, movedAt: at, movedWrittenAt: writtenAt, host } = installationOf(read);
  return at === null ? null : { from, host, at, last_written_at: writtenAt };
}

/** Returns how many events wait to be delivered, and since when the oldest has waited. */
function eventsOf({ config, ledger }: OperatorApp) {
  const waiting = config.events.receivers.map(({ name }) => waitingOf(ledger.read, name));
  const times = waiting.flatMap(({ oldestAt }) => (oldestAt === null ? [] : [oldestAt]));
  return {
    waiting: waiting.reduce((sum, it) => sum + it.count, 0),
    oldest_at: times.length ? Math.min(...times) : null,
  };
}

/** Returns the errors that ended one request each, since the start of the server. */
function faultsOf({ events }: OperatorApp, now: number) {
  const { count, last } = events.faults();
  return { count, last_at: last ? now - last.secondsAgo : null, last_where: last?.where ?? null };
}

/** Returns whether leases fail at the backends, by the results of their last steps, and how many of their warm machines are ready. */
function backendsOf({ slots, outages, warm }: OperatorApp) {
  return slots.list.map(({ slot, slotPath, backend, warm: orders }) => {
    const failing = outages.list(slotPath);
    const since = failing.length ? Math.min(...failing.map((it) => it.since)) : null;
    const leases = failing.reduce((sum, it) => sum + it.leases, 0);
    const wanted = orders.reduce((sum, it) => sum + it.count, 0);
    return {
      ...{ slot, backend: backend.name, up: since === null, failing_since: since, failing_leases: leases },
      warm: wanted ? { ready: warm.count(backend), wanted } : null,
    };
  });
}

/** Returns the note of the last `purser backup` of this data directory, or null. */
function lastBackup(directory: string): { at: number; file: string } | null {
  try {
    const { at, file } = parseJson(readFileSync(files(directory).lastBackup, 'utf8')) as { at: number; file: string };
    return { at, file };
  } catch {
    return null; // There was none, or the note is damaged.
  }
}
