import { type Json, wordOf } from '../../base/parse-json.ts';
import { FREE_MEMBERS } from '../../router/free-members.ts';
import { refuseReasoning } from '../../router/refused-content.ts';
import { type Conversation, createConversation, imagePart, type Piece } from './conversation.ts';
import type { Translated } from './dialect.ts';
import { filled, given, givenBut, invalid, isObject, notOffered, objectOf, objectsOf, pick, textOf } from './json.ts';
import { textOfFile } from './responses-files.ts';
import { flatName } from './tool-name.ts';

/** Members that make the server store something, or look it up. */
const REMEMBERED = ['previous_response_id', 'conversation', 'prompt'];
/** Members without effect here. */
const OMITTED = [
  ...['include', 'prompt_cache_key', 'prompt_cache_retention', 'client_metadata', 'metadata', 'truncation'],
  ...['stream_options', 'max_tool_calls', 'cache_control'],
];
/** Members that are read here. */
const READ = [
  ...['model', 'input', 'instructions', 'stream', 'tools', 'tool_choice', 'parallel_tool_calls', 'text', 'reasoning'],
  ...['max_output_tokens', 'temperature', 'top_p', 'user', 'safety_identifier', 'service_tier', 'store', 'background'],
  ...['top_logprobs', ...REMEMBERED],
];
/** Members beside those of the API that model servers understand and that cost nothing but their bytes. */
export const FREE = FREE_MEMBERS.filter((name) => ![...READ, ...OMITTED].includes(name));
const TRANSLATED = new Set([...READ, ...FREE]);
const FORGETS = 'nothing is stored here: send the whole conversation in input.';
/** Tools that clients send by default and can work without: leaving them out lets Codex and Cline start. */
const TOOLS_OMITTED = /^(web_search|image_generation$)/;
export const isOmitted = (tool: unknown) => TOOLS_OMITTED.test(wordOf(objectOf(tool).type));

/** Items that make more tools available: so Codex sends its own to models that it knows, and those that it has searched. */
const BRINGING = new Set(['additional_tools', 'tool_search_output']);
export const bringsTools = (item: unknown) => BRINGING.has(wordOf(objectOf(item).type));
/** Returns whether a tool is the search for tools that the client does itself. Chat completions have none. */
export const isSearch = (tool: unknown) =>
  objectOf(tool).type === 'tool_search' && objectOf(tool).execution === 'client';

/** The request's name of a tool for which chat completions need another name or form. */
type SpecialTool = { name: string; namespace?: string; isCustom: boolean };
export type SpecialTools = ReadonlyMap<string, SpecialTool>;

/**
 * Translates a request of OpenAI's Responses API to a chat completion, and names its special tools. Throws
 * `invalid_request` and `unsupported_parameter`.
 */
export function chatOfResponses(raw: Json): Translated & { special: SpecialTools } {
  for (const name of REMEMBERED) if (raw[name] !== undefined && raw[name] !== null) throw notOffered(name, FORGETS);
  if (raw.store === true) throw notOffered('store', `${FORGETS} Leave store out or send false.`);
  if (raw.background === true) throw notOffered('background', 'a response is not made in the background here.');
  if (raw.top_logprobs) throw notOffered('top_logprobs', 'probabilities are offered by /chat/completions only.');
  refuseReasoning(raw.reasoning);
  const special = new Map<string, SpecialTool>();
  const tools = allTools(raw, special);
  const { verbosity, format } = objectOf(raw.text);
  const chat = {
    model: textOf(raw.model, 'model'),
    messages: messagesOf(raw),
    ...given({
      ...pick(raw, FREE),
      max_tokens: limitOf(raw.max_output_tokens),
      temperature: raw.temperature,
      top_p: raw.top_p,
      user: raw.user,
      safety_identifier: raw.safety_identifier,
      service_tier: raw.service_tier === 'auto' ? undefined : raw.service_tier,
      reasoning_effort: objectOf(raw.reasoning).effort,
      verbosity,
      response_format: formatOf(format),
      ...(tools.length
        ? { ...choiceOfTools(raw.tool_choice, tools), parallel_tool_calls: raw.parallel_tool_calls }
        : {}),
    }),
  };
  return { chat, others: { members: givenBut(raw, TRANSLATED), dispensable: OMITTED }, special };
}

