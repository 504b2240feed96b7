import { closeSync, openSync } from 'node:fs';
import http from 'node:http';
import { basename, dirname } from 'node:path';
import { Refusal, type RefusalCode } from '../refusal.ts';

/** The kernel's limit for the path of a unix socket, its closing NUL included. */
const SOCKET_PATH_BYTES_MAX = 107;

/** What goes over the socket: a command's value, or its refusal. */
export type Answer = { value: unknown } | { refusal: { code: RefusalCode; message: string } };

/**
 * The path by which a socket is reached: itself, or, where it is longer than the kernel takes, by way of an open
 * directory. `free` closes that directory.
 */
export function reachable(path: string): { path: string; free(): void } {
  if (Buffer.byteLength(path) <= SOCKET_PATH_BYTES_MAX) return { path, free() {} };
  const directory = openSync(dirname(path), 'r');
  return { path: `/proc/self/fd/${directory}/${basename(path)}`, free: () => closeSync(directory) };
}

/**
 * Asks the server that listens on `path`. Undefined when nobody listens there. `signal` ends the waiting, not the command.
 * Throws the server's refusal as a Refusal, `operation_uncertain` when the server went away in the middle.
 */
export async function askSocket(
  path: string,
  name: string,
  input: unknown,
  signal?: AbortSignal,
): Promise<{ value: unknown } | undefined> {
  const at = reachable(path);
  try {
    const text = await new Promise<string | undefined>((resolve, reject) => {
      const options = { socketPath: at.path, method: 'POST', path: '/', agent: false, ...(signal ? { signal } : {}) };
      const request = http.request(options, (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk) => chunks.push(chunk));
        response.on('end', () => resolve(Buffer.concat(chunks).toString()));
        response.on('error', (error) => reject(wentAway(error)));
      });
      request.on('error', (error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT' || error.code === 'ECONNREFUSED') resolve(undefined);
        else reject(wentAway(error));
      });
      request.end(JSON.stringify({ name, input }));
    });
    if (text === undefined) return undefined;
    const answer = JSON.parse(text) as Answer;
    if ('refusal' in answer) throw new Refusal(answer.refusal.code, answer.refusal.message);
    return answer;
  } finally {
    at.free();
  }
}

function wentAway(cause: NodeJS.ErrnoException): Refusal {
  const message = `The server went away before it answered (${cause.code}). Ask again to see what it did.`;
  return new Refusal('operation_uncertain', message, { cause });
}
