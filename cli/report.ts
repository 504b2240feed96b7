import type { CommanderError } from 'commander';
import { REFUSALS, Refusal, type RefusalCode } from '../src/base/refusal.ts';
import { visible } from '../src/base/visible.ts';
import { UntrustedStorageError } from '../src/books/storage.ts';
import { ConfigurationFault } from '../src/config/fault.ts';
import { OpenToOthersError } from '../src/config/strict-modes.ts';
import { LockedError, NoDatabaseError, OtherOwnerError } from '../src/files/data-directory.ts';
import { paint } from './terminal.ts';

/** Errors of a data directory or of settings that an operator has to put right. */
const REFUSED = [OtherOwnerError, OpenToOthersError, UntrustedStorageError];

/** Exit 0 ok · 1 failed · 2 usage · 3 not found · 4 conflict or refused · 5 unavailable (design, section 4). */
function exitCodeOf(error: unknown): number {
  if (error instanceof NoDatabaseError) return 3;
  if (error instanceof LockedError) return 5;
  if (REFUSED.some((it) => error instanceof it)) return 4;
  if (!(error instanceof Refusal)) return 1;
  const { status } = REFUSALS[error.code];
  if (status === 400) return 2;
  if (status === 404) return 3;
  if (status < 500) return 4;
  return status === 500 ? 1 : 5;
}

/** Returns the code of an error in JSON: that of the refusal which has the same exit code. */
function codeOf(error: unknown): string {
  if (error instanceof Refusal) return error.code;
  if (error instanceof ConfigurationFault) return 'configuration';
  const codes: Record<number, RefusalCode> = { 3: 'not_found', 4: 'conflict', 5: 'read_only' };
  return codes[exitCodeOf(error)] ?? 'failed';
}

/** Returns the original error: on a full disk closing fails as well, and only the first error is worth a report. */
function firstOf(error: unknown): unknown {
  return error instanceof SuppressedError ? firstOf(error.suppressed) : error;
}

/** Reports an error on stderr, or as JSON on stdout with `json`, and sets the exit code. */
export function reportFailure(thrown: unknown, json: boolean): void {
  const error = firstOf(thrown);
  const message = error instanceof Error ? error.message : String(error);
  if (json) print(JSON.stringify({ error: { code: codeOf(error), message } }));
  else say(message);

  process.exitCode = exitCodeOf(error);
}

/** Sets exit code 2 for a usage error, and with `json` prints it as JSON on stdout. Help exits with 0. */
export function reportUsage({ exitCode, code, message }: CommanderError, json: boolean): void {
  process.exitCode = exitCode === 0 ? 0 : 2;
  if (!json || exitCode === 0) return;
  const text = code === 'commander.help' ? 'A command is missing. Add --help for the full help.' : message;
  print(JSON.stringify({ error: { code: 'usage', message: text.replace(/^error: /, '') } }));
}

/** Prints data on stdout. Control characters in outside text (names, messages of engines or model servers) are escaped. */
export function print(text: string): void {
  process.stdout.write(`${visible(text)}\n`);
}

/** Prints text for people on stdout: like `print`, and with its tones (`toned`) as colours where stdout is a terminal. */
export function show(text: string): void {
  process.stdout.write(`${paint(visible(text), process.stdout)}\n`);
}

/** Prints one of many lines on stdout with back-pressure. Returns false when the reader is gone. */
export async function printLine(text: string): Promise<boolean> {
  const { stdout } = process;
  if (!stdout.errored && !stdout.write(`${visible(text)}\n`))
    await new Promise<void>((resolve) => {
      const go = () => {
        stdout.off('drain', go).off('close', go);
        resolve();
      };
      stdout.on('drain', go).on('close', go);
    });
  return !stdout.errored;
}

/** Prints a message on stderr, with its tones as colours where stderr is a terminal. */
export function say(text: string): void {
  process.stderr.write(`${paint(visible(text), process.stderr)}\n`);
}
