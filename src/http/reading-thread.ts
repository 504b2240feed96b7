import type { Worker } from 'node:worker_threads';
import { openWorker } from '../files/worker.ts';
import type { Tenant } from '../ledger/tenant.ts';
import { refusalOf } from '../refusal.ts';
import { isLarge } from '../router/apart.ts';
import { ANSWER_READINGS, type AnswerReadings } from './answer-readings.ts';
import type { Answer, Question } from './model-request-worker.ts';
import { createTurns } from './turns.ts';

/** The thread that reads what is large: bodies of requests to models, and what model servers answer. */
export type ReadingThread = {
  /**
   * Resolves to what the thread answers. The memory of `bytes` moves there. Questions of one tenant wait for each other, and
   * between two of them others have a turn. `question` makes the question once it is its turn.
   */
  ask(question: () => Question, tenant: Tenant): Promise<unknown>;
  close(): Promise<void>;
};

type Waiting = { question: () => Question; resolve(result: unknown): void; reject(error: unknown): void };

export function createReadingThread(): ReadingThread {
  const waiting = createTurns<Waiting>();
  let current: Waiting | undefined;
  let worker: Worker | undefined;

  function start(): Worker {
    const started = openWorker('read-bodies');
    started.unref();
    started.on('message', (answer: Answer) => {
      const it = current;
      current = undefined;
      if ('refused' in answer) it?.reject(refusalOf(answer.refused));
      else if ('failed' in answer) it?.reject(new Error(answer.failed));
      else it?.resolve(answer.read);
      askNext();
    });
    // Only what it was reading is lost: the next question starts another one.
    const end = (error: Error) => {
      if (worker !== started) return;
      worker = undefined;
      current?.reject(error);
      current = undefined;
      askNext();
    };
    started.on('error', end);
    started.on('exit', () => end(ended()));
    return started;
  }

  /** Gives the thread the question whose turn it is. One at a time, so that its memory is that of one. */
  function askNext(): void {
    if (current) return;
    current = waiting.next();
    if (!current) return;
    const question = current.question();
    worker ??= start();
    worker.postMessage(question, [question.bytes.buffer as ArrayBuffer]);
  }

  return {
    ask(question, tenant) {
      const { promise, resolve, reject } = Promise.withResolvers<unknown>();
      waiting.add(tenant, { question, resolve, reject });
      askNext();
      return promise;
    },
    async close() {
      for (let it = waiting.next(); it; it = waiting.next()) it.reject(ended());
      await worker?.terminate();
    },
  };
}

const ended = () => new Error('the thread that reads large bodies has ended');

/** Messages turn a Buffer into the Uint8Array that it is made of. */
export const asBuffer = ({ buffer, byteOffset, length }: Uint8Array): Buffer =>
  Buffer.from(buffer as ArrayBuffer, byteOffset, length);

/** Returns the way to read the answers of a tenant: small ones at once, large ones in the thread, in the turns of the tenant. */
export function readerOfAnswers(thread: ReadingThread): (tenant: Tenant) => AnswerReadings {
  const readerOf =
    (tenant: Tenant): AnswerReadings =>
    (name, ...given) => {
      const [bytes, ...others] = given as unknown as [Buffer, ...unknown[]];
      if (!isLarge(bytes)) return (ANSWER_READINGS[name] as (...all: unknown[]) => never)(bytes, ...others);
      const question = (): Question => ({ reading: name, bytes: new Uint8Array(bytes), given: others });
      return thread.ask(question, tenant).then(withBuffers) as never;
    };
  return readerOf;
}

/** Returns the result with its bytes as Buffers, wherever they are on its first level. */
function withBuffers(result: unknown): unknown {
  if (result instanceof Uint8Array) return asBuffer(result);
  if (typeof result !== 'object' || result === null) return result;
  for (const [name, value] of Object.entries(result))
    if (value instanceof Uint8Array) (result as Record<string, unknown>)[name] = asBuffer(value);
  return result;
}
