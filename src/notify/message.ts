import { createHmac } from 'node:crypto';
import { parseJson } from '../base/parse-json.ts';
import { visible } from '../base/visible.ts';
import { type ReceiverConfig, signingKey } from '../config/events.ts';
import type { OutboxEvent } from '../ledger/outbox.ts';
import { sentenceOf } from './sentence.ts';

/** Returns an event as receivers and lists show it. */
export const eventRecord = ({ id, type, createdAt, data }: OutboxEvent) => ({
  id,
  type,
  created_at: createdAt,
  data: parseJson(data) as Record<string, unknown>,
});

export type Message = { headers: Record<string, string>; body: Buffer };

const TYPES = { json: 'application/json', slack: 'application/json', text: 'text/plain; charset=utf-8' };

/**
 * Returns the request that delivers an event to a receiver, signed as the Standard Webhooks specification requires: the id
 * stays the same in every attempt, the time (Unix seconds) is that of the attempt.
 */
export function messageOf(
  event: OutboxEvent,
  { format, secret }: Pick<ReceiverConfig, 'format' | 'secret'>,
  now: number,
): Message {
  const body = Buffer.from(bodyOf(event, format));
  const signed = Buffer.concat([Buffer.from(`${event.id}.${now}.`), body]);
  return {
    body,
    headers: {
      'content-type': TYPES[format],
      'user-agent': 'purser',
      'webhook-id': event.id,
      'webhook-timestamp': String(now),
      ...(secret === undefined
        ? {}
        : {
            'webhook-signature': `v1,${createHmac('sha256', signingKey(secret.reveal())).update(signed).digest('base64')}`,
          }),
    },
  };
}

function bodyOf(event: OutboxEvent, format: ReceiverConfig['format']): string {
  const record = eventRecord(event);
  if (format === 'json') return JSON.stringify(record);
  // A line of an agent's own would look like another event.
  const sentence = visible(sentenceOf(record.type, record.data)).replace(/\s+/g, ' ');
  return format === 'slack' ? JSON.stringify({ text: escaped(sentence) }) : sentence;
}

/**
 * Names are chosen by an agent: in Slack's markup they could mention everyone, or be a link; so they could in the Markdown of
 * Mattermost and Discord, which knows no escape that Slack does not show. There a space without width does it.
 */
const escaped = (text: string) =>
  text
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('@', '@\u200b')
    .replaceAll('](', ']\u200b(');
