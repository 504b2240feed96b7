import type { Answer } from '../test/helper/server.ts';
import { count, ENDED, type Journal, type WalletEntry } from './journal.ts';

/** A change of a wallet's budget or expiry, with its key, and what is known of its outcome. */
export type MoveEntry = {
  kind: 'raise' | 'lower' | 'extend';
  key: string;
  wallet: WalletEntry;
  /** Cents, below 0 for a lower; seconds for an extension. */
  by: number;
  outcome: 'unknown' | 'done' | 'refused';
  /** How many requests for it are in flight. */
  flying: number;
};

/** Codes that are a definite no to a move, or to a child wallet. */
export const MOVE_REFUSED = [
  'insufficient_funds',
  'funds_held',
  'wallet_closed',
  'wallet_expired',
  'wallet_limit_exceeded',
];

/** Records the answer to a move. A refusal is final only if the request was `alone`, and an acknowledgement always is. */
export function noteMove(
  journal: Journal,
  move: MoveEntry,
  before: MoveEntry['outcome'],
  answer: Answer,
  alone: boolean,
) {
  const code: string | undefined = answer.body?.error?.code;
  const find = (failure: 'acknowledged and lost' | 'unexpected answers') =>
    void journal.findings.push({
      failure,
      what: `${move.kind} ${move.key} of ${move.wallet.id}, ${before}: ${answer.status} ${answer.text.slice(0, 300)}`,
    });
  count(journal.answers, `wallet ${move.kind} ${code ?? answer.status}`);
  if (code === 'read_only') return;
  if (code !== undefined && ENDED.includes(code)) move.wallet.isOver = true;
  if (answer.status === 200) move.outcome = 'done';
  else if (code === undefined || !MOVE_REFUSED.includes(code)) find('unexpected answers');
  else if (before === 'done') find('acknowledged and lost');
  else if (alone && move.outcome === 'unknown') move.outcome = 'refused';
}

const own = (journal: Pick<Journal, 'moves'>, wallet: WalletEntry, kind: MoveEntry['kind'], sure: boolean) =>
  journal.moves
    .filter((it) => it.wallet === wallet && it.kind === kind)
    .filter(({ outcome }) => (sure ? outcome === 'done' : outcome !== 'refused'))
    .reduce((sum, { by }) => sum + by, 0);

/**
 * Returns when a wallet expires, in Unix milliseconds: at the earliest by what was acknowledged, and at the latest by what
 * was asked for. A child expires with its parent at the latest.
 */
export function expiryOf(journal: Pick<Journal, 'moves'>, wallet: WalletEntry): { earliest: number; latest: number } {
  const { expiresInSeconds, askedAt, madeAt = Number.POSITIVE_INFINITY, parent, parentExpiredAt } = wallet;
  const lasts = expiresInSeconds === 0 ? Number.POSITIVE_INFINITY : expiresInSeconds * 1000;
  const above = parent && expiryOf(journal, parent);
  const opened = Math.min(askedAt + lasts, parentExpiredAt ?? Number.POSITIVE_INFINITY);
  return {
    earliest: Math.min(
      opened + own(journal, wallet, 'extend', true) * 1000,
      above?.earliest ?? Number.POSITIVE_INFINITY,
    ),
    latest: Math.min(
      madeAt + lasts + own(journal, wallet, 'extend', false) * 1000,
      above?.latest ?? Number.POSITIVE_INFINITY,
    ),
  };
}

const NANOS_PER_CENT = 10_000_000n;

/**
 * Returns the least and the most that a wallet's budget may be by its acknowledged and its unanswered moves; undefined
 * where only the books can tell: a lower stops at what is spent, and a refill gives what is missing.
 */
export function budgetOf(
  journal: Pick<Journal, 'moves'>,
  wallet: WalletEntry,
): [least: bigint, most: bigint] | undefined {
  if (wallet.refill || journal.moves.some((it) => it.wallet === wallet && it.kind === 'lower')) return undefined;
  const raised = (sure: boolean) => wallet.budget + BigInt(own(journal, wallet, 'raise', sure)) * NANOS_PER_CENT;
  return [raised(true), raised(false)];
}

/** Whether a wallet is frozen, as far as is known. `turn` counts its changes, so that two equal turns enclose none. */
export function frozenState(wallet: WalletEntry): { state: 'yes' | 'no' | 'maybe'; turn: number } {
  const { state, turn } = wallet.frozen;
  if (!wallet.parent) return { state, turn };
  const above = frozenState(wallet.parent);
  const both = [state, above.state];
  return {
    state: both.includes('yes') ? 'yes' : both.includes('maybe') ? 'maybe' : 'no',
    turn: turn + above.turn,
  };
}

/** Whether the wallet and all above it are open, as far as is known. */
export const isOpen = ({ outcome, isOver, token, parent }: WalletEntry): boolean =>
  outcome === 'open' && !isOver && token !== '' && (!parent || isOpen(parent));

const MINUTES_A_DAY = 1440;
const MIN_LEAD_MILLISECONDS = 5000;

/** Returns the time zone in which the next midnight is at the next whole minute, as "+05:37". */
export function zoneOfNextMidnight(now: number): string {
  const minute = Math.ceil((now + MIN_LEAD_MILLISECONDS) / 60_000) % MINUTES_A_DAY;
  const offset = minute > MINUTES_A_DAY / 2 ? MINUTES_A_DAY - minute : -minute;
  const [hours, minutes] = [Math.floor(Math.abs(offset) / 60), Math.abs(offset) % 60];
  return `${offset < 0 ? '-' : '+'}${String(hours).padStart(2, '0')}:${String(minutes).padStart(2, '0')}`;
}
