import { nanos } from '../test/executable/books.ts';
import type { Answer } from '../test/helper/server.ts';
import { chargeOf, type Expected, type Usage } from './prices.ts';

/** The outcome of an order. `lost`: charged by policy, without an answer. `refused`: a definite no, which cost nothing. */
export type Outcome = 'unknown' | 'done' | 'lost' | 'refused';

export type WalletEntry = {
  kind: 'wallet';
  key: string;
  budgetCents: number;
  expiresInSeconds: number;
  outcome: 'unknown' | 'open' | 'closed' | 'refused';
  id: string;
  token: string;
  routerKey: string;
  /** When it was first requested, and when that was acknowledged, in Unix milliseconds. */
  askedAt: number;
  madeAt?: number;
  /** The first acknowledged answer to a close, and when it came. */
  closed?: Answer['body'];
  closedAt?: number;
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
  credits: CreditEntry[];
  backups: BackupEntry[];
  findings: Finding[];
  /** Number of answers by kind: `200`, the code of a refusal, or `gone`. */
  answers: Map<string, number>;
};

export const newJournal = (): Journal => ({
  wallets: [],
  orders: [],
  credits: [],
  backups: [],
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
  'rate_limited',
  'gateway_unavailable',
  'provider_unavailable',
  'capacity_unavailable',
  'lease_limit_exceeded',
  'resource_not_active',
];
/** Codes that say that the outcome is not known yet. */
const UNKNOWN = ['operation_uncertain', 'idempotency_in_progress'];
/** Codes that tell nothing new. */
const NOT_NOW = ['read_only'];

const DONE = 'data: [DONE]\n\n';

type Told =
  | { outcome: 'done'; text: string; charged: Expected; operationId: string; resource?: Answer['body'] }
  | { outcome: 'lost'; charged: bigint }
  | { outcome: 'refused' | 'unknown' | 'as before' }
  | { outcome: 'pending'; resource: Answer['body'] }
  | { outcome: 'unexpected' };

/** A leap of the clock below this is believed. A longer one must change nothing. */
const CLOCK_MILLISECONDS = 60_000;

/** Returns whether an answer that comes now fits its wallet's expiry, which neither a leap of the clock nor a crash may move. */
function isTimely(
  { expiresInSeconds, askedAt, madeAt = Number.POSITIVE_INFINITY }: WalletEntry,
  told: 'expired' | 'new',
) {
  const lasts = expiresInSeconds * 1000;
  if (told === 'expired') return lasts > 0 && Date.now() > askedAt + lasts - CLOCK_MILLISECONDS;
  return lasts === 0 || Date.now() < madeAt + lasts + CLOCK_MILLISECONDS;
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
    return { outcome: 'done', text, ...told(order, lastCount(text)) };
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
 * other began a new attempt.
 */
export function note(journal: Journal, order: OrderEntry, before: Outcome, answer: Answer, alone: boolean): void {
  const told = readAnswer(order, answer);
  const said = `${answer.status} ${answer.body?.error?.code ?? ''} ${answer.text.slice(0, 300)}`;
  const find = (failure: Failure, what: string) =>
    journal.findings.push({ failure, what: `${order.kind} ${order.key} of ${order.wallet.id}: ${what}` });
  count(journal.answers, `${order.kind} ${answer.body?.error?.code ?? answer.status}`);

  if (answer.body?.error?.code === 'wallet_expired' && !isTimely(order.wallet, 'expired'))
    find('unexpected answers', `the wallet lasts ${order.wallet.expiresInSeconds} s, and expired early: ${said}`);
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
    if (order.isNew && !isTimely(order.wallet, 'new'))
      find(
        'unexpected answers',
        `the wallet lasted ${order.wallet.expiresInSeconds} s, and was spent from after that: ${said}`,
      );
    order.text = told.text;
    order.operationId = told.operationId;
    if (typeof told.charged === 'bigint') order.wallet.known += told.charged;
  } else order.outcome = told.outcome === 'refused' && alone ? 'refused' : 'unknown';
}
