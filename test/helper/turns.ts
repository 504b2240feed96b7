import { Worker } from 'node:worker_threads';
import { threadMilliseconds } from './cpu.ts';
import { collectGarbage } from './garbage.ts';

/** Sends requests from a thread of its own, so that the thread of the server does no work for the client. */
export type Client = {
  /** Posts a body and returns the status of the answer, once all of it has arrived. */
  post(url: string, headers: Record<string, string>, body: Buffer): Promise<number>;
  close(): Promise<unknown>;
};

const ASK = `
const { parentPort } = require('node:worker_threads');
const { request } = require('node:http');
parentPort.on('message', ({ url, headers, body }) => {
  const asked = request(url, { method: 'POST', headers: { ...headers, 'content-length': body.length } }, (answer) => {
    answer.resume().on('end', () => parentPort.postMessage(answer.statusCode));
  });
  asked.on('error', () => parentPort.postMessage(0));
  asked.end(body);
});`;

export function openClient(): Client {
  const thread = new Worker(ASK, { eval: true });
  return {
    post(url, headers, body) {
      const { promise, resolve, reject } = Promise.withResolvers<number>();
      thread.once('message', resolve);
      thread.once('error', reject);
      thread.postMessage({ url, headers, body: new Uint8Array(body) });
      return promise.finally(() => thread.off('error', reject));
    },
    close: () => thread.terminate(),
  };
}

/**
 * Returns the CPU time in milliseconds of the longest turn of this thread's event loop until `wait` resolves. Only this
 * thread's time counts, not that of other threads and processes, so the result is the same on a busy machine. What was made
 * before, such as the body of a request, is collected first: its garbage is none of the server's.
 */
export async function longestTurn(wait: () => Promise<unknown>): Promise<number> {
  collectGarbage();
  let longest = 0;
  let isOver = false;
  let before = 0;
  const look = () => {
    const now = threadMilliseconds();
    longest = Math.max(longest, now - before);
    before = now;
    if (!isOver) setImmediate(look);
  };
  const waited = wait();
  before = threadMilliseconds();
  setImmediate(look);
  try {
    await waited;
  } finally {
    isOver = true;
  }
  return longest;
}
