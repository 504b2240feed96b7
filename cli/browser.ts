import { spawn } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { inheritedEnvironment } from '../src/config/config.ts';

const OPENER = 'xdg-open';
const LOOK_MILLISECONDS = 500;
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
/** The exit code of a program that Ctrl-C ended, as shells report it. */
const EXIT_INTERRUPTED = 130;

/** Returns whether a browser can be opened: on a terminal of a desktop. */
export function isDesktop(): boolean {
  const { DISPLAY, WAYLAND_DISPLAY } = inheritedEnvironment();
  return Boolean(process.stdout.isTTY && (DISPLAY || WAYLAND_DISPLAY));
}

/**
 * Opens a link in the browser of the desktop, by way of a private file that leads there: every user of the machine may read the
 * arguments of a program, and the link signs in. The file exists until `isWaiting` returns that the link was used or is over, or a
 * signal ends the waiting. Resolves with false where no browser could be opened.
 */
export async function openInBrowser(link: string, file: string, isWaiting: () => Promise<boolean>): Promise<boolean> {
  const ended = new AbortController();
  const end = () => {
    process.exitCode = EXIT_INTERRUPTED;
    ended.abort();
  };
  for (const signal of SIGNALS) process.once(signal, end);
  rmSync(file, { force: true });
  try {
    writeFileSync(file, pageTo(link), { flag: 'wx', mode: 0o600 });
    if (!(await run(file))) return false;
    while (!ended.signal.aborted && (await isWaiting()))
      await sleep(LOOK_MILLISECONDS, undefined, { signal: ended.signal }).catch(() => {});
    return true;
  } finally {
    rmSync(file, { force: true });
    for (const signal of SIGNALS) process.off(signal, end);
  }
}

/** Returns a page that leads to the link at once. No character of the link has a meaning in HTML. */
const pageTo = (link: string) =>
  `<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0;url=${link}"><title>Purser</title><p><a href="${link}">Open Purser</a>\n`;

/** Resolves with whether the opener has found a browser. */
function run(file: string): Promise<boolean> {
  return new Promise((resolve) => {
    const child = spawn(OPENER, [file], { stdio: 'ignore', detached: true });
    child.once('error', () => resolve(false)); // The opener does not exist.
    child.once('exit', (code) => resolve(code === 0));
  });
}
