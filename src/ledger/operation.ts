import assert from 'node:assert/strict';
import { and, asc, eq, gt, inArray, lte, or, sql } from 'drizzle-orm';
import { Nanos, ZERO } from '../base/money.ts';
import { Refusal, type RefusalCode } from '../base/refusal.ts';
import { withChecksum, withNewChecksum } from '../db/checksum.ts';
import type { SETTLED_BY } from '../db/enums.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { keyDigest } from '../db/key-digest.ts';
import { plain } from '../db/plain.ts';
import { answers, operations } from '../db/schema.ts';
import { countAnswer, deleteRows } from '../db/tally.ts';
import { defineWrite } from '../db/write.ts';
import { book, headIn, post } from './journal.ts';
import { memoryOf } from './memory.ts';
import { tellThresholds, tellUncertain } from './notices.ts';
import { findWallet, LIST_COUNT_MAX, settleHeld, shownAvailable, type Wallet } from './wallet.ts';
import { blockOf } from './wallet-operations.ts';

export type Operation = typeof operations.$inferSelect;
export type SettledBy = (typeof SETTLED_BY)[number];

/**
 * Seconds for which answers are kept. 72 hours: a bug shipped on a Friday is found on a Monday, which leaves a day to
 * repair the damage.
 */
export const ANSWER_KEPT_SECONDS = 72 * 60 * 60;

/** Marks an outcome of a call that was cancelled because its clients had left. */
type Cancelled = { isCancelled?: true };

/** The outcome of an external call. `unknown` never gives money back (design, section 6). */
export type Outcome<A> =
  /** The answer is kept for replays for `keptSeconds`, 72 hours unless given. */
  | ({
      kind: 'done';
      charge: Nanos;
      usage: string | null;
      answer: A;
      keptSeconds?: number;
      reason?: string;
    } & Cancelled)
  /** `told` is the caller's message when `reason` is meant for the operator only. */
  | ({
      kind: 'refused';
      code: RefusalCode;
      reason: string;
      callerReason?: string;
      retryAfterSeconds?: number;
    } & Cancelled)
  /** `route` is the one that was called, if any was. */
  | { kind: 'unknown'; reason: string; route?: { upstream?: string; upstream_model?: string } };

/** The state that follows each outcome. Nothing leads back, and a settled operation stays settled. */
export const AFTER: Record<Operation['state'], Record<Outcome<never>['kind'], Operation['state'] | 'too_late'>> = {
  reserved: { done: 'settled', refused: 'settled', unknown: 'uncertain' },
  uncertain: { done: 'settled', refused: 'settled', unknown: 'uncertain' },
  settled: { done: 'too_late', refused: 'too_late', unknown: 'too_late' },
};

/** Beyond this many operations, no sum is computed for a figure that is only displayed. */
const SUMMED_COUNT_MAX = 10_000;

/** The condition for operations that hold money, as the partial index of them has it. */
export const IS_OPEN = sql`${operations.state} <> 'settled'`;

/** The operation that owns the key with a digest. */
const OWNS_KEY = and(
  eq(operations.keyDigest, sql.placeholder('digest')),
  sql`${operations.freed} is null`, // must match the partial index's condition
);

/** The number of the operation with an id. */
const numberOf = (id: unknown) => sql`(select number from operation where operation.id = ${id})`;
const NUMBER = numberOf(sql.placeholder('id'));

