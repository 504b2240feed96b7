import type { Sinks } from '../sinks.ts';

/** The events of the receivers of events. */
export const receiverEvents = ({ log, metrics }: Sinks) => ({
  eventDelivered(receiver: string) {
    metrics.delivered.inc({ receiver });
  },
  eventFailed(receiver: string) {
    metrics.undelivered.inc({ receiver });
  },
  receiverFailing(receiver: string, error: string) {
    log.warn({ event: 'receiver.failing', receiver, error }, 'a receiver of events does not take them; they wait');
  },
  receiverBack(receiver: string) {
    log.info({ event: 'receiver.back', receiver }, 'a receiver of events takes them again');
  },
  gaveUpEvent(receiver: string, id: string, type: string, error: string) {
    metrics.gaveUp.inc({ receiver });
    log.error(
      { event: 'receiver.gave_up', receiver, id, type, error },
      'an event was not delivered for 3 days and was given up; `purser events resend` sends it again',
    );
  },
});
