import { setTimeout as sleep } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { isSame } from '../base/secret.ts';
import type { EventConfig, ReceiverConfig } from '../config/events.ts';
import type { Ledger } from '../ledger/ledger.ts';
import {
  type Delivery,
  type DeliveryResult,
  nextDelivery,
  nextDeliveryAt,
  type OutboxEvent,
  recordAttempt,
  waitingCount,
} from '../ledger/outbox.ts';
import type { Events } from '../telemetry/events.ts';
import { messageOf } from './message.ts';
import type { Delivered, Sender } from './sender.ts';

/** Seconds until a failed delivery is tried again; they double from the first to the last. */
const AGAIN_SECONDS = { min: 5, max: 3600 };
/** Seconds for which a receiver that is down gets no delivery at all; they double, too. */
const PAUSE_SECONDS = { min: 1, max: 60 };
/**
 * A delivery that has failed for this long is given up; not before its receiver has been tried for as long as the pauses grow, as
 * the server may have been off for days, or the receiver not configured.
 */
const GIVEN_UP_SECONDS = 3 * 86_400;
const TRIED_SECONDS_MIN = AGAIN_SECONDS.max;
/** Longest sleep: the wall clock may have moved. */
const SLEEP_SECONDS_MAX = 60;
/** Milliseconds until the outcome of an attempt is written again if that failed, for example on a full disk. */
const WRITE_AGAIN_MILLISECONDS = 2000;

type NotifierApp = { ledger: Ledger; clock: Clock; events: Events };

export type Notifier = {
  start(): void;
  /** Checks for due deliveries. Safe to call at any time. */
  wake(): void;
  /** Aborts running deliveries, which are sent again after the next start. Safe to call before `start`, and twice. */
  stop(): Promise<void>;
  /** Returns how many deliveries wait for configured receivers. */
  waiting(): number;
  /**
   * Opens what other receivers need, and returns a function that puts them in force, in one turn. Unchanged receivers keep
   * running; a changed or removed one first finishes its delivery.
   */
  prepare(config: EventConfig): Promise<() => void>;
};

/**
 * Creates the notifier, which sends the events of the outbox. Each receiver has its own queue, so that a slow or failing one delays
 * no other. Deliveries are recorded once accepted, so a crash in between sends one again.
 */
export async function createNotifier(app: NotifierApp, config: EventConfig): Promise<Notifier> {
  let opened = new Map<string, { queue: Queue; receiver: ReceiverConfig }>();
  /** Queues that end once their running delivery is answered. */
  const retiring = new Set<Queue>();
  /** Promises by a receiver's name, each of which resolves once every earlier queue of the receiver has ended. */
  const ended = new Map<string, Promise<void>>();
  let isStarted = false;
  let isStopped = false;

  function retire(name: string, queue: Queue): void {
    retiring.add(queue);
    const before = ended.get(name);
    const end = queue.retire().then(() => {
      retiring.delete(queue);
      return before; // A queue that has not started ends at once, while an earlier one may still be sending.
    });
    ended.set(name, end);
  }

  async function prepare({ receivers }: EventConfig) {
    // The HTTP client is loaded only when there are receivers.
    const { openSender } = receivers.length ? await import('./sender.ts') : { openSender: undefined };
    return () => {
      if (isStopped) return;
      const previous = opened;
      opened = new Map();
      for (const receiver of receivers) {
        const before = previous.get(receiver.name);
        previous.delete(receiver.name);
        if (before && isSame(before.receiver, receiver)) {
          opened.set(receiver.name, before);
          continue;
        }
        const queue = createQueue(app, receiver, (openSender as OpenSender)(receiver));
        opened.set(receiver.name, { queue, receiver });
        if (before) retire(receiver.name, before.queue);
        // Waits for earlier queues of the receiver, to keep the order and never send twice at once.
        if (isStarted) void (ended.get(receiver.name) ?? Promise.resolve()).then(queue.start);
      }
      for (const [name, { queue }] of previous) retire(name, queue);
    };
  }

  const notifier: Notifier = {
    start() {
      isStarted = true;
      for (const { queue } of opened.values()) queue.start();
    },
    wake() {
      for (const { queue } of opened.values()) queue.wake();
    },
    async stop() {
      isStopped = true;
      const queues = [...[...opened.values()].map(({ queue }) => queue), ...retiring];
      await Promise.all(queues.map((queue) => queue.stop()));
    },
    waiting: () => [...opened.keys()].reduce((sum, name) => sum + waitingCount(app.ledger.read, name), 0),
    prepare,
  };
  const apply = await prepare(config);
  apply();
  return notifier;
}

type Queue = Pick<Notifier, 'start' | 'wake' | 'stop'> & {
  /** Ends once the running delivery is answered. */
  retire(): Promise<void>;
};
type OpenSender = typeof import('./sender.ts').openSender;

const doubled = ({ min, max }: { min: number; max: number }, times: number) => Math.min(max, min * 2 ** times);

