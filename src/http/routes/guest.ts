import { hash } from 'node:crypto';
import type * as v from 'valibot';
import { Refusal } from '../../base/refusal.ts';
import type { ExecResult as CommandResult } from '../../compute/backend.ts';
import { type CommandOrder, runCommand, UNREAD_SECONDS } from '../../compute/machine/command.ts';
import { listFiles, readPart } from '../../compute/machine/files.ts';
import { refusePath } from '../../compute/machine/shell.ts';
import { readTree, storeFile, storeTree, TRANSFER_BYTES, TRANSFER_SECONDS } from '../../compute/machine/streamed.ts';
import { ExecRequest, ExecResult, UploadQuery, UploadRequest, UploadResult } from '../../wire/compute.ts';
import {
  CONTENT_BYTES_MAX,
  DownloadRequest,
  DownloadResult,
  entryOf,
  FilesRequest,
  FilesResult,
  factsOf,
} from '../../wire/guest.ts';
import { type Call, endpoint, type HttpApp } from '../endpoint.ts';
import { accepts, errorEvent, namedEvents, textOf } from '../named-events.ts';
import { active, ID } from './compute.ts';
import { callGuest, countOutput, explainFailure, GUEST_REFUSALS, wasCutShort } from './guest-call.ts';

/** Commands and files in a lease. */

const [BYTES, TAR] = ['application/octet-stream', 'application/x-tar'] as const;
const UPLOAD_BYTES_MAX = 12 * 1024 * 1024;
/** Standard output and standard error of a command are each truncated at 1 MiB (design, section 3). */
const STREAM_BYTES_MAX = 1024 * 1024;
/** Limits one upload, one part of a download, one listing. */
const FILE_SECONDS = 120;

/** Returns the standard input that a request gives, if any. */
function inputOf({ stdin, stdin_base64: base64 }: { stdin?: string | undefined; stdin_base64?: string | undefined }) {
  if (stdin !== undefined && base64 !== undefined)
    throw new Refusal('invalid_request', 'stdin_base64: leave it out where stdin is given.');
  if (base64 !== undefined) return Buffer.from(base64, 'base64');
  return stdin === undefined ? undefined : Buffer.from(stdin);
}

export const execCompute = endpoint({
  summary: 'Run a command inside a resource, with its output at the end or as it comes',
  scope: 'wallet',
  body: ExecRequest,
  answer: ExecResult,
  otherAnswers: {
    'text/event-stream':
      'the events `stdout` and `stderr` with a `text` each, as the output comes, then `exit` with the members of the JSON answer, or `error`; where the request accepts no JSON',
  },
  refusals: GUEST_REFUSALS,
  example: {
    body: { id: ID, command: 'uname -s', timeout: 60 },
    answer: {
      id: ID,
      exit_code: 0,
      stdout: 'Linux\n',
      stderr: '',
      stdout_truncated: false,
      stderr_truncated: false,
      timed_out: false,
      duration_ms: 12,
    },
  },
  run(app, { principal: { wallet }, body, headers, whenGone }) {
    const { id, command, timeout: timeoutSeconds, cwd, env } = body;
    const input = inputOf(body);
    const { resource, backend, ref } = active(app, wallet, id);
    const isStream = accepts(headers, 'text/event-stream');
    const started = performance.now();
    const { budget, letGo } = countOutput(app.memory.open(app.tenantOf(wallet.id).treeId));
    whenGone(letGo);
    const order = { command, timeoutSeconds, streamBytesMax: STREAM_BYTES_MAX, budget };

    async function exec(more: Partial<CommandOrder> = {}, unreadSeconds = 0) {
      const call = () => runCommand(backend, ref, { ...order, input, cwd, env, ...more });
      const it = await callGuest(app, resource, timeoutSeconds + unreadSeconds, call)
        .finally(letGo)
        .catch(async (error) => {
          throw more.signal?.aborted ? error : await explainFailure(app, id, error);
        });
      return answerOf(it, !more.signal?.aborted && (await wasCutShort(app, { id, backend, ref }, it)));
    }
    const answerOf = (it: CommandResult, wasCut: boolean) => ({
      id,
      exit_code: it.exitCode,
      stdout: it.stdout.toString('utf8'),
      stderr: it.stderr.toString('utf8'),
      stdout_truncated: it.stdoutTruncated,
      stderr_truncated: it.stderrTruncated,
      timed_out: it.timedOut,
      ...(wasCut ? { ended_by: 'lease' as const } : {}),
      duration_ms: Math.round(performance.now() - started),
    });
    if (!isStream) return exec().then((answer) => ({ body: answer }));

    const gone = new AbortController();
    whenGone(() => gone.abort());
    return {
      errorEvent,
      async stream(stream) {
        const events = namedEvents(stream);
        const [stdout, stderr] = (['stdout', 'stderr'] as const).map((name) =>
          textOf((text) => events.send(name, { text })),
        ) as [ReturnType<typeof textOf>, ReturnType<typeof textOf>];
        try {
          const answer = await exec(
            { onBegin: events.begin, onOutput: { stdout: stdout.add, stderr: stderr.add }, signal: gone.signal },
            UNREAD_SECONDS,
          );
          await stdout.end();
          await stderr.end();
          await events.send('exit', answer);
        } catch (error) {
          if (!gone.signal.aborted) throw error; // The client has gone, so the error has no recipient.
        } finally {
          events.end();
        }
      },
    };
  },
});

