import { and, eq, gt, sql } from 'drizzle-orm';
import { periodAt } from '../base/calendar.ts';
import { withNewChecksum } from '../db/checksum.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { answers, checkouts, deliveries, entries, operations, wallets } from '../db/schema.ts';
import { beginEpoch, currentEpoch, findInstallation } from './installation.ts';
import { journalHead } from './journal.ts';
import { ANSWER_KEPT_SECONDS } from './operation.ts';
import { findFeed, setFeed } from './payment-events.ts';
import { refillOf } from './refill.ts';
import { allLiveResources, updateResource } from './resource.ts';

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
  checkoutsAfter: read
    .select()
    .from(checkouts)
    .where(gt(checkouts.dueAt, sql.placeholder('after')))
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

/** A time longer than any wait for a checkout's next poll: 3 h until one in `creating` expires, 6 h for one in `pending`. */
const CHECKOUT_SECONDS = 86_400;

/**
 * Returns the newest time that the books know, in Unix seconds: that of the newest entry if it is later than the last entry
 * before the current epoch, else the start of the epoch; 0 before the installation. After `goBackTo`, new entries repeat the
 * time of the last one before it until the clock has passed that.
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
 * time of the journal's entries does not advance until the clock has reached it. Rows that have ended stay ended.
 */
export function goBackTo(tx: Tx, reason: string, now: number): void {
  const back = Math.max(0, newestTime(tx) - now);
  const { acceptedFaults } = currentEpoch(tx);
  beginEpoch(tx, { afterSeq: journalHead(tx).seq, reason, acceptedFaults }, now);
  const earlier = (at: number) => Math.max(now, at - back);
  for (const it of allLiveResources(tx))
    updateResource(tx, it.id, {
      dueAt: Math.min(it.dueAt, now),
      absentSince: it.absentSince && Math.min(it.absentSince, now),
      // A lease of the later time keeps its length: the paid time begins when its machine is ready. The end of a pause is no length.
      ...((it.readyAt ?? it.createdAt) > now
        ? it.pausedAt === null
          ? { expiresAt: earlier(it.expiresAt) }
          : { pausedAt: Math.min(it.pausedAt, now) }
        : {}),
      ...(it.createdAt > now ? { readyBy: earlier(it.readyBy) } : {}),
    });
  for (const row of reads(tx).uncertainAfter.all({ now }))
    tx.update(operations)
      .set(withNewChecksum(operations, row, { uncertainAt: now }))
      .where(eq(operations.id, row.id))
      .run();
  for (const wallet of reads(tx).refilledAfter.all({ now })) {
    const refill = refillOf(wallet);
    const next = refill && periodAt(refill.every, refill.zone, now).next;
    if (next !== null && next < (wallet.refillAt as number))
      tx.update(wallets)
        .set(withNewChecksum(wallets, wallet, { refillAt: next }))
        .where(eq(wallets.id, wallet.id))
        .run();
  }
  for (const row of reads(tx).checkoutsAfter.all({ after: now + CHECKOUT_SECONDS }))
    tx.update(checkouts)
      .set(withNewChecksum(checkouts, row, { dueAt: now + CHECKOUT_SECONDS }))
      .where(eq(checkouts.id, row.id))
      .run();
  const keptUntil = now + ANSWER_KEPT_SECONDS;
  for (const { number } of reads(tx).answersAfter.all({ after: keptUntil })) {
    const answer = reads(tx).answer.get({ number }) as typeof answers.$inferSelect; // One at a time: they may be large.
    tx.update(answers)
      .set(withNewChecksum(answers, answer, { keptUntil }))
      .where(eq(answers.number, number))
      .run();
  }
  tx.update(deliveries).set({ dueAt: now }).where(gt(deliveries.dueAt, now)).run();
  const feed = findFeed(tx);
  if (feed) setFeed.run(tx, { readTo: Math.min(feed.readTo, now), dueAt: Math.min(feed.dueAt, now) });
}
