import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';

/** A processor that a release is made for: its names in Node, in Debian's packages and images, and in toolchains and qemu. */
export type Architecture = { node: 'x64' | 'arm64'; debian: 'amd64' | 'arm64'; gnu: 'x86_64' | 'aarch64' };

export const ARCHITECTURES: readonly Architecture[] = [
  { node: 'x64', debian: 'amd64', gnu: 'x86_64' },
  { node: 'arm64', debian: 'arm64', gnu: 'aarch64' },
];

/** Returns whether this machine runs programs of an architecture by itself. */
export const isNative = ({ node }: Architecture): boolean => node === process.arch;

const OUTPUT_BYTES_MAX = 2 ** 29;

/** Runs a program and returns its stdout. What it says on stderr is seen. Throws if it fails. */
export function run(
  program: string,
  args: readonly string[],
  options: { cwd?: string; input?: string | Buffer } = {},
): Buffer {
  return execFileSync(program, args, { maxBuffer: OUTPUT_BYTES_MAX, stdio: ['pipe', 'pipe', 'inherit'], ...options });
}

/** What a release is made with, beside Node, and the Debian package of each. */
function needed(): [program: string, from: string][] {
  const foreign = ARCHITECTURES.filter((it) => !isNative(it)).flatMap(({ gnu }): [string, string][] => [
    [`${gnu}-linux-gnu-strip`, `binutils-${gnu.replace('_', '-')}-linux-gnu`],
    [`qemu-${gnu}-static`, 'qemu-user-static'],
  ]);
  return [
    ...foreign,
    ['strip', 'binutils'],
    ['apt-get', 'apt'],
    ['dpkg-deb', 'dpkg'],
    ['tar', 'tar'],
    ['gzip', 'gzip'],
    ['python3', 'python3'],
    ['ssh-keygen', 'openssh-client'],
    ['git', 'git'],
  ];
}

/** Throws a sentence that names every program that is missing, and what brings it. */
export function checkTools(): void {
  const directories = (process.env.PATH ?? '').split(delimiter);
  const missing = needed().filter(([program]) => !directories.some((it) => existsSync(join(it, program))));
  if (!missing.length) return;
  const names = missing.map(([program]) => program).join(', ');
  const packages = [...new Set(missing.map(([, from]) => from))].join(' ');
  throw new Error(`A release needs ${names}, which this machine does not have: apt-get install ${packages}`);
}