/** Receives a file, or an archive of a tree, of any length. */
async function receive(
  app: HttpApp,
  {
    principal,
    query: { id, path },
    streamed,
    share,
  }: Pick<Call<'wallet', unknown>, 'principal' | 'query' | 'streamed' | 'share'>,
): Promise<v.InferOutput<typeof UploadResult>> {
  const isTree = streamed.mediaType === TAR;
  const { resource, backend, ref } = active(app, principal.wallet, id as string);
  share.take(TRANSFER_BYTES);
  const order = { path: path as string, content: streamed, confirm: streamed.refuseRevoked };
  const store = async () =>
    isTree ? storeTree(backend, ref, { ...order, take: share.tryTake }) : storeFile(backend, ref, order);
  try {
    const stored = await callGuest(app, resource, TRANSFER_SECONDS, store);
    return { id: resource.id, path: order.path, ...stored };
  } catch (error) {
    throw await explainFailure(app, resource.id, error);
  } finally {
    streamed.leave();
  }
}

export const uploadCompute = endpoint({
  summary: 'Upload a file of at most 8 MiB to a resource; as bytes a file, and as an archive a tree, of any length',
  scope: 'wallet',
  body: UploadRequest,
  streams: {
    [BYTES]: { description: 'the content of a file, whole or not at all there', query: UploadQuery },
    [TAR]: {
      description:
        'a tar archive of a tree, which is unpacked in the directory `path` as it comes; a refusal says what was written',
      query: UploadQuery,
    },
  },
  bodyBytesMax: UPLOAD_BYTES_MAX,
  valuesMax: 1000,
  answer: UploadResult,
  refusals: GUEST_REFUSALS,
  example: {
    body: { id: ID, path: 'work/hello.txt', content_base64: 'aGVsbG8K' },
    answer: {
      id: ID,
      path: 'work/hello.txt',
      bytes: 6,
      sha256: '5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03',
    },
  },
  async run(app, { principal, body, share, query, streamed }) {
    if (streamed) return { body: await receive(app, { principal, query, streamed, share }) };
    const content = Buffer.from(body.content_base64, 'base64');
    if (content.length > CONTENT_BYTES_MAX)
      throw new Refusal('payload_too_large', `At most ${CONTENT_BYTES_MAX} bytes of content may be uploaded.`);
    refusePath(body.path); // Checked first: a connection to the machine may take a while.
    const { resource, backend, ref } = active(app, principal.wallet, body.id);
    share.take(content.length);
    await callGuest(app, resource, FILE_SECONDS, () => backend.guest.upload(ref, body.path, content)).catch(
      async (error) => {
        throw await explainFailure(app, body.id, error);
      },
    );
    return { body: { id: body.id, path: body.path, bytes: content.length, sha256: hash('sha256', content, 'hex') } };
  },
});

