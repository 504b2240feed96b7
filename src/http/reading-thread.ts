import type { Worker } from 'node:worker_threads';
import { refusalOf } from '../base/refusal.ts';
import { openWorker } from '../files/worker.ts';
import type { Tenant } from '../ledger/tenant.ts';
import { isLarge } from '../router/apart.ts';
import { ANSWER_READINGS, type AnswerReadings } from './answer-readings.ts';
import type { Question, WorkerAnswer } from './model-request-worker.ts';
import { createTurns } from './turns.ts';

/** The thread that reads large texts: bodies of requests to models, and answers of model servers. */
export type ReadingThread = {
  /**
   * Resolves to the thread's answer. The memory of `bytes` moves there. Questions of one tenant wait for each other, and
   * other tenants have a turn between two of them. `question` builds the question when its turn comes.
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
    started.on('message', (answer: WorkerAnswer) => {
      const it = current;
      current = undefined;
      if ('refused' in answer) it?.reject(refusalOf(answer.refused));
      else if ('failed' in answer) it?.reject(new Error(answer.failed));
      else it?.resolve(answer.read);
      askNext();
    });
    // Only the current question is lost: the next one starts another thread.
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

  /** Gives the thread the next question. Only one at a time, so that its memory is that of one. */
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

/** Returns a Uint8Array as a Buffer: messages turn a Buffer into the Uint8Array behind it. */
export const asBuffer = ({ buffer, byteOffset, length }: Uint8Array): Buffer =>
  Buffer.from(buffer as ArrayBuffer, byteOffset, length);

/** Returns a reader of a tenant's answers: small ones are read at once, large ones in the thread, in the tenant's turns. */
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

/** Returns the result with its bytes as Buffers, at any place on its first level. */
function withBuffers(result: unknown): unknown {
  if (result instanceof Uint8Array) return asBuffer(result);
  if (typeof result !== 'object' || result === null) return result;
  for (const [name, value] of Object.entries(result))
    if (value instanceof Uint8Array) (result as Record<string, unknown>)[name] = asBuffer(value);
  return result;
}
