import { Refusal } from '../base/refusal.ts';
import { visible } from '../base/visible.ts';
import type { Catalogue, Model } from '../router/catalogue.ts';

/** The settings of a client that spends from a wallet by its gateway. */
type GatewayAccess = {
  baseUrl: string;
  /** The gateway key. Undefined where the client takes it from its variable OPENAI_API_KEY. */
  apiKey: string | undefined;
};
type NamedModel = Pick<Model, 'id' | 'contextLength' | 'maxOutputTokens'>;
type Gateway = GatewayAccess & { model: NamedModel };

/** Environment variables by name; undefined has the value of OPENAI_API_KEY. */
type Variables = Record<string, string | undefined>;

type AgentClient = {
  /** Variables that the client reads, and those that name its model. */
  access?: (access: GatewayAccess) => Variables;
  model?: (model: NamedModel) => Record<string, string>;
  /** The file that the client reads, and its text. */
  file?: { path: string; text: (gateway: Gateway) => string };
  /** A command that stores the settings, once the variables are set. */
  store?: string;
  /** The command that starts the client; a library has none. */
  start?: (model: NamedModel) => string;
};

const openai = {
  access: ({ baseUrl, apiKey }) => ({ OPENAI_BASE_URL: baseUrl, OPENAI_API_KEY: apiKey }),
  model: ({ id }) => ({ OPENAI_MODEL: id }),
} satisfies AgentClient;

const anthropic = {
  access: ({ baseUrl, apiKey }) => ({ ANTHROPIC_BASE_URL: baseUrl, ANTHROPIC_AUTH_TOKEN: apiKey }),
  model: ({ id }) => ({ ANTHROPIC_MODEL: id }),
} satisfies AgentClient;

/** Anthropic's clients prefer this variable to the token, and would send it to Purser. */
const UNSET = 'ANTHROPIC_API_KEY';

/** Clients subtract the longest answer from the context before they compact, so that a longer one would leave no prompt. */
const outputTokens = ({ contextLength, maxOutputTokens }: NamedModel): number =>
  Math.max(1, Math.min(maxOutputTokens, Math.floor(contextLength / 4)));

/** JSON text. Also a string of TOML and of YAML: control characters, which the three escape differently, are refused. */
const json = (value: unknown, indent?: number): string => JSON.stringify(value, null, indent);

/** opencode, and Kilo, which is made of it. */
const opencode = ({ baseUrl, apiKey = '{env:OPENAI_API_KEY}', model }: Gateway): string => {
  const limit = { context: model.contextLength, output: outputTokens(model) };
  const purser = {
    npm: '@ai-sdk/openai-compatible',
    options: { baseURL: baseUrl, apiKey },
    models: { [model.id]: { limit } },
  };
  return json({ model: `purser/${model.id}`, provider: { purser } }, 2);
};

/** Every client by its name on the command line, in the order of the clients page. */
const CLIENTS = {
  openai,
  anthropic,
  // The Python package reads an older name.
  langchain: { ...openai, access: (it) => ({ ...openai.access(it), OPENAI_API_BASE: it.baseUrl }) },
  'ai-sdk': openai,
  claude: {
    ...anthropic,
    model: (it) => ({
      ...anthropic.model(it),
      // Of titles and sub-agents, which ask for models of Anthropic otherwise.
      ANTHROPIC_DEFAULT_HAIKU_MODEL: it.id,
      CLAUDE_CODE_SUBAGENT_MODEL: it.id,
      CLAUDE_CODE_MAX_CONTEXT_TOKENS: String(it.contextLength),
    }),
    start: () => 'claude',
  },
  codex: {
    file: {
      path: '~/.codex/config.toml',
      text: ({ baseUrl, apiKey, model }) =>
        [
          `model = ${json(model.id)}`,
          'model_provider = "purser"',
          `model_context_window = ${model.contextLength}`,
          '[model_providers.purser]',
          'name = "Purser"',
          `base_url = ${json(baseUrl)}`,
          apiKey === undefined ? 'env_key = "OPENAI_API_KEY"' : `experimental_bearer_token = ${json(apiKey)}`,
          'wire_api = "responses"',
        ].join('\n'),
    },
    start: () => 'codex',
  },
  opencode: { file: { path: 'opencode.json', text: opencode }, start: () => 'opencode' },
  kilo: { file: { path: '~/.config/kilo/kilo.json', text: opencode }, start: () => 'kilo' },
  qwen: { ...openai, start: () => 'qwen --auth-type openai' },
  cline: {
    ...openai,
    store:
      'cline auth --provider openai-native --apikey "$OPENAI_API_KEY" --baseurl "$OPENAI_BASE_URL" --modelid "$OPENAI_MODEL"',
    start: () => 'cline',
  },
  pi: {
    file: {
      path: '~/.pi/agent/models.json',
      text: ({ baseUrl, apiKey = 'OPENAI_API_KEY', model }) => {
        const models = [{ id: model.id, contextWindow: model.contextLength, maxTokens: outputTokens(model) }];
        return json({ providers: { purser: { baseUrl, apiKey, api: 'openai-completions', models } } }, 2);
      },
    },
    start: ({ id }) => `pi --provider purser --model ${inShell(id)}`,
  },
  copilot: {
    access: ({ baseUrl, apiKey }) => ({
      COPILOT_PROVIDER_BASE_URL: baseUrl,
      COPILOT_PROVIDER_API_KEY: apiKey,
      COPILOT_OFFLINE: 'true',
    }),
    model: ({ id }) => ({ COPILOT_MODEL: id }),
    start: () => 'copilot',
  },
  continue: {
    file: {
      path: '~/.continue/config.yaml',
      // biome-ignore lint/suspicious/noTemplateCurlyInString: Continue replaces it.
      text: ({ baseUrl, apiKey = '${{ secrets.OPENAI_API_KEY }}', model }) =>
        [
          'name: purser',
          'version: 1.0.0',
          'schema: v1',
          'models:',
          `  - name: ${json(model.id)}`,
          '    provider: openai',
          `    model: ${json(model.id)}`,
          `    apiBase: ${json(baseUrl)}`,
          `    apiKey: ${json(apiKey)}`,
          '    defaultCompletionOptions:',
          `      contextLength: ${model.contextLength}`,
        ].join('\n'),
    },
    start: () => 'cn',
  },
  openclaw: {
    file: {
      path: '~/.openclaw/openclaw.json',
      // biome-ignore lint/suspicious/noTemplateCurlyInString: OpenClaw replaces it.
      text: ({ baseUrl, apiKey = '${OPENAI_API_KEY}', model }) => {
        const { id, contextLength: contextWindow } = model;
        const models = [{ id, name: id, contextWindow, maxTokens: outputTokens(model) }];
        return json(
          {
            agents: { defaults: { model: { primary: `purser/${id}` } } },
            models: { providers: { purser: { baseUrl, apiKey, api: 'openai-completions', models } } },
          },
          2,
        );
      },
    },
    start: () => 'openclaw agent --local',
  },
} satisfies Record<string, AgentClient>;