const UPLOADED = { size: 6, modified: 1795000300 };

export const downloadCompute = endpoint({
  summary: 'Download a file of a resource, or a part of at most 8 MiB of one',
  scope: 'wallet',
  body: DownloadRequest,
  answer: DownloadResult,
  otherAnswers: {
    [BYTES]:
      'the bytes themselves, and the size of the whole file in X-Purser-File-Size; where the request accepts no JSON',
    [TAR]: 'a directory as a tar archive, of at most `limits.download_bytes`; where the request accepts no JSON',
  },
  refusals: GUEST_REFUSALS,
  example: {
    body: { id: ID, path: 'work/hello.txt' },
    answer: {
      id: ID,
      path: 'work/hello.txt',
      offset: 0,
      bytes: 6,
      ...UPLOADED,
      sha256: '5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03',
      content_base64: 'aGVsbG8K',
    },
  },
  async run(app, { principal, body: { id, path, offset, length }, headers, share, whenGone }) {
    const { resource, backend, ref } = active(app, principal.wallet, id);
    if (accepts(headers, TAR)) {
      const gone = new AbortController();
      whenGone(() => gone.abort());
      const bytesMax = app.config.limits.download_bytes;
      return {
        breaksOff: true,
        async stream(stream, own) {
          own.take(TRANSFER_BYTES);
          const begin = () => stream.begin({ 'content-type': TAR });
          const order = { path, bytesMax, begin, send: stream.write, signal: gone.signal };
          const read = () => readTree(backend, ref, order);
          await callGuest(app, resource, TRANSFER_SECONDS, read).catch(async (error) => {
            if (!gone.signal.aborted) throw await explainFailure(app, id, error); // Else the error has no recipient.
          });
        },
      };
    }
    const order = { path, offset, length, bytesMax: CONTENT_BYTES_MAX, take: share.tryTake };
    const read = () => readPart(backend, ref, order);
    const { bytes, size, modified } = await callGuest(app, resource, FILE_SECONDS, read).catch(async (error) => {
      throw await explainFailure(app, id, error);
    });
    if (accepts(headers, BYTES)) {
      const own = { 'content-type': BYTES, 'x-purser-file-size': String(size) };
      return { body: bytes, headers: own };
    }
    share.take(2 * bytes.length); // Once as base64, and once more in the answer.
    const sha256 = hash('sha256', bytes, 'hex');
    const content = bytes.toString('base64');
    return { body: { id, path, offset, bytes: bytes.length, size, modified, sha256, content_base64: content } };
  },
});

export const listComputeFiles = endpoint({
  summary: 'Say what is at a path of a resource, and list it where it is a directory',
  scope: 'wallet',
  body: FilesRequest,
  answer: FilesResult,
  refusals: GUEST_REFUSALS,
  example: {
    body: { id: ID, path: 'work' },
    answer: {
      id: ID,
      path: 'work',
      ...{ type: 'directory', size: 4096, mode: '0755', modified: 1795000300 },
      entries: [{ name: 'hello.txt', type: 'file', mode: '0644', ...UPLOADED }],
      truncated: false,
    },
  },
  async run(app, { principal, body: { id, path }, share }) {
    const { resource, backend, ref } = active(app, principal.wallet, id);
    const list = () => listFiles(backend, ref, { path, take: share.tryTake });
    const { facts, entries, isTruncated } = await callGuest(app, resource, FILE_SECONDS, list).catch(async (error) => {
      throw await explainFailure(app, id, error);
    });
    const listing = entries && { entries: entries.map(entryOf), truncated: isTruncated };
    return { body: { id, path, ...factsOf(facts), ...listing } };
  },
});
