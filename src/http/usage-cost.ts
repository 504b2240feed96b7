import { formatUsd, type Nanos } from '../base/money.ts';
import { type Json, parseJson } from '../base/parse-json.ts';
import { findOperationByKey } from '../ledger/operation.ts';
import { parseEvent } from '../router/answer-data.ts';
import { isLarge } from '../router/apart.ts';
import { DONE_EVENT, eventIn, eventOf } from '../router/sse.ts';
import { objectOf } from './dialects/json.ts';
import type { HttpApp } from './endpoint.ts';
import type { EventStream } from './event-stream.ts';
import { endsWithMarker, type OperationKey } from './paid.ts';

// `usage.cost`, which OpenRouter's clients ask for by `usage: {include: true}`: the charge in USD, as a number.

const costOf = (charge: Nanos): number => Number(formatUsd(charge));

/** Returns a complete answer with its charge in its usage; the same answer while nothing is charged. */
export function withUsageCost(
  app: Pick<HttpApp, 'ledger' | 'readApart' | 'tenantOf'>,
  { walletId, route, idempotencyKey }: OperationKey,
  answer: Buffer,
): Buffer | Promise<Buffer> {
  const charge = findOperationByKey(app.ledger.read, walletId, route, idempotencyKey)?.charge ?? null;
  return charge === null ? answer : app.readApart(app.tenantOf(walletId))('costed', answer, costOf(charge));
}

/** Returns a stream of chunks that has one more before its end marker: the usage that was charged, and its cost. */
export function withCostChunk(
  { ledger }: Pick<HttpApp, 'ledger'>,
  key: OperationKey,
  events: EventStream,
): EventStream {
  let head: Json | undefined;
  const chunk = (): Buffer => {
    const { walletId, route, idempotencyKey } = key;
    const operation = findOperationByKey(ledger.read, walletId, route, idempotencyKey);
    if (!operation?.usage || operation.charge === null) return Buffer.from('');
    const usage = { ...chatUsage(objectOf(parseJson(operation.usage))), cost: costOf(operation.charge) };
    return eventOf({ ...head, choices: [], usage });
  };
  return {
    ...events,
    write(bytes) {
      head ??= headIn(bytes);
      if (!endsWithMarker(bytes)) return events.write(bytes);
      return events.write(Buffer.concat([bytes.subarray(0, -DONE_EVENT.length), chunk(), DONE_EVENT]));
    },
  };
}

/** Returns the members that every chunk of a stream repeats, from the first event; undefined if that is no small chunk. */
function headIn(bytes: Buffer): Json | undefined {
  const end = bytes.indexOf('\n\n');
  const first = bytes.subarray(0, end === -1 ? bytes.length : end);
  if (isLarge(first)) return undefined;
  const { data } = eventIn(first);
  const { id, object, created, model } = objectOf(data && parseEvent(data));
  return object === undefined ? undefined : { id, object, created, model };
}

/** Returns the usage of an operation's row as a chat completion names it. */
function chatUsage(usage: Json): Json {
  const [prompt = 0, completion = 0] = [usage.prompt_tokens, usage.completion_tokens] as (number | undefined)[];
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: {
      cached_tokens: usage.cache_read_tokens ?? 0,
      cache_write_tokens: usage.cache_write_tokens ?? 0,
    },
    completion_tokens_details: { reasoning_tokens: usage.reasoning_tokens ?? 0 },
  };
}
