import assert from 'node:assert/strict';
import root from '@opentelemetry/otlp-transformer/build/src/generated/root.js';
import type { Got, Receiver } from '../helper/receiver.ts';

export type GotSpan = {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: string;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  /** The attributes as a plain object. */
  attributes: Record<string, string | number | boolean>;
  status?: { code: string; message: string };
};

type Attribute = { key: string; value: Record<string, string | number | boolean> };
type Tree = { [name: string]: unknown };

const ExportTraceServiceRequest = (root as any).opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest;
const BYTES = new Set(['traceId', 'spanId', 'parentSpanId']);

/**
 * Reads a request as a collector does: by the messages that OpenTelemetry generates from its protocol, with ids in
 * hexadecimal. Fails where a member is unknown there, or is of another type.
 */
export function decode(text: string): { resource: Record<string, unknown>; spans: GotSpan[] } {
  const sent = JSON.parse(text) as Tree;
  const asProtobufJson = JSON.parse(text, (name, value) => {
    if (!BYTES.has(name)) return value;
    assert.match(value, /^([0-9a-f]{16}){1,2}$/);
    return Buffer.from(value, 'hex').toString('base64');
  });
  assert.equal(ExportTraceServiceRequest.verify(integersRead(asProtobufJson)), null);
  const message = ExportTraceServiceRequest.fromObject(asProtobufJson);
  // Through the wire format, so that nothing is kept that the protocol has no place for.
  const read = ExportTraceServiceRequest.toObject(
    ExportTraceServiceRequest.decode(ExportTraceServiceRequest.encode(message).finish()),
    { longs: String, bytes: String },
  );
  assert.deepEqual(JSON.parse(JSON.stringify(read)), asProtobufJson);
  const [only, ...others] = sent.resourceSpans as { resource: Tree; scopeSpans: Tree[] }[];
  assert(only && !others.length);
  return {
    resource: valuesOf(only.resource.attributes),
    spans: only.scopeSpans.flatMap(({ spans }) => spans as Tree[]).map(spanOf),
  };
}

/** `verify` of the library wants 64-bit integers as numbers and bytes as such; JSON has strings for both. */
function integersRead(request: unknown): unknown {
  return JSON.parse(JSON.stringify(request), (name, value) => {
    if (name === 'intValue' || name.endsWith('UnixNano')) {
      assert.match(value, /^\d{1,19}$/);
      return Number(value);
    }
    return value;
  });
}

const spanOf = (span: Tree): GotSpan => ({ ...span, attributes: valuesOf(span.attributes) }) as unknown as GotSpan;

const valuesOf = (attributes: unknown) =>
  Object.fromEntries(
    (attributes as Attribute[]).map(({ key, value }) => {
      const [[kind, of], ...more] = Object.entries(value) as [[string, string | number | boolean]];
      assert.equal(more.length, 0);
      return [key, kind === 'intValue' ? Number(of) : of];
    }),
  );

/** Each request is decoded once: a wait looks at all of them after each. */
const decoded = new WeakMap<Got, GotSpan[]>();

/** Every span that a collector accepted. */
export const spansOf = (collector: Receiver): GotSpan[] =>
  collector.got
    .filter(({ status }) => status >= 200 && status < 300)
    .flatMap((it) => {
      const spans = decoded.get(it) ?? decode(it.text).spans;
      decoded.set(it, spans);
      return spans;
    });

/** Resolves with the spans once there are so many. */
export async function spansUntil(collector: Receiver, count: number): Promise<GotSpan[]> {
  await collector.until(() => spansOf(collector).length >= count);
  return spansOf(collector);
}
