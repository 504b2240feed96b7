import { Readable } from 'node:stream';
import { getSystemErrorMap } from 'node:util';
import type Docker from 'dockerode';
import { readBounded } from '../../../net/read-bounded.ts';
import { WROTE_BESIDE_DISK, wroteBesideDisk } from '../../kit/watchdog.ts';
import { collectBoth } from '../../machine/collect.ts';
import type { Engine } from './engine.ts';
import { partOutput, STDERR } from './exec-output.ts';
import { sharesKernel } from './settings.ts';

const LOG_LINES = 5;
const LOG_CHARACTERS = 500;
const LOG_BYTES_MAX = 1024 * 1024;

type EndedContainer = Pick<Docker.ContainerInspectInfo, 'Id' | 'State' | 'HostConfig'>;

/**
 * Returns, in words, why a container does not run: by the exit code of its first process (watchdog.c), the engine's error, and the
 * last lines of the log, if one was kept.
 */
export async function whyEnded(engine: Engine, { Id, State, HostConfig }: EndedContainer): Promise<string> {
  const log = HostConfig.LogConfig?.Type === 'none' ? '' : await lastLines(engine, Id).catch(() => '');
  return [
    reasonOf(State, HostConfig.Runtime),
    ...(State.Error ? [`the engine says: ${State.Error.slice(0, LOG_CHARACTERS)}`] : []),
    ...(log ? [`the last of its output: ${log}`] : []),
  ].join('; ');
}

function reasonOf({ Status, ExitCode, OOMKilled }: EndedContainer['State'], runtime: string | undefined): string {
  if (Status === 'created') return 'it was made and never started';
  if (ExitCode === 0) return "its deadline has passed by the clock of the engine's machine";
  if (ExitCode === 143) return 'somebody stopped it';
  if (wroteBesideDisk(ExitCode)) return WROTE_BESIDE_DISK;
  if (OOMKilled) return 'it ran out of memory';
  // Podman does not always notice that memory ran out.
  if (ExitCode === 137) return 'it was killed, by somebody or for lack of memory';
  // gVisor's kernel takes memory and threads of the host. It ends as any program of Go that gets no more, with all that runs on it.
  if (ExitCode === 2 && !sharesKernel(runtime))
    return `its kernel (${runtime}) ended, most often for lack of memory or processes`;
  const [name] = getSystemErrorMap().get(-ExitCode) ?? [];
  return `its watchdog ended with exit code ${ExitCode}${name ? ` (${name})` : ''}`;
}

async function lastLines({ ask, docker }: Engine, id: string): Promise<string> {
  const framed = await ask('logs', async (abortSignal) => {
    // The container has ended, so there is nothing to follow; but only with `follow` does the log come as it is, and not as an
    // answer in JSON.
    const log = await docker
      .getContainer(id)
      .logs({ stdout: true, stderr: true, tail: LOG_LINES + 1, follow: true, abortSignal });
    return readBounded(log as AsyncIterable<Buffer>, LOG_BYTES_MAX);
  });
  if (!framed) return '';
  const { stdout, stderr } = partOutput(Readable.from([framed]), { terminal: false });
  const log = await collectBoth(stdout, stderr, { streamBytesMax: framed.length });
  const linesOf = (it: Buffer) =>
    String(it)
      .split('\n')
      .map((line) => line.trim())
      .filter(Boolean);
  const [errors, others] = [linesOf(log.stderr), linesOf(log.stdout)];
  // Podman keeps a line in parts as it came through the pipe, and of the first one it may return the last part alone.
  if (errors.length + others.length > LOG_LINES) (framed[0] === STDERR ? errors : others).shift();
  return [...errors, ...others].join(' | ').slice(-LOG_CHARACTERS);
}
