/**
 * The client of a Purser wallet, for the program that spends it.
 *
 *     import { wallet } from './purser.mjs';
 *     const w = wallet(); // Reads SVC_BROKER_URL and SVC_BROKER_TOKEN.
 *     await w.rent({ cpus: 2, memoryGib: 4, minutes: 10 }, async (m) => {
 *       await m.copy('project', 'project');
 *       console.log((await m.run('python3 project/main.py')).stdout);
 *     });
 *
 * One file, Node 20 or newer, no dependency. Money is an exact string. A call that costs money has a key, with which it is
 * repeated until its outcome is known: it is paid once. `run` and `start` are never repeated once they were sent.
 */
import { randomUUID } from 'node:crypto';
import { createReadStream, createWriteStream } from 'node:fs';
import * as fs from 'node:fs/promises';
import http from 'node:http';
import https from 'node:https';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { StringDecoder } from 'node:string_decoder';

export const version = '0.2.0';

/** Milliseconds without a byte after which an answer is lost; a stream says something every 15 seconds. */
const TIMEOUT = 75_000;
/** Seconds for which a call is repeated while its outcome is not known. */
const PATIENCE = 600;
const PAUSE_MAX = 20;
const PART = 8 * 1024 * 1024;
const [JSON_TYPE, BYTES, TAR, EVENTS] = [
  'application/json',
  'application/octet-stream',
  'application/x-tar',
  'text/event-stream',
];
/** Refusals after which the same request may be sent again: nothing was done, or nobody knows and the key tells. */
const TEMPORARY = new Set([
  'rate_limited',
  'read_only',
  'request_timeout',
  'idempotency_in_progress',
  'operation_uncertain',
]);
/** Refusals of an offer after which another one may have room. Nothing was charged. */
const ELSEWHERE = new Set([
  'capacity_unavailable',
  'provider_unavailable',
  'offer_not_found',
  'lease_limit_exceeded',
  'invalid_request',
]);

/**
 * A refusal of Purser. `code` is for programs, `status` the HTTP status, `requestId` is in the server's log. `key` is the
 * Idempotency-Key of a call that costs money: where its outcome is not known, repeat it only with that.
 */
export class PurserError extends Error {
  key = undefined;
  constructor(code, message, { status = 0, requestId, retryAfter, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = this.constructor.name;
    this.code = code;
    this.status = status;
    this.requestId = requestId;
    this.retryAfter = retryAfter;
  }
}
/** 402: the wallet cannot cover the call. */
export class InsufficientFunds extends PurserError {}
/** 402 `funds_held`: the wallet could cover it once what is in flight has settled. Try again later. */
export class FundsHeld extends InsufficientFunds {}
/** The outcome of a paid call is still not known. */
export class OperationUncertain extends PurserError {}
/** No answer, or a part of one: what was asked may have been done. */
export class ConnectionLost extends PurserError {}

const lost = (reason, cause) => new ConnectionLost('connection_lost', `The answer was lost: ${reason}`, { cause });

function refusalOf(status, body, headers) {
  const code = body?.error?.code;
  if (typeof code !== 'string') return lost(`the answer ${status} is none of Purser's`);
  const Kind =
    { funds_held: FundsHeld, operation_uncertain: OperationUncertain }[code] ??
    (status === 402 ? InsufficientFunds : PurserError);
  const retryAfter = Number(headers['retry-after']);
  return new Kind(code, String(body.error.message ?? code), {
    status,
    requestId: body.request_id,
    retryAfter: Number.isFinite(retryAfter) ? retryAfter : undefined,
  });
}

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const monotonic = () => performance.now() / 1000;
const newKey = () => `sdk-${randomUUID()}`;
const secondsOf = (minutes) => Math.floor(minutes * 60);

/** Sends requests with one token. */
class Client {
  constructor(url, token, patience) {
    this.url = url.replace(/\/+$/, '');
    this.token = token;
    this.patience = patience;
    this.base = new URL(this.url);
  }

