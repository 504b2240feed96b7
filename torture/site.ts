import { appendFileSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { searchPath } from '../src/config/config.ts';
import { hasComponent } from '../test/helper/component.ts';
import { type Ended, type Installation, installation, type Launched, type Serving } from '../test/helper/executable.ts';
import { count, type Finding } from './journal.ts';

export type Stage = { after(undo: () => unknown): void; skip(message?: string): void };

/** The wall clock that the executable sees. Its monotonic clock is the machine's. */
export type WallClock = { env: Record<string, string>; leap(seconds: number): void };

export function openWallClock(t: Stage, directory: string): WallClock | undefined {
  const library = libfaketime();
  if (!hasComponent(t as never, 'faketime', () => library !== undefined)) return undefined;
  const file = join(directory, 'clock');
  const programs = join(directory, 'no-time-service');
  mkdirSync(programs);
  // Whatever this machine has: nobody vouches for the clock that leaps.
  for (const [name, answer] of [
    ['timedatectl', 'no'],
    ['adjtimex', 'return value = 5'],
    ['chronyc', 'Leap status     : Not synchronised'],
  ])
    writeFileSync(join(programs, name as string), `#!/bin/sh\necho '${answer}'\n`, { mode: 0o755 });
  const leap = (seconds: number) => writeFileSync(file, `${seconds < 0 ? '' : '+'}${seconds}\n`);
  leap(0);
  return {
    leap,
    env: {
      PATH: [programs, ...searchPath()].join(delimiter),
      LD_PRELOAD: library as string,
      FAKETIME_TIMESTAMP_FILE: file,
      FAKETIME_NO_CACHE: '1',
      DONT_FAKE_MONOTONIC: '1',
      FAKETIME_DONT_FAKE_MONOTONIC: '1', // Its newer name.
      NO_FAKE_STAT: '1',
    },
  };
}

function libfaketime(): string | undefined {
  const places = readdirSync('/usr/lib').map((name) => `/usr/lib/${name}/faketime`);
  for (const place of places)
    try {
      const name = readdirSync(place).find((it) => it.startsWith('libfaketime.so'));
      if (name) return join(place, name);
    } catch {} // Most do not have it.
  return undefined;
}

/** The installation under torture, and an operator who restarts it whenever it has ended. */
export type Site = {
  purser: Installation;
  /** Resolves with the running server as soon as it serves. Throws if the operator has given up. */
  server(): Promise<Serving>;
  /** Returns the current process, serving or still starting. */
  launched(): Launched;
  /** Until `end` is called, the server may end by itself or refuse to start, because of a fault. */
  allow(): { end(): void };
  /**
   * Sends a signal and resolves with how the server ended. The operator then restarts it, with these options until it
   * serves.
   */
  end(signal: NodeJS.Signals, ...options: string[]): Promise<Ended>;
  /** Stops the server for good. */
  close(): Promise<Ended>;
  findings: Finding[];
  /** Milliseconds from each start until it served. */
  ready: number[];
  /** Errors in the log, by event. */
  errors: Map<string, number>;
  /** The file with everything that the servers logged. */
  log: string;
};

const GIVES_UP_MILLISECONDS = 90_000;
const AGAIN_MILLISECONDS = 300;
const ERROR = /"level":50/;

export function openSite(t: Stage, options: NonNullable<Parameters<typeof installation>[1]>, log: string): Site {
  const purser = installation(t, options);
  const findings: Finding[] = [];
  const ready: number[] = [];
  const errors = new Map<string, number>();
  let launched: Launched;
  let serving = Promise.withResolvers<Serving>();
  serving.promise.catch(() => {});
  let allowances = 0;
  let closing = false;
  let signalled = false;
  let startOptions: string[] = [];

  const operate = async () => {
    let failingSince: number | undefined;
    while (!closing) {
      signalled = false;
      launched = purser.launch('serve', ...startOptions);
      const server = await launched.serving.catch(() => undefined);
      if (server) {
        failingSince = undefined;
        startOptions = [];
        ready.push(server.readyMilliseconds);
        const fault = await notServed(server);
        if (fault) findings.push({ failure: 'unexpected ends', what: `the books are not served: ${fault}` });
        serving.resolve(server);
      }
      const { code, signal } = await launched.ended;
      if (server) {
        serving = Promise.withResolvers<Serving>();
        serving.promise.catch(() => {});
      }
      keep(launched.output.stderr);
      if (closing) return;
      if (!signalled && !allowances) {
        const last = launched.output.stderr.trim().split('\n').slice(-3).join('\n');
        const what = server ? 'the server ended by itself' : 'the server refused to start';
        findings.push({ failure: 'unexpected ends', what: `${what} (${code ?? signal}): ${last}` });
      }
      if (server || signalled) continue;
      failingSince ??= performance.now();
      if (performance.now() - failingSince > GIVES_UP_MILLISECONDS) {
        const error = new Error(`the server does not start any more:\n${launched.output.stderr.slice(-2000)}`);
        serving.reject(error);
        return;
      }
      await sleep(AGAIN_MILLISECONDS);
    }
  };
  /** Returns why a server that answers does not serve its books, if so. */
  async function notServed(server: Serving): Promise<string | undefined> {
    const { status, text } = await server.ask('GET', '/readyz').catch(() => ({ status: 0, text: '' }));
    return status === 503 && /accept-loss|chain|behind its|missing|damaged/.test(text) ? text : undefined;
  }
  function keep(stderr: string) {
    appendFileSync(log, `${stderr}\n`);
    for (const line of stderr.split('\n').filter((it) => ERROR.test(it)))
      count(errors, String(/"event":"([^"]+)"/.exec(line)?.[1]));
  }

  t.after(() => {
    closing = true; // However the run ended, nothing is restarted.
  });
  void operate();
  return {
    purser,
    findings,
    ready,
    errors,
    log,
    server: () => serving.promise,
    launched: () => launched,
    allow() {
      allowances++;
      return { end: () => void allowances-- };
    },
    end(signal, ...options) {
      signalled = true;
      startOptions = options;
      const { child, ended } = launched;
      child.kill(signal);
      return ended;
    },
    async close() {
      await serving.promise;
      closing = true;
      launched.child.kill('SIGTERM');
      return launched.ended;
    },
  };
}
