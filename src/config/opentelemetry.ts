import * as v from 'valibot';
import { secret } from '../base/secret.ts';
import { url, wholeSeconds } from './router.ts';

/** The collector that gets a span of every operation: OTLP over HTTP (docs/decisions/0050). Off unless it is configured. */
export const OpenTelemetry = v.strictObject({
  /** The collector's base address: spans are posted to `/v1/traces` below it. */
  endpoint: v.pipe(
    url,
    v.check((text) => !/[?#]/.test(text), 'holds a query or a fragment: give a key in headers'),
  ),
  /** Sent with every request. */
  headers: v.optional(
    v.record(
      v.pipe(v.string(), v.regex(/^[\w-]{1,100}$/, 'is not the name of a header')),
      secret(v.pipe(v.string(), v.regex(/^[\x20-\x7e]{1,4096}$/, 'must be 1 to 4096 printable ASCII characters'))),
    ),
    {},
  ),
  /** `service.name` of the spans. */
  service_name: v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(200)), 'purser'),
  /** The time that the collector may take to answer. */
  timeout_seconds: v.optional(wholeSeconds(1, 60), 10),
});
export type OpenTelemetrySettings = v.InferOutput<typeof OpenTelemetry>;
