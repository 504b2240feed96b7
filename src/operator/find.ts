import { and, asc, desc, eq, gte, lt, ne } from 'drizzle-orm';
import { idsFrom, madeAt } from '../base/id.ts';
import { suggestion } from '../base/near-names.ts';
import { Refusal } from '../base/refusal.ts';
import type { Reader } from '../db/handle.ts';
import {
  accounts,
  checkouts,
  events,
  keys,
  operations,
  passkeys,
  resources,
  routerKeys,
  wallets,
} from '../db/schema.ts';
import { type Account, findAccount } from '../ledger/account.ts';
import { type Checkout, findCheckout } from '../ledger/checkout.ts';
import { findOperation, type Operation } from '../ledger/operation.ts';
import { eventOf, type OutboxEvent } from '../ledger/outbox.ts';
import { findResource, type Resource } from '../ledger/resource.ts';
import { findWallet, type Wallet } from '../ledger/wallet.ts';

// Commands accept an id, a unique beginning of one, or a name; the HTTP API only whole ids.

/** Rows that are read to check whether a beginning or a name is unique, and that are named if it is not. */
const CANDIDATE_COUNT = 4;
/** An operation begins after its request was accepted: its body may arrive slowly, and its price may have to be requested. */
const REQUEST_MILLISECONDS = 10 * 60_000;

type Table =
  | typeof accounts
  | typeof wallets
  | typeof operations
  | typeof resources
  | typeof checkouts
  | typeof events
  | typeof keys
  | typeof passkeys
  | typeof routerKeys;

const beginningOf = (read: Reader, table: Table, prefix: string, text: string): { id: string }[] =>
  new RegExp(`^${prefix}_[0-9a-z]+$`).test(text)
    ? read
        .select({ id: table.id })
        .from(table)
        .where(and(gte(table.id, text), lt(table.id, `${text}~`)))
        .orderBy(asc(table.id))
        .limit(CANDIDATE_COUNT)
        .all()
    : [];

/** Returns the only candidate, or undefined if there is none. Throws `conflict` where there are more. */
function onlyOne(what: string, text: string, candidates: readonly { id: string }[]): string | undefined {
  const [first, ...others] = new Set(candidates.map(({ id }) => id));
  if (first !== undefined && others.length)
    throw new Refusal(
      'conflict',
      `${JSON.stringify(text)} may be more than one ${what}: ${[first, ...others].join(', ')}. Give more of the id.`,
    );
  return first;
}

const none = (what: string, text: string, names: readonly string[] = []) =>
  new Refusal('not_found', `There is no ${what} ${text}${suggestion(text, names) || '.'}`);

/** Names of a table that are compared with one that was not found: the newest. */
const NAME_COUNT = 1000;
const namesOf = (read: Reader, table: typeof accounts | typeof wallets) =>
  read
    .select({ name: table.name })
    .from(table)
    .orderBy(desc(table.id))
    .limit(NAME_COUNT)
    .all()
    .map((it) => it.name);

/**
 * Returns the ids of the wallet and the account that a list is limited to, each found by id, beginning or name. Throws like
 * `walletWith` and `accountWith`.
 */
export const limitedTo = (
  read: Reader,
  { wallet, account }: { wallet?: string | undefined; account?: string | undefined },
) => ({
  walletId: wallet === undefined ? undefined : walletWith(read, wallet).id,
  accountId: account === undefined ? undefined : accountWith(read, account).id,
});

/** Returns where a page of a list begins: after the row that `find` finds. Throws as that does. */
export const pageAfter = <P extends { before?: string | undefined }>(
  read: Reader,
  page: P,
  find: (read: Reader, text: string) => { id: string },
): P => (page.before === undefined ? page : { ...page, before: find(read, page.before).id });

/**
 * Returns the account with this id, unique beginning of an id, or name. Throws `not_found` and `conflict`. A name does not win over
 * a beginning: who chooses it could give it that of another's id, and would get what the operator meant for that one.
 */
export function accountWith(read: Reader, text: string): Account {
  const whole = findAccount(read, text);
  if (whole) return whole;
  const named = read.select({ id: accounts.id }).from(accounts).where(eq(accounts.name, text)).all();
  const id = onlyOne('account', text, [...named, ...beginningOf(read, accounts, 'acct', text)]);
  const row = id === undefined ? undefined : findAccount(read, id);
  if (!row) throw none('account', text, namesOf(read, accounts));
  return row;
}

