// The worker thread that reads large texts (reading-thread.ts). It is a separate bundle in the executable.
import { parentPort } from 'node:worker_threads';
import { collectWhenIdle } from '../base/idle-memory.ts';
import { Refusal, type RefusalData, refusedFrom } from '../base/refusal.ts';
import { lowerPriority } from '../files/worker.ts';
import { giveBack } from '../net/pieces.ts';
import type { MeasuredFor } from '../router/measure.ts';
import { ANSWER_READINGS } from './answer-readings.ts';
import { forwardedOf, type ModelRequest, type ReadOrder, readModelRequest } from './model-request.ts';

/** A request body to read, and the models in force. Its memory moves to the worker, and back with the answer. */
type BodyQuestion = ReadOrder & {
  bytes: Uint8Array;
  models: readonly (readonly [id: string, MeasuredFor])[];
};
/** A copy of an answer of a model server, and the way to read it. */
type AnswerQuestion = { reading: keyof typeof ANSWER_READINGS; bytes: Uint8Array; given: readonly unknown[] };
export type Question = BodyQuestion | AnswerQuestion;
export type WorkerAnswer = { read: unknown } | { refused: RefusalData } | { failed: string };

collectWhenIdle();
lowerPriority(); // One client's large bodies would make all small requests wait.
parentPort?.on('message', (question: Question) => {
  const answer = answerTo(question);
  parentPort?.postMessage(answer, memoryOf(question, answer));
  giveBack(question.bytes); // No effect on memory that has moved.
});

function answerTo(question: Question): WorkerAnswer {
  try {
    return { read: 'reading' in question ? readAnswer(question) : readBody(question) };
  } catch (error) {
    return error instanceof Refusal || !('reading' in question)
      ? { refused: refusedFrom(error) }
      : { failed: (error as Error).message };
  }
}

function readBody({ bytes, models, ...order }: BodyQuestion): ModelRequest {
  const known = new Map(models);
  // One body at a time, so the memory for its values is bounded by the limits of one body.
  return readModelRequest(
    Buffer.from(bytes.buffer as ArrayBuffer),
    order,
    (model) => known.get(model),
    () => {},
  );
}

function readAnswer({ reading, bytes, given }: AnswerQuestion): unknown {
  const read = ANSWER_READINGS[reading] as (bytes: Buffer, ...given: unknown[]) => unknown;
  return read(Buffer.from(bytes.buffer as ArrayBuffer), ...given);
}

/**
 * Returns the memory to move instead of copying: that of the forwarded body and of a translated answer. A copy would cost
 * as much as reading.
 */
function memoryOf(question: Question, answer: WorkerAnswer): ArrayBuffer[] {
  if (!('read' in answer)) return [];
  const { read } = answer;
  const all =
    'reading' in question
      ? [read, ...Object.values(Object(read))].filter((it) => it instanceof Uint8Array)
      : forwardedOf(read as ModelRequest).map((it) => it.bytes);
  // Buffer.from places a short text in a pool that it shares with other buffers.
  const whole = all.filter(({ length, buffer }) => length === buffer.byteLength);
  return [...new Set(whole.map(({ buffer }) => buffer as ArrayBuffer))];
}