const reads = prepare((read: Reader) => ({
  byId: read
    .select()
    .from(operations)
    .where(eq(operations.id, sql.placeholder('id')))
    .prepare(),
  byKey: read.select().from(operations).where(OWNS_KEY).prepare(),
  // Ordered by +id: with the bare column SQLite would scan all operations of the wallet instead of the few open ones.
  open: read
    .select()
    .from(operations)
    .where(and(eq(operations.walletId, sql.placeholder('walletId')), IS_OPEN))
    .orderBy(sql`+${operations.id}`)
    .prepare(),
  anyOpen: read
    .select({ id: operations.id })
    .from(operations)
    .where(and(eq(operations.walletId, sql.placeholder('walletId')), IS_OPEN))
    .limit(1)
    .prepare(),
  uncertainHeld: read
    .select({ nanos: sql<bigint | null>`sum(hold_nanos)` })
    .from(operations)
    .where(and(eq(operations.walletId, sql.placeholder('walletId')), IS_OPEN, sql`${operations.state} = 'uncertain'`))
    .prepare(),
  reserved: read
    .select({ id: operations.id })
    .from(operations)
    .where(and(IS_OPEN, sql`${operations.state} = 'reserved'`, sql`+${operations.id} > ${sql.placeholder('after')}`))
    .orderBy(sql`+${operations.id}`)
    .limit(LIST_COUNT_MAX)
    .prepare(),
  uncertain: read
    .select()
    .from(operations)
    .where(
      and(
        sql`${operations.state} = 'uncertain'`,
        lte(operations.uncertainAt, sql.placeholder('until')),
        or(
          gt(operations.uncertainAt, sql.placeholder('afterAt')),
          and(eq(operations.uncertainAt, sql.placeholder('afterAt')), gt(operations.id, sql.placeholder('afterId'))),
        ),
      ),
    )
    .orderBy(asc(operations.uncertainAt), asc(operations.id))
    .limit(LIST_COUNT_MAX)
    .prepare(),
  answer: read
    .select({ body: answers.body })
    .from(answers)
    .where(and(eq(answers.number, NUMBER), gt(answers.keptUntil, sql.placeholder('now'))))
    .prepare(),
  // SQLite returns the length of a body without reading it.
  answerBytes: read
    .select({ bytes: sql<bigint>`length(${answers.body})` })
    .from(answers)
    .where(and(eq(answers.number, NUMBER), gt(answers.keptUntil, sql.placeholder('now'))))
    .prepare(),
  hasAnswer: read.select({ number: answers.number }).from(answers).where(eq(answers.number, NUMBER)).prepare(),
  withAnswers: read
    .select({ operation: operations })
    .from(answers)
    .innerJoin(operations, eq(operations.number, answers.number))
    .where(and(gt(answers.keptUntil, sql.placeholder('after')), lte(answers.keptUntil, sql.placeholder('until'))))
    .prepare(),
  stale: read
    .select({ number: answers.number })
    .from(answers)
    .where(lte(answers.keptUntil, sql.placeholder('now')))
    .limit(LIST_COUNT_MAX)
    .prepare(),
  nextStale: read.select({ at: answers.keptUntil }).from(answers).orderBy(asc(answers.keptUntil)).limit(1).prepare(),
}));

const SETTLED = `state = 'settled', outcome = ?, settled_by = ?, charge_nanos = ?, usage = ?, reason = ?, settled_at = ?, settle_entry = ?,
  seal = ?`;
const plainReads = plain({
  hasKey: 'select 1 from operation where key_digest = ? and freed is null',
  begun: 'select created_at from operation where number = ?',
  chargedInBlock: `select count(*), sum(charge_nanos) filter (where settled_at >= ?) from operation
    where number >> 8 = ? and wallet_id = ?`,
});
const writes = plain({
  settle: `update operation set ${SETTLED} where id = ?`,
  settleAndFree: `update operation set ${SETTLED}, freed = 1 where id = ?`,
  answer: 'insert into answer (number, operation_id, body, kept_until, seal) values (?, ?, ?, ?, ?)',
});

/** Returns the operation with this id, or undefined. */
export function findOperation(read: Reader, id: string): Operation | undefined {
  return reads(read).byId.get({ id });
}

/** Returns the operation with this id. Throws `not_found`. */
export function operationOf(read: Reader, id: string): Operation {
  const operation = findOperation(read, id);
  if (!operation) throw new Refusal('not_found', `There is no operation ${id}.`);
  return operation;
}

