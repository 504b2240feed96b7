// The worker thread that reads large bodies (model-requests.ts). It is a bundle of its own in the executable.
import { parentPort } from 'node:worker_threads';
import { lowerPriority } from '../files/worker.ts';
import { collectWhenIdle } from '../idle-memory.ts';
import { type RefusalData, refusedFrom } from '../refusal.ts';
import type { MeasuredFor } from '../router/measure.ts';
import { type ModelRequest, type ReadOrder, readModelRequest } from './model-request.ts';

/** One body to read, and the models in force. Its memory moves to the worker, and back with the answer. */
export type Question = ReadOrder & {
  id: number;
  bytes: Uint8Array;
  models: readonly (readonly [id: string, MeasuredFor])[];
};
export type Answer = { id: number } & ({ request: ModelRequest } | { refused: RefusalData });

collectWhenIdle();
lowerPriority(); // One client's large bodies would make all small requests wait.
parentPort?.on('message', ({ id, bytes, models, ...order }: Question) => {
  const known = new Map(models);
  const find = (model: string) => known.get(model);
  let answer: Answer;
  try {
    // One body at a time, so what its values take is bounded by the limits of one body.
    const request = readModelRequest(Buffer.from(bytes.buffer as ArrayBuffer), order, find, () => {});
    answer = { id, request };
  } catch (error) {
    answer = { id, refused: refusedFrom(error) };
  }
  parentPort?.postMessage(answer, memoryOf(answer));
});

/** The body that is forwarded moves, because a copy would cost as much as reading it. */
function memoryOf(answer: Answer): ArrayBuffer[] {
  const measured = 'request' in answer && !answer.request.invalid ? answer.request.measured : undefined;
  if (!measured || 'refused' in measured) return [];
  const { bytes } = measured.forwards.plain;
  // What Buffer.from makes of a short text lies in a pool that other buffers share.
  return bytes.length === bytes.buffer.byteLength ? [bytes.buffer as ArrayBuffer] : [];
}