  /** Sends one request. The answer has a status and headers; its body is still to be read. */
  open(method, target, { body, headers, timeout }) {
    return new Promise((resolve, reject) => {
      const { request } = this.base.protocol === 'https:' ? https : http;
      const asked = request(`${this.url}${target}`, {
        method,
        agent: false, // A connection of its own: an idle one may be closed just as it is used.
        headers: { authorization: `Bearer ${this.token}`, ...headers },
      });
      asked.setTimeout(timeout, () => asked.destroy(new Error(`nothing came for ${timeout / 1000} seconds`)));
      let failed; // What cannot be read here: it is no lost answer, and would fail again.
      const fail = (error) => reject(failed ?? lost(error.message, error));
      const content = async function* () {
        try {
          yield* body;
        } catch (error) {
          failed = error;
          throw error;
        }
      };
      asked.on('response', resolve);
      asked.on('error', fail);
      if (body instanceof Readable) pipeline(content, asked).catch(fail);
      else asked.end(body);
    });
  }

  /** Reads an answer whole. */
  async read(answer) {
    const pieces = [];
    try {
      for await (const piece of answer) pieces.push(piece);
    } catch (error) {
      throw lost(error.message, error);
    }
    const bytes = Buffer.concat(pieces);
    const length = answer.headers['content-length'];
    if (!answer.complete || (length !== undefined && Number(length) !== bytes.length)) throw lost('a part of it came');
    return bytes;
  }

  /** The JSON of an answer. Throws for a refusal, and for what is no whole answer. */
  async body(answer) {
    const text = (await this.read(answer)).toString();
    let body;
    try {
      body = JSON.parse(text);
    } catch (error) {
      throw lost(`a part of it came, with the status ${answer.statusCode}`, error);
    }
    if (answer.statusCode < 200 || answer.statusCode >= 300) throw refusalOf(answer.statusCode, body, answer.headers);
    if (typeof body !== 'object' || body === null || Array.isArray(body)) throw lost('it is no object');
    return body;
  }

  /** Asks until there is an answer. What must not be done twice has a `key`, or does not repeat a lost answer. */
  async ask(method, target, body, options = {}) {
    const { key, repeats = true, timeout = TIMEOUT, accept = JSON_TYPE, use, until } = options;
    const text = body === undefined ? undefined : JSON.stringify(body);
    const send = options.send ?? (() => ({ body: text, kind: JSON_TYPE, length: Buffer.byteLength(text ?? '') }));
    const ends = monotonic() + this.patience;
    for (let pause = 0.25; ; pause = Math.min(PAUSE_MAX, pause * 2)) {
      try {
        const { body: content, kind, length } = send();
        const headers = {
          accept,
          ...(key === undefined ? {} : { 'idempotency-key': key }),
          ...(content === undefined ? {} : { 'content-type': kind }),
          ...(length === undefined ? {} : { 'content-length': String(length) }),
        };
        const answer = await this.open(method, target, { body: content, headers, timeout });
        try {
          if (use && answer.statusCode >= 200 && answer.statusCode < 300) return await use(answer);
          return await this.body(answer);
        } finally {
          answer.destroy();
        }
      } catch (error) {
        if (!(error instanceof PurserError)) throw error;
        error.key = key;
        const mayRepeat = repeats || !(error instanceof OperationUncertain);
        const again =
          (TEMPORARY.has(error.code) && mayRepeat) ||
          error.code === until ||
          (repeats && error instanceof ConnectionLost);
        if (!again || monotonic() + pause > ends) throw error;
        await sleep(Math.min(PAUSE_MAX, Math.max(pause, error.retryAfter ?? 0)));
      }
    }
  }
}

/**
 * The wallet of this program: from SVC_BROKER_URL and SVC_BROKER_TOKEN, unless they are given. `patience` is how many seconds a call
 * is repeated while its outcome is not known.
 */
export function wallet({ url, token, patience = PATIENCE } = {}) {
  const from = url ?? process.env.SVC_BROKER_URL;
  const by = token ?? process.env.SVC_BROKER_TOKEN;
  if (!from || !by) throw new Error('SVC_BROKER_URL and SVC_BROKER_TOKEN are not set, and no url and token were given');
  return new Wallet(new Client(from, by, patience));
}

/** Runs a block with something that ends with it. */
async function within(it, end, block) {
  if (!block) return it;
  try {
    return await block(it);
  } finally {
    await end();
  }
}

/** A wallet. With `await using`, and in a block, it is closed at the end. */
export class Wallet {
  #client;
  constructor(client, id) {
    this.#client = client;
    this.id = id;
  }

