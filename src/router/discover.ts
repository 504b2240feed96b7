import { parseJson, wordOf } from '../base/parse-json.ts';
import { readAnswerText } from '../net/read-bounded.ts';
import { request } from '../net/request.ts';
import { readStatedModels } from './stated-models.ts';

/** Model servers by their default ports. */
export const USUAL_SERVERS: readonly { software: string; port: number }[] = [
  { software: 'Ollama', port: 11434 },
  { software: 'vLLM', port: 8000 },
  { software: 'llama.cpp', port: 8080 },
  { software: 'LM Studio', port: 1234 },
  { software: 'SGLang', port: 30_000 },
];

type DiscoveredModel = { id: string; kind: 'chat' | 'embeddings'; contextLength: number | undefined };
export type DiscoveredServer = {
  software: string;
  /** The base of its OpenAI-compatible API. */
  baseUrl: string;
  models: DiscoveredModel[];
  /** True if it requires a key and states nothing without one. */
  isLocked: boolean;
};

/** A server on this machine answers at once; one that loads a model may take a while. */
const ANSWER_MILLISECONDS = 3000;
const BYTES_MAX = 4 * 1024 * 1024;
/** Maximum number of models that are queried one by one. */
const DETAILED_COUNT_MAX = 100;

/** The `owned_by` of a model by the software that lists it. */
const SOFTWARE_BY_OWNER: Record<string, string> = {
  library: 'Ollama',
  vllm: 'vLLM',
  llamacpp: 'llama.cpp',
  organization_owner: 'LM Studio',
  sglang: 'SGLang',
};

/**
 * Looks for model servers at `others`, addresses with or without /v1; if there are none, on the default ports of this
 * machine.
 */
export async function discoverServers(
  others: readonly string[] = [],
  usualServers = others.length ? [] : USUAL_SERVERS,
): Promise<DiscoveredServer[]> {
  const usual = usualServers.map(({ software, port }) => ({ software, address: `http://127.0.0.1:${port}` }));
  const named = others.map((it) => ({
    software: 'model server',
    address: it.replace(/\/+$/, '').replace(/\/v1$/, ''),
  }));
  const answers = await Promise.all([...usual, ...named].map(lookAt));
  return answers.filter((it) => it !== undefined);
}

type ServerAnswer = { status: number; json: unknown };

/** Requests a URL. Returns undefined if nothing answers with JSON within the time limit. */
async function ask(url: string, body?: object): Promise<ServerAnswer | undefined> {
  try {
    const response = await request(url, {
      method: body ? 'POST' : 'GET',
      signal: AbortSignal.timeout(ANSWER_MILLISECONDS),
      ...(body ? { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } } : {}),
    });
    const text = await readAnswerText(response.body, BYTES_MAX);
    const isLocked = response.statusCode === 401 || response.statusCode === 403;
    return { status: response.statusCode, json: isLocked ? undefined : parseJson(text) };
  } catch {
    return undefined;
  }
}

async function lookAt({ software: usual, address }: { software: string; address: string }) {
  const list = await ask(`${address}/v1/models`);
  if (!list) return undefined;
  const serverOf = (software: string, models: DiscoveredModel[], isLocked = false): DiscoveredServer => ({
    software,
    baseUrl: `${address}/v1`,
    models,
    isLocked,
  });
  if (list.json === undefined) return serverOf(usual, [], true);
  const { data } = (list.json ?? {}) as { data?: unknown };
  if (data !== null && !Array.isArray(data)) return undefined; // Another kind of server.
  const owner = member((data ?? [])[0], 'owned_by');
  const software = SOFTWARE_BY_OWNER[wordOf(owner)] ?? usual;
  const models = [...readStatedModels(list.json)].map(
    ([id, { contextLength }]): DiscoveredModel => ({ id, kind: 'chat', contextLength }),
  );
  const detailed = DETAILS[software];
  return serverOf(software, detailed ? await detailed(address, models.slice(0, DETAILED_COUNT_MAX)) : models);
}

const member = (value: unknown, name: string): unknown =>
  typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[name] : undefined;
const positive = (value: unknown) =>
  Number.isSafeInteger(value) && (value as number) > 0 ? (value as number) : undefined;
const listOf = (value: unknown) => (Array.isArray(value) ? (value as unknown[]) : []);

/** Reads the details that `GET /v1/models` leaves out, by software. */
const DETAILS: Record<string, (address: string, models: DiscoveredModel[]) => Promise<DiscoveredModel[]>> = {
  /** Reads the context of the loaded models, else `num_ctx` of the model, which is below the limit of its training. */
  async Ollama(address, models) {
    const running = listOf(member((await ask(`${address}/api/ps`))?.json, 'models'));
    return Promise.all(
      models.map(async ({ id }) => {
        const shown = (await ask(`${address}/api/show`, { model: id }))?.json;
        const loaded = running.find((it) => member(it, 'name') === id);
        const parameters = wordOf(member(shown, 'parameters') ?? '');
        const set = Number(/^num_ctx\s+(\d+)/m.exec(parameters)?.[1]);
        const isEmbedding = listOf(member(shown, 'capabilities')).includes('embedding');
        return {
          id,
          kind: isEmbedding ? 'embeddings' : 'chat',
          contextLength: positive(member(loaded, 'context_length')) ?? positive(set),
        };
      }),
    );
  },
  async 'LM Studio'(address, models) {
    const listed = listOf(member((await ask(`${address}/api/v0/models`))?.json, 'data'));
    return models.map(({ id, contextLength }) => {
      const own = listed.find((it) => member(it, 'id') === id);
      const lengths = ['loaded_context_length', 'max_context_length'].map((name) => positive(member(own, name)));
      return {
        id,
        kind: member(own, 'type') === 'embeddings' ? 'embeddings' : 'chat',
        contextLength: lengths.find((it) => it !== undefined) ?? contextLength,
      };
    });
  },
  /** Reads the context of one slot, which is the limit of a request. */
  async 'llama.cpp'(address, models) {
    const settings = member((await ask(`${address}/props`))?.json, 'default_generation_settings');
    const contextLength = positive(member(settings, 'n_ctx'));
    return models.map((it) => ({ ...it, contextLength: contextLength ?? it.contextLength }));
  },
};
