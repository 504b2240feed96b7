import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { PassThrough } from 'node:stream';
import Docker from 'dockerode';
import type { ProviderOneSettings, ProviderThreeSettings } from '../../config-compute.ts';
import { Refusal } from '../../refusal.ts';
import type { Backend, Created, Machine, Owned, Quote, Session, Spec, SpecOne, SpecThree } from '../backend.ts';
import { collect } from './collect.ts';
import { offerOf, offersOf, quoteOf } from './priced.ts';
import { CUT_SHORT, IS_DIRECTORY, KILL_MARKED, LIMITED, RECEIVE, refusePath } from './shell.ts';
import { createDeadlineFiles, DEADLINE_MOUNT, WATCHDOG } from './watchdog.ts';

const CALL_MILLISECONDS = 30_000;
const PULL_MILLISECONDS = 600_000;
const UPLOAD_MILLISECONDS = 120_000;
const GIB = 1024 ** 3;
const TAG_LABEL = 'purser.tag';
const CREATED_LABEL = 'purser.created';
/** A stream may have a little left when its process has ended; what a background process keeps open is not waited for. */
const DRAIN_MILLISECONDS = 200;

/** Errors before a byte was sent: the engine heard nothing. */
const NEVER_SENT = new Set(['ECONNREFUSED', 'ENOENT', 'EACCES']);

type EngineError = Error & {
  statusCode?: number;
  code?: string;
  json?: { message?: string; cause?: string };
  reason?: string;
};
const statusOf = (error: unknown) => (error as EngineError).statusCode;
const textOf = (error: unknown) => {
  const { json, message } = error as EngineError;
  return [json?.message, json?.cause].filter(Boolean).join(': ') || message;
};

/**
 * Containers of a Docker Engine or Podman on this machine, by the Docker Engine API. The tag is the container's name and
 * label; the deadline is PID 1, a watchdog. `leases` is a directory for the deadline files.
 */
