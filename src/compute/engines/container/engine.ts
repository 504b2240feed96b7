import { statfs } from 'node:fs/promises';
import { hostname } from 'node:os';
import Docker from 'dockerode';
import { deadline } from '../../../net/deadline.ts';
import { type Capacity, GIB } from '../../kit/claim.ts';
import { type EngineSettings, parseEngineAddress } from './address.ts';
import { EngineUnreachable, openEngineConnections } from './connection.ts';
import { readAnswersInTurns } from './modem.ts';
import { type ImageDefaults, imageDefaults } from './user.ts';

const CALL_MILLISECONDS = 30_000;
/** The most characters of an engine's error that regular expressions read and messages show. */
const WORDS_LENGTH_MAX = 4096;

type EngineError = Error & { statusCode?: number; json?: { message?: unknown; cause?: unknown } };

/** The status of the engine's answer, or undefined if none came. */
export const statusOf = (error: unknown) => (error as EngineError).statusCode;
/** Returns whether the engine received nothing of the request. */
export const wasNeverSent = (error: unknown) => error instanceof EngineUnreachable;
/** Returns the engine's own message. That of the error also has the library's words for its status. */
const ownWords = (error: unknown) => {
  const { json } = error as EngineError;
  return [json?.message, json?.cause].find((it) => typeof it === 'string');
};
/** The engine's message, or the error of reaching it. */
export const textOf = (error: unknown) =>
  (ownWords(error) ?? (error as Error).message).slice(0, WORDS_LENGTH_MAX).trim();
/** Both engines' messages for a missing container or command. A proxy before an engine may answer 404 as well. */
const NO_SUCH = /no such (container|exec (session|instance))/i;
/**
 * Returns whether the engine reports that there is no such container, or no such command because its container is gone. When a
 * container is removed while Podman answers, that is a 500 (pkg/api/handlers/compat/exec.go, ExecInspectHandler).
 */
export const wasRemoved = (error: unknown) =>
  [404, 500].includes(statusOf(error) as number) && NO_SUCH.test(ownWords(error)?.slice(0, WORDS_LENGTH_MAX) ?? '');

/** A Docker Engine or Podman. */
export type Engine = {
  socket: string;
  docker: Docker;
  /** Makes one call with a limit of its own, 30 s by default. Throws an error that names the call that took too long. */
  ask<T>(what: string, call: (abortSignal: AbortSignal) => Promise<T>, milliseconds?: number): Promise<T>;
  /** Makes one call by its path, for calls that dockerode lacks. */
  request<T>(method: 'GET' | 'POST', path: string, body?: object, milliseconds?: number): Promise<T>;
  /** Returns whether the engine reports that it is Podman, whose own API offers more than its Docker API. */
  isPodman(): Promise<boolean>;
  /** Returns the architecture of its machine, as Go names it: amd64, arm64. */
  architecture(): Promise<string>;
  /** Returns the CPUs and the memory of its machine. */
  capacity(milliseconds?: number): Promise<Capacity>;
  /** Returns the bytes that are free on the disk of its containers; undefined where that disk is not to be seen from here. */
  diskFree(): Promise<number | undefined>;
  /** Returns the engine's identity (`Backend.identity`). */
  identity(): Promise<string | undefined>;
  /** Returns the user and the directory in which the image of a container wants commands to run. Throws where there is no such user. */
  defaultsOf(container: string): Promise<ImageDefaults>;
  /** Closes its connections. */
  close(): void;
};

/** The parts of the answer to `GET /info` that name an engine. */
type EngineNames = { ID?: string; Name?: string; DockerRootDir?: string };

export type EngineVersion = { Version: string; Arch: string; Components?: { Name: string; Version: string }[] };
export const podmanOf = ({ Components }: EngineVersion) => Components?.find((it) => it.Name === 'Podman Engine');

/** dockerode would fill in missing options from DOCKER_HOST and its companions in the environment. */
const NOT_FROM_ENVIRONMENT = {
  port: undefined,
  pathPrefix: '/',
  username: undefined,
  timeout: undefined,
  ca: undefined,
  cert: undefined,
  key: undefined,
};