  /** What it may spend, has spent, holds and has delegated. The amounts are exact strings. */
  budget() {
    return this.#client.ask('GET', '/v1/budget');
  }
  /** What new calls may spend, in US dollars: a promise of an exact string. */
  get available() {
    return this.budget().then((it) => it.available_usd);
  }
  /** The machines that can be rented. */
  async offers() {
    return (await this.#client.ask('GET', '/v1/compute/offers')).offers;
  }
  /** The models that can be asked. */
  async models() {
    return (await this.#client.ask('GET', '/v1/models')).data;
  }
  /** Its machines and those of its children, the newest first. */
  async machines() {
    return (await this.#client.ask('GET', '/v1/compute/list')).resources.map((it) => new Machine(this.#client, it));
  }
  /** A machine by its id. */
  async machine(id) {
    return new Machine(this.#client, await this.#client.ask('POST', '/v1/compute/status', { id }));
  }

  /** Its snapshots and those of its children, the newest first. */
  async snapshots() {
    return (await this.#client.ask('GET', '/v1/compute/snapshots')).snapshots;
  }
  /** Deletes a snapshot, which costs no further day. */
  deleteSnapshot(id) {
    return this.#client.ask('POST', '/v1/compute/snapshot/delete', { snapshot_id: id });
  }

  /**
   * Rents the cheapest machine that fits, and waits until it runs. With `await using`, and in a block, it is stopped at the end. All
   * of the time is paid in advance, and stopping early refunds nothing. With `snapshot` it has the disk of that.
   */
  async rent(options = {}, block) {
    const { cpus = 1, memoryGib = 1, minutes = 10, gpu = null, gpus = gpu === null ? 0 : 1 } = options;
    const { diskGb, snapshot, waitSeconds = 900 } = options;
    const own = snapshot === undefined ? [] : await this.snapshots();
    const { provider = own.find((it) => it.snapshot_id === snapshot)?.provider } = options;
    const wanted = { cpus, memoryGib, gpu, gpus, diskGb, provider, seconds: secondsOf(minutes) };
    let failed = new PurserError('offer_not_found', 'No offer that is available fits.', { status: 404 });
    for (const order of fitting(await this.offers(), wanted)) {
      let machine;
      try {
        machine = await this.#rent(order, waitSeconds, snapshot);
      } catch (error) {
        if (!ELSEWHERE.has(error.code)) throw error;
        failed = error;
        continue;
      }
      return within(machine, () => machine.stop(), block);
    }
    throw failed;
  }

  async #rent(order, waitSeconds, snapshot) {
    const ends = monotonic() + waitSeconds;
    // Without wait_seconds, a create that finds no machine is refused at once, and another offer is tried.
    const wait = waitSeconds < 30 ? [`wait_seconds=${Math.max(0, Math.floor(waitSeconds))}`] : [];
    const query = [...wait, ...(snapshot === undefined ? [] : [`snapshot=${snapshot}`])].join('&');
    const target = `/v1/compute/create${query && `?${query}`}`;
    const made = await this.#client.ask('POST', target, order, { key: newKey(), timeout: 30_000 + TIMEOUT });
    const machine = new Machine(this.#client, made);
    try {
      while (['provisioning', 'unknown'].includes(machine.status) && monotonic() < ends) {
        await sleep(1);
        await machine.refresh();
      }
      if (machine.status === 'running') return machine;
      const reason = machine.data.end_reason ?? machine.data.status_reason ?? machine.status;
      const words = `The machine ${machine.id} does not run: ${reason}.`;
      throw new PurserError('provider_unavailable', words, { status: 503 });
    } catch (error) {
      await machine.stop();
      throw error;
    }
  }

  /** Hands a part of the budget to a wallet of its own, for a sub-agent. In a block it is closed at the end. */
  async delegate(name, { usd, minutes = 60 }, block) {
    if (typeof usd !== 'string') throw new TypeError('usd: give an exact amount as a string, as "0.25"');
    const body = { name, budget_usd: usd, expires_in_seconds: secondsOf(minutes) };
    const { id, env } = await this.#client.ask('POST', '/v1/run/wallets', body, { key: newKey() });
    const client = new Client(env.SVC_BROKER_URL, env.SVC_BROKER_TOKEN, this.#client.patience);
    const child = new Wallet(client, id);
    return within(child, () => child.close(), block);
  }

  /**
   * The environment of a program that spends it: for this module, and for clients of OpenAI and Anthropic. `models` and `maxPriceUsd`
   * (of one request) restrict its key for models.
   */
  async env({ models, maxPriceUsd } = {}) {
    const body = { ...(models ? { models } : {}), ...(maxPriceUsd ? { max_price_usd: maxPriceUsd } : {}) };
    const key = await this.#client.ask('POST', '/v1/router/key', body);
    const chats = (await this.models()).filter((it) => it.max_output_tokens > 0).map((it) => it.id);
    const [first] = models ? models.filter((it) => chats.includes(it)) : chats;
    return {
      SVC_BROKER_URL: this.#client.url,
      SVC_BROKER_TOKEN: this.#client.token,
      OPENAI_BASE_URL: key.base_url,
      OPENAI_API_KEY: key.api_key,
      ANTHROPIC_BASE_URL: key.base_url,
      ANTHROPIC_AUTH_TOKEN: key.api_key,
      ...(first === undefined ? {} : { OPENAI_MODEL: first, ANTHROPIC_MODEL: first }),
    };
  }

  /** Closes it: ends its machines, and returns what is left. Waits until all of it is gone. */
  async close() {
    await this.#client.ask('POST', '/v1/run/close', undefined, { until: 'cleanup_pending' });
  }
}

/** A command in the background of a machine. */
export class Process {
  #ask;
  constructor(ask, data) {
    this.#ask = async (verb, more) => {
      this.data = await ask(`/v1/compute/process/${verb}`, { process_id: data.process_id, ...more });
      return this.data;
    };
    this.data = data;
    this.id = data.process_id;
  }
  /** Its exit code; null while it runs. */
  async exitCode() {
    return (await this.#ask('log', { length: 1 })).exit_code;
  }
  /** What it has said from a byte on, or below 0 from the end; at most 1 MiB. */
  async log(offset = 0) {
    return (await this.#ask('log', { offset })).output;
  }
  /** Ends it, with all that it started. */
  async kill() {
    await this.#ask('kill');
  }
}

/** A rented machine. With `await using`, and in a block, it is stopped at the end. */
export class Machine {
  #client;
  constructor(client, data) {
    this.#client = client;
    this.#take(data);
  }
  #take(data) {
    this.data = data;
    this.id = data.id;
    this.status = data.status;
    this.expiresAt = data.expires_at;
    return this;
  }
  async #ask(target, more, options) {
    return this.#client.ask('POST', target, { id: this.id, ...more }, options);
  }

  /** Reads its state again. */
  async refresh() {
    return this.#take(await this.#ask('/v1/compute/status'));
  }
  /** Ends it. What was paid is not refunded. */
  async stop() {
    this.#take(await this.#ask('/v1/compute/stop'));
  }
  /** Buys more time, which is paid in advance. */
  async extend(minutes) {
    const more = { additional_seconds: secondsOf(minutes) };
    return this.#take(await this.#ask('/v1/compute/extend', more, { key: newKey() }));
  }
  /** Extends it by steps while it is busy, at most this long in all; with 0 no longer. */
  async keep({ maxMinutes = 60, stepMinutes = 5 } = {}) {
    const seconds = secondsOf(maxMinutes);
    const more = { extend_seconds: Math.min(secondsOf(stepMinutes), seconds) };
    if (seconds > 0) more.max_seconds = seconds;
    return this.#take(await this.#ask('/v1/compute/keep', more, { key: newKey() }));
  }

  /** Stops what runs in it and keeps the paid time, until `resume` or the end of its wallet. */
  async pause() {
    return this.#take(await this.#ask('/v1/compute/pause'));
  }

  /** Continues what `pause` stopped. */
  async resume() {
    return this.#take(await this.#ask('/v1/compute/resume'));
  }

  /** Keeps its disk, paid by the day, and returns the id of that, for `rent({ snapshot })`. */
  async snapshot() {
    return (await this.#ask('/v1/compute/snapshot', {}, { key: newKey() })).snapshot_id;
  }

  /**
   * Runs a command (`sh -c`) to its end. `onStdout` and `onStderr` get what it says as it comes; with `stream` it is printed. It is
   * never sent twice: where the answer is lost, `ConnectionLost` says so.
   */
  async run(command, { stream = false, onStdout, onStderr, cwd, env, stdin, timeout = 300 } = {}) {
    const more = { command, timeout, ...(cwd === undefined ? {} : { cwd }), ...(env === undefined ? {} : { env }) };
    if (typeof stdin === 'string') more.stdin = stdin;
    else if (stdin !== undefined) more.stdin_base64 = Buffer.from(stdin).toString('base64');
    const tell = {
      stdout: onStdout ?? (stream ? (text) => process.stdout.write(text) : undefined),
      stderr: onStderr ?? (stream ? (text) => process.stderr.write(text) : undefined),
    };
    if (!tell.stdout && !tell.stderr) {
      const options = { repeats: false, timeout: timeout * 1000 + TIMEOUT };
      return resultOf(await this.#ask('/v1/compute/exec', more, options));
    }
    const use = async (answer) => {
      for await (const [name, data] of eventsOf(answer)) {
        if (name === 'exit') return resultOf(data);
        if (name === 'error') throw refusalOf(answer.statusCode, data, {});
        await tell[name]?.(data.text);
      }
      throw lost('the stream ended before the command');
    };
    return this.#ask('/v1/compute/exec', more, { repeats: false, accept: EVENTS, use });
  }

  /** Starts a command in the background. It is never sent twice. */
  async start(command, { cwd, env } = {}) {
    const more = { command, ...(cwd === undefined ? {} : { cwd }), ...(env === undefined ? {} : { env }) };
    const started = await this.#ask('/v1/compute/process/start', more, { repeats: false });
    return new Process((target, about) => this.#ask(target, about), started);
  }
  /** A link with which a browser opens this port: good once, for five minutes. */
  async port(port) {
    const { url, expires_at: expiresAt } = await this.#ask('/v1/compute/port', { port });
    return { url, expiresAt };
  }

  /** Copies a file, or a tree with all that is in it, to a path of the machine. */
  async copy(local, remote) {
    const { size, isDirectory } = await fs.stat(local).then((it) => ({ size: it.size, isDirectory: it.isDirectory() }));
    const target = `/v1/compute/upload?${new URLSearchParams({ id: this.id, path: remote })}`;
    const send = isDirectory
      ? () => ({ body: Readable.from(pack(local)), kind: TAR })
      : () => ({ body: createReadStream(local, { end: Math.max(0, size - 1) }), kind: BYTES, length: size });
    await this.#client.ask('POST', target, undefined, { send, timeout: 600_000 });
  }

  /**
   * Copies a file, or a tree, from a path of the machine. Links that lead out of the tree, or go up again after a name, are left out.
   */
  async fetch(remote, local) {
    const facts = await this.#ask('/v1/compute/files', { path: remote });
    const isTree = facts.type === 'directory' || facts.entries !== undefined;
    const folder = await fs.mkdtemp(path.join(isTree ? tmpdir() : path.dirname(local), '.purser-'));
    const fresh = path.join(folder, 'fetched');
    try {
      if (isTree) {
        const use = async (answer) => {
          if (answer.headers['content-type'] !== TAR) throw lost('it is no archive');
          await saved(answer, fresh);
        };
        await this.#ask('/v1/compute/download', { path: remote }, { accept: TAR, use });
        await unpack(fresh, local);
      } else {
        await this.#fetchFile(remote, fresh);
        await fs.chmod(fresh, Number.parseInt(facts.mode, 8) & 0o777);
        await fs.rename(fresh, local);
      }
    } finally {
      await fs.rm(folder, { recursive: true, force: true });
    }
  }

  async #fetchFile(remote, local) {
    const use = async (answer) => {
      const size = Number(answer.headers['x-purser-file-size']);
      if (!Number.isSafeInteger(size)) throw lost('a part of it came');
      return { size, content: await this.#client.read(answer) };
    };
    const file = await fs.open(local, 'wx');
    try {
      for (let offset = 0, size = 1; offset < size; ) {
        const more = { path: remote, offset, length: PART };
        const part = await this.#ask('/v1/compute/download', more, { accept: BYTES, use });
        if (part.content.length === 0) break;
        await file.writeFile(part.content); // Behind the others. A single `write` may leave out what the disk has no room for.
        offset += part.content.length;
        size = part.size;
      }
    } finally {
      await file.close();
    }
  }
}

// Older versions of Node have no symbol for `await using`: there the blocks do the same.
if (Symbol.asyncDispose) {
  Machine.prototype[Symbol.asyncDispose] = Machine.prototype.stop;
  Wallet.prototype[Symbol.asyncDispose] = Wallet.prototype.close;
}

const resultOf = (said) => ({
  exitCode: said.exit_code,
  stdout: said.stdout,
  stderr: said.stderr,
  timedOut: said.timed_out,
  truncated: said.stdout_truncated || said.stderr_truncated,
});

/** An exact amount as a whole number of nano-dollars. */
function nanosOf(usd) {
  const [whole, part = ''] = usd.split('.');
  return BigInt(whole + part.padEnd(9, '0').slice(0, 9));
}
/** A size with at most two decimals, in hundredths. */
const hundredths = (size) => BigInt(Math.round(size * 100));

/** The orders that fit, the cheapest first; those whose size nobody knows come last. */
function fitting(offers, wanted) {
  const found = [];
  for (const { provider, spec: listed, size, unit_prices: units, ...offer } of offers) {
    const { seconds } = wanted;
    if (!offer.available || seconds < offer.min_seconds || seconds > offer.max_seconds) continue;
    if (wanted.provider !== undefined && wanted.provider !== provider) continue;
    if (size && (size.cpus < wanted.cpus || size.memory_gib < wanted.memoryGib)) continue;
    const spec = { ...listed, max_seconds: seconds };
    let price = 100n * nanosOf(offer.price_hourly_usd);
    if ('cpus' in listed) {
      if (listed.gpu !== wanted.gpu || (size && size.gpus < wanted.gpus)) continue;
      if (units) {
        const [cpu, memory] = [nanosOf(units.cpu_hourly_usd), nanosOf(units.memory_gib_hourly_usd)];
        const base = price - hundredths(listed.cpus) * cpu - hundredths(listed.memory_gib) * memory;
        const rest = listed.gpus ? (base / BigInt(listed.gpus)) * BigInt(wanted.gpus) : base;
        price = rest + hundredths(wanted.cpus) * cpu + hundredths(wanted.memoryGib) * memory;
      }
      Object.assign(spec, { cpus: wanted.cpus, memory_gib: wanted.memoryGib, gpus: wanted.gpus });
    } else if (wanted.gpu !== null && wanted.gpu !== listed.chip) continue;
    if (wanted.diskGb !== undefined && 'disk_gb' in listed) {
      if (listed.disk_gb < wanted.diskGb) continue;
      spec.disk_gb = wanted.diskGb;
    }
    found.push({ isUnknown: size === undefined, price, order: { provider, spec } });
  }
  const compare = (a, b) =>
    Number(a.isUnknown) - Number(b.isUnknown) || (a.price < b.price ? -1 : Number(a.price > b.price));
  return found.sort(compare).map((it) => it.order);
}

/** The named events of a stream, each when all of it has come. */
async function* eventsOf(answer) {
  const decoder = new StringDecoder('utf8');
  let rest = '';
  try {
    for await (const piece of answer) {
      const events = (rest + decoder.write(piece)).split('\n\n');
      rest = events.pop();
      for (const event of events) {
        const fields = Object.fromEntries(
          event.split('\n').flatMap((line) => {
            const at = line.indexOf(': ');
            return at > 0 ? [[line.slice(0, at), line.slice(at + 2)]] : [];
          }),
        );
        if (fields.event !== undefined && fields.data !== undefined) yield [fields.event, JSON.parse(fields.data)];
      }
    }
  } catch (error) {
    throw error instanceof PurserError ? error : lost(error.message, error);
  }
}

async function saved(answer, file) {
  try {
    await pipeline(answer, createWriteStream(file));
  } catch (error) {
    throw error.syscall === undefined || error.code === 'ECONNRESET' ? lost(error.message, error) : error;
  }
  if (!answer.complete) throw lost('a part of it came');
}

const BLOCK = 512;
const padding = (size) => Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK);

/** The header of an entry of an archive, after an extended one for what does not fit it (POSIX.1-2017, pax). */
function headerOf({ name, type, size = 0, mode = 0o644, modified = 0, linkName = '' }) {
  const more = {};
  if (Buffer.byteLength(name) > 100) more.path = name;
  if (Buffer.byteLength(linkName) > 100) more.linkpath = linkName;
  if (size > 0o77777777777) more.size = String(size);
  const block = Buffer.alloc(BLOCK);
  const octal = (value, at, digits) => block.write(value.toString(8).padStart(digits, '0'), at);
  Buffer.from(name).copy(block, 0, 0, 100);
  octal(mode & 0o777, 100, 7);
  octal(0, 108, 7);
  octal(0, 116, 7);
  octal(more.size ? 0 : size, 124, 11);
  octal(Math.max(0, Math.floor(modified)), 136, 11);
  block.write('        ', 148);
  block.write(type, 156);
  Buffer.from(linkName).copy(block, 157, 0, 100);
  block.write('ustar\x0000', 257);
  octal(
    block.reduce((sum, byte) => sum + byte, 0),
    148,
    6,
  );
  block[154] = 0;
  if (Object.keys(more).length === 0) return block;
  const records = Object.entries(more).map(([key, value]) => {
    const rest = Buffer.byteLength(` ${key}=${value}\n`);
    const length = rest + String(rest + String(rest).length).length;
    return `${length} ${key}=${value}\n`;
  });
  const content = Buffer.from(records.join(''));
  const extended = headerOf({ name: 'pax', type: 'x', size: content.length });
  return Buffer.concat([extended, content, padding(content.length), block]);
}

/** The archive of a directory. A file that grows or shrinks meanwhile is sent with the size that it had, or not at all. */
async function* pack(root, below = '') {
  for (const { name } of await fs.readdir(path.join(root, below), { withFileTypes: true })) {
    const inside = below === '' ? name : `${below}/${name}`;
    const local = path.join(root, inside);
    const facts = await fs.lstat(local);
    const about = { name: inside, mode: facts.mode, modified: facts.mtimeMs / 1000 };
    if (facts.isSymbolicLink()) yield headerOf({ ...about, type: '2', linkName: await fs.readlink(local) });
    else if (facts.isDirectory()) {
      yield headerOf({ ...about, name: `${inside}/`, type: '5' });
      yield* pack(root, inside);
    } else if (facts.isFile()) {
      yield headerOf({ ...about, type: '0', size: facts.size });
      let left = facts.size;
      if (left > 0)
        for await (const piece of createReadStream(local, { end: facts.size - 1 })) {
          yield piece;
          left -= piece.length;
        }
      if (left !== 0) throw new Error(`${local} became shorter while it was read`);
      yield padding(facts.size);
    }
  }
  if (below === '') yield Buffer.alloc(2 * BLOCK);
}

/** Unpacks an archive of a machine that is not trusted: nothing is written outside of `local`. */
async function unpack(archive, local) {
  await fs.mkdir(local, { recursive: true });
  const root = await fs.realpath(local);
  const unsafe = (name) =>
    new PurserError('unsafe_archive', `The archive has an entry outside of its directory: ${JSON.stringify(name)}`);
  const leaves = (name) => name.startsWith('/') || name === '..' || name.startsWith('../');
  // A name may be a link: the way up after it begins wherever that leads.
  const climbs = (link) => {
    const parts = link.split('/').filter((it) => it !== '' && it !== '.');
    return parts.some((it, at) => it === '..' && at > 0 && parts[at - 1] !== '..');
  };
  const targetOf = async (name) => {
    const plain = path.posix.normalize(name).replace(/\/+$/, '');
    if (leaves(plain)) throw unsafe(name);
    if (plain === '.' || plain === '') return undefined;
    let parent = root;
    for (const part of plain.split('/').slice(0, -1)) {
      parent = path.join(parent, part);
      const facts = await fs.lstat(parent).catch(() => undefined);
      if (facts?.isSymbolicLink()) throw unsafe(name);
      if (!facts) await fs.mkdir(parent);
    }
    return path.join(parent, path.posix.basename(plain));
  };
  const file = await fs.open(archive, 'r');
  try {
    let at = 0;
    const take = async (length) => {
      const { bytesRead, buffer } = await file.read(Buffer.alloc(length), 0, length, at);
      if (bytesRead < length) throw lost('the archive is cut');
      at += length;
      return buffer;
    };
    let more = {};
    for (;;) {
      const block = await take(BLOCK);
      if (block.every((byte) => byte === 0)) return;
      const entry = { ...parseHeader(block), ...more };
      if (!(entry.size >= 0)) throw lost('the archive cannot be read');
      const end = at + entry.size + padding(entry.size).length;
      if ('xLK'.includes(entry.type)) {
        const content = await take(entry.size);
        const text = (it) => it.toString().replace(/\0.*$/s, '');
        if (entry.type === 'x') Object.assign(more, extendedOf(content));
        else more[entry.type === 'L' ? 'name' : 'linkName'] = text(content);
        at = end;
        continue;
      }
      more = {};
      const target = await targetOf(entry.name);
      const isFile = entry.type === '0' || entry.type === '\0' || entry.type === '7';
      if (target !== undefined) {
        const facts = await fs.lstat(target).catch(() => undefined);
        if (facts && !(facts.isDirectory() && entry.type === '5')) await fs.rm(target, { force: true });
        if (entry.type === '5') await fs.mkdir(target, { recursive: true });
        else if (entry.type === '2') {
          const leads = path.posix.normalize(path.posix.join(path.posix.dirname(entry.name), entry.linkName));
          if (!entry.linkName.startsWith('/') && !leaves(leads) && !climbs(entry.linkName))
            await fs.symlink(entry.linkName, target);
        } else if (entry.type === '1') {
          const linked = await targetOf(entry.linkName);
          const isThere = linked && (await fs.lstat(linked).catch(() => undefined))?.isFile();
          if (isThere) await fs.link(linked, target);
        } else if (isFile) {
          const written = await fs.open(target, 'wx', entry.mode & 0o777);
          try {
            for (let left = entry.size; left > 0; ) {
              const piece = await take(Math.min(left, 1024 * 1024));
              await written.writeFile(piece);
              left -= piece.length;
            }
          } finally {
            await written.close();
          }
        }
      }
      if (isFile) at = end;
    }
  } finally {
    await file.close();
  }
}

function parseHeader(block) {
  const text = (from, to) => block.toString('utf8', from, to).replace(/\0.*$/s, '');
  const number = (from, to) => {
    if (!(block[from] & 0x80)) return Number.parseInt(text(from, to).trim() || '0', 8);
    return block.subarray(from + 1, to).reduce((sum, byte) => sum * 256 + byte, 0);
  };
  const sum = block.reduce((all, byte, at) => all + (at >= 148 && at < 156 ? 0x20 : byte), 0);
  if (number(148, 156) !== sum) throw lost('the archive cannot be read');
  const prefix = block.toString('latin1', 257, 263) === 'ustar\0' ? text(345, 500) : '';
  return {
    name: prefix ? `${prefix}/${text(0, 100)}` : text(0, 100),
    mode: number(100, 108),
    size: number(124, 136),
    type: String.fromCharCode(block[156]),
    linkName: text(157, 257),
  };
}

function extendedOf(content) {
  const values = {};
  for (let at = 0; at < content.length; ) {
    const length = Number.parseInt(content.toString('latin1', at, at + 10), 10);
    if (!(length > 0)) throw lost('the archive cannot be read');
    const record = content.toString('utf8', at, at + length - 1);
    const [key, ...value] = record.slice(record.indexOf(' ') + 1).split('=');
    if (key === 'path') values.name = value.join('=');
    if (key === 'linkpath') values.linkName = value.join('=');
    if (key === 'size') values.size = Number(value.join('='));
    at += length;
  }
  return values;
}