export function openContainerBackend(settings: ProviderOneSettings | ProviderThreeSettings, leases: string): Backend {
  const docker = new Docker({ socketPath: settings.socket.slice('unix://'.length) });
  const deadlines = createDeadlineFiles(leases);

  async function engine<T>(
    what: string,
    call: (signal: AbortSignal) => Promise<T>,
    limit = CALL_MILLISECONDS,
  ): Promise<T> {
    const signal = AbortSignal.timeout(limit);
    try {
      return await call(signal);
    } catch (error) {
      if (signal.aborted) throw new Error(`${settings.socket}: ${what} took longer than ${limit / 1000} s`);
      throw error;
    }
  }

  async function create(order: { tag: string; quote: Quote; deadline: number }): Promise<Created> {
    deadlines.write(order.tag, order.deadline);
    let id: string;
    try {
      id = await engine('create', (abortSignal) =>
        docker.createContainer({ ...describe(settings, order, deadlines.directory(order.tag)), abortSignal }),
      ).then((it) => it.id);
    } catch (error) {
      const status = statusOf(error);
      // Docker says 409, Podman 500 with these words: an earlier attempt of ours has made it.
      if (status === 409 || /already in use/.test(textOf(error))) id = order.tag;
      else if (status === 404 && settings.pull === 'missing') return pullAndCreate(order);
      else if (status === 404)
        return {
          kind: 'refused',
          code: 'provider_unavailable',
          reason: `The image ${settings.image} is not on the engine. Nothing was charged.`,
        };
      else if ((status !== undefined && status < 500) || NEVER_SENT.has((error as EngineError).code ?? ''))
        return {
          kind: 'refused',
          code: 'provider_unavailable',
          reason: `The engine refused the container: ${textOf(error)}. Nothing was charged.`,
        };
      else return { kind: 'unknown', reason: textOf(error) };
    }
    return start(id, order.tag);
  }

  async function start(id: string, tag: string): Promise<Created> {
    const container = docker.getContainer(id);
    try {
      await engine('start', (abortSignal) => container.start({ abortSignal }));
    } catch (error) {
      if (statusOf(error) !== 304) {
        // It exists and does not run: it is removed, and only a confirmed removal is a clear no.
        await destroy(id);
        if (await inspect(id)) return { kind: 'unknown', reason: textOf(error) };
        deadlines.remove(tag);
        return {
          kind: 'refused',
          code: 'provider_unavailable',
          reason: `The engine could not start the container: ${textOf(error)}. Nothing was charged.`,
        };
      }
    }
    const { Id } = await engine('inspect', (abortSignal) => container.inspect({ abortSignal }));
    return { kind: 'created', ref: Id };
  }

  async function pullAndCreate(order: { tag: string; quote: Quote; deadline: number }): Promise<Created> {
    try {
      const stream = await engine(
        'pull',
        (abortSignal) => docker.pull(settings.image, { abortSignal }),
        PULL_MILLISECONDS,
      );
      await new Promise<void>((resolve, reject) =>
        docker.modem.followProgress(stream, (error) => (error ? reject(error) : resolve())),
      );
    } catch (error) {
      return {
        kind: 'refused',
        code: 'provider_unavailable',
        reason: `The image cannot be pulled: ${textOf(error)}. Nothing was charged.`,
      };
    }
    const { pull: _, ...rest } = settings;
    return openContainerBackend({ ...rest, pull: 'never' } as typeof settings, leases).create(order);
  }

  async function inspect(ref: string): Promise<Machine | undefined> {
    try {
      const { Id, Name, State } = await engine('inspect', (abortSignal) =>
        docker.getContainer(ref).inspect({ abortSignal }),
      );
      const deadline = deadlines.read(Name.replace(/^\//, ''));
      return { ref: Id, state: stateOf(State.Status), ...(deadline === undefined ? {} : { deadline }) };
    } catch (error) {
      if (statusOf(error) === 404) return undefined;
      throw error;
    }
  }

  async function list(prefix: string): Promise<(Owned & { name: string })[]> {
    const found = await engine('list', (abortSignal) =>
      docker.listContainers({ all: true, filters: { label: [TAG_LABEL] }, abortSignal }),
    );
    return found
      .filter((it) => it.Labels[TAG_LABEL]?.startsWith(prefix))
      .map((it) => ({
        ref: it.Id,
        name: it.Names[0] ?? '',
        tag: it.Labels[TAG_LABEL] as string,
        state: stateOf(it.State),
        createdAt: Number(it.Labels[CREATED_LABEL] ?? it.Created),
      }));
  }

  async function destroy(ref: string): Promise<void> {
    const tag = await nameOf(ref);
    try {
      await engine('remove', (abortSignal) => docker.getContainer(ref).remove({ force: true, v: true, abortSignal }));
    } catch (error) {
      const status = statusOf(error);
      if (status !== 404 && !(status === 409 && /already in progress/.test(textOf(error)))) throw error;
    }
    if (tag) deadlines.remove(tag);
  }

  async function nameOf(ref: string): Promise<string | undefined> {
    try {
      const { Name } = await engine('inspect', (abortSignal) => docker.getContainer(ref).inspect({ abortSignal }));
      return Name.replace(/^\//, '');
    } catch (error) {
      if (statusOf(error) === 404) return undefined;
      throw error;
    }
  }

  /** Starts a command inside; its streams apart, or one with a terminal. */
  async function begin(ref: string, argv: string[], terminal?: { columns: number; rows: number; term: string }) {
    const exec = await engine('exec', (abortSignal) =>
      docker.getContainer(ref).exec({
        Cmd: argv,
        AttachStdin: true,
        AttachStdout: true,
        AttachStderr: true,
        Tty: terminal !== undefined,
        ...(terminal ? { Env: [`TERM=${terminal.term}`] } : {}),
        abortSignal,
      }),
    );
    const stream = await engine('exec', (abortSignal) =>
      exec.start({ hijack: true, stdin: true, Tty: terminal !== undefined, abortSignal }),
    );
    const stdout = new PassThrough();
    const stderr = new PassThrough();
    if (terminal) stream.pipe(stdout);
    else docker.modem.demuxStream(stream, stdout, stderr);
    const ended = waitForEnd(exec, stream).finally(() => {
      stdout.end();
      stderr.end();
      stream.destroy(); // A hijacked socket keeps the process alive.
    });
    return { exec, stream, stdout, stderr, ended };
  }

  /** The exit code: the stream's end tells, or the engine when something in the background keeps the stream open. */
  async function waitForEnd(exec: Docker.Exec, stream: NodeJS.ReadWriteStream): Promise<number> {
    let over = false;
    const closed = new Promise<void>((resolve) =>
      stream
        .once('end', resolve)
        .once('close', resolve)
        .once('error', () => resolve()),
    );
    void closed.then(() => {
      over = true;
    });
    for (;;) {
      const { Running, ExitCode } = await engine('exec', (abortSignal) => exec.inspect({ abortSignal }));
      if (!Running && ExitCode !== null) {
        if (!over) await Promise.race([closed, new Promise((resolve) => setTimeout(resolve, DRAIN_MILLISECONDS))]);
        return ExitCode;
      }
      await Promise.race([
        over ? new Promise((resolve) => setTimeout(resolve, 50)) : closed,
        new Promise((resolve) => setTimeout(resolve, 100)),
      ]);
    }
  }

  return {
    name: 'container',
    absence: { lists: 2, apartSeconds: 10 },
    create,
    inspect,
    destroy,
    find: async (tag) => (await list(tag)).filter((it) => it.tag === tag),
    listOwned: list,
    quote: async (spec) => quoteOf(settings, spec),
    offers: async () => offersOf(settings, 'container'),
    close: async () => {},

    async extend(ref, deadline) {
      const tag = await nameOf(ref);
      if (!tag) return { kind: 'refused', reason: 'the container is gone' };
      deadlines.write(tag, deadline);
      return { kind: 'done' };
    },

    async exec(ref, { command, timeoutSeconds, streamBytesMax }) {
      const marker = randomBytes(12).toString('hex');
      const started = performance.now();
      const { stream, stdout, stderr, ended } = await begin(ref, [
        '/bin/sh',
        '-c',
        LIMITED,
        'purser',
        marker,
        String(timeoutSeconds),
        command,
      ]);
      stream.end();
      const [out, err] = [collect(stdout, streamBytesMax), collect(stderr, streamBytesMax)];
      const exitCode = await ended;
      const timedOut = exitCode === 137 && performance.now() - started >= timeoutSeconds * 1000;
      const [a, b] = [await out, await err];
      return {
        exitCode,
        stdout: a.bytes,
        stderr: b.bytes,
        stdoutTruncated: a.truncated,
        stderrTruncated: b.truncated,
        timedOut,
      };
    },

    async upload(ref, path, content) {
      refusePath(path);
      const { stream, stdout, stderr, ended } = await begin(ref, [
        '/bin/sh',
        '-c',
        RECEIVE,
        'purser',
        path,
        String(content.length),
      ]);
      stdout.resume();
      const said = collect(stderr, 4096);
      const over = setTimeout(
        () => (stream as NodeJS.ReadWriteStream & { destroy(): void }).destroy(),
        UPLOAD_MILLISECONDS,
      );
      if (!stream.write(content)) await Promise.race([once(stream, 'drain'), ended]);
      stream.end();
      const code = await ended.finally(() => clearTimeout(over));
      if (code === IS_DIRECTORY) throw new Refusal('invalid_request', 'path: is a directory.');
      if (code === CUT_SHORT) throw new Error('the connection to the engine was lost during an upload');
      if (code !== 0)
        throw new Refusal(
          'invalid_request',
          `path: cannot be written there: ${(await said).bytes.toString().trim().slice(0, 200)}`,
        );
    },

    async session(ref, { command, terminal }): Promise<Session> {
      const marker = randomBytes(12).toString('hex');
      const shell =
        command === undefined
          ? 'export PURSER_EXEC="$1"; exec /bin/sh -l'
          : 'export PURSER_EXEC="$1"; exec /bin/sh -c "$2"';
      const { exec, stream, stdout, stderr, ended } = await begin(
        ref,
        ['/bin/sh', '-c', shell, 'purser', marker, command ?? ''],
        terminal,
      );
      if (terminal) await exec.resize({ w: terminal.columns, h: terminal.rows }).catch(() => {});
      return {
        stdin: stream,
        stdout,
        stderr: terminal ? undefined : stderr,
        resize: (columns, rows) => void exec.resize({ w: columns, h: rows }).catch(() => {}),
        ended: ended.then((code) => ({ code })),
        kill() {
          stream.destroy();
          void begin(ref, ['/bin/sh', '-c', KILL_MARKED, 'purser', marker])
            .then((it) => it.ended)
            .catch(() => {}); // The lease may be gone: then so is what it ran.
        },
      };
    },
  };
}

function stateOf(status: string): Machine['state'] {
  if (status === 'running' || status === 'paused') return 'running';
  return status === 'created' || status === 'configured' || status === 'restarting' ? 'provisioning' : 'ended';
}

/** The container as the engine is told of it: limited, unprivileged, with its watchdog. */
function describe(
  settings: ProviderOneSettings | ProviderThreeSettings,
  { tag, quote, deadline }: { tag: string; quote: Quote; deadline: number },
  directory: string,
): Docker.ContainerCreateOptions {
  const { cpus, memoryGib, gpus } = sizeOf(settings, quote.spec);
  const memory = Math.round(memoryGib * GIB);
  return {
    name: tag,
    Image: settings.image,
    Hostname: 'lease',
    Entrypoint: ['/bin/sh'],
    Cmd: ['-c', WATCHDOG],
    WorkingDir: '/',
    Labels: {
      [TAG_LABEL]: tag,
      [CREATED_LABEL]: String(deadline - quote.spec.max_seconds - settings.provision_seconds),
    },
    HostConfig: {
      NanoCpus: Math.round(cpus * 1e9),
      Memory: memory,
      MemorySwap: memory,
      PidsLimit: settings.pids,
      CapDrop: ['ALL'],
      SecurityOpt: ['no-new-privileges'],
      NetworkMode: settings.network,
      Binds: [`${directory}:${DEADLINE_MOUNT}:ro`],
      RestartPolicy: { Name: 'no' },
      ...(gpus > 0 ? { DeviceRequests: [{ Driver: 'nvidia', Count: gpus, Capabilities: [['gpu']] }] } : {}),
    },
  };
}

function sizeOf(settings: ProviderOneSettings | ProviderThreeSettings, spec: Spec) {
  if ('offers' in settings) {
    const offer = offerOf(settings, (spec as SpecThree).offer_id);
    return { cpus: offer.cpus, memoryGib: offer.memory_gib, gpus: 0 };
  }
  const { cpus, memory_gib: memoryGib, gpus } = spec as SpecOne;
  return { cpus, memoryGib, gpus };
}