/** Opens the engine that the settings name, without a call. `prefix` is that of the installation's tags, where there is one. */
export function openEngine(settings: EngineSettings, prefix = 'purser-'): Engine {
  const { socket } = settings;
  const { agent, call: callModem, close } = openEngineConnections(settings);
  // The name stands in the Host header only: the agent alone knows where the engine is.
  const docker = new Docker({ ...NOT_FROM_ENVIRONMENT, protocol: 'http', host: 'http://engine', agent } as object);
  readAnswersInTurns(docker.modem);
  let version: EngineVersion | undefined;
  let capacity: Capacity | undefined;
  let root: { directory: string | undefined } | undefined;
  /** Kept by image id: an id's content never changes. */
  const defaults = new Map<string, ImageDefaults>();

  const ask: Engine['ask'] = (what, call, milliseconds = CALL_MILLISECONDS) => {
    const giveUp = new AbortController();
    // docker-modem gets the signal, but may have lost the call: the limit holds without it.
    return deadline(
      callModem(() => call(giveUp.signal)),
      milliseconds,
      () => {
        giveUp.abort();
        throw new Error(`${socket}: ${what} took longer than ${milliseconds / 1000} s`);
      },
    );
  };

  const request: Engine['request'] = <T>(method: 'GET' | 'POST', path: string, body?: object, milliseconds?: number) =>
    ask(
      path,
      (abortSignal) =>
        new Promise<T>((resolve, reject) => {
          const options = { method, path, abortSignal, statusCodes: { 200: true, 201: true, 204: true } };
          docker.modem.dial({ ...options, ...(body ? { options: body } : {}) }, (error, answer) =>
            error ? reject(error) : resolve(answer as T),
          );
        }),
      milliseconds,
    );

  const versionOnce = async () => {
    if (version) return version;
    const answer = await request<EngineVersion>('GET', '/version');
    if (typeof answer?.Arch !== 'string') throw new Error(`${socket}: the engine does not say what it is`);
    version = answer;
    return version;
  };

  const engine: Engine = {
    socket,
    docker,
    ask,
    request,
    close,
    async defaultsOf(container) {
      const { Image } = await ask('inspect', (abortSignal) => docker.getContainer(container).inspect({ abortSignal }));
      const known = defaults.get(Image);
      if (known) return known;
      const match = await imageDefaults({ ask, docker }, Image, prefix);
      defaults.set(Image, match);
      return match;
    },
    isPodman: async () => podmanOf(await versionOnce()) !== undefined,
    architecture: async () => (await versionOnce()).Arch,
    async capacity() {
      if (capacity) return capacity;
      const { NCPU, MemTotal } = await request<{ NCPU: number; MemTotal: number }>('GET', '/info');
      if (!(NCPU > 0 && MemTotal > 0)) throw new Error(`${socket}: the engine does not say how large its machine is`);
      capacity = { cpus: NCPU, memory_gib: Math.floor((MemTotal / GIB) * 100) / 100 };
      return capacity;
    },
    async diskFree() {
      if (parseEngineAddress(socket)?.kind !== 'unix') return undefined;
      if (!root) {
        // A proxy before the engine may not let this through: then a lease is sold without it.
        const names = await request<EngineNames>('GET', '/info').catch(() => undefined);
        if (!names) return undefined;
        const { Name, DockerRootDir } = names;
        // The socket may lead to another machine, which has a directory of the same name.
        root = { directory: Name === hostname() ? DockerRootDir : undefined };
      }
      if (root.directory === undefined) return undefined;
      const found = await statfs(root.directory).catch(() => undefined);
      return found && found.bavail * found.bsize;
    },
    async identity() {
      try {
        const { ID, Name, DockerRootDir } = await request<EngineNames>('GET', '/info');
        // Podman makes up another ID in every answer (pkg/api/handlers/compat/info.go).
        if (await engine.isPodman()) return Name && DockerRootDir && `podman ${Name} ${DockerRootDir}`;
        return ID && `docker ${ID}`;
      } catch (error) {
        const status = statusOf(error) ?? 0;
        if (status >= 400 && status < 500) return undefined; // A proxy before the engine does not let this through.
        throw error;
      }
    },
  };
  return engine;
}
