import { createHash } from 'node:crypto';
import { posix } from 'node:path';
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import type { Context } from 'hono';
import { refuseFault } from '../../base/health.ts';
import { Refusal } from '../../base/refusal.ts';
import { homeOf, openFile } from '../../compute/machine/entries.ts';
import { openSmallFiles, type SmallFiles } from '../../compute/machine/small-files.ts';
import { type Content, storeFile, TRANSFER_BYTES, TRANSFER_SECONDS } from '../../compute/machine/streamed.ts';
import { allLiveSandboxes } from '../../ledger/sandbox.ts';
import { collectPieces } from '../../net/pieces.ts';
import { mediaTypeOf, readQuery, streamBody } from '../body.ts';
import { callerNetwork } from '../caller.ts';
import type { Env, HttpApp } from '../endpoint.ts';
import { openEventStream } from '../event-stream.ts';
import { cutOff, onceClosed } from '../exchange.ts';
import { admitTo, type Opened, openSandbox, type Running, refuseStranger, runningOf, sandboxWith } from './envd.ts';
import { guestUncertain, headersFor } from './errors.ts';
import { boundaryOf, partsOf } from './multipart.ts';
import { callInto } from './rpc.ts';
import { isToken, sandboxToken } from './tokens.ts';

/** The files of a sandbox as bytes: `GET` and `POST /files`, by the sandbox's token or by a signed address. */

const BYTES = 'application/octet-stream';
const FORM = 'multipart/form-data';
const SECONDS = 60;
/** The most files of one form: each has an entry in the answer. */
const FILE_COUNT_MAX = 10_000;
/** The memory of an entry in the answer, beside its names. */
const NOTE_BYTES = 256;
/** Files up to this size are held, and share a session. */
const SMALL_BYTES_MAX = 64 * 1024;
/** The content is a tenant's, on Purser's own origin: no browser may run or render it. */
const HARMLESS = {
  'content-type': BYTES,
  'content-disposition': 'attachment',
  'content-security-policy': 'sandbox',
  'x-content-type-options': 'nosniff',
};

type FileAction = 'read' | 'write';
/** Returns the signature of an address, as E2B's SDKs compute it from a sandbox's token. */
function signatureOf(query: Record<string, string>, operation: FileAction, token: string): string {
  const { path = '', username = '', signature_expiration: expiration } = query;
  const parts = [path, operation, username, token, ...(expiration === undefined ? [] : [expiration])];
  return `v1_${createHash('sha256').update(parts.join(':')).digest('base64').replaceAll('=', '')}`;
}

const SIGNATURE = /^v1_[0-9A-Za-z+/]{43}$/;

/** Returns the sandbox that a signed address is of. The address does not name it, so each that lives is tried. */
function bySignature(app: HttpApp, c: Context<Env>, operation: FileAction): Opened {
  refuseFault(app.health);
  const query = readQuery(c.env.incoming);
  const { signature, signature_expiration: expiration, username = '' } = query;
  if (signature === undefined) return refuseStranger(app, c, undefined);
  app.limits.failedAuth.check(callerNetwork(app, c.env.incoming)); // Each attempt costs a hash for each sandbox.
  // A colon in the name of a user could stand for one of those between the signed values: another path would have the same text.
  if (!SIGNATURE.test(signature) || username.includes(':')) return refuseStranger(app, c, signature);
  for (const { id, masterKeyId } of allLiveSandboxes(app.ledger.read)) {
    const token = sandboxToken(app, { masterKeyId }, { id }, 'envd');
    if (token === undefined || !isToken(signature, signatureOf(query, operation, token))) continue;
    if (expiration !== undefined && !(Number(expiration) > app.clock.now()))
      throw new Refusal('unauthenticated', 'The signature of this address is over.');
    return admitTo(app, c, sandboxWith(app, id.slice('res_'.length)) as Opened);
  }
  return refuseStranger(app, c, signature);
}

/** Creates the handler of `GET` or `POST /files`: with the sandbox's token, or at the root by signature. */
export const serveFiles = (app: HttpApp, isAtRoot: boolean) => (c: Context<Env>) => {
  const operation = c.req.method === 'POST' ? 'write' : 'read';
  const opened = isAtRoot ? bySignature(app, c, operation) : openSandbox(app, c, 'envd');
  const running = runningOf(app, opened);
  return operation === 'write' ? write(app, c, running) : read(app, c, running);
};