/**
 * Returns the operation that owns this key, if any: unresolved, charged, or answered 200. A definite refusal frees the
 * key.
 */
export function findOperationByKey(read: Reader, walletId: string, route: string, key: string): Operation | undefined {
  const digest = keyDigest(walletId, route, key);
  // Nearly every request is the first with its key: the whole query costs a chat more than this one.
  return plainReads(read).hasKey.get(digest) && reads(read).byKey.get({ digest });
}

/**
 * Returns the charge of the operation that owns this key, null while it has none, and the money that its wallet may still spend, as
 * it is displayed. Undefined when no operation owns the key.
 */
export function findPaid(read: Reader, walletId: string, route: string, key: string) {
  const operation = findOperationByKey(read, walletId, route, key);
  return operation && { charge: operation.charge, available: shownAvailable(findWallet(read, walletId) as Wallet) };
}

/** Returns the stored body of a charged answer until `keptUntil`, even if the reaper is late in deleting it. */
export function findAnswer(read: Reader, operationId: string, now: number): Buffer | undefined {
  return reads(read).answer.get({ id: operationId, now })?.body;
}

/** Returns the number of bytes that `findAnswer` returns; undefined where there is no answer. */
export function answerBytes(read: Reader, operationId: string, now: number): number | undefined {
  const found = reads(read).answerBytes.get({ id: operationId, now });
  return found && Number(found.bytes);
}

/**
 * Returns the amount charged to a wallet since `since` (Unix seconds), by about its latest 10,000 operations. For display, not for
 * decisions.
 */
export function chargedSince(read: Reader, { id, firstOperation, lastOperation }: Wallet, since: number): Nanos {
  const { chargedInBlock } = plainReads(read);
  let [sum, rows] = [0n, 0];
  if (firstOperation === null || lastOperation === null) return ZERO;
  for (let block = blockOf(lastOperation); block >= blockOf(firstOperation) && rows < SUMMED_COUNT_MAX; block--) {
    const [count, charged] = chargedInBlock.get(since, block, id) as [bigint, bigint | null];
    sum += charged ?? 0n;
    rows += Number(count);
  }
  return Nanos(sum);
}

/** Returns the Unix seconds at which the newest operation of a wallet began; undefined where it has none. */
export function lastUsed(read: Reader, { lastOperation }: Wallet): number | undefined {
  const [at] = lastOperation === null ? [] : (plainReads(read).begun.get<[bigint]>(lastOperation) ?? []);
  return at === undefined ? undefined : Number(at);
}

/** Returns the operations of a wallet that still hold money, oldest first. */
export function openOperations(read: Reader, walletId: string): Operation[] {
  return reads(read).open.all({ walletId });
}

/** Returns the extensions of a lease that still hold money, oldest first. */
export const openExtensionsOf = (read: Reader, { id, walletId }: { id: string; walletId: string }): Operation[] =>
  openOperations(read, walletId).filter((it) => it.resourceId === id && it.kind === 'compute_extend');

/** Returns the amount that operations of unknown outcome hold of a wallet. */
export function uncertainHeld(read: Reader, walletId: string): Nanos {
  return Nanos(reads(read).uncertainHeld.get({ walletId })?.nanos ?? 0n);
}

/** Returns whether a wallet has unresolved operations. */
export function hasOpenOperations(read: Reader, walletId: string): boolean {
  return reads(read).anyOpen.get({ walletId }) !== undefined;
}

/**
 * Returns operations in `reserved`, by id, at most 100, after `after`. At start, these are the ones a crash left in
 * flight.
 */
export function reservedOperations(read: Reader, after = ''): { id: string }[] {
  return reads(read).reserved.all({ after });
}

export type UncertainCursor = { id: string; uncertainAt: number | null };

/**
 * Returns operations that became uncertain at or before `until` (Unix seconds), oldest first, at most 100, after
 * `cursor`.
 */
