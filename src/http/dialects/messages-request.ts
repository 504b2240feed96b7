import { type Json, wordOf } from '../../base/parse-json.ts';
import { Refusal, refusedFrom } from '../../base/refusal.ts';
import { FREE_MEMBERS } from '../../router/free-members.ts';
import { createConversation, imagePart, markedText, marksOf, type Piece } from './conversation.ts';
import type { Translated } from './dialect.ts';
import { filled, given, givenBut, invalid, isObject, notOffered, objectOf, objectsOf, pick, textOf } from './json.ts';
import { piecesOfDocument } from './messages-documents.ts';
import { flatName } from './tool-name.ts';

/** Members without effect here: hints for Anthropic's own context, and a thinking budget, which chat completions do not have. */
const OMITTED = ['metadata', 'thinking', 'context_management', 'service_tier', 'betas', 'anthropic_version'];
/** Features that the server would run itself. */
const RUN_THERE = ['mcp_servers', 'container'];
/** Members that are read here. */
const READ = [
  ...['model', 'messages', 'system', 'max_tokens', 'stream', 'tools', 'tool_choice', 'stop_sequences'],
  ...['temperature', 'top_p', 'top_k', 'output_config', 'output_format', 'cache_control', ...RUN_THERE],
];
/** Members beside those of the API that model servers understand and that cost nothing but their bytes. */
export const FREE = FREE_MEMBERS.filter((name) => ![...READ, ...OMITTED].includes(name));
const TRANSLATED = new Set([...READ, ...FREE]);
/** Tools that the client runs, with schemas that only Anthropic's models know. */
const CLIENT_TOOLS = /^(bash|computer|memory|text_editor)_\d{8}$/;
export const isClientTool = (tool: unknown) => CLIENT_TOOLS.test(wordOf(objectOf(tool).type));
const SERVER_SIDE = 'the model server would run this itself, which is not offered here';
/** The efforts of chat completions that every model server knows. */
const EFFORTS = new Map([
  ['low', 'low'],
  ['medium', 'medium'],
  ['high', 'high'],
  ['xhigh', 'high'],
  ['max', 'high'],
]);
/** The choices of tools that name none, as chat completions call them. */
const SIMPLE_CHOICES = new Map([
  ['auto', 'auto'],
  ['any', 'required'],
  ['none', 'none'],
]);

/**
 * Translates a request of Anthropic's Messages API to a chat completion. Its marks for prompt caches go along. Throws
 * `invalid_request` and `unsupported_parameter`.
 */
export function chatOfMessages(raw: Json): Translated {
  if (hasContent(raw.thread)) throw unsupportedThread();
  for (const name of RUN_THERE) if (hasContent(raw[name])) throw notOffered(name, `${SERVER_SIDE}. Leave it out.`);
  const tools = toolsOf(raw.tools);
  const clientTool = Array.isArray(raw.tools) ? raw.tools.findIndex(isClientTool) : -1;
  const chat = {
    model: textOf(raw.model, 'model'),
    messages: messagesOf(raw),
    ...given({
      ...pick(raw, FREE),
      max_tokens: raw.max_tokens,
      temperature: raw.temperature,
      top_p: raw.top_p,
      top_k: raw.top_k,
      stop: Array.isArray(raw.stop_sequences) && !raw.stop_sequences.length ? undefined : raw.stop_sequences,
      ...(tools.length ? { tools, ...choiceOfTools(raw.tool_choice) } : {}),
      response_format: formatOf(objectOf(raw.output_config).format ?? raw.output_format),
      reasoning_effort: effortOf(objectOf(raw.output_config).effort),
      cache_control: raw.cache_control,
    }),
  };
  return {
    chat,
    others: { members: givenBut(raw, TRANSLATED), dispensable: OMITTED },
    nativeOnly: clientTool === -1 ? undefined : refusedFrom(unknownSchema(tools[clientTool] as Json, clientTool)),
  };
}

