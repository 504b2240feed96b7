import * as v from 'valibot';
import { secret } from '../base/secret.ts';
import { writtenAs } from '../base/written.ts';
import { EVENT_TYPES } from '../db/enums.ts';
import { wholeSeconds } from './router.ts';

/** The shortest signing secret, in bytes. */
const SECRET_BYTES_MIN = 16;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;
const PREFIX = 'whsec_';

/** Returns the key that a secret stands for: base64 after `whsec_` (Standard Webhooks), otherwise its own bytes. */
export function signingKey(secret: string): Buffer {
  return secret.startsWith(PREFIX) ? Buffer.from(secret.slice(PREFIX.length), 'base64') : Buffer.from(secret);
}

const endpoint = v.pipe(
  v.string(),
  v.check(
    (text) => /^https?:\/\/[^\s#]+$/.test(text) && URL.canParse(text),
    'not an http:// or https:// address without a fragment',
  ),
  v.check((text) => !/^\w+:\/\/[^/?#]*@/.test(text), 'holds a user name or a password, which would not be sent'),
);

const NAME = /^[\w.:-]{1,60}$/;

const Receiver = v.pipe(
  v.strictObject({
    /** The path and the query of a chat service's address are secret: they allow anyone to post there. */
    url: secret(endpoint),
    /** The name in lists, logs and metrics; the host of its address unless given. */
    name: v.optional(
      v.pipe(
        v.string(),
        v.regex(NAME, 'must be 1 to 60 letters, digits or . : _ -'),
        // A host in brackets, or a long one, is a name that was taken from the address.
        writtenAs((name: string) => (NAME.test(name) ? name : undefined)),
      ),
    ),
    secret: v.optional(
      secret(
        v.pipe(
          v.string(),
          v.check(
            (text) => !text.startsWith(PREFIX) || BASE64.test(text.slice(PREFIX.length)),
            'is no base64 after whsec_',
          ),
          v.check(
            (text) => signingKey(text).length >= SECRET_BYTES_MIN,
            `must stand for ${SECRET_BYTES_MIN} bytes or more`,
          ),
        ),
      ),
    ),
    /** The types that it gets; all unless given. */
    types: v.optional(v.pipe(v.array(v.picklist(EVENT_TYPES)), v.minLength(1, 'must name at least one type'))),
    /** `json` is the event itself; `slack` is `{"text": sentence}`, and `text` the sentence alone. */
    format: v.optional(v.picklist(['json', 'slack', 'text']), 'json'),
    /** The time that an answer may take. */
    timeout_seconds: v.optional(wholeSeconds(1, 60), 10),
  }),
  v.forward(
    v.partialCheck(
      [['secret'], ['format']],
      ({ secret, format }) => format !== 'json' || secret !== undefined,
      'is required: without it the receiver cannot tell who sent an event',
    ),
    ['secret'],
  ),
  v.transform((it) => ({ ...it, name: it.name ?? new URL(it.url.reveal()).host })),
);

/** Receivers of signed events (design, section 13). */
export const EventSettings = v.strictObject({
  receivers: v.optional(
    v.pipe(
      v.array(Receiver),
      v.check(
        (list) => new Set(list.map(({ name }) => name)).size === list.length,
        'two receivers have the same name: give each a name of its own',
      ),
    ),
    [],
  ),
  /** `account.low` is emitted when an account's available credit falls below this; never if unset. */
  account_low_cents: v.optional(v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(100_000_000_000))),
});
export type EventConfig = v.InferOutput<typeof EventSettings>;
export type ReceiverConfig = EventConfig['receivers'][number];
