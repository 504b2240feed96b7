import { nanos } from '../test/executable/books.ts';
import type { Answer } from '../test/helper/server.ts';
import { expiryOf, type MoveEntry } from './move.ts';
import { chargeOf, type Expected, type Usage } from './prices.ts';

/** The outcome of an order. `lost`: charged by policy or for what had come when its client left, without an answer. `refused`: a definite no, which cost nothing. */
export type Outcome = 'unknown' | 'done' | 'lost' | 'refused';

export type WalletEntry = {
  kind: 'wallet';
  key: string;
  /** What it was opened with, in nano-dollars. */
  budget: bigint;
  /** The wallet that its budget comes from; undefined where that is the account. */
  parent: WalletEntry | undefined;
  /** The earliest expiry of its parent when it was opened, in Unix milliseconds. */
  parentExpiredAt: number | undefined;
  expiresInSeconds: number;
  outcome: 'unknown' | 'open' | 'closed' | 'refused';
  /** Whether an answer said that it has closed or expired; its close may have been acknowledged to nobody. */
  isOver: boolean;
  id: string;
  token: string;
  routerKey: string;
  /** When it was first requested, and when that was acknowledged, in Unix milliseconds. */
  askedAt: number;
  madeAt?: number;
  /** The first acknowledged answer to a close, and when it came. */
  closed?: Answer['body'];
  closedAt?: number;
  /** Whether it is frozen, as far as is known; `flying` counts the requests that freeze it or end that, and are in flight. */
  frozen: { state: 'yes' | 'no' | 'maybe'; turn: number; flying: number; lostAt?: number };
  /** Its only refill: the boundary that was acknowledged, in Unix milliseconds, and whether the wallet was seen beyond it. */
  refill?: { cents: number; dueAt?: number; isPast: boolean };
  /** Total cost of its acknowledged answers, in nano-dollars. */
  known: bigint;
};

/** A paid order with its key: the request, and what is known of its outcome. */
export type OrderEntry = {
  kind: 'chat' | 'stream' | 'create' | 'extend';
  key: string;
  wallet: WalletEntry;
  /** The model or the offer. */
  what: string;
  path: string;
  body: Record<string, unknown>;
  outcome: Outcome;
  /** The text of the acknowledged answer. */
  text: string;
  /** The charge in nano-dollars, or what it has to be if the answer has no usable count. */
  charged: Expected | undefined;
  /** The operation's id, if the answer had it. */
  operationId: string;
  resourceId: string;
  /** When its machine was first known to be gone (Unix milliseconds). */
  stoppedAt?: number;
  /** The end of the paid time, as last acknowledged (Unix seconds). */
  expiresAt?: number;
  /** Whether the next answer is the first. */
  isNew: boolean;
  /** How many requests for it are in flight. */
  flying: number;
};

export type CreditEntry = { kind: 'credit'; key: string; cents: number; outcome: 'unknown' | 'done' };
/** A backup, and the journal head that it reported. */
export type BackupEntry = { file: string; seq: number; hash: string };

/** The server believed a clock that was so many seconds ahead, until then (Unix milliseconds; infinite while it does). */
export type FutureEntry = { endedAt: number; seconds: number };

/** The kinds of failure: lines of the table that have to be 0. */
export const FAILURES = [
  'acknowledged and lost',
  'charged twice',
  'charged wrongly',
  'over budget',
  'orphans',
  'unresolved',
  'books wrong',
  'money not conserved',
  'unexpected answers',
  'unexpected ends',
] as const;
export type Failure = (typeof FAILURES)[number];
export type Finding = { failure: Failure; what: string };

/** Everything that the clients know: orders and answers. Their process is not tortured, so memory is enough. */
export type Journal = {
  wallets: WalletEntry[];
  orders: OrderEntry[];
  moves: MoveEntry[];
  credits: CreditEntry[];
  backups: BackupEntry[];
  futures: FutureEntry[];
  findings: Finding[];
  /** Number of answers by kind: `200`, the code of a refusal, or `gone`. */
  answers: Map<string, number>;
};

