/** The tables, for all that read and write them, and for drizzle-kit. */

export * from './schema/access.ts';
export * from './schema/account.ts';
export * from './schema/event.ts';
export * from './schema/installation.ts';
export * from './schema/journal.ts';
export * from './schema/lease.ts';
export * from './schema/operation.ts';
export * from './schema/payment.ts';
export * from './schema/wallet.ts';
