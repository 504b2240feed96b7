import { withChecksum } from '../db/checksum.ts';
import { prepare, type Reader } from '../db/handle.ts';
import { learnedBounds } from '../db/schema.ts';
import { defineWrite } from '../db/write.ts';

/** The learned bound of an upstream model. Rows of earlier versions have a factor alone. */
export type LearnedBound = Omit<typeof learnedBounds.$inferSelect, 'seal'>;

const reads = prepare((read: Reader) => ({ all: read.select().from(learnedBounds).prepare() }));

/** Returns the learned bound of every upstream model. */
export function listLearnedBounds(read: Reader): LearnedBound[] {
  return reads(read).all.all();
}

/** Stores a learned bound and replaces the earlier one of the same upstream model. */
export const keepLearnedBound = defineWrite('learned_bound.keep', (tx, row: LearnedBound) => {
  const values = withChecksum(learnedBounds, row);
  tx.insert(learnedBounds)
    .values(values)
    .onConflictDoUpdate({ target: [learnedBounds.upstream, learnedBounds.upstreamModel], set: values })
    .run();
});
