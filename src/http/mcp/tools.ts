import type { ToolAnnotations } from '@modelcontextprotocol/server';
import * as v from 'valibot';
import type { Json } from '../../base/parse-json.ts';
import { Id } from '../../wire/parts.ts';
import type { Endpoint } from '../endpoint.ts';
import type { Allowance } from '../memory-quota.ts';
import { type JsonObject, jsonSchema } from '../openapi.ts';
import { readBudget } from '../routes/budget.ts';
import * as compute from '../routes/compute.ts';
import * as inside from '../routes/guest.ts';
import { listModels } from '../routes/models.ts';
import { openPort } from '../routes/ports.ts';
import * as processes from '../routes/process.ts';
import { createRouterKey } from '../routes/router.ts';
import * as run from '../routes/run.ts';
import * as snapshots from '../routes/snapshot.ts';
import { downloadedText, TextDownload, TextUpload, uploadOf } from './text.ts';
import { waitCompute } from './wait.ts';

/** A tool, and the endpoint that it calls. */
export type Tool = {
  title: string;
  description: string;
  endpoint: Endpoint;
  /** The endpoint when the argument `id` is left out. */
  withoutId?: Endpoint;
  annotations: ToolAnnotations;
  /** Descriptions of arguments that neither `ARGUMENTS` nor the endpoint's schema describes. */
  arguments?: Record<string, string>;
  /** Parameters of the endpoint's query that are arguments beside those of its body. */
  inQuery?: readonly string[];
  /** Arguments of the endpoint that do nothing here. */
  leavesOut?: readonly string[];
  /** The arguments in place of the endpoint's body, and what they become. */
  body?: { schema: v.GenericSchema; toBody(args: Json, share: Allowance): Json };
  /** The answer in place of the endpoint's, and how it is made of that. */
  answer?: { schema: v.GenericSchema; ofAnswer(answer: object, share: Allowance): object };
};

const MACHINE = 'the id of the machine, as compute_create returned it';
/** The description of an argument, in every tool that takes it. */
const ARGUMENTS: Record<string, string> = {
  id: MACHINE,
  provider: 'provider of the offer',
  spec: 'spec of the offer, with max_seconds lowered to the seconds that you need',
  additional_seconds: 'how many seconds to buy',
  max_seconds: 'the most seconds that are bought in all; needed unless extend_seconds is 0',
  timeout: 'the seconds after which the command is killed',
  process_id: 'the id of the command, as compute_process_start returned it',
  offset: 'where to begin, in bytes',
  length: 'how many bytes at most',
  seconds: 'how long to wait at most',
  port: 'the number of the port',
  name: 'what the child wallet is called in lists',
  budget_usd: 'US dollars as a decimal string, such as "1.50"',
  expires_in_seconds: 'how long the child wallet lasts; 0: as long as this one',
  models: 'the ids of the only models that the key is for; left out: all',
  max_price_usd: 'the most that one request may cost, as a decimal string; left out: no limit but the wallet’s',
  before: 'the id of the last wallet that was listed, for those before it',
  snapshot_id: 'the id of the snapshot, as compute_snapshot returned it',
  status: 'only those in this state',
};

/** The annotations of the tools. No operation of a wallet reaches beyond this installation's own providers. */
const READS: ToolAnnotations = { readOnlyHint: true, openWorldHint: false };
const ADDS: ToolAnnotations = {
  readOnlyHint: false,
  destructiveHint: false,
  idempotentHint: true,
  openWorldHint: false,
};
const ENDS: ToolAnnotations = {
  readOnlyHint: false,
  destructiveHint: true,
  idempotentHint: true,
  openWorldHint: false,
};

