import type { ChildProcess } from 'node:child_process';
import { writeSync } from 'node:fs';

/**
 * Waits of tests. A wait ends with its event and has no limit of its own: its length depends on how busy the machine is. The
 * only limit is the one of a whole file (loading.mjs), which ends a process by SIGTERM: then each pending wait reports its
 * event and is rejected, so that the tests still undo their changes.
 */
type Wait = { what: string | (() => string); since: number; reject(error: Error): void };

const left = new Set<Wait>();
/** Polling may cost a processor more than the test itself: the pauses grow up to this. */
const PAUSE_MILLISECONDS_MAX = 100;
/** The time that tests have to undo their changes after the process got its signal. */
const UNDO_MILLISECONDS_MAX = 60_000;

/** Resolves or rejects like `promise`. Until then it is listed as pending. */
export async function waitFor<T>(what: Wait['what'], promise: Promise<T>): Promise<T> {
  const { promise: told, reject } = Promise.withResolvers<never>();
  const wait = { what, since: performance.now(), reject };
  left.add(wait);
  try {
    return await Promise.race([promise, told]);
  } finally {
    left.delete(wait);
  }
}

/** Polls `look` until it returns a value, and resolves with that. */
export function until<T>(
  what: Wait['what'],
  look: () => Promise<T | undefined | false> | T | undefined | false,
): Promise<T> {
  let isOver = false;
  const poll = async (): Promise<T> => {
    for (let milliseconds = 1; ; milliseconds = Math.min(2 * milliseconds, PAUSE_MILLISECONDS_MAX)) {
      const found = await look();
      if (isOver) return undefined as never; // It was already rejected.
      if (found !== undefined && found !== false) return found;
      await pause(milliseconds);
    }
  };
  return waitFor(what, poll()).finally(() => {
    isOver = true;
  });
}

/**
 * Does something that has to be done before a deadline, `seconds` ahead. On a busy machine that may pass before: then it was too
 * near, and is twice as far the next time.
 */
export async function inTime<T>(act: (seconds: number) => Promise<T>): Promise<T> {
  for (let seconds = 5; ; seconds *= 2) {
    const end = Date.now() + seconds * 1000;
    try {
      return await act(seconds);
    } catch (error) {
      if (Date.now() < end) throw error;
    }
  }
}

/** A limit that is never reached, for calls that require one: the duration depends on how busy the machine is. */
export const UNHURRIED_MILLISECONDS = 600_000;

/** Returns whether a program has ended, by itself or by a signal. */
export const hasEnded = ({ exitCode, signalCode }: ChildProcess): boolean => exitCode !== null || signalCode !== null;

/** Polls until a program that was just started serves. Rejects with `log()` if it ends instead. */
export const untilServes = <T>(
  program: ChildProcess,
  log: () => string,
  look: () => Promise<T | undefined | false>,
): Promise<T> =>
  until(`${program.spawnfile} serves`, async () => {
    const found = await look();
    if (!found && hasEnded(program))
      throw new Error(`${program.spawnfile} ended with ${program.signalCode ?? program.exitCode}: ${log()}`);
    return found;
  });

/**
 * Lets real time pass. For a span that must pass at least, or that makes a race likely: never for one within which something
 * is expected to have happened.
 */
export const pause = (milliseconds: number): Promise<void> =>
  new Promise((resolve) => setTimeout(resolve, milliseconds));

function messageOf({ what, since }: Wait): string {
  const seconds = Math.round((performance.now() - since) / 1000);
  return `waited ${seconds} s in vain until ${typeof what === 'string' ? what : what()}`;
}

function sayLeft(): void {
  for (const wait of left) writeSync(2, `${messageOf(wait)}\n`);
}

process.on('exit', (code) => {
  if (code) sayLeft();
});
process.once('SIGTERM', () => {
  process.exitCode = 1;
  sayLeft();
  // A file whose tests are all over is kept alive by one of these.
  writeSync(2, `The process still has: ${process.getActiveResourcesInfo().join(', ')}\n`);
  for (const wait of left) wait.reject(new Error(messageOf(wait)));
  // Without this listener, the signal ends the process.
  setTimeout(() => process.kill(process.pid, 'SIGTERM'), UNDO_MILLISECONDS_MAX).unref();
});