/** Returns the refusal after which Anthropic's tool runner sends the whole conversation. */
const unsupportedThread = () =>
  new Refusal('unsupported_parameter', 'thread: no conversation is stored here: send all of its messages.', {
    param: 'thread',
    details: { error_code: 'thread_unsupported_request', unsupported: ['thread'] },
  });

/** Returns the refusal of one of Anthropic's tools for clients by a model whose server does not speak this API. */
const unknownSchema = (tool: Json, at: number) =>
  notOffered(
    `tools.${at}`,
    `only a model server of Anthropic's API knows the schema of ${named(objectOf(tool.function).name)}, and this model has none. Describe the tool with an input_schema.`,
  );

const hasContent = (value: unknown) =>
  value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0);

function messagesOf({ system, messages }: Json): Json[] {
  const conversation = createConversation();
  const instructions = system === undefined || system === null ? [] : textsOf(system, 'system');
  if (instructions.some((it) => it !== '')) conversation.system(instructions);
  for (const [i, { role, content }] of filled(objectsOf(messages, 'messages'), 'messages').entries()) {
    const where = `messages.${i}`;
    // Claude Code reports changes in its surroundings this way.
    if (role === 'system') {
      conversation.system(textsOf(content, `${where}.content`));
      continue;
    }
    if (role !== 'user' && role !== 'assistant') throw invalid(`${where}.role`, 'must be user, assistant or system');
    const blocks =
      typeof content === 'string' ? [{ type: 'text', text: content }] : objectsOf(content, `${where}.content`);
    const at = (k: number) => `${where}.content.${k}`;
    if (role === 'assistant')
      for (const [k, block] of blocks.entries()) conversation.assistant(assistantBlock(block, at(k)));
    else {
      const pieces: Piece[] = [];
      for (const [k, block] of blocks.entries()) {
        // Results come first, as chat completions want them: next to their calls.
        if (block.type === 'tool_result')
          conversation.result(
            textOf(block.tool_use_id, `${at(k)}.tool_use_id`),
            resultOf(block, at(k)),
            marksOf(block),
          );
        else pieces.push(...userPieces(block, at(k)));
      }
      conversation.user(pieces);
    }
  }
  return filled(conversation.finish(), 'messages');
}

/** Returns a text, or the texts of a list of text blocks. */
function textsOf(content: unknown, where: string): Piece[] {
  if (typeof content === 'string') return [content];
  return objectsOf(content, where).map((block, i) => {
    if (block.type !== 'text') throw notOffered(`${where}.${i}`, 'only text can stand here.');
    return markedText(textOf(block.text, `${where}.${i}.text`), block);
  });
}

function assistantBlock(block: Json, where: string): Parameters<ReturnType<typeof createConversation>['assistant']>[0] {
  switch (block.type) {
    case 'text':
      return { piece: markedText(textOf(block.text, `${where}.text`), block) };
    case 'thinking':
      return { reasoning: textOf(block.thinking, `${where}.thinking`) };
    case 'redacted_thinking': // Only Anthropic can read it, and no answer of this gateway contains any.
      return {};
    case 'tool_use': {
      if (!isObject(block.input ?? {})) throw invalid(`${where}.input`, 'must be an object');
      const call = {
        id: textOf(block.id, `${where}.id`),
        name: flatName(textOf(block.name, `${where}.name`)),
        arguments: JSON.stringify(block.input ?? {}),
        marks: marksOf(block),
      };
      return { call };
    }
    default:
      throw unknownBlock(block, where);
  }
}

/** Returns a block of a user's message, or of a tool's result. */
function userPieces(block: Json, where: string): Piece[] {
  switch (block.type) {
    case 'document':
      return piecesOfDocument(block, where, partPieces);
    case 'search_result': {
      const texts = objectsOf(block.content, `${where}.content`).flatMap((it, i) =>
        partPieces(it, `${where}.content.${i}`),
      );
      return [textOf(block.title, `${where}.title`), textOf(block.source, `${where}.source`), ...texts];
    }
    case 'tool_reference': // The client found the tool, and sends its definition with the others.
      return [
        markedText(`The tool ${flatName(textOf(block.tool_name, `${where}.tool_name`))} is now available.`, block),
      ];
    default:
      return partPieces(block, where);
  }
}

