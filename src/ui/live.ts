import type { ServerResponse } from 'node:http';
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import type { Context } from 'hono';
import { Refusal } from '../base/refusal.ts';
import { createShares } from '../base/shares.ts';
import type { Env } from '../http/endpoint.ts';
import { openEventStream } from '../http/event-stream.ts';
import { PAGE_HEADERS } from './guard.ts';
import { accountFigures, accountSeen } from './pages/accounts.ts';
import { leaseFigures, leasesShown } from './pages/leases.ts';
import { nowFigures } from './pages/now.ts';
import { walletFigures } from './pages/wallet.ts';
import { operatorOnly, type Visit, walletSeen } from './visit.ts';

/** Figures by the key of their element on the page. */
export type Figures = Record<string, string>;

/**
 * Maximum number of streams of one account, and of all accounts together before each is limited to an even share. The
 * operator's are counted apart.
 */
const STREAM_COUNT_MAX = { each: 20, all: 200 };
const RETRY_SECONDS = 10;
const LOOK_MILLISECONDS = 1000;
/**
 * Time passes without a commit, too: after this much silence figures are read again. Also keeps proxies from closing the
 * stream.
 */
const QUIET_MILLISECONDS = 10_000;

const ofAccounts = createShares(STREAM_COUNT_MAX);
const ofOperator = createShares(STREAM_COUNT_MAX);

/** Counts a stream. Returns a function that ends it. Throws `rate_limited` when there are too many. */
function takeStream({ viewer }: Visit): () => void {
  const [shares, who] = viewer.kind === 'account' ? [ofAccounts, viewer.accountId] : [ofOperator, viewer.kind];
  if (!shares.tryTake(who, 1))
    throw new Refusal('rate_limited', 'Too many pages are open at the moment. Close one, or reload this one later.', {
      retryAfterSeconds: RETRY_SECONDS,
    });
  return () => shares.release(who, 1);
}

/**
 * Returns the figures of the page that the stream is for; of `/` by default. Throws `not_found` for a page of another
 * account.
 */
function figuresFor(visit: Visit): () => Figures | Promise<Figures> {
  const { query, viewer } = visit;
  const fresh = () => ({ ...visit, now: visit.app.clock.now() });
  const leases = leasesShown(visit);
  const walletId = query.get('wallet');
  if (walletId !== null) {
    walletSeen(visit, walletId);
    return () => ({ ...walletFigures(fresh(), walletId), ...leaseFigures(fresh(), leases) });
  }
  const accountId = query.get('account');
  if (accountId !== null) {
    accountSeen(visit, accountId);
    return () => accountFigures(fresh(), accountId);
  }
  const page = query.get('page') ?? (viewer.kind === 'operator' ? 'now' : 'home');
  if (page === 'leases') return () => leaseFigures(fresh(), leases);
  if (page === 'home' && viewer.kind === 'account') return () => accountFigures(fresh(), viewer.accountId);
  if (page !== 'now') throw new Refusal('not_found', 'There is no such stream.');
  operatorOnly(visit);
  return () => nowFigures(fresh());
}

/**
 * Opens the stream of a page: it sends the changes since its last message, at most once a second, after commits. Ends when
 * the session does or the server stops. Throws `rate_limited` beyond twenty streams of one viewer.
 */
export async function openLive(visit: Visit, c: Context<Env>, isSignedIn: () => boolean): Promise<Response> {
  const { app, requestId } = visit;
  const read = figuresFor(visit);
  const giveBack = takeStream(visit);
  const response = c.env.outgoing as ServerResponse;
  const events = openEventStream(
    response,
    () => ({ ...PAGE_HEADERS, 'x-request-id': requestId }),
    app.stallMilliseconds,
  );
  const isGone = () => response.closed || response.destroyed;
  try {
    events.begin();
    const known: Figures = {};
    let commits = -1;
    let sentAt = Number.NEGATIVE_INFINITY;
    while (!isGone() && !app.health.stopping && !app.health.fault && isSignedIn()) {
      const isQuiet = performance.now() - sentAt >= QUIET_MILLISECONDS;
      if (app.ledger.commitCount() !== commits || isQuiet) {
        commits = app.ledger.commitCount();
        const changed = Object.entries(await read()).filter(([key, value]) => known[key] !== value);
        Object.assign(known, Object.fromEntries(changed));
        if (changed.length || isQuiet) {
          const line = changed.length ? `data: ${JSON.stringify(Object.fromEntries(changed))}` : ':';
          await events.write(Buffer.from(`${line}\n\n`));
          sentAt = performance.now();
        }
      }
      await pause(response);
    }
  } catch (error) {
    app.events.failed('live', error, { request_id: requestId });
  } finally {
    giveBack();
    events.end();
  }
  return RESPONSE_ALREADY_SENT;
}

/** Waits for the next reading, or until the browser has disconnected. */
function pause(response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      response.off('close', end);
      resolve();
    };
    const timer = setTimeout(end, LOOK_MILLISECONDS);
    response.once('close', end);
  });
}
