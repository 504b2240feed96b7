import * as v from 'valibot';
import { Refusal } from '../base/refusal.ts';
import { EVENT_TYPES } from '../db/enums.ts';
import {
  countEvents,
  type Delivery,
  deliveriesOf,
  eventOf,
  latestEventOf,
  listEvents,
  type OutboxEvent,
  recordTest,
  resendEvent,
} from '../ledger/outbox.ts';
import { eventRecord } from '../notify/message.ts';
import { command, Id, NOTHING, type OperatorApp, PAGE } from './command.ts';
import { eventWith, walletWith } from './find.ts';

const deliveryRecord = (it: Delivery) => ({
  receiver: it.receiver,
  state: it.deliveredAt !== null ? 'delivered' : it.gaveUpAt !== null ? 'given_up' : 'waiting',
  failed_attempts: it.attempts,
  next_attempt_at: it.deliveredAt === null && it.gaveUpAt === null ? it.dueAt : null,
  delivered_at: it.deliveredAt,
  gave_up_at: it.gaveUpAt,
  error: it.lastError,
});

const record = (app: OperatorApp, event: OutboxEvent) => ({
  ...eventRecord(event),
  deliveries: deliveriesOf(app.ledger.read, event).map(deliveryRecord),
});

export const events = {
  'events.list': command(
    v.strictObject({
      type: v.optional(v.picklist(EVENT_TYPES, `must be one of ${EVENT_TYPES.join(', ')}`)),
      wallet: v.optional(Id),
      ...PAGE,
    }),
    (app, { type, wallet, since, ...page }) => {
      const { read } = app.ledger;
      const filter = { type, wallet: wallet === undefined ? undefined : walletWith(read, wallet), since };
      const before = page.before === undefined ? undefined : eventWith(read, page.before).id;
      const list = listEvents(read, filter, { ...page, before });
      return { events: list.map((it) => record(app, it)), total: countEvents(read, filter) };
    },
  ),
  /** Sends a test event to every configured receiver, whatever types it gets. */
  'events.test': command(NOTHING, async (app) => {
    if (!app.config.events.receivers.length)
      throw new Refusal('conflict', 'No receiver is configured (events.receivers).');
    await app.ledger.write(recordTest, { now: app.clock.now() });
    return record(app, latestEventOf(app.ledger.read, 'test') as OutboxEvent);
  }),
  'events.resend': command(v.strictObject({ id: Id }), async (app, { id: text }) => {
    const { id } = eventWith(app.ledger.read, text);
    if ((await app.ledger.write(resendEvent, { id, now: app.clock.now() })) === 0)
      throw new Refusal('conflict', 'No receiver is configured for events of this type (events.receivers).');
    return record(app, eventOf(app.ledger.read, id));
  }),
};
