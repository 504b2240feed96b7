import { randomBytes } from 'node:crypto';

/** A span's place in a trace, in hexadecimal: 32 and 16 digits. */
export type SpanContext = { traceId: string; spanId: string };

const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?$/;

/**
 * Reads the header `traceparent` (W3C Trace Context); undefined where it is missing or invalid. Its flag `sampled` is not
 * obeyed: the operator decides whether an operation is recorded, not the agent.
 */
export function readTraceparent(header: unknown): SpanContext | undefined {
  if (typeof header !== 'string') return undefined;
  const [, version, traceId, spanId, more] = TRACEPARENT.exec(header) ?? [];
  if (!traceId || !spanId || version === 'ff' || (version === '00' && more !== undefined)) return undefined;
  return /[^0]/.test(traceId) && /[^0]/.test(spanId) ? { traceId, spanId } : undefined;
}

/** Returns the place of a new span: below its parent, or in a trace of its own. */
export function newContext(parent: SpanContext | undefined): SpanContext {
  return { traceId: parent?.traceId ?? randomBytes(16).toString('hex'), spanId: randomBytes(8).toString('hex') };
}
