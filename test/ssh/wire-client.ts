import { spawn } from 'node:child_process';
import { mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import type { TestContext } from 'node:test';
import type { GuestSession } from '../../src/compute/backend.ts';
import type { FileAttributes } from '../../src/compute/machine/sftp-facts.ts';
import { SFTP_SCRIPT } from '../../src/compute/machine/sftp-script.ts';
import { REQUEST, readFields, string, uint32, uint64 } from '../../src/compute/machine/sftp-wire.ts';
import { serveSftp } from '../../src/ssh/sftp.ts';

/** The shells that machines have: Debian's, busybox's, and bash under the name of sh. */
export const SHELLS: Record<string, string[]> = {
  dash: ['dash'],
  busybox: ['busybox', 'sh'],
  bash: ['bash'],
};

const ANSWER = { status: 101, handle: 102, data: 103, name: 104, attributes: 105, extended: 201 };

/** What was answered; of its members those are there that its type has. */
export type Answer = {
  id: number;
  status?: number;
  message?: string;
  handle?: Buffer;
  data?: Buffer;
  names?: { name: Buffer; longName: string; attributes: FileAttributes }[];
  attributes?: FileAttributes;
  extended?: Buffer;
};

/** A session as a backend gives it, only that the machine is a directory on this one. */
export function openLocalSession(
  t: Pick<TestContext, 'after'>,
  { shell, directory, user }: { shell: string[]; directory: string; user?: number },
): GuestSession & { pid: number } {
  const [program = '', ...flags] = shell;
  const child = spawn(program, [...flags, '-c', SFTP_SCRIPT], {
    ...(program === 'bash' ? { argv0: 'sh' } : {}),
    cwd: directory,
    env: { PATH: process.env.PATH },
    stdio: ['pipe', 'pipe', 'pipe'],
    ...(user === undefined ? {} : { uid: user, gid: user }),
  });
  t.after(() => child.kill('SIGKILL'));
  return {
    pid: child.pid as number,
    stdin: child.stdin,
    stdout: child.stdout,
    stderr: child.stderr,
    resize: () => {},
    ended: new Promise((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code, signal) => resolve(signal ? { signal: signal.slice(3) } : { code: code ?? 255 }));
    }),
    kill: () => void child.kill('SIGKILL'),
  };
}

/** A directory that is gone after the test. */
export function openDirectory(t: Pick<TestContext, 'after'>): string {
  const directory = realpathSync(mkdtempSync(join(tmpdir(), 'purser-sftp-')));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** A client that says exactly what it is told, and may ask without waiting. */
export async function openWireClient(
  t: Pick<TestContext, 'after'>,
  session: GuestSession,
  {
    software = 'OpenSSH_9.2',
    greet = true,
    alone = (): number | undefined => 1,
    milliseconds = () => performance.now(),
  } = {},
) {
  const source = new PassThrough();
  const waiting = new Map<number, (answer: Answer) => void>();
  let held: Buffer = Buffer.alloc(0);
  let lastId = 0;
  let greeting: Buffer | undefined;
  let pause: Promise<void> | undefined;

  function hear(bytes: Buffer) {
    held = Buffer.concat([held, bytes]);
    while (held.length >= 4 && held.length >= 4 + held.readUInt32BE()) {
      const length = held.readUInt32BE();
      const packet = held.subarray(4, 4 + length);
      held = held.subarray(4 + length);
      if (!greeting) greeting = packet;
      else {
        const answer = answerOf(packet);
        waiting.get(answer.id)?.(answer);
        waiting.delete(answer.id);
      }
    }
  }
  const served = serveSftp(
    {
      source,
      software,
      alone,
      milliseconds,
      memory: { tryTake: () => true, release() {}, close() {} },
      async send(bytes) {
        await pause;
        hear(bytes);
      },
    },
    session,
    () => Math.floor(Date.now() / 1000),
  );
  served.catch(() => {}); // A test that expects it to fail looks at it.
  t.after(() => source.end());
  const send = (...parts: Buffer[]) => {
    const body = Buffer.concat(parts);
    return source.write(Buffer.concat([uint32(body.length), body]));
  };
  if (greet) send(Buffer.of(REQUEST.init), uint32(3));

  const client = {
    source,
    served,
    send,
    greeting: () => greeting,
    /** Holds back what the server says until the function that it answers is called. */
    hold(): () => void {
      const { promise, resolve } = Promise.withResolvers<void>();
      pause = promise;
      return resolve;
    },
    ask(type: number, ...fields: Buffer[]): Promise<Answer> {
      lastId += 1;
      const id = lastId;
      const answered = new Promise<Answer>((resolve) => waiting.set(id, resolve));
      send(Buffer.of(type), uint32(id), ...fields);
      return answered;
    },
    open: (path: string | Buffer, flags: number, ...attributes: Buffer[]) =>
      client.ask(REQUEST.open, string(path), uint32(flags), ...(attributes.length ? attributes : [uint32(0)])),
    read: (handle: Buffer, offset: number, length: number) =>
      client.ask(REQUEST.read, string(handle), uint64(BigInt(offset)), uint32(length)),
    write: (handle: Buffer, offset: number, bytes: Buffer) =>
      client.ask(REQUEST.write, string(handle), uint64(BigInt(offset)), string(bytes)),
    close: (handle: Buffer) => client.ask(REQUEST.close, string(handle)),
    path: (type: number, path: string | Buffer, ...more: Buffer[]) => client.ask(type, string(path), ...more),
  };
  return client;
}
export type WireClient = Awaited<ReturnType<typeof openWireClient>>;

function answerOf(packet: Buffer): Answer {
  const fields = readFields(packet);
  const [type, id] = [fields.byte(), fields.uint32()];
  if (type === ANSWER.status) return { id, status: fields.uint32(), message: fields.string().toString() };
  if (type === ANSWER.handle) return { id, handle: fields.string() };
  if (type === ANSWER.data) return { id, data: fields.string() };
  if (type === ANSWER.attributes) return { id, attributes: fields.attributes() };
  if (type === ANSWER.extended) return { id, extended: packet.subarray(5) };
  if (type !== ANSWER.name) throw new Error(`an answer of type ${type}`);
  const names = Array.from({ length: fields.uint32() }, () => ({
    name: fields.string(),
    longName: fields.string().toString(),
    attributes: fields.attributes(),
  }));
  return { id, names };
}

/** Attributes with permissions only. */
export const withMode = (mode: number) => Buffer.concat([uint32(4), uint32(mode)]);