export type ClientName = keyof typeof CLIENTS;
export const CLIENT_NAMES = Object.keys(CLIENTS) as ClientName[];
export const isClientName = (name: string): name is ClientName => Object.hasOwn(CLIENTS, name);

/** Returns the model of settings that name none: the first one for chats. */
export const firstChatModel = ({ list }: Pick<Catalogue, 'list'>): Model | undefined =>
  list.find(({ kind }) => kind === 'chat');

/** Settings of one client, as `purser wallet env` and the page of a wallet show them. */
export type ClientSettings = {
  client: ClientName;
  /** The file that the block belongs to; null for a block of shell commands. */
  file: string | null;
  block: string;
  /** The command that starts the client; null for a library. */
  start: string | null;
};

/**
 * Returns the settings of a client. Throws `invalid_request` for a model whose id, or a base URL that, the client could not
 * read as it is.
 */
export function clientSettings(client: ClientName, gateway: Gateway): ClientSettings {
  const { access, model, file, store, start }: AgentClient = CLIENTS[client];
  for (const text of [gateway.model.id, gateway.baseUrl]) refuseUnwritable(text, client, file !== undefined);
  const lines = exportsOf({ ...access?.(gateway), ...model?.(gateway.model) });
  return {
    client,
    file: file?.path ?? null,
    block: file ? file.text(gateway) : [...lines, ...(store === undefined ? [] : [store])].join('\n'),
    start: start?.(gateway.model) ?? null,
  };
}

/**
 * Returns the environment of a program, with the variables of every client that reads some. Without a model none is named.
 * Throws like `clientSettings`.
 */
export function clientEnvironment(
  inherited: NodeJS.ProcessEnv,
  access: GatewayAccess & { apiKey: string },
  model: NamedModel | undefined,
): NodeJS.ProcessEnv {
  if (model) refuseUnwritable(model.id, 'A program', false);
  const { [UNSET]: _, ...env } = inherited;
  const clients: AgentClient[] = Object.values(CLIENTS);
  return Object.assign(env, ...clients.map((it) => ({ ...it.access?.(access), ...(model && it.model?.(model)) })));
}

function exportsOf(variables: Variables): string[] {
  const unset = 'ANTHROPIC_AUTH_TOKEN' in variables ? [`unset ${UNSET}`] : [];
  const all = Object.entries(variables).filter(([name, value]) => value !== undefined || name !== 'OPENAI_API_KEY');
  return [
    ...unset,
    ...all.map(([name, value]) => `export ${name}=${value === undefined ? '"$OPENAI_API_KEY"' : inShell(value)}`),
  ];
}

/** Quotes a word for a shell, unless it has nothing that a shell would read. */
const inShell = (text: string): string =>
  /^[\w./:@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;

/** The placeholders that clients replace inside the text of their files: `{env:NAME}`, `{file:PATH}`, `${NAME}`, `${{ NAME }}`. */
const REPLACED = /\{(?:env|file):|\$\{/;

function refuseUnwritable(text: string, client: string, inFile: boolean): void {
  if (visible(text) !== text || /[\n\t]/.test(text) || !text.isWellFormed())
    throw new Refusal('invalid_request', `${json(text)} has characters that no settings can name.`);
  if (inFile && REPLACED.test(text))
    throw new Refusal('invalid_request', `${client} would replace a part of ${json(text)}.`);
}