/** Creates the queue of one receiver, which sends one delivery after the other. */
function createQueue(app: NotifierApp, receiver: ReceiverConfig, sender: Sender): Queue {
  const { name } = receiver;
  const stopping = new AbortController();
  const openedAt = app.clock.now();
  let isStarted = false;
  let running: Promise<void> | undefined;
  let isWanted = false;
  let timer: NodeJS.Timeout | undefined;
  const health = createHealth(app, name);

  /** Sends all due deliveries. Returns the Unix seconds at which there may be more. */
  async function drain(): Promise<number> {
    while (!stopping.signal.aborted) {
      const now = app.clock.now();
      if (health.pausedUntil() > now) return health.pausedUntil();
      const next = nextDelivery(app.ledger.read, name, now);
      if (!next) return nextDeliveryAt(app.ledger.read, name, now) ?? Number.POSITIVE_INFINITY;
      await deliver(next);
    }
    return Number.POSITIVE_INFINITY;
  }

  async function deliver({ event, delivery }: { event: OutboxEvent; delivery: Delivery }): Promise<void> {
    const sent = await sender.send(messageOf(event, receiver, app.clock.now()));
    if (stopping.signal.aborted && sent.kind === 'failed') return; // The stop aborted it: no fault of the receiver.
    const now = app.clock.now();
    const attempt = attemptOf(sent, delivery, { now, openedAt });
    const outcome = { delivery, attempt, isBack: sent.kind === 'accepted' && health.isDown(), now };
    if (!(await recordSurely(app, outcome, name, stopping.signal))) return;
    health.record(sent);
    if (attempt.kind === 'gave_up') app.events.gaveUpEvent(name, event.id, event.type, attempt.error);
  }

  function pass(): void {
    timer = undefined;
    isWanted = false;
    running = drain()
      .catch((error) => {
        app.events.failed('notify', error, { receiver: name });
        return app.clock.now() + PAUSE_SECONDS.max;
      })
      .then((at) => {
        running = undefined;
        if (isWanted && !stopping.signal.aborted) return pass();
        if (stopping.signal.aborted || at === Number.POSITIVE_INFINITY) return;
        const seconds = Math.min(Math.max(at - app.clock.now(), 1), SLEEP_SECONDS_MAX);
        timer = setTimeout(pass, seconds * 1000).unref();
      });
  }

  function wake(): void {
    if (!isStarted || stopping.signal.aborted) return;
    isWanted = true;
    if (running) return;
    clearTimeout(timer);
    timer = setTimeout(pass, 0); // After the commit of the recorded outcome.
  }

  return {
    start() {
      isStarted = true;
      wake();
    },
    wake,
    async stop() {
      end();
      await sender.close();
      await running;
    },
    async retire() {
      end();
      await running;
      await sender.close();
    },
  };

  function end(): void {
    clearTimeout(timer);
    stopping.abort();
  }
}

function attemptOf(
  sent: Delivered,
  { queuedAt, attempts }: Delivery,
  { now, openedAt }: { now: number; openedAt: number },
): DeliveryResult {
  if (sent.kind === 'accepted') return { kind: 'delivered' };
  const { error } = sent;
  if (now - queuedAt >= GIVEN_UP_SECONDS && now - openedAt >= TRIED_SECONDS_MIN) return { kind: 'gave_up', error };
  return { kind: 'failed', error, dueAt: now + doubled(AGAIN_SECONDS, attempts) };
}

/** Follows whether a receiver accepts deliveries: reports its outages, and pauses while it is down. */
function createHealth({ events, clock }: NotifierApp, name: string) {
  let isFailing = false;
  let failuresInARow = 0;
  let pausedUntil = 0;
  return {
    isDown: () => failuresInARow > 0,
    pausedUntil: () => pausedUntil,
    record(sent: Delivered): void {
      if (sent.kind === 'accepted') {
        events.eventDelivered(name);
        if (isFailing) events.receiverBack(name);
        isFailing = false;
        failuresInARow = 0;
        return;
      }
      events.eventFailed(name);
      if (!isFailing) events.receiverFailing(name, sent.error);
      isFailing = true;
      if (sent.isDown) pausedUntil = clock.now() + doubled(PAUSE_SECONDS, failuresInARow++);
    },
  };
}

/**
 * Records the outcome of an attempt, and repeats that until it succeeds: an accepted delivery is not sent again. Returns
 * false at a stop.
 */
async function recordSurely(
  app: NotifierApp,
  outcome: { delivery: Delivery; attempt: DeliveryResult; isBack: boolean; now: number },
  receiver: string,
  stopping: AbortSignal,
): Promise<boolean> {
  for (let isFirst = true; ; isFirst = false) {
    try {
      await app.ledger.write(recordAttempt, outcome);
      return true;
    } catch (error) {
      if (isFirst) app.events.failed('event_outcome', error, { receiver });
    }
    await sleep(WRITE_AGAIN_MILLISECONDS, undefined, { ref: false, signal: stopping }).catch(() => {});
    if (stopping.aborted) return false;
  }
}
