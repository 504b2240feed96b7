import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { Guest, GuestSession } from '../../../src/compute/backend.ts';

/** The watchdog of this machine's architecture, with its relay. */
export const WATCHDOG = fileURLToPath(
  new URL(
    `../../../src/compute/kit/watchdog/watchdog-${process.arch === 'arm64' ? 'arm64' : 'amd64'}`,
    import.meta.url,
  ),
);

/** Opens sessions as plain processes of this machine, for a machine that exists only in memory. */
export function hostSession(env: Record<string, string> = {}): Guest['session'] & { running(): number } {
  const children = new Set<ReturnType<typeof spawn>>();
  const open = async (_: string, { command }: { command: string | undefined }): Promise<GuestSession> => {
    const child = spawn('/bin/sh', ['-c', command as string], {
      detached: true,
      env: { PATH: process.env.PATH as string, ...env },
    });
    children.add(child);
    const ended = new Promise<{ code: number } | { signal: string }>((resolve) =>
      child.once('close', (code, signal) => {
        children.delete(child);
        resolve(signal === null ? { code: code as number } : { signal });
      }),
    );
    return {
      stdin: child.stdin,
      stdout: child.stdout,
      stderr: child.stderr,
      ended,
      resize() {},
      kill() {
        for (const it of child.stdio) (it as { destroy?(): void } | null)?.destroy?.();
        try {
          process.kill(-(child.pid as number), 'SIGKILL');
        } catch {
          // It has ended.
        }
      },
    };
  };
  return Object.assign(open, { running: () => children.size });
}