export function uncertainOperations(
  read: Reader,
  until: number,
  cursor: UncertainCursor = { id: '', uncertainAt: -1 },
): Operation[] {
  return reads(read).uncertain.all({ until, afterAt: cursor.uncertainAt, afterId: cursor.id });
}

/**
 * Returns whether an operation has, or has charged, its hold although its caller never got an answer: it is uncertain,
 * or was charged by a policy or by the operator.
 */
export const isUnanswered = ({ state, outcome, settledBy }: Operation): boolean =>
  state === 'uncertain' || (outcome === 'charged' && (settledBy === 'policy' || settledBy === 'operator'));

/**
 * `moved` is false if the operation had been settled before. `available` is the money that its wallet may spend now, if money
 * moved.
 */
export type Settlement = { moved: boolean; available: Nanos | undefined };
const UNMOVED: Settlement = { moved: false, available: undefined };
/** The operation is uncertain, and keeps its hold. */
const KEPT: Settlement = { moved: true, available: undefined };

/**
 * Settles an operation by the outcome of its call (table AFTER). `done` charges at most the hold and releases the rest;
 * `refused` releases all of it; `unknown` keeps the hold.
 */
export function settle(tx: Tx, id: string, outcome: Outcome<Buffer | null>, by: SettledBy, now: number): Settlement {
  const memory = memoryOf(tx);
  const operation = memory.recall(id, () => findOperation(tx, id));
  assert(operation, 'only operations that were placed are settled');
  const next = AFTER[operation.state][outcome.kind];
  if (next === 'too_late') return UNMOVED;

  if (outcome.kind === 'unknown') {
    if (operation.state === 'uncertain') return KEPT;
    const usage = outcome.route?.upstream === undefined ? null : JSON.stringify(outcome.route);
    const change = { state: 'uncertain' as const, uncertainAt: now, reason: outcome.reason, usage };
    tx.update(operations)
      .set(withNewChecksum(operations, operation, change))
      .where(eq(operations.id, id))
      .run();
    tellUncertain(tx, operation, now);
    return KEPT;
  }
  const charge = outcome.kind === 'done' ? outcome.charge : ZERO;
  assert(charge >= 0n && charge <= operation.hold, 'a charge is never above its hold: the price is capped before');

  // From here on the operation is settled.
  const { walletId } = operation;
  const before = memory.recall(walletId, () => findWallet(tx, walletId)) as Wallet;
  const settled = withNewChecksum(operations, operation, {
    state: 'settled' as const,
    outcome: outcome.kind === 'done' ? ('charged' as const) : ('released' as const),
    settledBy: by,
    charge,
    usage: outcome.kind === 'done' ? outcome.usage : null,
    reason: outcome.reason ?? operation.reason,
    settledAt: now,
  });
  const { outcome: ended, settledBy, usage, reason, settledAt, seal } = settled;
  const settleEntry = operation.hold > 0n ? headIn(tx).seq + 1 : null;
  // A definite refusal frees the key, unless the caller has been answered 200 (design 2.7).
  const { settle, settleAndFree } = writes(tx);
  const statement = ended === 'released' && operation.answeredAt === null ? settleAndFree : settle;
  assert.equal(statement.run(ended, settledBy, charge, usage, reason, settledAt, settleEntry, seal, id), 1);
  memory.ended(id);
  const body = outcome.kind === 'done' ? outcome.answer : null;
  if (outcome.kind === 'done' && body)
    memory.added(insertAnswer(tx, operation, body, now + (outcome.keptSeconds ?? ANSWER_KEPT_SECONDS)));
  const wallet = settleHeld(tx, before, { hold: operation.hold, charge, answers: body ? 1 : 0 });
  memory.changed(walletId, wallet);
  const [own, held] = [book.wallet(walletId), book.hold(walletId)];
  const entries = post(tx, [
    { at: now, causeId: id, debit: held, credit: book.sales(operation.kind), amount: charge },
    { at: now, causeId: id, debit: held, credit: own, amount: Nanos(operation.hold - charge) },
  ]);
  memory.added(entries);
  tellThresholds(tx, walletId, wallet, now);
  return { moved: true, available: shownAvailable(wallet) };
}