/** The tools by name (design, section 14). */
export const TOOLS: Record<string, Tool> = {
  wallet_budget: {
    title: 'Budget',
    description:
      'Read how much money is left. Free. Returns US dollars as exact decimal strings: budget_usd (given in all), used_usd (spent), held_usd (set aside for what is running), delegated_usd (handed to child wallets) and available_usd, which is what new calls can spend; also expires_at (Unix seconds), when the wallet ends and everything it rented is stopped.',
    endpoint: readBudget,
    annotations: READS,
  },
  compute_offers: {
    title: 'Machines on offer',
    description:
      'List the machines that can be rented. Free. Each offer has provider, spec, price_hourly_usd (US dollars an hour), min_seconds, max_seconds, supports_extension, and available (false: there is no capacity at the moment). To rent one, pass its provider and spec to compute_create; lower spec.max_seconds to pay for less time.',
    endpoint: compute.listOffers,
    annotations: READS,
  },
  compute_create: {
    title: 'Rent a machine',
    description:
      'Rent a machine for a fixed time and pay for all of it in advance: price_hourly_usd of the offer × spec.max_seconds / 3600. The price is set aside at once and charged when the machine is ready; nothing is charged if it cannot be made. Stopping early refunds nothing, so rent no longer than needed. Take provider and spec from compute_offers. Returns the resource: id (for the other tools), status (provisioning until it is ready, then running: ask compute_status), charged_usd, reserved_usd, expires_at (Unix seconds, when the machine is destroyed with everything on it).',
    endpoint: compute.createCompute,
    annotations: ADDS,
    inQuery: ['snapshot'],
  },
  compute_extend: {
    title: 'Extend a machine',
    description:
      'Buy additional_seconds for a running machine, at its hourly price and paid in advance, so that expires_at moves further. Only for resources with supports_extension. Returns the resource.',
    endpoint: compute.extendCompute,
    annotations: ADDS,
  },
  compute_keep: {
    title: 'Keep a machine while busy',
    description:
      'Have a running machine extended by itself while it is busy, so that long work does not meet its deadline. Once asked, each step of extend_seconds (60 to 3600) is bought at the hourly price a minute before expires_at, if the machine uses its processor or a command, an upload or an ssh session is open; an idle machine runs out. At most max_seconds are bought in all. Call it again to replace it, with extend_seconds 0 to end it; stopping the machine ends it as well. Only for resources with supports_extension. Returns the resource, with keep: state, bought_seconds and reason.',
    endpoint: compute.keepCompute,
    annotations: ADDS,
  },
  compute_exec: {
    title: 'Run a command',
    description:
      'Run a shell command (sh -c) inside a running machine and wait for its end. Free: the time is already paid. timeout is in seconds (1 to 3600, default 300). Returns exit_code, stdout and stderr, each cut at 1 MiB (stdout_truncated, stderr_truncated), timed_out and duration_ms. Optional: cwd (where it starts), env (an object of variables), stdin (text) or stdin_base64. Many clients give up waiting after 60 seconds, and the command is not repeated for you: start longer work with compute_process_start. Print only what you need.',
    endpoint: inside.execCompute,
    annotations: { ...ENDS, idempotentHint: false, openWorldHint: true },
  },
  compute_upload: {
    title: 'Write a file',
    description:
      'Write a file of at most 8 MiB into a running machine, over an existing one. Free. path is absolute or relative to the home directory; text is the content, or content_base64 where it is not text. Returns path, bytes and sha256 of what was written.',
    endpoint: inside.uploadCompute,
    annotations: ENDS,
    body: { schema: TextUpload, toBody: uploadOf },
  },
  compute_download: {
    title: 'Read a file',
    description:
      'Read a file of a running machine, up to 8 MiB a call. Free. Returns text (the content, where it is UTF-8) or content_base64 (any other), bytes, sha256, and size (of the whole file). To read on, call again with offset + bytes as offset.',
    endpoint: inside.downloadCompute,
    annotations: READS,
    arguments: { path: 'the path of the file, absolute or from the directory in which commands start' },
    answer: { schema: TextDownload, ofAnswer: downloadedText },
  },
  compute_files: {
    title: 'List files',
    description:
      'Look at a path of a running machine (default: the directory in which commands start). Free. Returns type (file, directory, link, …), size in bytes, mode (octal) and modified (Unix seconds) and, of a directory, entries with the same of each name.',
    endpoint: inside.listComputeFiles,
    annotations: READS,
  },
  compute_process_start: {
    title: 'Start a background command',
    description:
      'Start a shell command in the background of a running machine and return at once: for builds, trainings and servers that outlast a call. Free. Optional: cwd and env. Returns process_id, status (running or ended) and log_path. Its output (both streams, at most 64 MiB) goes to a log: read it with compute_process_log. It ends with the machine.',
    endpoint: processes.startComputeProcess,
    annotations: { ...ENDS, idempotentHint: false, openWorldHint: true },
  },
  compute_process_list: {
    title: 'Background commands',
    description:
      'List the commands that compute_process_start began on a machine, the newest first, also those that have ended. Free. Each has process_id, command, status, exit_code (null while it runs), started_at, ended_at and log_bytes.',
    endpoint: processes.listComputeProcesses,
    annotations: READS,
  },
  compute_process_log: {
    title: 'Output of a background command',
    description:
      'Read the output of a background command. Free. offset is in bytes from the beginning of the log, or negative from its end (-2000: the last 2,000 bytes); length is at most 1 MiB. Returns output, next_offset (pass it as offset in the next call to read on), status and exit_code.',
    endpoint: processes.readComputeProcessLog,
    annotations: READS,
    leavesOut: ['timeout'], // Of a log that is followed.
  },
  compute_process_kill: {
    title: 'Kill a background command',
    description:
      'Kill a background command together with everything that it started. Free. Its log stays. Returns the command as it is afterwards; one that has ended before keeps its exit_code.',
    endpoint: processes.killComputeProcess,
    annotations: ENDS,
  },
  compute_status: {
    title: 'State of machines',
    description:
      'Read a machine by its id, or list all machines of this wallet and its child wallets when id is left out. Free. status is provisioning, running, paused, stopping, stopped, failed or unknown; end_reason tells why it ended; charged_usd is what it cost.',
    endpoint: compute.readCompute,
    withoutId: compute.listCompute,
    annotations: READS,
    arguments: { id: `${MACHINE}; left out: all of them` },
  },
  compute_wait: {
    title: 'Wait',
    description:
      'Wait until a machine runs (after compute_create said provisioning) or has stopped, or, with process_id, until a background command has ended. Free. A paused machine is not waited for: done is true, and status paused, until compute_resume. Returns done, and the resource or the process as it is then. done is false where that took longer than seconds (at most 50): call it again.',
    endpoint: waitCompute,
    annotations: READS,
  },
  compute_port: {
    title: 'Open a port',
    description:
      'Get a link with which a person’s browser opens an HTTP server that listens on a port of a running machine. Free. Returns url, which works once and for five minutes; hand it to your user. Programs need no link: they send requests to /v1/compute/{id}/port/{port}/ with this wallet’s token.',
    endpoint: openPort,
    annotations: { ...ADDS, idempotentHint: false },
  },
  compute_pause: {
    title: 'Pause a machine',
    description:
      'Stop all that runs in a machine and keep its paid time, until compute_resume or until the wallet expires. Free. Memory and files stay, and the deadline stands still; its processors go to others. Only for resources whose provider can: others refuse it. Returns the resource: status paused, and seconds_left.',
    endpoint: compute.pauseCompute,
    annotations: ADDS,
  },
  compute_resume: {
    title: 'Resume a machine',
    description:
      'Let what was running in a paused machine go on, with the paid time that it had left. Free. Refused with capacity_unavailable while its processors are in use by others: it stays paused, so try again later. Returns the resource.',
    endpoint: compute.resumeCompute,
    annotations: ADDS,
  },
  compute_snapshot: {
    title: 'Keep a disk',
    description:
      'Keep what is on the disk of a machine that runs or is paused, for new machines: pass snapshot_id to compute_create as snapshot. Costs money for each day until compute_snapshot_delete: day_usd of compute_snapshots; the most that the first day may cost is set aside meanwhile. What runs stands still for a moment. Only where the provider sells snapshots: others refuse it. Returns snapshot_id and size_gib.',
    endpoint: snapshots.takeComputeSnapshot,
    annotations: ADDS,
  },
  compute_snapshots: {
    title: 'Snapshots',
    description:
      'List the snapshots of this wallet and its child wallets, newest first, at most 100. Free. Each has snapshot_id, id (the machine that it was taken of), provider, status, size_gib, day_usd (what each day costs), paid_until (Unix seconds) and end_reason.',
    endpoint: snapshots.listComputeSnapshots,
    annotations: READS,
    arguments: { before: 'the id of the last snapshot that was listed, for those before it' },
    leavesOut: ['limit'],
  },
  compute_snapshot_delete: {
    title: 'Delete a snapshot',
    description:
      'Delete a snapshot, so that it costs no further day. Free, and without a refund for the day that has begun. Machines that were made from it go on: it is gone once the last of them has ended. Returns the snapshot.',
    endpoint: snapshots.deleteComputeSnapshot,
    annotations: ENDS,
  },
  compute_stop: {
    title: 'Stop a machine',
    description:
      'Stop a machine and destroy everything on it. Free, and without a refund for the time that is left. Returns the resource; it may be stopping for a moment.',
    endpoint: compute.stopCompute,
    annotations: ENDS,
  },
  wallet_delegate: {
    title: 'Fund a child wallet',
    description:
      'Hand part of this wallet’s money to a child wallet with a credential of its own, for example for a sub-agent. budget_usd is in US dollars as a decimal string ("1.50"), expires_in_seconds is how long it lasts, at most as long as this wallet. What the child does not spend comes back when it is closed or expires. Returns id, agent_token (a secret: whoever has it can spend that money) and env, the variables that a sub-agent needs.',
    endpoint: run.createChild,
    annotations: ADDS,
  },
  wallet_children: {
    title: 'Child wallets',
    description:
      'List the child wallets that wallet_delegate made, newest first, at most 100. Free. Each has id (for wallet_close), name, status, budget_usd, used_usd, held_usd, available_usd and expires_at, and no token.',
    endpoint: run.listRunWallets,
    annotations: READS,
    leavesOut: ['limit'],
  },
  model_list: {
    title: 'Models',
    description:
      'List the language models that this wallet can pay for. Free. Each has id, context_length, max_output_tokens (both in tokens) and pricing: US dollars per token (prompt, completion) and per request.',
    endpoint: listModels,
    annotations: READS,
  },
  model_key: {
    title: 'A key for models',
    description:
      'Get an API key that pays for language models from this wallet, for programs that speak OpenAI’s or Anthropic’s API. Free; each request costs its tokens. Returns api_key (a secret: whoever has it can spend this wallet’s money on models) and base_url: a program reads them as OPENAI_API_KEY and OPENAI_BASE_URL, or ANTHROPIC_AUTH_TOKEN and ANTHROPIC_BASE_URL. The same arguments return the same key.',
    endpoint: createRouterKey,
    annotations: ADDS,
  },
  wallet_close: {
    title: 'Close a wallet',
    description:
      'Close a wallet for good: stops every machine that it and its child wallets rented, ends all spending, and returns the unspent money to where it came from. With id: closes that child wallet. WITHOUT id: closes this wallet itself, and only reading and closing still work afterwards. If it is refused with cleanup_pending, call it again after retry_after_seconds until it is done.',
    endpoint: run.closeChild,
    withoutId: run.closeRun,
    annotations: ENDS,
    arguments: { id: 'the id of a child wallet; left out: this wallet itself' },
  },
};

