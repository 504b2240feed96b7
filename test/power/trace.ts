import { readFileSync } from 'node:fs';

/** What a server did to its files and sockets, in the order in which the kernel was asked (strace). */
export type Step =
  | { kind: 'open'; fd: number; path: string; creates: boolean; truncates: boolean; appends: boolean }
  | { kind: 'close'; fd: number }
  /** Without `offset`, where the last one ended. */
  | { kind: 'write'; fd: number; offset: number | undefined; bytes: Buffer }
  | { kind: 'truncate'; fd: number; length: number }
  /** What was written before the beginning of a sync is on the disk at its end, and not a moment earlier. */
  | { kind: 'sync-begins'; fd: number; by: number }
  | { kind: 'sync-ends'; fd: number; by: number }
  | { kind: 'rename'; from: string; to: string }
  | { kind: 'link'; from: string; to: string }
  /** From `offset` of the one to where the last write of the other ended. */
  | { kind: 'copy'; from: number; offset: number | undefined; to: number; length: number }
  | { kind: 'unlink'; path: string }
  | { kind: 'mkdir'; path: string };

/** Put before the server's command: everything that changes a file, and what goes over sockets, is written to `file`. */
export function straced(file: string): string[] {
  const calls =
    'openat,close,write,pwrite64,writev,pwritev,ftruncate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,link,linkat,copy_file_range';
  // Calls that change files in ways that are not understood here: there should be none, and a trace with one is refused.
  const strange = 'open,creat,truncate,fallocate,symlink,sync_file_range,sendfile,dup,dup2,dup3';
  const flags = ['-D', '-f', '-q', '--seccomp-bpf', '-xx', '-s', '33554432'];
  return ['strace', ...flags, '-e', `trace=${calls},${strange}`, '-o', file];
}

const WHOLE = /^(\d+) +(\w+)\((.*)\) += (-?\d+)/s;
const UNFINISHED = /^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$/s;
const RESUMED = /^(\d+) +<\.\.\. (\w+) resumed>,? ?(.*)\) += (-?\d+)/s;

/** Reads a trace that has come to its end. Throws at a call that it does not understand. */
export function readTrace(file: string, isOurs: (path: string) => boolean): Step[] {
  const steps: Step[] = [];
  const waiting = new Map<string, string>();
  for (const line of readFileSync(file, 'latin1').split('\n')) {
    const unfinished = UNFINISHED.exec(line);
    if (unfinished) {
      const [, by, call, args] = unfinished as unknown as [string, string, string, string];
      waiting.set(by, args);
      // Its bytes may be on their way to the client from now on.
      if (/^f(data)?sync$/.test(call)) steps.push({ kind: 'sync-begins', fd: Number(args), by: Number(by) });
      continue;
    }
    const resumed = RESUMED.exec(line);
    const [, by, call, args, result] = (resumed ?? WHOLE.exec(line) ?? []) as string[];
    if (!by || !call || args === undefined || Number(result) < 0) continue;
    const isResumed = resumed !== null;
    const all = isResumed ? `${waiting.get(by)}${args ? `, ${args}` : ''}` : args;
    steps.push(...stepsOf(call, Number(by), all, Number(result), isResumed, isOurs));
  }
  return steps;
}

const text = (quoted: string) => bytesIn(quoted).toString();
const bytesIn = (args: string) =>
  Buffer.from(
    [...args.matchAll(/"((?:\\x[0-9a-f]{2})*)"/g)].map(([, it]) => it?.replaceAll('\\x', '')).join(''),
    'hex',
  );

function stepsOf(
  call: string,
  by: number,
  args: string,
  result: number,
  isResumed: boolean,
  isOurs: (path: string) => boolean,
): Step[] {
  const fd = Number.parseInt(args, 10);
  const paths = () => [...args.matchAll(/"(?:\\x[0-9a-f]{2})*"/g)].map(([it]) => text(it));
  switch (call) {
    case 'openat': {
      const has = (flag: string) => args.includes(flag);
      const [path = ''] = paths();
      const flags = { creates: has('O_CREAT'), truncates: has('O_TRUNC'), appends: has('O_APPEND') };
      return [{ kind: 'open', fd: result, path, ...flags }];
    }
    case 'close':
      return [{ kind: 'close', fd }];
    case 'write':
    case 'writev':
      return [{ kind: 'write', fd, offset: undefined, bytes: bytesIn(args).subarray(0, result) }];
    case 'pwrite64':
      return [{ kind: 'write', fd, offset: Number(args.split(', ').at(-1)), bytes: bytesIn(args).subarray(0, result) }];
    case 'ftruncate':
      return [{ kind: 'truncate', fd, length: Number(args.split(', ').at(-1)) }];
    case 'fsync':
    case 'fdatasync': {
      const ends: Step = { kind: 'sync-ends', fd, by };
      return isResumed ? [ends] : [{ kind: 'sync-begins', fd, by }, ends];
    }
    case 'rename':
    case 'renameat':
    case 'renameat2': {
      const [from = '', to = ''] = paths();
      return [{ kind: 'rename', from, to }];
    }
    case 'link':
    case 'linkat': {
      const [from = '', to = ''] = paths();
      return [{ kind: 'link', from, to }];
    }
    case 'copy_file_range': {
      const [, offset, to, where] = /^\d+, (\[\d+\]|NULL)[^,]*, (\d+), (\w+)/.exec(args) ?? [];
      if (where !== 'NULL') throw new Error(`the trace has a copy to an offset: ${args}`);
      const at = offset === 'NULL' ? undefined : Number(offset?.slice(1, -1));
      return [{ kind: 'copy', from: fd, offset: at, to: Number(to), length: result }];
    }
    case 'unlink':
    case 'unlinkat':
      return paths().map((path) => ({ kind: 'unlink', path }));
    case 'mkdir':
    case 'mkdirat':
      return paths().map((path) => ({ kind: 'mkdir', path }));
    default:
      if (!paths().some(isOurs) && !/^(dup|sendfile)/.test(call)) return [];
      throw new Error(`the trace has a call that is not understood: ${call}(${args.slice(0, 200)})`);
  }
}