export const newJournal = (): Journal => ({
  wallets: [],
  orders: [],
  moves: [],
  credits: [],
  backups: [],
  futures: [],
  findings: [],
  answers: new Map(),
});

export function count(tally: Map<string, number>, name: string): void {
  tally.set(name, (tally.get(name) ?? 0) + 1);
}

/** Codes that are a definite no: the key is free, and nothing was charged. */
const REFUSED = [
  'insufficient_funds',
  'funds_held',
  'wallet_closed',
  'wallet_expired',
  'wallet_frozen',
  'rate_limited',
  'gateway_unavailable',
  'provider_unavailable',
  'capacity_unavailable',
  'lease_limit_exceeded',
  'resource_not_active',
];
/** Codes that say that a wallet spends nothing any more. */
export const ENDED = ['wallet_closed', 'wallet_expired'];
/** Codes that say that the outcome is not known yet. */
const UNKNOWN = ['operation_uncertain', 'idempotency_in_progress'];
/** Codes that tell nothing new. */
const NOT_NOW = ['read_only'];

const DONE = 'data: [DONE]\n\n';
/** A comment of a stream, such as what is left in the wallet: a replay tells that as it is then. */
const COMMENT = /^: .*\n\n/gm;

type Told =
  | { outcome: 'done'; text: string; charged: Expected; operationId: string; resource?: Answer['body'] }
  | { outcome: 'lost'; charged: bigint }
  | { outcome: 'refused' | 'unknown' | 'as before' }
  | { outcome: 'pending'; resource: Answer['body'] }
  | { outcome: 'unexpected' };

/** A leap of the clock below this is believed. A longer one must change nothing. */
const CLOCK_MILLISECONDS = 60_000;

/**
 * Returns whether an answer that comes now fits its wallet's expiry, which neither a leap of the clock nor a crash may move.
 * Only a wrong clock that the operator accepted does: what was open then may have expired, and what was opened then, or
 * extended, lasts so much longer.
 */
function isTimely(journal: Journal, wallet: WalletEntry, told: 'expired' | 'new'): boolean {
  const { earliest, latest } = expiryOf(journal, wallet);
  const ahead = journal.futures
    .filter(({ endedAt }) => wallet.askedAt < endedAt)
    .reduce((sum, { seconds }) => sum + seconds * 1000, CLOCK_MILLISECONDS);
  return told === 'expired' ? Date.now() > earliest - ahead : Date.now() < latest + ahead;
}

/** Reads an answer's meaning for its order. */
export function readAnswer(order: OrderEntry, { status, body, text }: Answer): Told {
  const code: string | undefined = body?.error?.code;
  if (code !== undefined && REFUSED.includes(code)) return { outcome: 'refused' };
  if (code !== undefined && UNKNOWN.includes(code)) return { outcome: 'unknown' };
  if (code !== undefined && NOT_NOW.includes(code)) return { outcome: 'as before' };
  if (code === 'answer_lost') return { outcome: 'lost', charged: nanos(/(\d+\.\d+) USD/.exec(text)?.[1] as string) };
  if (status !== 200) return { outcome: 'unexpected' };
  if (order.kind === 'chat') return { outcome: 'done', text, ...told(order, body) };
  if (order.kind === 'stream') {
    if (!text.endsWith(DONE)) return { outcome: 'unknown' }; // It broke off, or reports an error.
    return { outcome: 'done', text: text.replace(COMMENT, ''), ...told(order, lastCount(text)) };
  }
  if (body.billing_state !== 'settled') return { outcome: 'pending', resource: body };
  if (order.kind === 'create' && nanos(body.charged_usd) === 0n) return { outcome: 'refused' };
  const seconds = Number((order.body.spec as { max_seconds?: number })?.max_seconds ?? order.body.additional_seconds);
  const charged = (nanos(body.price_hourly_usd) * BigInt(seconds)) / 3600n;
  return { outcome: 'done', text: '', charged, operationId: '', resource: body };
}

