import * as v from 'valibot';
import { Time, text, wholeNumber } from './parts.ts';

/** Body and answer of POST /v1/transfer/sign. */
export const SignRequest = v.object({
  object: v.pipe(
    text(1, 1024),
    v.description(
      'the name of one object: no control characters, no part that is . or .., no slash at its beginning; with the prefix that keeps wallets apart at most 1024 bytes of UTF-8',
    ),
  ),
  operation: v.picklist(['get', 'put'], 'must be get or put'),
  expires_seconds: v.optional(wholeNumber(1, 604_800), 900),
});
export const SignedUrl = v.object({
  url: v.string(),
  method: v.picklist(['GET', 'PUT']),
  object: v.string(),
  operation: v.picklist(['get', 'put']),
  headers: v.record(v.string(), v.string()),
  expires_at: Time,
});
