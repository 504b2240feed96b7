import { execFileSync, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import type Docker from 'dockerode';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** Returns the image that the Dockerfile builds from, by its name. */
export function builderImage(): string {
  const [, name] = /^FROM (\S+) AS build$/m.exec(readFileSync(join(ROOT, 'Dockerfile'), 'utf8')) as RegExpExecArray;
  return name as string;
}

/** The output of a program that has to succeed. */
export function piped(t: TestContext, program: string, args: string[], input?: string): Readable {
  const child = spawn(program, args);
  t.after(() => child.kill()); // Whoever reads it may have given up.
  let said = '';
  child.stderr.on('data', (chunk) => {
    said += chunk;
  });
  child.once('exit', (code) => code && child.stdout.destroy(new Error(said)));
  child.stdin.end(input);
  return child.stdout;
}

/** Follows a build or an import to its end, and returns what it printed. Throws with that if it fails. */
export async function progress(docker: Docker, stream: NodeJS.ReadableStream): Promise<string> {
  const said: string[] = [];
  let fault: string | undefined;
  await new Promise<void>((resolve, reject) =>
    docker.modem.followProgress(
      stream,
      (error) => (error || fault ? reject(new Error(`${error?.message ?? fault}\n${said.join('')}`)) : resolve()),
      (it: { stream?: string; error?: string }) => {
        said.push(it.stream ?? it.error ?? '');
        fault ??= it.error;
      },
    ),
  );
  return said.join('');
}

/** What a clean clone has: the files that git knows, as they are here. */
export function cleanClone(t: TestContext): Readable {
  const files = execFileSync('git', ['-C', ROOT, 'ls-files', '-z', '--cached', '--others', '--exclude-standard']);
  const names = files
    .toString()
    .split('\0')
    .filter((it) => it && existsSync(join(ROOT, it)));
  return piped(t, 'tar', ['--create', '--file=-', '--directory', ROOT, '--null', '--files-from=-'], names.join('\0'));
}
