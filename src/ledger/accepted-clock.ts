import { and, eq, gt, or, sql } from 'drizzle-orm';
import { periodAt } from '../base/calendar.ts';
import { withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { answers, checkouts, deliveries, entries, operations, wallets } from '../db/schema.ts';
import { beginEpoch, currentEpoch, findInstallation } from './installation.ts';
import { journalHead } from './journal.ts';
import { ANSWER_KEPT_SECONDS } from './operation.ts';
import { findFeed, setFeed } from './payment-events.ts';
import { refillOf } from './refill.ts';
import { allLiveResources, type Resource, updateResource } from './resource.ts';
import { shortenSandbox } from './sandbox.ts';
import { goBackWithSnapshots } from './snapshot.ts';

const reads = prepare((read: Reader) => ({
  at: read
    .select({ at: entries.at })
    .from(entries)
    .where(eq(entries.seq, sql.placeholder('seq')))
    .prepare(),
  uncertainAfter: read
    .select()
    .from(operations)
    .where(and(sql`${operations.state} = 'uncertain'`, gt(operations.uncertainAt, sql.placeholder('now'))))
    .prepare(),
  refilledAfter: read
    .select()
    .from(wallets)
    .where(
      and(
        sql`${wallets.status} = 'active' and ${wallets.refillAt} is not null`,
        gt(wallets.refillAt, sql.placeholder('now')),
      ),
    )
    .prepare(),
  openedAfter: read
    .select()
    .from(wallets)
    .where(and(sql`${wallets.status} = 'active'`, gt(wallets.createdAt, sql.placeholder('now'))))
    .prepare(),
  checkoutsAfter: read
    .select()
    .from(checkouts)
    .where(gt(checkouts.dueAt, sql.placeholder('now')))
    .prepare(),
  deliveriesAfter: read
    .select()
    .from(deliveries)
    .where(
      and(
        sql`${deliveries.deliveredAt} is null and ${deliveries.gaveUpAt} is null`,
        or(gt(deliveries.dueAt, sql.placeholder('now')), gt(deliveries.queuedAt, sql.placeholder('now'))),
      ),
    )
    .prepare(),
  answersAfter: read
    .select({ number: answers.number })
    .from(answers)
    .where(gt(answers.keptUntil, sql.placeholder('after')))
    .prepare(),
  answer: read
    .select()
    .from(answers)
    .where(eq(answers.number, sql.placeholder('number')))
    .prepare(),
}));

/**
 * Returns the newest time that the books know, in Unix seconds: that of the newest entry if it is later than the last entry before
 * the current epoch, else the start of the epoch; 0 before the installation. After `goBackTo`, new entries repeat the time of the
 * last one before it until the clock has passed that.
 */
export function newestTime(read: Reader): number {
  const head = journalHead(read);
  if (!findInstallation(read)) return head.at;
  const { afterSeq, startedAt } = currentEpoch(read);
  const before = reads(read).at.get({ seq: afterSeq })?.at ?? 0;
  return head.at > before ? head.at : startedAt;
}

/**
 * Goes back to an earlier time (docs/decisions/0047): begins a new epoch, and brings forward what the later time had postponed. The
 * time of the journal's entries does not advance until the clock has reached it. Rows that have ended stay ended. What was made in
 * the later time counts as made now, so that it is brought back once.
 */
export function goBackTo(tx: Tx, reason: string, now: number): void {
  const back = Math.max(0, newestTime(tx) - now);
  const { acceptedFaults } = currentEpoch(tx);
  beginEpoch(tx, { afterSeq: journalHead(tx).seq, reason, acceptedFaults }, now);
  const earlier = (at: number) => Math.max(now, at - back);
  for (const it of allLiveResources(tx)) {
    const expiresAt = endOfLease(it, now, earlier);
    shortenSandbox(tx, it.id, it.expiresAt - expiresAt);
    updateResource(tx, it.id, {
      dueAt: Math.min(it.dueAt, now),
      absentSince: it.absentSince && Math.min(it.absentSince, now),
      pausedAt: it.pausedAt && Math.min(it.pausedAt, now),
      expiresAt,
      readyBy: it.createdAt > now ? earlier(it.readyBy) : it.readyBy,
      createdAt: Math.min(it.createdAt, now),
      readyAt: it.readyAt && Math.min(it.readyAt, now),
    });
  }
  goBackWithSnapshots(tx, now);
  for (const row of reads(tx).uncertainAfter.all({ now }))
    tx.update(operations)
      .set(withNewChecksum(operations, row, { uncertainAt: now }))
      .where(eq(operations.id, row.id))
      .run();
  for (const wallet of reads(tx).openedAfter.all({ now })) {
    // A child and its parent move by the same seconds, so it still expires with its parent at the latest.
    const expiresAt = wallet.expiresAt && earlier(wallet.expiresAt);
    tx.update(wallets)
      .set(withNewChecksum(wallets, wallet, { createdAt: now, expiresAt }))
      .where(eq(wallets.id, wallet.id))
      .run();
  }
  for (const wallet of reads(tx).refilledAfter.all({ now })) {
    const refill = refillOf(wallet);
    const next = refill && periodAt(refill.every, refill.zone, now).next;
    if (next !== null && next < (wallet.refillAt as number))
      tx.update(wallets)
        .set(withNewChecksum(wallets, wallet, { refillAt: next }))
        .where(eq(wallets.id, wallet.id))
        .run();
  }
  for (const row of reads(tx).checkoutsAfter.all({ now })) {
    const expiresAt = Math.min(row.expiresAt, now + row.expiresAt - row.createdAt);
    const dueAt = Math.min(row.dueAt as number, Math.max(now, expiresAt));
    tx.update(checkouts)
      .set(withNewChecksum(checkouts, row, { createdAt: Math.min(row.createdAt, now), expiresAt, dueAt }))
      .where(eq(checkouts.id, row.id))
      .run();
  }
  const keptUntil = now + ANSWER_KEPT_SECONDS;
  for (const { number } of reads(tx).answersAfter.all({ after: keptUntil })) {
    const answer = reads(tx).answer.get({ number }) as typeof answers.$inferSelect; // One at a time: they may be large.
    tx.update(answers)
      .set(withNewChecksum(answers, answer, { keptUntil }))
      .where(eq(answers.number, number))
      .run();
  }
  for (const row of reads(tx).deliveriesAfter.all({ now })) {
    const change = { queuedAt: Math.min(row.queuedAt, now), dueAt: Math.min(row.dueAt, now) };
    tx.update(deliveries)
      .set(withNewChecksum(deliveries, row, change))
      .where(and(eq(deliveries.eventSeq, row.eventSeq), eq(deliveries.receiver, row.receiver)))
      .run();
  }
  const feed = findFeed(tx);
  if (feed) setFeed.run(tx, { readTo: Math.min(feed.readTo, now), dueAt: Math.min(feed.dueAt, now) });
}

/**
 * Returns when a lease ends after going back, Unix seconds. One of the later time keeps its length: its paid time begins when its
 * machine is ready, or it is resumed, and no lease keeps more than it bought. The end of a pause is no length, and follows the
 * wallet.
 */
function endOfLease(it: Resource, now: number, earlier: (at: number) => number): number {
  if (it.pausedAt !== null) return it.expiresAt;
  const last = it.readyAt === null ? Number.POSITIVE_INFINITY : now + it.purchasedSeconds;
  const isOfLaterTime = (it.readyAt ?? it.createdAt) > now || it.expiresAt > last;
  return isOfLaterTime ? Math.min(earlier(it.expiresAt), last) : it.expiresAt;
}