/** Returns a block that can also stand inside a document. */
function partPieces(block: Json, where: string): Piece[] {
  if (block.type === 'text') return [markedText(textOf(block.text, `${where}.text`), block)];
  if (block.type !== 'image') throw unknownBlock(block, where);
  const source = objectOf(block.source);
  if (source.type === 'base64')
    return [
      imagePart(
        `data:${textOf(source.media_type, `${where}.source.media_type`)};base64,${textOf(source.data, `${where}.source.data`)}`,
        marksOf(block),
      ),
    ];
  if (source.type === 'url') return [imagePart(textOf(source.url, `${where}.source.url`), marksOf(block))];
  throw notOffered(`${where}.source`, `a source of the type ${named(source.type)} is not offered here.`);
}

/** Returns the content of a tool's result. Chat completions have no mark for a failure, so the text states it. */
function resultOf({ content, is_error: isError }: Json, where: string): Piece[] {
  const pieces =
    content === undefined || content === null
      ? []
      : typeof content === 'string'
        ? [content]
        : objectsOf(content, `${where}.content`).flatMap((it, i) => userPieces(it, `${where}.content.${i}`));
  return isError === true ? ['The tool failed:', ...pieces] : pieces;
}

const named = (type: unknown) => JSON.stringify(wordOf(type).slice(0, 40));

const unknownBlock = ({ type }: Json, where: string) =>
  notOffered(where, `a block of the type ${named(type)} is not offered here.`);

function toolsOf(value: unknown): Json[] {
  if (value === undefined || value === null) return [];
  return objectsOf(value, 'tools').map((tool, i) => {
    const { type, name, description, input_schema: schema, strict } = tool;
    if (isClientTool(tool)) return { type: 'function', function: { name: textOf(name, `tools.${i}.name`) } };
    if (type !== undefined && type !== null && type !== 'custom')
      throw notOffered(`tools.${i}`, `${named(type)}: ${SERVER_SIDE}, or comes without a schema. Leave it out.`);
    const called = {
      name: flatName(textOf(name, `tools.${i}.name`)),
      ...given({ description, parameters: schema, strict }),
    };
    return { type: 'function', function: called, ...marksOf(tool) };
  });
}

/** The request's names of its tools, by those that chat completions have instead: Anthropic's may be twice as long. */
export type ToolNames = ReadonlyMap<string, string>;

/** Returns the names of the tools for which chat completions need another one. */
export function toolNamesOf({ tools }: Json): ToolNames {
  const names = (Array.isArray(tools) ? tools : []).map((it) => wordOf(objectOf(it).name));
  return new Map(names.map((name) => [flatName(name), name] as const).filter(([flat, name]) => flat !== name));
}

function choiceOfTools(choice: unknown): Json {
  if (choice === undefined || choice === null) return {};
  const { type, name, disable_parallel_tool_use: isSingle } = objectOf(choice);
  const simple = SIMPLE_CHOICES.get(wordOf(type));
  if (!simple && type !== 'tool') throw invalid('tool_choice.type', 'must be auto, any, tool or none');
  return {
    tool_choice: simple ?? { type: 'function', function: { name: flatName(textOf(name, 'tool_choice.name')) } },
    ...(isSingle === true ? { parallel_tool_calls: false } : {}),
  };
}

function formatOf(format: unknown): Json | undefined {
  if (format === undefined || format === null) return undefined;
  const { type, schema, name } = objectOf(format);
  if (type !== 'json_schema') throw notOffered('output_config.format', 'only json_schema is offered here.');
  return {
    type: 'json_schema',
    json_schema: { name: typeof name === 'string' ? name : 'answer', strict: true, schema },
  };
}

function effortOf(effort: unknown): string | undefined {
  if (effort === undefined || effort === null) return undefined;
  const known = EFFORTS.get(wordOf(effort));
  if (known === undefined) throw invalid('output_config.effort', 'must be low, medium, high, xhigh or max');
  return known;
}
