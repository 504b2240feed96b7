import type { Worker } from 'node:worker_threads';
import { openWorker } from '../files/worker.ts';
import { refusalOf } from '../refusal.ts';
import type { Catalogue } from '../router/catalogue.ts';
import { measuredFor } from '../router/measure.ts';
import { NUMBER_BYTES, VALUE_BYTES } from './body.ts';
import type { Allowance } from './memory-quota.ts';
import { type ModelRequest, type ReadOrder, readModelRequest } from './model-request.ts';
import type { Answer, Question } from './model-request-worker.ts';

/** Larger bodies are read in a worker thread: parsing them would keep all other requests waiting for milliseconds. */
const LARGE_BYTES = 256 * 1024;

/** Reads the bodies of requests to models: small ones at once, large ones one after the other in a worker thread. */
export type ModelRequests = {
  /**
   * Throws as `readModelRequest` does, and `rate_limited` when `share` is used up. A large body must not be used by the
   * caller any more.
   */
  read(bytes: Buffer, order: ReadOrder, share: Allowance): ModelRequest | Promise<ModelRequest>;
  close(): Promise<void>;
};

type Waiting = { resolve(request: ModelRequest): void; reject(error: unknown): void };

/** `catalogue` returns the one in force: it changes while the server runs. */
export function createModelRequests(catalogue: () => Catalogue): ModelRequests {
  const find = (id: string) => {
    const model = catalogue().get(id);
    return model && measuredFor(model);
  };
  const waiting = new Map<number, Waiting>();
  let count = 0;
  let worker: Worker | undefined;

  function start(): Worker {
    const started = openWorker('read-bodies');
    started.unref();
    started.on('message', (answer: Answer) => {
      const it = waiting.get(answer.id);
      waiting.delete(answer.id);
      if ('refused' in answer) it?.reject(refusalOf(answer.refused));
      else it?.resolve(withBuffers(answer.request));
    });
    // The next large body starts another one.
    const end = (error: Error) => {
      if (worker !== started) return;
      worker = undefined;
      for (const it of waiting.values()) it.reject(error);
      waiting.clear();
    };
    started.on('error', end);
    started.on('exit', () => end(new Error('the thread that reads large bodies has ended')));
    return started;
  }

  function readApart(bytes: Buffer, order: ReadOrder): Promise<ModelRequest> {
    const id = count++;
    const own = bytes.length === bytes.buffer.byteLength ? bytes : Buffer.copyBytesFrom(bytes);
    const models = catalogue().list.map((model) => [model.id, measuredFor(model)] as const);
    const question: Question = { ...order, id, bytes: own, models };
    const { promise, resolve, reject } = Promise.withResolvers<ModelRequest>();
    worker ??= start();
    waiting.set(id, { resolve, reject });
    worker.postMessage(question, [own.buffer as ArrayBuffer]);
    return promise;
  }

  return {
    read(bytes, order, share) {
      if (bytes.length > LARGE_BYTES) return readApart(bytes, order);
      return readModelRequest(bytes, order, find, ({ values, numbers }) =>
        share.take(values * VALUE_BYTES + numbers * NUMBER_BYTES),
      );
    },
    async close() {
      await worker?.terminate();
    },
  };
}

const asBuffer = ({ buffer, byteOffset, length }: Uint8Array): Buffer => Buffer.from(buffer, byteOffset, length);

/** Messages turn a Buffer into the Uint8Array that it is made of. */
function withBuffers(request: ModelRequest): ModelRequest {
  if (request.invalid) return request;
  request.fingerprint = asBuffer(request.fingerprint);
  if (!request.measured || 'refused' in request.measured) return request;
  for (const it of Object.values(request.measured.forwards)) {
    if (it) it.bytes = asBuffer(it.bytes);
  }
  return request;
}
