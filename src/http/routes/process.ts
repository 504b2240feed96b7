import { whenStopping } from '../../base/health.ts';
import { Refusal } from '../../base/refusal.ts';
import type { Backend } from '../../compute/backend.ts';
import { killProcess, listProcesses, readLog, startProcess } from '../../compute/machine/process.ts';
import { ResourceId } from '../../wire/compute.ts';
import {
  ProcessList,
  ProcessLog,
  ProcessLogRequest,
  ProcessRecord,
  ProcessRequest,
  ProcessStartRequest,
  processOf,
} from '../../wire/guest.ts';
import { completeLength } from '../complete-text.ts';
import { endpoint, type HttpApp } from '../endpoint.ts';
import { accepts, errorEvent, namedEvents } from '../named-events.ts';
import { active, ID } from './compute.ts';
import { callGuest, explainFailure, GUEST_REFUSALS } from './guest-call.ts';

/** Background commands of a lease. */

/** Limits a start, a list, a kill and one part of a log, each a text inside with a limit of 30 s of its own. */
const SECONDS = 40;
/** Time beyond its limit for which a followed log may wait for a client that reads slowly. */
const UNREAD_SECONDS = 300;

const PROCESS_ID = 'proc_01k9v3c2mq8r5t7w1x4z6b0d2f';
const EXAMPLE = {
  id: ID,
  process_id: PROCESS_ID,
  command: 'make test',
  status: 'running',
  exit_code: null,
  started_at: 1795000300,
  ended_at: null,
  log_bytes: 6,
  log_truncated: false,
  log_path: `/root/.purser-processes/${PROCESS_ID}/log`,
};

/** Calls into a running resource of the wallet in the same way as a command. */
export async function callRunning<T>(
  app: HttpApp,
  { wallet }: { wallet: Parameters<typeof active>[1] },
  id: string,
  seconds: number,
  call: (backend: Backend, ref: string) => Promise<T>,
): Promise<T> {
  const { resource, backend, ref } = active(app, wallet, id);
  return callGuest(app, resource, seconds, () => call(backend, ref)).catch(async (error) => {
    throw await explainFailure(app, id, error);
  });
}

export const startComputeProcess = endpoint({
  summary: 'Start a command in the background of a resource; its output goes to a log there',
  scope: 'wallet',
  body: ProcessStartRequest,
  answer: ProcessRecord,
  refusals: [...GUEST_REFUSALS, 'lease_limit_exceeded'],
  example: { body: { id: ID, command: 'make test', cwd: 'work' }, answer: EXAMPLE },
  async run(app, { principal, body: { id, ...order } }) {
    const started = await callRunning(app, principal, id, SECONDS, (backend, ref) => startProcess(backend, ref, order));
    return { body: processOf(id, started) };
  },
});

export const listComputeProcesses = endpoint({
  summary: 'List the background commands of a resource, the newest first',
  scope: 'wallet',
  body: ResourceId,
  answer: ProcessList,
  refusals: GUEST_REFUSALS,
  example: { body: { id: ID }, answer: { id: ID, processes: [EXAMPLE] } },
  async run(app, { principal, body: { id } }) {
    const processes = await callRunning(app, principal, id, SECONDS, listProcesses);
    return { body: { id, processes: processes.map((it) => processOf(id, it)) } };
  },
});

export const killComputeProcess = endpoint({
  summary: 'Kill a background command with all that it started',
  scope: 'wallet',
  body: ProcessRequest,
  answer: ProcessRecord,
  refusals: GUEST_REFUSALS,
  example: {
    body: { id: ID, process_id: PROCESS_ID },
    answer: { ...EXAMPLE, status: 'ended', exit_code: 137, ended_at: 1795000360 },
  },
  async run(app, { principal, body: { id, process_id: processId } }) {
    const killed = await callRunning(app, principal, id, SECONDS, (backend, ref) =>
      killProcess(backend, ref, processId),
    );
    return { body: processOf(id, killed) };
  },
});

export const readComputeProcessLog = endpoint({
  summary: 'Read the log of a background command, in parts or as it grows',
  scope: 'wallet',
  body: ProcessLogRequest,
  answer: ProcessLog,
  otherAnswers: {
    'text/event-stream':
      'the events `output` with `offset`, `next_offset` and `output`, as the log grows, then `exit` with the record of the process, or `timeout` with the `next_offset` to follow on from (the `offset` of the request, also one below 0, where the log had not begun), or `error`; where the request accepts no JSON',
  },
  refusals: GUEST_REFUSALS,
  example: {
    body: { id: ID, process_id: PROCESS_ID, offset: 0 },
    answer: { ...EXAMPLE, offset: 0, next_offset: 6, output: 'hello\n' },
  },
  async run(app, { principal, body, headers, share, whenGone }) {
    const { id, process_id: processId, offset, length, timeout: timeoutSeconds } = body;
    const order = { id: processId, offset };
    if (!accepts(headers, 'text/event-stream')) {
      const budget = {
        take: (piece: Buffer) => share.tryTake(7 * piece.length),
        unwanted: new AbortController().signal,
      };
      const read = await callRunning(app, principal, id, SECONDS, (backend, ref) =>
        readLog(backend, ref, { ...order, bytesMax: length, budget }),
      );
      const { bytes, process } = read;
      if (!process) throw new Error('a log that is not followed has a process');
      // A character that the part cuts is left to the next part, unless there is none.
      const isEnd = !process.isRunning && read.offset + bytes.length >= process.logBytes;
      const complete = isEnd ? bytes : bytes.subarray(0, completeLength(bytes) || bytes.length);
      const next = read.offset + complete.length;
      return {
        body: { ...processOf(id, process), offset: read.offset, next_offset: next, output: complete.toString() },
      };
    }

    active(app, principal.wallet, id); // Refusals must come before the stream begins.
    const [gone, stopping] = [new AbortController(), new AbortController()];
    whenGone(() => gone.abort());
    return {
      errorEvent,
      async stream(stream) {
        const events = namedEvents(stream);
        // A stopping server does not wait for a log: its reader can continue afterwards.
        using _ = whenStopping(app.health, () => stopping.abort());
        const started = performance.now();
        let at = 0;
        let rest: Buffer = Buffer.alloc(0);
        const send = (bytes: Buffer) => {
          const from = at;
          at += bytes.length;
          return bytes.length
            ? events.send('output', { offset: from, next_offset: at, output: bytes.toString() })
            : undefined;
        };
        try {
          const { process } = await callRunning(app, principal, id, timeoutSeconds + UNREAD_SECONDS, (backend, ref) =>
            readLog(backend, ref, {
              ...order,
              bytesMax: 0,
              follow: { timeoutSeconds, signal: AbortSignal.any([gone.signal, stopping.signal]) },
              onBegin(offset) {
                at = offset;
                events.begin();
              },
              onOutput(piece) {
                const bytes = Buffer.concat([rest, piece]);
                const complete = completeLength(bytes);
                rest = bytes.subarray(complete);
                return send(bytes.subarray(0, complete));
              },
            }),
          );
          if (process) await send(rest);
          if (process) await events.send('exit', processOf(id, process));
          else if (stopping.signal.aborted || performance.now() - started >= timeoutSeconds * 1000)
            await events.send('timeout', { id, process_id: processId, next_offset: at });
          else if (!gone.signal.aborted)
            throw await explainFailure(
              app,
              id,
              new Refusal('provider_unavailable', 'The log was cut off. Follow it again from where it ended.'),
            );
        } catch (error) {
          if (!gone.signal.aborted) throw error;
        } finally {
          events.end();
        }
      },
    };
  },
});
