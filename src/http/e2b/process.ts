import * as v from 'valibot';
import { Refusal } from '../../base/refusal.ts';
import { endReasonOf } from '../../lease/why.ts';
import { text, wholeNumber } from '../../wire/parts.ts';
import { leaseEnded } from '../routes/compute.ts';
import { callGuest, explainFailure } from '../routes/guest-call.ts';
import {
  answerStream,
  ConnectFault,
  type ConnectStream,
  readMessage,
  readMessages,
  timeLimitOf,
  writeList,
} from './connect.ts';
import { runningOf } from './envd.ts';
import { openVariables } from './environment.ts';
import { guestLost } from './errors.ts';
import type { End, SandboxProcess } from './processes.ts';
import { type Envd, ownerOf, type Rpc, throwLost, unary } from './rpc.ts';

/** The service `process.Process` of E2B's agent. */

/** Longer than any lease: the limit inside a machine of a program that has none. */
const LIFE_SECONDS = 30 * 86_400;
/** The limit inside comes after Purser's own, which knows that it was the limit. */
const GRACE_SECONDS = 2;
const SIGNAL_SECONDS = 10;
const PID_MAX = 2 ** 32 - 1;
const BASE64 = /^[0-9A-Za-z+/_-]*={0,2}$/;

const Selector = v.looseObject({
  process: v.looseObject({ pid: v.optional(wholeNumber(0, PID_MAX)), tag: v.optional(v.string()) }),
});
const Size = v.looseObject({ size: v.looseObject({ cols: wholeNumber(1, 65_535), rows: wholeNumber(1, 65_535) }) });
const Variables = v.record(
  v.pipe(v.string(), v.regex(/^(?!PURSER_)[A-Za-z_]\w*$/, 'must be names of shell variables')),
  v.string('must be a string'),
);
const Start = v.looseObject({
  process: v.looseObject({
    cmd: text(1, 4096),
    args: v.optional(v.array(v.string('must be a string')), []),
    envs: v.optional(Variables, {}),
    cwd: v.optional(v.string()),
  }),
  pty: v.optional(Size),
  // Before `stdin` was in the protocol it was always open.
  stdin: v.optional(v.boolean(), true),
  tag: v.optional(v.string()),
});
const ProcessInput = v.looseObject({ stdin: v.optional(v.string()), pty: v.optional(v.string()) });
const Input = v.looseObject({ ...Selector.entries, input: ProcessInput });
/** A message of a stream of input: the process, something for it, or only a sign of life. */
const InputPart = v.looseObject({
  start: v.optional(Selector),
  data: v.optional(v.looseObject({ input: ProcessInput })),
});
const Signal = v.looseObject({
  ...Selector.entries,
  signal: v.picklist(['SIGNAL_SIGKILL', 'SIGNAL_SIGTERM'], 'must be SIGNAL_SIGKILL or SIGNAL_SIGTERM'),
});
const Update = v.looseObject({ ...Selector.entries, pty: v.optional(Size) });

const KEEPALIVE = { event: { keepalive: {} } };

/** Returns the event of an end. A program that a signal of its client ended has -1, as with E2B. */
function endEvent(end: Exclude<End, { isLate: true }>): object {
  const { exitCode, signal } = end;
  if (signal === undefined) return { event: { end: { exitCode, exited: true, status: `exit status ${exitCode}` } } };
  const status = `signal: ${signal}`;
  return { event: { end: { exitCode: -1, exited: false, status, error: status } } };
}

const isLateEnd = (end: End): end is { isLate: true } => 'isLate' in end;

/** Passes on a program up to its end, or until the client leaves. */
async function followTo({ app, opened }: Envd, stream: ConnectStream, process: SandboxProcess): Promise<void> {
  const { id } = opened.resource;
  const end = await Promise.race([process.ended, stream.interrupted]).catch(async (error) => {
    throw await explainFailure(app, id, guestLost(error));
  });
  if (end === 'gone') return;
  if (end === 'stopping')
    throw new ConnectFault('aborted', 'The server is stopping; what the program does is not known.');
  if (isLateEnd(end))
    throw new ConnectFault('deadline_exceeded', 'The program took longer than its timeout, and was killed.');
  const reason = endReasonOf(app, id);
  if (reason !== null) throw leaseEnded(reason);
  await stream.send(endEvent(end));
}

