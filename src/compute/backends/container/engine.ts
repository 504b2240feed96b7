import Docker from 'dockerode';
import { imageUser } from './user.ts';

const CALL_MILLISECONDS = 30_000;

/** Errors of connecting to a Unix socket (unix(7)): the engine received nothing. An open connection never has them. */
const NEVER_SENT = new Set(['ECONNREFUSED', 'ENOENT', 'EACCES']);

type EngineError = Error & { statusCode?: number; code?: string; json?: { message?: string; cause?: string } };

/** The status of the engine's answer, or undefined if none came. */
export const statusOf = (error: unknown) => (error as EngineError).statusCode;
export const wasNeverSent = (error: unknown) => NEVER_SENT.has((error as EngineError).code ?? '');
/** The engine's message, or the error of reaching it. */
export const textOf = (error: unknown) => {
  const { json, message } = error as EngineError;
  return (json?.message ?? json?.cause ?? message).trim();
};

/** A Docker Engine or Podman behind a socket. */
export type Engine = {
  socket: string;
  docker: Docker;
  /** Makes one call with a limit of its own, 30 s unless told otherwise; throws and names what took too long. */
  ask<T>(what: string, call: (abortSignal: AbortSignal) => Promise<T>, milliseconds?: number): Promise<T>;
  /** Makes one call by its path, for what dockerode does not offer. */
  request<T>(method: 'GET' | 'POST', path: string, body?: object, milliseconds?: number): Promise<T>;
  /** Whether the engine says it is Podman, whose own API offers what its Docker API leaves out. */
  isPodman(): Promise<boolean>;
  /** The architecture of its machine, as Go names it: amd64, arm64. */
  architecture(): Promise<string>;
  /** The CPUs and the memory of its machine. */
  capacity(milliseconds?: number): Promise<Capacity>;
  /**
   * Whom the image of a container wants its commands to run as: a number, and a group if the image names one. Throws
   * where there is no such user.
   */
  userOf(container: string): Promise<string>;
};

export type Capacity = { cpus: number; memory_gib: number };
const GIB = 1024 ** 3;

export type Version = { Version: string; Arch: string; Components?: { Name: string; Version: string }[] };
export const podmanOf = ({ Components }: Version) => Components?.find((it) => it.Name === 'Podman Engine');

/** Opens the engine at `socket` (`unix:///path`), without a call. */
export function openEngine(socket: string): Engine {
  const docker = new Docker({ socketPath: socket.slice('unix://'.length) });
  let version: Version | undefined;
  let capacity: Capacity | undefined;
  /** By image id: an id's content never changes. */
  const users = new Map<string, string>();

  const ask: Engine['ask'] = async (what, call, milliseconds = CALL_MILLISECONDS) => {
    const signal = AbortSignal.timeout(milliseconds);
    try {
      return await call(signal);
    } catch (error) {
      if (signal.aborted) throw new Error(`${socket}: ${what} took longer than ${milliseconds / 1000} s`);
      throw error;
    }
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
    version ??= await request<Version>('GET', '/version');
    return version;
  };

  return {
    socket,
    docker,
    ask,
    request,
    async userOf(container) {
      const { Image } = await ask('inspect', (abortSignal) => docker.getContainer(container).inspect({ abortSignal }));
      const known = users.get(Image);
      if (known !== undefined) return known;
      const user = await imageUser({ ask, docker }, Image);
      users.set(Image, user);
      return user;
    },
    isPodman: async () => podmanOf(await versionOnce()) !== undefined,
    architecture: async () => (await versionOnce()).Arch,
    async capacity(milliseconds) {
      if (capacity) return capacity;
      const { NCPU, MemTotal } = await request<{ NCPU: number; MemTotal: number }>(
        'GET',
        '/info',
        undefined,
        milliseconds,
      );
      capacity = { cpus: NCPU, memory_gib: Math.floor((MemTotal / GIB) * 100) / 100 };
      return capacity;
    },
  };
}
