import { closeSync, openSync } from 'node:fs';
import http from 'node:http';
import { basename, dirname } from 'node:path';
import { parseJson } from '../base/parse-json.ts';
import { Refusal, type RefusalCode } from '../base/refusal.ts';

/** The longest path of a unix socket that the kernel accepts, without the terminating NUL (unix(7)). */
const SOCKET_PATH_BYTES_MAX = 107;

/** The response on the socket: a command's value, or its refusal. */
export type SocketAnswer = { value: unknown } | { refusal: { code: RefusalCode; message: string } };

/**
 * Returns a path by which a socket can be reached. A path longer than the kernel accepts is replaced by one through an open
 * directory; `free` closes that directory.
 */
export function reachable(path: string): { path: string; free(): void } {
  if (Buffer.byteLength(path) <= SOCKET_PATH_BYTES_MAX) return { path, free() {} };
  const directory = openSync(dirname(path), 'r');
  return { path: `/proc/self/fd/${directory}/${basename(path)}`, free: () => closeSync(directory) };
}

/**
 * Runs a command on the server that listens on `path`. Returns undefined when no server listens there. `signal` ends the
 * waiting, not the command. Throws the server's refusal, and `operation_uncertain` when the connection breaks off.
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
    const answer = parseJson(text) as SocketAnswer;
    if ('refusal' in answer) throw new Refusal(answer.refusal.code, answer.refusal.message);
    return answer;
  } finally {
    at.free();
  }
}

/** The time after which the server is asked whether it is alive while a command is unanswered, and the time limit of that question. */
const ALIVE_MILLISECONDS = 5000;
/** No command of any version: every server that is alive refuses it at once. */
const ALIVE = 'alive';

/**
 * Runs a command like `askSocket`. Commands may take minutes; whenever one has been unanswered for 5 s, the server is asked
 * whether it is alive. Throws `operation_uncertain` when that is not answered within another 5 s.
 */
export async function askServer(path: string, name: string, input: unknown): Promise<{ value: unknown } | undefined> {
  const patience = new AbortController();
  const hung = Promise.withResolvers<never>();
  const timer = setInterval(async () => {
    if (!(await isAlive(path))) hung.reject(new Refusal('operation_uncertain', HUNG));
  }, ALIVE_MILLISECONDS);
  try {
    return await Promise.race([askSocket(path, name, input, patience.signal), hung.promise]);
  } finally {
    clearInterval(timer);
    patience.abort();
  }
}

async function isAlive(path: string): Promise<boolean> {
  const signal = AbortSignal.timeout(ALIVE_MILLISECONDS);
  await askSocket(path, ALIVE, {}, signal).catch(() => {});
  return !signal.aborted;
}

const HUNG =
  'The server does not answer. If it is suspended, resume it (kill -CONT); if it hangs, end it (kill -9) and start it again: nothing that was acknowledged is lost. A suspended one may still run this command when it goes on.';

function wentAway(cause: NodeJS.ErrnoException): Refusal {
  const message = `The server went away before it answered (${cause.code}). Ask again to see what it did.`;
  return new Refusal('operation_uncertain', message, { cause });
}