/**
 * Returns the wallet with this id, unique beginning of an id, or name; of several with the same name, the only one that is not
 * closed. Throws `not_found` and `conflict`, the latter also where one has the beginning of another's id for a name: agents choose
 * names.
 */
export function walletWith(read: Reader, text: string): Wallet {
  const whole = findWallet(read, text);
  if (whole) return whole;
  const id = onlyOne('wallet', text, [...walletsNamed(read, text), ...beginningOf(read, wallets, 'wal', text)]);
  const row = id === undefined ? undefined : findWallet(read, id);
  if (!row) throw none('wallet', text, namesOf(read, wallets));
  return row;
}

/** Returns some of the wallets with this name, of one account or of any: closed ones only where all are closed. */
export function walletsNamed(read: Reader, name: string, accountId?: string): { id: string }[] {
  const named = (open: boolean) =>
    read
      .select({ id: wallets.id })
      .from(wallets)
      .where(
        and(
          eq(wallets.name, name),
          open ? ne(wallets.status, 'closed') : undefined,
          accountId === undefined ? undefined : eq(wallets.accountId, accountId),
        ),
      )
      .limit(CANDIDATE_COUNT)
      .all();
  const open = named(true);
  return open.length ? open : named(false);
}

/** Returns the resource with this id or unique beginning of an id. Throws `not_found` and `conflict`. */
export function resourceWith(read: Reader, text: string): Resource {
  const whole = findResource(read, text);
  if (whole) return whole;
  const id = onlyOne('resource', text, beginningOf(read, resources, 'res', text));
  const row = id === undefined ? undefined : findResource(read, id);
  if (!row) throw none('resource', text);
  return row;
}

/** Returns the checkout with this id or unique beginning of an id. Throws `not_found` and `conflict`. */
export function checkoutWith(read: Reader, text: string): Checkout {
  const id = onlyOne('checkout', text, beginningOf(read, checkouts, 'chk', text));
  const row = id === undefined ? undefined : findCheckout(read, id);
  if (!row) throw none('checkout', text);
  return row;
}

/** Returns the event with this id or unique beginning of an id. Throws `not_found` and `conflict`. */
export function eventWith(read: Reader, text: string): OutboxEvent {
  return eventOf(read, onlyOne('event', text, beginningOf(read, events, 'msg', text)) ?? text);
}

/** Returns the account key with this id or unique beginning of an id. Throws `not_found` and `conflict`. */
export function keyWith(read: Reader, text: string): { id: string } {
  const id = onlyOne('key', text, beginningOf(read, keys, 'key', text));
  if (id === undefined) throw none('key', text);
  return { id };
}

/** Returns the id of the account, operator or gateway key that begins so; the text itself if none does. Throws `conflict`. */
export function keyIdWith(read: Reader, text: string): string {
  const matches = [keys, routerKeys].flatMap((table) => beginningOf(read, table, 'key', text));
  return onlyOne('key', text, matches) ?? text;
}

/** Returns the id of the passkey that begins so; the text itself if none does. Throws `conflict`. */
export const passkeyIdWith = (read: Reader, text: string): string =>
  onlyOne('passkey', text, beginningOf(read, passkeys, 'pass', text)) ?? text;

/**
 * Returns the operation with this id, unique beginning of an id, or id of the request that began it, which is the id that an
 * agent sees. Throws `not_found` and `conflict`.
 */
export function operationWith(read: Reader, text: string): Operation {
  const whole = findOperation(read, text);
  if (whole) return whole;
  const candidates = text.startsWith('req_') ? ofRequest(read, text) : beginningOf(read, operations, 'op', text);
  const id = onlyOne('operation', text, candidates);
  const row = id === undefined ? undefined : findOperation(read, id);
  if (!row) throw none('operation', text);
  return row;
}

/** Reads only the operations of a few minutes: there is no index by request, and ids begin with their time. */
function ofRequest(read: Reader, requestId: string): { id: string }[] {
  const at = madeAt(requestId);
  if (at === undefined) return [];
  return read
    .select({ id: operations.id })
    .from(operations)
    .where(
      and(
        gte(operations.id, idsFrom('op', at)),
        lt(operations.id, idsFrom('op', at + REQUEST_MILLISECONDS)),
        eq(operations.requestId, requestId),
      ),
    )
    .limit(CANDIDATE_COUNT)
    .all();
}