const IDEMPOTENCY_KEY = {
  type: 'string',
  minLength: 1,
  maxLength: 128,
  pattern: '^[\\x20-\\x7e]+$',
  description:
    'A new random text (such as a UUID) for each new purchase. After a timeout, or a refusal that is worth a retry, call again with the same idempotency_key and the same arguments: it is paid only once.',
};

/** Returns the tools as `tools/list` answers them. */
export function listTools() {
  return Object.entries(TOOLS).map(([name, tool]) => ({
    name,
    title: tool.title,
    description: tool.description,
    inputSchema: inputSchema(tool),
    outputSchema: outputSchema(tool),
    annotations: tool.annotations,
  }));
}

/** Parts the arguments of a tool into the body and the query of its endpoint. One without a body takes all of them in its query. */
export function partArguments({ endpoint, withoutId, inQuery = [] }: Tool, args: Json) {
  const isOfQuery = (name: string) => inQuery.includes(name) || !(endpoint.body || withoutId);
  const only = (isWanted: (name: string) => boolean) =>
    Object.fromEntries(Object.entries(args).filter(([name]) => isWanted(name)));
  return { query: only(isOfQuery) as Record<string, string>, raw: only((name) => !isOfQuery(name)) };
}

/** Returns the schema of a tool's arguments: the body of its endpoint or its query, `id` where the path has it, and the key. */
function inputSchema(tool: Tool) {
  const { endpoint, withoutId, body, inQuery = [], leavesOut = [], arguments: own = {} } = tool;
  const query = endpoint.query ?? v.object({});
  const schema = body?.schema ?? endpoint.body ?? (withoutId ? v.object({ id: Id }) : query);
  const { properties, required } = asOneObject(jsonSchema(schema, 'input', {}));
  const beside = asOneObject(jsonSchema(query, 'input', {})).properties;
  for (const name of inQuery) properties[name] = beside[name] as JsonObject;
  const described = Object.entries(properties).map(([name, property]) => {
    const description = own[name] ?? property.description ?? ARGUMENTS[name];
    return [name, { ...property, ...(description === undefined ? {} : { description }) }] as const;
  });
  return {
    type: 'object' as const,
    properties: {
      ...Object.fromEntries(described.filter(([name]) => !leavesOut.includes(name))),
      ...(endpoint.idempotent ? { idempotency_key: IDEMPOTENCY_KEY } : {}),
    },
    required: [
      ...required.filter((name) => name !== 'id' || !withoutId),
      ...(endpoint.idempotent ? ['idempotency_key'] : []),
    ],
    additionalProperties: false,
  };
}

