import type { EventType } from '../db/enums.ts';

type EventData = Record<string, unknown>;

/** A sentence for each type of event, for receivers that show text to people. */
const SENTENCES: Record<EventType, (data: EventData) => string> = {
  test: () => 'A test: this receiver gets the events of Purser.',
  'wallet.threshold': (it) =>
    `Wallet ${wallet(it)} has spent ${it.percent} % of its budget: ${it.spent_usd} of ${it.budget_usd} USD.`,
  'wallet.closed': (it) =>
    `Wallet ${wallet(it)} is closed (${it.reason}): ${it.spent_usd} USD spent, ${it.returned_usd} USD returned.`,
  'wallet.refilled': (it) =>
    `Wallet ${wallet(it)} was refilled by ${it.amount_usd} USD: ${it.available_usd} USD are available.`,
  'account.low': (it) =>
    it.cause === 'refill'
      ? `Account ${account(it)} cannot pay the refill of wallet ${wallet(it)}.`
      : `Account ${account(it)} has ${it.available_usd} USD available, less than ${it.low_usd} USD.`,
  'operation.uncertain': (it) =>
    `The outcome of ${it.operation_id} (${it.subject}) is not known: ${it.hold_usd} USD of wallet ${wallet(it)} stay held.`,
  'lease.ended': (it) => `Lease ${it.resource_id} on ${it.slot} of wallet ${wallet(it)} has ended (${it.reason}).`,
  'lease.trouble': (it) =>
    `Lease ${it.resource_id} on ${it.slot} of wallet ${wallet(it)} is in trouble: ${it.failed_attempts} steps in a row have failed.`,
  'upstream.down': (it) => `Model server ${it.upstream} is down: ${it.reason}`,
  'upstream.up': (it) => `Model server ${it.upstream} is up again.`,
  'disk.low': (it) => `No new work is started: ${it.reason}.`,
  'books.moved': (it) =>
    `The books are served by ${it.host} now, and no longer by ${it.from ?? 'the machine before'}. They were last written at ${new Date(Number(it.last_written_at) * 1000).toISOString()}.`,
  frozen: (it) =>
    `No new holds: ${{ wallet: `wallet ${wallet(it)} is frozen`, account: `account ${account(it)} is suspended` }[String(it.scope)] ?? 'the installation is frozen'}${it.reason === null ? '' : ` (${it.reason})`}.`,
};

const wallet = ({ wallet_id: id, wallet_name: name }: EventData) => `${name} (${id})`;
const account = ({ account_id: id, account_name: name }: EventData) => `${name} (${id})`;

/** Returns one sentence that describes the event. */
export const sentenceOf = (type: EventType, data: EventData): string => SENTENCES[type](data);