/** Returns the output limit. Throws `invalid_request` with its name in this API. */
function limitOf(limit: unknown): unknown {
  if (limit === undefined || limit === null || (Number.isSafeInteger(limit) && (limit as number) >= 1)) return limit;
  throw invalid('max_output_tokens', 'must be a whole number from 1');
}

function messagesOf({ instructions, input }: Json): Json[] {
  const conversation = createConversation();
  if (instructions !== undefined && instructions !== null) conversation.system([textOf(instructions, 'instructions')]);
  if (typeof input === 'string') conversation.user([input]);
  else {
    if (!Array.isArray(input)) throw invalid('input', 'must be a text or an array');
    for (const [i, item] of filled(objectsOf(input, 'input'), 'input').entries())
      addItem(conversation, item, `input.${i}`);
  }
  return filled(conversation.finish(), 'input');
}

function addItem(conversation: Conversation, item: Json, where: string): void {
  const { type = 'message' } = item;
  switch (type) {
    case 'message':
      addMessage(conversation, item, where);
      return;
    case 'reasoning': {
      const texts = [item.summary, item.content].find((it) => Array.isArray(it) && it.length > 0);
      if (texts)
        conversation.assistant({
          reasoning: objectsOf(texts, where)
            .map(({ text }) => textOf(text, where))
            .join('\n\n'),
        });
      return; // Only its maker can read encrypted reasoning, and no answer of this gateway contains any.
    }
    case 'function_call': {
      const name = nameOf(item, where);
      conversation.assistant({
        call: { id: callIdOf(item, where), name, arguments: textOf(item.arguments, `${where}.arguments`) },
      });
      return;
    }
    case 'custom_tool_call': {
      const input = textOf(item.input, `${where}.input`);
      const name = nameOf(item, where);
      conversation.assistant({ call: { id: callIdOf(item, where), name, arguments: JSON.stringify({ input }) } });
      return;
    }
    case 'function_call_output':
    case 'custom_tool_call_output':
      conversation.result(callIdOf(item, where), contentOf(item.output, `${where}.output`));
      return;
    case 'additional_tools':
    case 'tool_search_call':
    case 'tool_search_output':
      return; // What they bring is with the other tools.
    case 'item_reference':
      // The AI SDK refers to the reasoning of an earlier step this way; a model can do without it.
      if (textOf(item.id, `${where}.id`).startsWith('rs_')) return;
      throw notOffered(where, FORGETS);
    default:
      throw notOffered(where, `an item of the type ${named(type)} is not offered here.`);
  }
}

function addMessage(conversation: Conversation, { role, content }: Json, where: string): void {
  const pieces = contentOf(content, `${where}.content`);
  const text = () => pieces.map((it) => textOf(it, `${where}.content`)).join('\n\n');
  if (role === 'user') conversation.user(pieces);
  else if (role === 'assistant') conversation.assistant({ piece: text() });
  // Few model servers know the role "developer"; those that do accept "system" instead.
  else if (role === 'system' || role === 'developer') conversation.system([text()]);
  else throw invalid(`${where}.role`, 'must be user, assistant, system or developer');
}

const named = (type: unknown) => JSON.stringify(wordOf(type).slice(0, 40));
const nameOf = ({ name, namespace }: Json, where: string) =>
  flatName(textOf(name, `${where}.name`), typeof namespace === 'string' ? namespace : undefined);
const callIdOf = (item: Json, where: string) => textOf(item.call_id, `${where}.call_id`);

/** Returns the content of a message, or the output of a call. */
function contentOf(content: unknown, where: string): Piece[] {
  if (typeof content === 'string') return [content];
  if (content === undefined || content === null) return [];
  return objectsOf(content, where).map((part, i) => {
    const at = `${where}.${i}`;
    switch (part.type) {
      case 'input_text':
      case 'output_text':
      case 'text':
        return textOf(part.text, `${at}.text`);
      case 'refusal':
        return textOf(part.refusal, `${at}.refusal`);
      case 'input_image': {
        const { image_url: image, detail } = part;
        if (image === undefined || image === null)
          throw notOffered(at, `an image by its id is not offered here: ${FORGETS}`);
        return imagePart(textOf(isObject(image) ? image.url : image, `${at}.image_url`), {}, detailOf(detail));
      }
      case 'input_file':
        return textOfFile(part, at);
      default:
        throw notOffered(at, `a part of the type ${named(part.type)} is not offered here.`);
    }
  });
}