/** Reads charge and operation id: the upstream uses the operation's id as its own. */
function told(order: OrderEntry, body: { id?: string; usage?: Usage }): { charged: Expected; operationId: string } {
  return { charged: chargeOf(order.what, body.usage), operationId: body.id ?? '' };
}

/** Returns the id and the last usage of a stream. */
function lastCount(text: string): { id?: string; usage?: Usage } {
  const found: { id?: string; usage?: Usage } = {};
  for (const [, data] of text.matchAll(/^data: (\{.*\})$/gm)) {
    const chunk = JSON.parse(data as string) as { id?: string; usage?: Usage };
    if (chunk.id !== undefined) found.id = chunk.id;
    if (chunk.usage != null) found.usage = chunk.usage;
  }
  return found;
}

/**
 * Records the answer to an order. `before` is its outcome when the request was sent: an answer acknowledged by then must come
 * again unchanged. A refusal is final only if the request was `alone`: one of two requests may have been refused before the
 * other began a new attempt. `frozen` says whether the wallet was frozen from the request to the answer.
 */
export function note(
  journal: Journal,
  order: OrderEntry,
  before: Outcome,
  answer: Answer,
  alone: boolean,
  frozen: 'yes' | 'no' | 'maybe' = 'maybe',
): void {
  const told = readAnswer(order, answer);
  const said = `${answer.status} ${answer.body?.error?.code ?? ''} ${answer.text.slice(0, 300)}`;
  const find = (failure: Failure, what: string) =>
    journal.findings.push({ failure, what: `${order.kind} ${order.key} of ${order.wallet.id}: ${what}` });
  count(journal.answers, `${order.kind} ${answer.body?.error?.code ?? answer.status}`);

  if (ENDED.includes(answer.body?.error?.code)) order.wallet.isOver = true;
  if (answer.body?.error?.code === 'wallet_expired' && !isTimely(journal, order.wallet, 'expired'))
    find('unexpected answers', `the wallet lasts ${order.wallet.expiresInSeconds} s, and expired early: ${said}`);
  if (answer.body?.error?.code === 'wallet_frozen' && frozen === 'no')
    find('unexpected answers', `the wallet is not frozen: ${said}`);
  if (told.outcome === 'unexpected') return void find('unexpected answers', said);
  if (told.outcome === 'as before') return;
  if ('resource' in told && told.resource) {
    order.resourceId = told.resource.id;
    order.expiresAt = Math.max(order.expiresAt ?? 0, told.resource.expires_at);
  }
  if (before === 'done' || before === 'lost') {
    const isSame = told.outcome === before && (told.outcome === 'lost' || told.text === order.text);
    if (!isSame) find('acknowledged and lost', `was ${before}, and is now answered ${said}`);
    return;
  }
  if (order.outcome === 'done' || order.outcome === 'lost') return; // Two requests at once; the other was answered first.
  if (told.outcome === 'done' || told.outcome === 'lost') {
    order.outcome = told.outcome;
    order.charged = told.charged;
    if (told.outcome === 'lost') {
      order.wallet.known += told.charged;
      return;
    }
    if (order.isNew && !isTimely(journal, order.wallet, 'new'))
      find(
        'unexpected answers',
        `the wallet lasted ${order.wallet.expiresInSeconds} s, and was spent from after that: ${said}`,
      );
    if (order.isNew && frozen === 'yes') find('unexpected answers', `the wallet was spent from while frozen: ${said}`);
    order.text = told.text;
    order.operationId = told.operationId;
    if (typeof told.charged === 'bigint') order.wallet.known += told.charged;
  } else order.outcome = told.outcome === 'refused' && alone ? 'refused' : 'unknown';
}