/** Returns the schema of a tool's result: of two endpoints, what both have is certain. */
function outputSchema({ endpoint, withoutId, answer }: Tool) {
  const schemas = [answer?.schema ?? endpoint.answer, ...(withoutId ? [withoutId.answer] : [])];
  const { properties, required } = asOneObject({ anyOf: schemas.map((it) => jsonSchema(it, 'output', {})) });
  return { type: 'object' as const, properties, required };
}

type ObjectSchema = { properties: Record<string, JsonObject>; required: string[] };

/**
 * Returns the properties of a schema. Those of alternatives are merged, as a tool's schema must be one object: the APIs of
 * models refuse alternatives at its top.
 */
function asOneObject(schema: JsonObject): ObjectSchema {
  const alternatives = (schema.anyOf ?? schema.oneOf ?? [schema]) as Partial<ObjectSchema>[];
  const names = new Set(alternatives.flatMap((it) => Object.keys(it.properties ?? {})));
  const propertyOf = (name: string): JsonObject => {
    const all: JsonObject[] = alternatives.flatMap<JsonObject>((it) => it.properties?.[name] ?? []);
    if (all.length === 1) return all[0] as JsonObject;
    const isEnum = all.every((it) => it.const !== undefined);
    return isEnum ? { type: 'string', enum: all.map((it) => it.const) } : { anyOf: all };
  };
  return {
    properties: Object.fromEntries([...names].map((name) => [name, propertyOf(name)])),
    required: [...names].filter((name) => alternatives.every((it) => it.required?.includes(name))),
  };
}
