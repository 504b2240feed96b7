import { deserialize, serialize } from 'node:v8';
import { Refusal, type RefusalData, refusalOf, refusedFrom } from '../base/refusal.ts';

/** An error that a write threw, as data. */
export type Thrown = { refused: RefusalData; cause?: Failure } | Failure;
type Failure = { name: string; message: string; stack: string | undefined; code: string | undefined };

/** Returns an error as data. */
export function thrownFrom(error: unknown): Thrown {
  if (!(error instanceof Refusal)) return failureFrom(error);
  const refused = refusedFrom(error);
  return error.cause === undefined ? { refused } : { refused, cause: failureFrom(error.cause) };
}

function failureFrom(error: unknown): Failure {
  const it: NodeJS.ErrnoException = error instanceof Error ? error : new Error(String(error));
  const { name, message, stack, code } = it;
  return { name, message, stack, code };
}

/** Returns the error that the data describes: a refusal, or one with the name, stack and code of the original. */
export function errorOf(thrown: Thrown): Error {
  if (!('refused' in thrown)) return failureOf(thrown);
  return refusalOf(thrown.refused, thrown.cause && failureOf(thrown.cause));
}

function failureOf({ name, message, stack, code }: Failure): Error {
  const error = Object.assign(new Error(message), { name, ...(code === undefined ? {} : { code }) });
  if (stack !== undefined) error.stack = stack;
  return error;
}

/** Messages between the threads are bytes: a structured clone would copy the pool of each Buffer, and make it another type. */
export const pack = (message: unknown): Uint8Array => serialize(message);
export const unpack = <T>(bytes: Uint8Array): T =>
  deserialize(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)) as T;
