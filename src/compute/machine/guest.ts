import { randomBytes } from 'node:crypto';
import type { Guest, GuestSession, Ref, SessionOrder } from '../backend.ts';
import { type Begin, finish, hasTimedOut } from './program.ts';
import { faultOf } from './proof.ts';
import { judgeUpload, KILL_MARKED, LIMITED, RECEIVE, refuseCommand, refusePath } from './shell.ts';

const UPLOAD_MILLISECONDS = 120_000;
const KILL_MILLISECONDS = 60_000;
/** The time for which a command that still runs past its limit is awaited; the guard inside should have ended it. */
const GRACE_MILLISECONDS = 30_000;
const OWN_OUTPUT_BYTES = 4096;

/** The requirements that a machine has to meet before it is paid for. */
type Proof = {
  /** The number of GPUs that were sold. */
  gpus?: number | undefined;
  /** Lets a machine without nvidia-smi pass. */
  mayLackTool?: boolean;
  /** A text of shell before the command of the proof. */
  before?: string;
};

export type GuestOptions = Pick<Guest, 'relay' | 'usage' | 'gpus' | 'egress' | 'pause' | 'snapshots'> & {
  /** Returns the requirements, or a fault that is already known. Without it, a command has to run. */
  proofOf?: (ref: Ref) => Promise<Proof | string>;
  /** The login shell, as a word of shell. */
  loginShell?: string;
  graceMilliseconds?: number;
  uploadMilliseconds?: number;
  killMilliseconds?: number;
};

const newMarker = () => randomBytes(12).toString('hex');

/** Creates the calls into the machines of a backend from a function that starts a program there. */
export function createGuest(
  begin: Begin,
  {
    proofOf = async () => ({}),
    loginShell = '/bin/sh',
    graceMilliseconds = GRACE_MILLISECONDS,
    uploadMilliseconds = UPLOAD_MILLISECONDS,
    killMilliseconds = KILL_MILLISECONDS,
    ...others
  }: GuestOptions = {},
): Guest {
  const exec: Guest['exec'] = async (ref, { command, timeoutSeconds, ...bounds }) => {
    refuseCommand(command);
    const marker = newMarker();
    const calledAt = performance.now();
    const args = [marker, String(timeoutSeconds)];
    const program = await begin(ref, { purpose: 'exec', script: LIMITED, args, command, marker });
    const milliseconds = timeoutSeconds * 1000 + graceMilliseconds;
    const result = await finish(program, undefined, { ...bounds, milliseconds });
    return { ...result, timedOut: hasTimedOut(result.exitCode, timeoutSeconds, program.begunAt ?? calledAt) };
  };

  return {
    ...others,
    exec,
    session: (ref, order) => beginSession(begin, ref, order, { loginShell, killMilliseconds }),

    async prove(ref) {
      const proof = await proofOf(ref);
      if (typeof proof === 'string') return proof;
      const { gpus, mayLackTool = false, before } = proof;
      return faultOf(
        (order) => exec(ref, before === undefined ? order : { ...order, command: `${before}\n${order.command}` }),
        gpus,
        { mayLackTool },
      );
    },

    async upload(ref, path, content) {
      refusePath(path);
      const program = await begin(ref, { purpose: 'upload', script: RECEIVE, args: [path, String(content.length)] });
      const limits = { streamBytesMax: OWN_OUTPUT_BYTES, milliseconds: uploadMilliseconds };
      const { exitCode, stderr } = await finish(program, content, limits);
      judgeUpload(exitCode, stderr);
    },
  };
}

async function beginSession(
  begin: Begin,
  ref: Ref,
  { command, terminal }: SessionOrder,
  { loginShell, killMilliseconds }: { loginShell: string; killMilliseconds: number },
): Promise<GuestSession> {
  refuseCommand(command ?? '');
  const marker = newMarker();
  const shell = command === undefined ? `exec ${loginShell} -l` : 'exec /bin/sh -c "$2"';
  const script = `export PURSER_EXEC="$1"; ${shell}`;
  const program = await begin(ref, { purpose: 'session', script, args: [marker], command, marker, terminal });
  const { stdin, stdout, stderr, ended, resize } = program;
  async function killMarked(): Promise<void> {
    const killer = await begin(ref, { purpose: 'kill', script: KILL_MARKED, args: [marker] });
    await finish(killer, undefined, { streamBytesMax: 0, milliseconds: killMilliseconds });
  }
  return {
    stdin,
    stdout,
    stderr: terminal ? undefined : stderr,
    resize,
    ended,
    kill() {
      program.kill();
      // A program that removed its marker is not found: its end is awaited only as long as the killing takes.
      const lost = new Error('the session was killed');
      const late = setTimeout(() => program.leave(lost), killMilliseconds).unref();
      ended.finally(() => clearTimeout(late)).catch(() => {});
      killMarked().catch(() => {}); // The lease may be gone, and with it everything that it ran.
    },
  };
}