/** Starts a program and streams its output. It survives its client, and is killed at the time limit of this call. */
const start: Rpc = (call) => {
  const { app, c, opened, processes } = call;
  return answerStream(app, c, KEEPALIVE, async (stream) => {
    const { process: program, pty, stdin, tag } = await readMessage(app, c, ownerOf(call), Start);
    const limit = timeLimitOf(c);
    const running = runningOf(app, opened);
    const { resource, wallet, sandbox } = running;
    const { size } = pty ?? {};
    const order = {
      argv: [program.cmd, ...program.args] as [string, ...string[]],
      env: { ...openVariables(app, wallet, sandbox.environment), ...program.envs },
      cwd: program.cwd || undefined,
      hasInput: stdin,
      seconds: limit === undefined ? LIFE_SECONDS : Math.ceil(limit / 1000) + GRACE_SECONDS,
      terminal: size && { term: program.envs.TERM ?? 'xterm-256color', columns: size.cols, rows: size.rows },
      tag,
      limit,
    };
    // The first event names the process; earlier output waits.
    const named = Promise.withResolvers<void>();
    const listener = async (output: Buffer) => {
      await named.promise;
      await stream.send(output);
    };
    const starting = processes.start(running, order, listener);
    const { process, leave } = await starting.catch((error) => throwLost(app, resource.id, error));
    try {
      await stream.send({ event: { start: { pid: process.pid } } });
      named.resolve();
      await followTo(call, stream, process);
    } finally {
      named.resolve();
      leave();
    }
  });
};

/** Streams the output of a running program from now on. */
const connect: Rpc = (call) => {
  const { app, c, opened, processes } = call;
  return answerStream(app, c, KEEPALIVE, async (stream) => {
    const { process: which } = await readMessage(app, c, ownerOf(call), Selector);
    const limit = timeLimitOf(c);
    const { resource } = runningOf(app, opened);
    const process = processes.find(resource.id, which);
    const leave = processes.join(resource, process, stream.send);
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      if (limit === undefined) return;
      const fault = new ConnectFault(
        'deadline_exceeded',
        'The connection to the program took longer than its timeout.',
      );
      timer = setTimeout(() => reject(fault), limit);
    });
    late.catch(() => {}); // The race below has it.
    try {
      await stream.send({ event: { start: { pid: process.pid } } });
      await Promise.race([followTo(call, stream, process), late]);
    } finally {
      clearTimeout(timer);
      leave();
    }
  });
};

/** Describes a program as E2B's agent does. */
function infoOf({ pid, tag, order: { argv, env, cwd } }: SandboxProcess): object {
  const [cmd, ...args] = argv;
  return { pid, ...(tag === undefined ? {} : { tag }), config: { cmd, args, envs: env, ...(cwd ? { cwd } : {}) } };
}

const list = unary(v.looseObject({}), async (call) => {
  const share = call.app.memory.open(ownerOf(call));
  try {
    const running = call.processes.list(call.opened.resource.id);
    return await writeList('processes', running.values().map(infoOf), share.take);
  } finally {
    share.close(); // The answer counts it from here on.
  }
});

function bytesOf({ stdin, pty }: v.InferOutput<typeof ProcessInput>): Buffer {
  const encoded = stdin ?? pty ?? '';
  if (!BASE64.test(encoded)) throw new Refusal('invalid_request', 'input: must be base64.');
  return Buffer.from(encoded, 'base64');
}

const sendInput = unary(Input, async ({ opened, processes }, { process: which, input }) => {
  await processes.find(opened.resource.id, which).write(bytesOf(input));
  return {};
});

/** Writes what comes in a stream to the program that its first message names. */
const streamInput: Rpc = (call) => {
  const { app, c, opened, processes } = call;
  return answerStream(app, c, {}, async (stream) => {
    let process: SandboxProcess | undefined;
    const confirm = () => void runningOf(app, opened);
    for await (const { start, data } of readMessages(app, c, ownerOf(call), InputPart, confirm)) {
      if (start) process = processes.find(opened.resource.id, start.process);
      if (data && !process) throw new Refusal('invalid_request', 'start: must come first, and name the process.');
      if (data) await process?.write(bytesOf(data.input));
    }
    await stream.send({});
  });
};

const closeStdin = unary(Selector, ({ opened, processes }, { process: which }) => {
  processes.find(opened.resource.id, which).closeInput();
  return {};
});

const sendSignal = unary(Signal, async ({ app, opened, processes, running }, { process: which, signal }) => {
  const process = processes.find(opened.resource.id, which);
  if (signal === 'SIGNAL_SIGKILL') {
    process.noteSignal('killed');
    process.kill();
    return {};
  }
  process.noteSignal('terminated');
  const { backend, ref, resource } = running;
  const order = { command: `kill -TERM ${process.pid}`, timeoutSeconds: SIGNAL_SECONDS, streamBytesMax: 0 };
  await callGuest(app, resource, SIGNAL_SECONDS, () => backend.guest.exec(ref, order));
  return {};
});

const update = unary(Update, ({ opened, processes }, { process: which, pty }) => {
  const process = processes.find(opened.resource.id, which);
  if (pty) process.resize(pty.size.cols, pty.size.rows);
  return {};
});

/** The calls of the service, by their names, and whether each answers a stream, whose errors are part of it. */
export const PROCESS_CALLS: Record<string, Rpc> = {
  Start: start,
  Connect: connect,
  List: list,
  SendInput: sendInput,
  StreamInput: streamInput,
  CloseStdin: closeStdin,
  SendSignal: sendSignal,
  Update: update,
};
