import { nanos } from '../test/executable/books.ts';
import type { Answer } from '../test/helper/server.ts';
import { chargeOf, type Usage } from './prices.ts';

/** Of an order: `lost` was charged by policy, its answer is gone; `refused` is a definite no, which cost nothing. */
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
  /** Milliseconds: when it was first asked for, and when that was acknowledged. */
  askedAt: number;
  madeAt?: number;
  /** What the first acknowledged close said, and when it came. */
  closed?: Answer['body'];
  closedAt?: number;
  /** What its acknowledged answers cost together, in nano-dollars. */
  known: bigint;
};

/** A paid order with its key: what was asked, and what is known of it. */
export type OrderEntry = {
  kind: 'chat' | 'stream' | 'create' | 'extend';
  key: string;
  wallet: WalletEntry;
  /** The model, or the offer. */
  what: string;
  path: string;
  body: Record<string, unknown>;
  outcome: Outcome;
  /** The acknowledged answer, word for word. */
  text: string;
  /** Nano-dollars that it was charged; `hold` where the answer has no usable count. */
  charged: bigint | 'hold' | undefined;
  /** The operation, where the answer told its id. */
  operationId: string;
  resourceId: string;
  /** Since when a machine has been known to be gone (milliseconds). */
  stoppedAt?: number;
  /** Until when the machine was paid for, as last acknowledged (Unix seconds). */
  expiresAt?: number;
  /** Whether what comes now is the answer to the first request. */
  isNew: boolean;
  /** How often it is being asked for at this moment. */
  flying: number;
};

export type CreditEntry = { kind: 'credit'; key: string; cents: number; outcome: 'unknown' | 'done' };
/** What a backup said it holds. */
export type BackupEntry = { file: string; seq: number; hash: string };

/** What goes wrong: the columns of the table that have to be 0. */
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

/** What the clients know: every order and every answer. Their process is not tortured, so memory is enough. */
export type Journal = {
  wallets: WalletEntry[];
  orders: OrderEntry[];
  credits: CreditEntry[];
  backups: BackupEntry[];
  findings: Finding[];
  /** How often each answer came: `200`, or the code of a refusal, or `gone`. */
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

/** A definite no: the key is free, nothing was charged. */
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
/** Nobody knows yet. */
const UNKNOWN = ['operation_uncertain', 'idempotency_in_progress'];
/** Nothing is known that was not known before. */
const NOT_NOW = ['read_only'];

const DONE = 'data: [DONE]\n\n';

type Told =
  | { outcome: 'done'; text: string; charged: bigint | 'hold'; operationId: string; resource?: Answer['body'] }
  | { outcome: 'lost'; charged: bigint }
  | { outcome: 'refused' | 'unknown' | 'as before' }
  | { outcome: 'pending'; resource: Answer['body'] }
  | { outcome: 'unexpected' };

/** The clock leaps by less than a minute, which is believed; by more, which must change nothing. */
const CLOCK_MILLISECONDS = 60_000;

/** Whether an answer of now fits the expiry of its wallet: neither a leap of the clock nor a crash may move it. */
function isTimely(
  { expiresInSeconds, askedAt, madeAt = Number.POSITIVE_INFINITY }: WalletEntry,
  told: 'expired' | 'new',
) {
  const lasts = expiresInSeconds * 1000;
  if (told === 'expired') return lasts > 0 && Date.now() > askedAt + lasts - CLOCK_MILLISECONDS;
  return lasts === 0 || Date.now() < madeAt + lasts + CLOCK_MILLISECONDS;
}

/** What an answer says of the order that it answers. */
export function readAnswer(order: OrderEntry, { status, body, text }: Answer): Told {
  const code: string | undefined = body?.error?.code;
  if (code !== undefined && REFUSED.includes(code)) return { outcome: 'refused' };
  if (code !== undefined && UNKNOWN.includes(code)) return { outcome: 'unknown' };
  if (code !== undefined && NOT_NOW.includes(code)) return { outcome: 'as before' };
  if (code === 'answer_lost') return { outcome: 'lost', charged: nanos(/(\d+\.\d+) USD/.exec(text)?.[1] as string) };
  if (status !== 200) return { outcome: 'unexpected' };
  if (order.kind === 'chat') return { outcome: 'done', text, ...told(order, body) };
  if (order.kind === 'stream') {
    if (!text.endsWith(DONE)) return { outcome: 'unknown' }; // It broke off, or says so.
    return { outcome: 'done', text, ...told(order, lastCount(text)) };
  }
  if (body.billing_state !== 'settled') return { outcome: 'pending', resource: body };
  if (order.kind === 'create' && nanos(body.charged_usd) === 0n) return { outcome: 'refused' };
  const seconds = Number((order.body.spec as { max_seconds?: number })?.max_seconds ?? order.body.additional_seconds);
  const charged = (nanos(body.price_hourly_usd) * BigInt(seconds)) / 3600n;
  return { outcome: 'done', text: '', charged, operationId: '', resource: body };
}

/** The upstream answers with the operation's id for its own. */
function told(
  order: OrderEntry,
  body: { id?: string; usage?: Usage },
): { charged: bigint | 'hold'; operationId: string } {
  return { charged: chargeOf(order.what, body.usage), operationId: body.id ?? '' };
}

/** The id and the last usage of a stream. */
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
 * Notes what an order was answered. `before` is its outcome when it was asked: what was acknowledged by then must be told
 * again, word for word. A refusal is the last word only where it was asked for `alone`: one of two requests may have been
 * refused before the other began anew.
 */
export function note(journal: Journal, order: OrderEntry, before: Outcome, answer: Answer, alone: boolean): void {
  const told = readAnswer(order, answer);
  const said = `${answer.status} ${answer.body?.error?.code ?? ''} ${answer.text.slice(0, 300)}`;
  const find = (failure: Failure, what: string) =>
    journal.findings.push({ failure, what: `${order.kind} ${order.key} of ${order.wallet.id}: ${what}` });
  count(journal.answers, `${order.kind} ${answer.body?.error?.code ?? answer.status}`);

  if (answer.body?.error?.code === 'wallet_expired' && !isTimely(order.wallet, 'expired'))
    find('unexpected answers', `it lasts for ${order.wallet.expiresInSeconds} s, and had expired before: ${said}`);
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
  if (order.outcome === 'done' || order.outcome === 'lost') return; // Asked twice at once; the other one was first.
  if (told.outcome === 'done' || told.outcome === 'lost') {
    order.outcome = told.outcome;
    order.charged = told.charged;
    if (told.outcome === 'lost') {
      order.wallet.known += told.charged;
      return;
    }
    if (order.isNew && !isTimely(order.wallet, 'new'))
      find('unexpected answers', `it lasted for ${order.wallet.expiresInSeconds} s, and was still spent from: ${said}`);
    order.text = told.text;
    order.operationId = told.operationId;
    if (told.charged !== 'hold') order.wallet.known += told.charged;
  } else order.outcome = told.outcome === 'refused' && alone ? 'refused' : 'unknown';
}
