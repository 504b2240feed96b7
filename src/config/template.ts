import * as v from 'valibot';
import { stringify } from 'yaml';
import { Settings } from './schema.ts';
import { showVariables } from './variables.ts';

/** A model server and its models, for the file that `purser init` writes. */
type OfferedServer = {
  software: string;
  baseUrl: string;
  models: { id: string; kind: 'chat' | 'embeddings'; contextLength: number | undefined }[];
};
type OfferedModel = { id: string; upstream: string; upstream_model?: string; context_length: number };

/** Prices per million tokens of a small open model at hosts, in USD, for the operator to replace. */
export const EXAMPLE_PRICES = { prompt: '0.10', completion: '0.40' };
/** The context length of most servers by default; a longer prompt than the server's is refused or cut there. */
const CONTEXT_UNKNOWN = 4096;
const OUTPUT_MAX = 8192;

/**
 * Returns the text of a commented purser.yaml that offers the models of these servers. A model whose name no settings can have is left
 * out, and a length that they cannot have counts as unknown: a server says what it likes, and would keep Purser from starting.
 */
export function settingsText(servers: readonly OfferedServer[]): {
  text: string;
  upstreams: string[];
  models: OfferedModel[];
} {
  const upstreams: string[] = [];
  const models: OfferedModel[] = [];
  const entries: string[] = [];
  const offers: string[] = [];
  for (const server of servers) {
    const name = unused(
      server.software
        .toLowerCase()
        .match(/[a-z0-9]+/g)
        ?.join('-') ?? 'server',
      upstreams,
    );
    upstreams.push(name);
    entries.push(`    - { name: ${name}, base_url: ${quoted(server.baseUrl)} }   # ${server.software}`);
    for (const { id: theirs, kind, contextLength } of server.models) {
      const id = models.some((it) => it.id === theirs) ? `${theirs}@${name}` : theirs;
      if (models.some((it) => it.id === id)) continue;
      const context = [contextLength ?? CONTEXT_UNKNOWN, CONTEXT_UNKNOWN].find((it) => fitsSettings(id, theirs, it));
      if (context === undefined) continue;
      models.push({
        id,
        upstream: name,
        ...(id === theirs ? {} : { upstream_model: theirs }),
        context_length: context,
      });
      const isChat = kind === 'chat';
      const { prompt, completion } = EXAMPLE_PRICES;
      offers.push(
        [
          `    - id: ${quoted(id)}`,
          ...(isChat ? [] : ['      kind: embeddings']),
          `      upstream: ${name}`,
          ...(id === theirs ? [] : [`      upstream_model: ${quoted(theirs)}`]),
          `      context_length: ${context}${contextLength !== context ? '   # a guess: the server does not say what it takes' : ''}`,
          ...(isChat ? [`      max_output_tokens: ${Math.min(OUTPUT_MAX, Math.ceil(context / 2))}`] : []),
          `      pricing_per_million: { prompt: ${prompt}${isChat ? `, completion: ${completion}` : ''} }`,
        ].join('\n'),
      );
    }
  }
  return { text: fileText(entries, offers), upstreams, models };
}

/** Returns whether settings can have a model by this name, by that of its server, and with this context length. */
function fitsSettings(id: string, theirs: string, contextLength: number): boolean {
  if (theirs.includes('${') || showVariables(theirs) !== theirs) return false;
  const upstream = { name: 'any', base_url: 'http://127.0.0.1' };
  const model = { id, upstream: 'any', upstream_model: theirs, context_length: contextLength, max_output_tokens: 1 };
  return v.safeParse(Settings, { router: { upstreams: [upstream], models: [model] } }).success;
}

function unused(name: string, taken: readonly string[]): string {
  if (!taken.includes(name)) return name;
  for (let n = 2; ; n++) if (!taken.includes(`${name}-${n}`)) return `${name}-${n}`;
}

const quoted = (text: string) => stringify(text, { lineWidth: 0, defaultStringType: 'QUOTE_DOUBLE' }).trim();

const ROUTER_EXAMPLE = `# router:
#   upstreams:
#     - { name: local, base_url: http://127.0.0.1:8000/v1 }                  # any OpenAI-compatible server
#     - { name: hosted, base_url: https://api.example.com/v1, api_key: \${HOSTED_KEY} }
#   models:
#     - id: qwen3-8b
#       upstream: local
#       context_length: 32768
#       max_output_tokens: 8192
#       pricing_per_million: { prompt: 0.10, completion: 0.40 }`;

function fileText(entries: string[], offers: string[]): string {
  const router = entries.length
    ? `router:
  upstreams:
${entries.join('\n')}
#   - { name: hosted, base_url: https://api.example.com/v1, api_key: \${HOSTED_KEY} }   # a key is read from the environment
  # The prices are examples, in USD per million tokens. They are what your agents pay: set your own.
  models:${offers.length ? `\n${offers.join('\n')}` : ' []'}`
    : ROUTER_EXAMPLE;
  return `# The settings of Purser. Each has a default, and what is not here has it.
# After a change: purser config check && purser reload
# Some settings need a restart (listen and compute, for instance): reload names them and changes nothing.

listen: 127.0.0.1:7420
# The address at which agents reach Purser, where it is another than \`listen\`:
# public_url: https://purser.example.org

# Model servers, and the models that agents can buy from them.
${router}

# Machines that agents can rent. docs/backends.md has each backend.
# compute:
#   provider_one:
#     backend: container
#     image: debian:12
#     prices: { cpu_hourly_usd: "0.02", memory_gib_hourly_usd: "0.005" }
#     limits: { cpus: 8, memory_gib: 32 }

# Backups that the server makes by itself, and metrics for Prometheus.
# backup: { every: 6h, keep: 28, directory: /mnt/backups }
# metrics: { listen: 127.0.0.1:7421 }
`;
}
