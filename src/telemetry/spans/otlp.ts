import { parseJson } from '../../base/parse-json.ts';
import type { SpanContext } from './trace-context.ts';

/**
 * The JSON of OTLP/HTTP (OTLP 1.x, "JSON Protobuf Encoding"): the names of the protocol's messages in lowerCamelCase, ids
 * in hexadecimal, 64-bit integers as decimal strings, enumerations as numbers.
 */

/** An attribute's value: a bigint is sent as an integer, a number as a double. */
type AttributeValue = string | number | bigint | boolean;
export type SpanAttributes = Record<string, AttributeValue | undefined>;

const SPAN_KINDS = { internal: 1, client: 3 } as const;
const STATUS_ERROR = 2;

export type Span = {
  context: SpanContext;
  parentSpanId: string | undefined;
  name: string;
  kind: keyof typeof SPAN_KINDS;
  /** Milliseconds since 1970. */
  startedAt: number;
  endedAt: number;
  attributes: SpanAttributes;
  /** A code for the failure, never a text from outside, which may quote a prompt. */
  error: string | undefined;
};

/** Returns the body of a request that exports spans. `resource` describes their sender. */
export function exportRequest(spans: readonly Span[], resource: SpanAttributes, version: string): string {
  const scopeSpans = [{ scope: { name: 'purser', version }, spans: spans.map(spanJson) }];
  return JSON.stringify({ resourceSpans: [{ resource: { attributes: attributesJson(resource) }, scopeSpans }] });
}

function spanJson({ context, parentSpanId, name, kind, startedAt, endedAt, attributes, error }: Span) {
  return {
    ...context,
    ...(parentSpanId === undefined ? {} : { parentSpanId }),
    name,
    kind: SPAN_KINDS[kind],
    startTimeUnixNano: nanoseconds(startedAt),
    endTimeUnixNano: nanoseconds(Math.max(startedAt, endedAt)),
    attributes: attributesJson({ ...attributes, 'error.type': error }),
    ...(error === undefined ? {} : { status: { code: STATUS_ERROR, message: error } }),
  };
}

const nanoseconds = (milliseconds: number) => String(BigInt(Math.round(milliseconds * 1000)) * 1000n);

function attributesJson(attributes: SpanAttributes) {
  return Object.entries(attributes).flatMap(([key, value]) =>
    value === undefined ? [] : [{ key, value: valueJson(value) }],
  );
}

function valueJson(value: AttributeValue) {
  if (typeof value === 'string') return { stringValue: value };
  if (typeof value === 'boolean') return { boolValue: value };
  return typeof value === 'bigint' ? { intValue: String(value) } : { doubleValue: value };
}

/** Returns how many spans of an accepted request the collector rejected, by its answer. */
export function rejectedCount(answer: string): number {
  try {
    const { partialSuccess } = parseJson(answer) as { partialSuccess?: { rejectedSpans?: unknown } };
    const count = Number(partialSuccess?.rejectedSpans ?? 0);
    return Number.isSafeInteger(count) && count > 0 ? count : 0;
  } catch {
    return 0; // Some collectors answer with nothing, or with protobuf.
  }
}