/** Sends a file as it is read. A file that breaks off ends the connection: a part must not look like the whole. */
async function read(app: HttpApp, c: Context<Env>, running: Running): Promise<Response> {
  const { path = '' } = readQuery(c.env.incoming);
  const { backend, ref, resource } = running;
  const share = app.memory.open(app.tenantOf(resource.walletId).treeId);
  const outgoing = c.env.outgoing as Parameters<typeof openEventStream>[0];
  const events = openEventStream(outgoing, () => headersFor(c), app.stallMilliseconds);
  try {
    share.take(TRANSFER_BYTES);
    await callInto({ app }, running, TRANSFER_SECONDS, async () => {
      const run = await openFile(backend, ref, path, TRANSFER_SECONDS);
      let isOver = false;
      onceClosed(c, () => {
        if (!isOver) run.kill();
      });
      events.begin(HARMLESS);
      for await (const piece of run.stdout) await events.write(piece as Buffer);
      const code = await run.ended;
      isOver = true;
      if (code !== 0) throw new Error('the file broke off');
    });
    events.end();
  } catch (error) {
    if (!events.hasBegun()) throw error;
    cutOff(c.env.incoming);
  } finally {
    share.close();
  }
  return RESPONSE_ALREADY_SENT;
}

/** Writes the files of a request as they come, each whole or not at all. */
async function write(app: HttpApp, c: Context<Env>, running: Running): Promise<Response> {
  const { incoming } = c.env;
  const { path: named } = readQuery(incoming);
  const { backend, ref, resource } = running;
  const type = mediaTypeOf(incoming);
  const encoding = incoming.headers['content-encoding'] ?? 'identity';
  if (![BYTES, FORM].includes(type) || encoding !== 'identity')
    throw new Refusal('unsupported_media_type', `Send the files as ${FORM}, or one as ${BYTES}, not compressed.`);
  const share = app.memory.open(app.tenantOf(resource.walletId).treeId);
  const written: object[] = [];
  let body: ReturnType<typeof streamBody> | undefined;
  let files: SmallFiles | undefined;
  try {
    share.take(TRANSFER_BYTES);
    body = streamBody(incoming, app.stallMilliseconds, share);
    const streamed = body;
    let home: string | undefined;
    const pathOf = async (asked: string | undefined): Promise<string> => {
      if (!asked) throw new Refusal('invalid_request', 'path: is required.');
      if (!asked.startsWith('/')) home ??= await callInto({ app }, running, SECONDS, () => homeOf(backend, ref));
      return posix.resolve(home ?? '/', asked.replace(/^~(?=\/|$)/, home ?? ''));
    };
    // A sandbox that has ended takes no more.
    const confirm = () => void runningOf(app, running);
    const note = (path: string) => {
      share.take(NOTE_BYTES + 2 * path.length);
      written.push({ path, name: posix.basename(path), type: 'file' });
    };
    const store = async (path: string, content: { next(): Promise<Buffer | undefined> }) => {
      await callInto({ app }, running, TRANSFER_SECONDS, () => storeFile(backend, ref, { path, content, confirm }));
      note(path);
    };
    if (type === BYTES) await store(await pathOf(named), streamed);
    else
      for await (const part of partsOf(streamed, boundaryOf(incoming.headers['content-type'] ?? ''))) {
        if (part.name !== 'file') throw new Refusal('invalid_request', 'The body has a part that is not named "file".');
        if (named !== undefined && written.length) throw new Refusal('invalid_request', 'path: is of one file alone.');
        if (written.length >= FILE_COUNT_MAX)
          throw new Refusal('payload_too_large', `At most ${FILE_COUNT_MAX} files are written by one request.`);
        const path = await pathOf(named ?? part.filename);
        const { small, content } = await beginningOf(part);
        if (named !== undefined || !small) {
          await store(path, content);
          continue;
        }
        files ??= await callInto({ app }, running, SECONDS, () => openSmallFiles(backend, ref));
        const session = files;
        confirm();
        await callInto({ app }, running, SECONDS, () => session.store(path, small));
        note(path);
      }
    return new Response(JSON.stringify(written), { status: 200, headers: headersFor(c) });
  } catch (error) {
    // A server that stops refuses the rest of a form, and its 503 would mean that nothing was written.
    const isCutOff = error instanceof Refusal && error.code === 'read_only' && written.length > 0;
    throw isCutOff ? guestUncertain(error) : error;
  } finally {
    files?.close();
    body?.leave();
    share.close();
  }
}

/** Reads a content to its end if that comes soon: then it is `small`. Returns the whole of it in any case. */
async function beginningOf(content: Content): Promise<{ small: Buffer | undefined; content: Content }> {
  const pieces = collectPieces();
  let first: Buffer | undefined;
  const next = async () => {
    const piece = first;
    first = undefined;
    return piece;
  };
  while (pieces.length() <= SMALL_BYTES_MAX) {
    const piece = await content.next();
    if (piece) pieces.add(piece);
    else {
      first = pieces.whole();
      return { small: first, content: { next } };
    }
  }
  first = pieces.whole();
  return { small: undefined, content: { next: async () => (await next()) ?? content.next() } };
}