/** Returns the detail of an image: the finest of chat completions in place of one that they do not have. */
const detailOf = (detail: unknown) => (detail === 'original' ? 'high' : detail);

/** Returns the tools of a request and of its items. Of several with one name, the latest counts. */
function allTools({ tools, input }: Json, special: Map<string, SpecialTool>): Json[] {
  const listed = toolsOf(tools, 'tools', special);
  const brought = (Array.isArray(input) ? input : []).flatMap((item, i) =>
    bringsTools(item) ? toolsOf(objectOf(item).tools, `input.${i}.tools`, special) : [],
  );
  if (!brought.length) return listed;
  return [...new Map([...listed, ...brought].map((it) => [objectOf(it.function).name, it])).values()];
}

function toolsOf(value: unknown, where: string, special: Map<string, SpecialTool>, namespace?: string): Json[] {
  if (value === undefined || value === null) return [];
  return objectsOf(value, where).flatMap((tool, i) => {
    const at = `${where}.${i}`;
    const { type, description } = tool;
    if (type === 'namespace' && namespace === undefined)
      return toolsOf(tool.tools, `${at}.tools`, special, textOf(tool.name, `${at}.name`));
    if (isOmitted(tool) || isSearch(tool)) return [];
    if (type !== 'function' && type !== 'custom')
      throw notOffered(
        at,
        `${named(type)}: the model server would run this itself, which is not offered here. Leave it out.`,
      );
    const name = textOf(tool.name, `${at}.name`);
    const flat = flatName(name, namespace);
    if (flat !== name || type === 'custom')
      special.set(flat, { name, ...(namespace === undefined ? {} : { namespace }), isCustom: type === 'custom' });
    const called =
      type === 'custom'
        ? { name: flat, ...describeCustom(tool), parameters: CUSTOM_PARAMETERS }
        : { name: flat, ...given({ description, parameters: tool.parameters, strict: tool.strict }) };
    return [{ type: 'function', function: called }];
  });
}

/** The parameters of a custom tool, which takes a text, not JSON: here it is a function with one string. */
const CUSTOM_PARAMETERS = {
  type: 'object',
  properties: { input: { type: 'string' } },
  required: ['input'],
  additionalProperties: false,
};

function describeCustom({ description, format }: Json): Json {
  const { type, syntax, definition } = objectOf(format);
  const grammar =
    type === 'grammar' ? `The input must follow this grammar (${wordOf(syntax)}):\n${wordOf(definition)}` : undefined;
  const texts = [description, grammar].filter((it) => typeof it === 'string' && it);
  return texts.length ? { description: texts.join('\n\n') } : {};
}

function choiceOfTools(choice: unknown, tools: readonly Json[]): Json {
  if (!isObject(choice)) return { tools, tool_choice: choice };
  const { type, mode, tools: allowed } = choice;
  const flat = (tool: Json) => nameOf(tool, 'tool_choice');
  if (type === 'function' || type === 'custom')
    return { tools, tool_choice: { type: 'function', function: { name: flat(choice) } } };
  if (type !== 'allowed_tools') throw notOffered('tool_choice', `${named(type)} is not offered here.`);
  const names = new Set(objectsOf(allowed, 'tool_choice.tools').map(flat));
  return { tools: tools.filter((it) => names.has(wordOf(objectOf(it.function).name))), tool_choice: mode };
}

function formatOf(format: unknown): Json | undefined {
  if (format === undefined || format === null) return undefined;
  const { type, ...rest } = objectOf(format);
  if (type === 'text') return undefined;
  if (type === 'json_object') return { type };
  if (type !== 'json_schema') throw invalid('text.format.type', 'must be text, json_object or json_schema');
  return { type, json_schema: given(rest) };
}