/** Stores an answer. Returns the number of rows that were added. */
function insertAnswer(tx: Tx, { number, id }: Operation, body: Buffer, keptUntil: number): number {
  const { seal } = withChecksum(answers, { number, operationId: id, body, keptUntil });
  return writes(tx).answer.run(number, id, body, keptUntil, seal);
}

/**
 * Records that an operation is being answered 200 while its outcome is open: its key is never free again. Returns false if the
 * operation was already released: its key is free then, and a 200 would be wrong.
 */
export const keepKey = defineWrite('operation.keep_key', (tx, { id, now }: { id: string; now: number }): boolean => {
  const operation = operationOf(tx, id);
  if (operation.outcome === 'charged' || operation.answeredAt !== null) return true;
  if (operation.state === 'settled') return false;
  tx.update(operations)
    .set(withNewChecksum(operations, operation, { answeredAt: now }))
    .where(eq(operations.id, id))
    .run();
  return true;
});

/**
 * Resolves an operation without an answer, by policy or by the operator's decision. Charges the whole hold or releases
 * it. Leaves a settled operation as it is (`moved` is false). Throws `not_found`.
 */
export function resolveOperation(
  tx: Tx,
  id: string,
  decision: 'charge' | 'release',
  by: 'policy' | 'operator',
  reason: string,
  now: number,
): { operation: Operation; moved: boolean } {
  const { hold } = operationOf(tx, id);
  const outcome: Outcome<null> =
    decision === 'charge'
      ? { kind: 'done', charge: hold, usage: null, answer: null, reason }
      : { kind: 'refused', code: 'gateway_unavailable', reason };
  const { moved } = settle(tx, id, outcome, by, now);
  return { operation: operationOf(tx, id), moved };
}

type Resolve = { id: string; decision: 'charge' | 'release'; reason: string; now: number };
export const resolveByPolicy = defineWrite('operation.resolve', (tx, { id, decision, reason, now }: Resolve) =>
  resolveOperation(tx, id, decision, 'policy', reason, now),
);

type KeepAnswer = { id: string; body: Buffer; keptUntil: number };
/** Stores the answer of a charged operation until `keptUntil`, unless one is stored. */
export const keepAnswer = defineWrite('answer.keep', (tx, { id, body, keptUntil }: KeepAnswer) => {
  const operation = operationOf(tx, id);
  assert(operation.outcome === 'charged', 'what nobody paid has no answer');
  if (reads(tx).hasAnswer.get({ id })) return;
  insertAnswer(tx, operation, body, keptUntil);
  countAnswer(tx);
});

/** Deletes the stored answer of an operation, if there is one. */
export const dropAnswer = defineWrite('answer.drop', (tx, { id }: { id: string }) => {
  deleteRows(tx, answers, eq(answers.number, numberOf(id)));
});

/** Returns the operations whose stored answers expire from `after` to `until`, Unix seconds. */
export function operationsWithAnswers(read: Reader, after: number, until: number): Operation[] {
  return reads(read)
    .withAnswers.all({ after, until })
    .map(({ operation }) => operation);
}

/** Deletes expired stored answers, at most 100. Returns how many were deleted. */
export const pruneAnswers = defineWrite('answer.prune', (tx, { now }: { now: number }): number => {
  const stale = reads(tx).stale.all({ now });
  const numbers = stale.map(({ number }) => number);
  return numbers.length ? deleteRows(tx, answers, inArray(answers.number, numbers)) : 0;
});

/** Returns the Unix seconds at which the oldest stored answer expires. */
export function nextStaleAnswer(read: Reader): number | undefined {
  return reads(read).nextStale.get()?.at;
}
