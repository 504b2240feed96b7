import * as v from 'valibot';
import type { FileEntry, FileFacts } from '../compute/machine/files.ts';
import { LOG_BYTES_MAX, type Process } from '../compute/machine/process.ts';
import { Command, EnvironmentVariables, WorkingDirectory, withoutNul } from './compute.ts';
import { Id, Time, text, wholeNumber } from './parts.ts';

/** Files and background processes of a lease. */

export const CONTENT_BYTES_MAX = 8 * 1024 * 1024;
const LOG_PART_BYTES_MAX = 1024 * 1024;

const Path = v.pipe(text(1, 4096), withoutNul('a path, absolute or from the directory in which commands start'));
const count = v.pipe(v.number(), v.integer());

export const DownloadRequest = v.object({
  id: Id,
  path: Path,
  offset: v.optional(wholeNumber(0, Number.MAX_SAFE_INTEGER), 0),
  length: v.optional(
    v.pipe(
      wholeNumber(1, CONTENT_BYTES_MAX),
      v.description('bytes from the offset on; without it all of them, of which there may be at most 8 MiB'),
    ),
  ),
});
export const DownloadResult = v.object({
  id: v.string(),
  path: v.string(),
  offset: count,
  bytes: v.pipe(count, v.description('of the content; fewer than asked for at the end of the file')),
  size: v.pipe(count, v.description('bytes of the whole file')),
  modified: Time,
  sha256: v.pipe(v.string(), v.description('of the content')),
  content_base64: v.string(),
});

const FACTS = {
  type: v.picklist(['file', 'directory', 'link', 'fifo', 'socket', 'device', 'other']),
  size: count,
  mode: v.pipe(v.string(), v.description('permissions in octal')),
  modified: Time,
};
export const FilesRequest = v.object({ id: Id, path: v.optional(Path, '.') });
export const FilesResult = v.object({
  id: v.string(),
  path: v.string(),
  ...FACTS,
  entries: v.optional(
    v.pipe(
      v.array(v.object({ name: v.string(), ...FACTS })),
      v.description('there where the path is, or leads to, a directory; by name'),
    ),
  ),
  truncated: v.optional(v.pipe(v.boolean(), v.description('whether there are more than the 10,000 entries listed'))),
});

/** Builds the description of a file. */
export const factsOf = ({ type, size, mode, modified }: FileFacts) => ({
  type,
  size,
  mode: mode.toString(8).padStart(4, '0'),
  modified,
});
/** Builds an entry of a listing. */
export const entryOf = ({ name, ...facts }: FileEntry) => ({ name: name.toString(), ...factsOf(facts) });

const ProcessId = text(1, 200);
export const ProcessStartRequest = v.object({
  id: Id,
  command: Command,
  cwd: WorkingDirectory,
  env: EnvironmentVariables,
});
export const ProcessRequest = v.object({ id: Id, process_id: ProcessId });
export const ProcessLogRequest = v.object({
  id: Id,
  process_id: ProcessId,
  offset: v.optional(
    v.pipe(
      wholeNumber(-LOG_BYTES_MAX, LOG_BYTES_MAX),
      v.description('bytes from the beginning of the log, or below 0 from its end'),
    ),
    0,
  ),
  length: v.optional(wholeNumber(1, LOG_PART_BYTES_MAX), LOG_PART_BYTES_MAX),
  timeout: v.optional(
    v.pipe(wholeNumber(1, 3600), v.description('seconds after which a log that is followed ends without its process')),
    3600,
  ),
});

const PROCESS = {
  id: v.string(),
  process_id: v.string(),
  command: v.pipe(v.string(), v.description('its first 1,000 characters')),
  status: v.picklist(['running', 'ended']),
  exit_code: v.nullable(
    v.pipe(count, v.description('null while it runs, and where nobody was left to note it; 128 + n after signal n')),
  ),
  started_at: Time,
  ended_at: v.nullable(Time),
  log_bytes: count,
  log_truncated: v.pipe(v.boolean(), v.description('whether there was more output than the 64 MiB that are kept')),
  log_path: v.pipe(v.string(), v.description('the file of its log, on the resource')),
};
export const ProcessRecord = v.object(PROCESS);
export const ProcessList = v.object({ id: v.string(), processes: v.array(ProcessRecord) });
const LogOffset = v.pipe(count, v.description('bytes from the beginning of the log'));
export const ProcessLog = v.object({ ...PROCESS, offset: LogOffset, next_offset: LogOffset, output: v.string() });

/** Builds the record of a process of a resource. */
export const processOf = (id: string, it: Process): v.InferOutput<typeof ProcessRecord> => ({
  id,
  process_id: it.id,
  command: it.command,
  status: it.isRunning ? 'running' : 'ended',
  exit_code: it.exitCode,
  started_at: it.startedAt,
  ended_at: it.endedAt,
  log_bytes: it.logBytes,
  log_truncated: it.logTruncated,
  log_path: it.logPath,
});
