import { createRequire } from 'node:module';
import { Template } from '@huggingface/jinja';
import { TokenizerLoader } from '@lenml/tokenizers';
import llama3 from 'llama3-tokenizer-js';

/** A model's own tokenizer and chat template, which count like a model server. */
export type Counter = { name: string; count(request: ChatRequest): number };
export type ChatRequest = {
  messages: readonly Record<string, any>[];
  tools?: readonly unknown[];
};

const require = createRequire(import.meta.url);

/** Follows the layout in the model card; tools are indented by four, as Llama 3.1 expects. */
const LLAMA_31 = `{{- bos_token }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{- 'Environment: ipython\\n' }}{% endif %}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n' }}
{%- if tools %}
{{- 'Given the following functions, please respond with a JSON for a function call with its proper arguments that best answers the given prompt.\\n\\nRespond in the format {"name": function name, "parameters": dictionary of argument name and its value}. Do not use variables.\\n\\n' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{% endfor %}
{%- endif %}
{{- system + '<|eot_id|>' }}
{%- for message in rest %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.function.name + '", "parameters": ' }}{{- call.function.arguments | tojson }}{{- '}<|eot_id|>' }}{% endfor %}
{%- elif message.role == 'tool' %}{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}{{- message.content | tojson }}{{- '<|eot_id|>' }}
{%- else %}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + (message.content | trim) + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}`;
const GEMMA = `{{- bos_token }}
{%- if tools %}{{- '<start_of_turn>user\\n' }}{% for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{% endfor %}{{- '<end_of_turn>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}
{%- if message.tool_calls %}{% for call in message.tool_calls %}{{- call.function | tojson }}{% endfor %}{% else %}{{- message.content | trim }}{% endif %}
{{- '<end_of_turn>\\n' }}
{%- endfor %}
{{- '<start_of_turn>model\\n' }}`;
const LLAMA_2 = `{%- if tools %}{{- bos_token + '[INST] <<SYS>>\\n' }}{{- tools | tojson(indent=4) }}{{- '\\n<</SYS>>\\n\\n [/INST]' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{% if message.tool_calls %}{% for call in message.tool_calls %}{{- call.function | tojson(indent=4) }}{% endfor %}{% else %}{{- ' ' + message.content + ' ' }}{% endif %}{{- eos_token }}
{%- else %}{{- bos_token + '[INST] ' + message.content + ' [/INST]' }}{% endif %}
{%- endfor %}`;

const LENML = [
  ['Qwen 3', 'qwen3', undefined],
  ['Mistral Nemo', 'mistral_nemo', undefined],
  ['Gemma', 'gemma', GEMMA],
  ['Llama 2 (SentencePiece)', 'llama2', LLAMA_2],
] as const;

/** Loads all tokenizers, which takes some seconds. */
export function openCounters(): Counter[] {
  return [
    ...LENML.map(([name, folder, own]) => {
      const tokenizerConfig = require(`@lenml/tokenizer-${folder}/models/tokenizer_config.json`);
      const tokenizer = TokenizerLoader.fromPreTrained({
        tokenizerJSON: require(`@lenml/tokenizer-${folder}/models/tokenizer.json`),
        tokenizerConfig,
      });
      const template = new Template(own ?? tokenizerConfig.chat_template);
      const specials = { bos_token: tokenizerConfig.bos_token ?? '', eos_token: tokenizerConfig.eos_token ?? '' };
      const encode = (text: string) => tokenizer.encode(text, { add_special_tokens: false }).length;
      return { name, count: countBy(template, specials, encode) };
    }),
    {
      name: 'Llama 3.1',
      count: countBy(
        new Template(LLAMA_31),
        { bos_token: '<|begin_of_text|>', eos_token: '<|eot_id|>' },
        (text) => llama3.encode(text, { bos: false, eos: false }).length,
      ),
    },
  ];
}

/** Counts like a server that parses the arguments of calls, such as vLLM, and like one that keeps them as text; returns the larger. */
function countBy(template: Template, specials: object, encode: (text: string) => number): Counter['count'] {
  return ({ messages, tools }) => {
    const flat = messages.map(flatten);
    const parsed = flat.map(withParsedArguments);
    const texts = [flat, parsed].map((them) =>
      asPythonWrites(template.render({ messages: them, tools, add_generation_prompt: true, ...specials })),
    );
    return Math.max(...[...new Set(texts)].map(encode));
  };
}

/** Joins the parts of a text by line feeds and gives a call an empty content, as vLLM does. */
const flatten = (message: Record<string, any>): Record<string, any> => ({
  ...message,
  content: Array.isArray(message.content)
    ? message.content.map((part: { text: string }) => part.text).join('\n')
    : (message.content ?? ''),
});

function withParsedArguments(message: Record<string, any>): Record<string, any> {
  if (!message.tool_calls) return message;
  return {
    ...message,
    tool_calls: message.tool_calls.map((call: any) => ({
      ...call,
      function: { ...call.function, arguments: parsePython(call.function.arguments) },
    })),
  };
}

const MARK = '\u{f0000}';

/** Parses JSON as Python's json.loads does: NaN is a number, an integer keeps its digits, and 1e15 is a float. */
function parsePython(text: string): unknown {
  const readable = text.replace(/-?\b(NaN|Infinity)\b/g, `"${MARK}$&${MARK}"`);
  const revive = (_: string, value: unknown, context?: { source?: string }) => {
    const source = context?.source;
    if (typeof value !== 'number' || source === undefined) return value;
    if (/^-?\d+$/.test(source)) return `${MARK}${source}${MARK}`;
    if (!Number.isInteger(value)) return value;
    return `${MARK}${Math.abs(value) < 1e16 ? `${value}.0` : value.toExponential()}${MARK}`;
  };
  try {
    return JSON.parse(readable, revive as never);
  } catch {
    return text;
  }
}

const MARKED = new RegExp(`"${MARK}([^"${MARK}]*)${MARK}"`, 'gu');
const asPythonWrites = (text: string) => text.replace(MARKED, '$1');
