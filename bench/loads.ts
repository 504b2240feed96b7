import type { Load } from './generate.ts';
import type { Installation, Purser } from './purser.ts';

export const CONNECTIONS = 64;
const CHAT = {
  messages: [
    { role: 'system', content: 'You are a helpful assistant. Answer in one sentence.' },
    { role: 'user', content: 'What is the capital of France, and on which river does it lie?' },
  ],
  max_tokens: 100,
};

/** Returns the body of a chat completion. It is the same for every target. */
export const chatBody = (model = 'mock-1') => JSON.stringify({ model, ...CHAT });

/** Lines of code and prose, with the quotes and line ends that have to be escaped in JSON. */
const LINES = [
  'export function total(list: readonly Item[]): number {',
  '  return list.map((it) => it.price * it.count).reduce((sum, it) => sum + it, 0);',
  '\tif (name === "total") throw new Error("no such member: " + name); // See "members", below.',
  'The test that failed expects 12 items where the page has 11: the last one is cut off at its right edge.',
];
const BYTES_PER_TOKEN = 4.6;
const TURN_BYTES = 6000;

/** Returns about so many bytes of text, as they are in JSON. */
function text(bytes: number): string {
  const lines: string[] = [];
  for (let i = 0, left = bytes; left > 0; i++) {
    const line = LINES[i % LINES.length] as string;
    lines.push(line);
    left -= line.length + 3;
  }
  return lines.join('\n');
}

/** A turn of an agent: what it says, its call, and the result of the call. */
type Turn = { content: string; name: string; args: object; result: string };

function conversation(turns: readonly Turn[]): string {
  const tools = ['read_file', 'edit_file', 'run'].map((name) => ({
    type: 'function',
    function: { name, parameters: { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] } },
  }));
  const messages = turns.flatMap(({ content, name, args, result }, i) => [
    {
      role: 'assistant',
      content,
      tool_calls: [{ id: `call_${i}`, type: 'function', function: { name, arguments: JSON.stringify(args) } }],
    },
    { role: 'tool', tool_call_id: `call_${i}`, content: result },
  ]);
  return JSON.stringify({
    model: 'mock-1',
    messages: [...CHAT.messages, ...messages],
    tools,
    max_tokens: 100,
    temperature: 0.2,
  });
}

/** Returns the body of an agent's chat of about so many tokens, with few long texts: it reads files. */
export function agentBody(tokens: number): string {
  const turns: Turn[] = [];
  for (let bytes = 1200, i = 0; bytes < tokens * BYTES_PER_TOKEN; bytes += TURN_BYTES, i++) {
    const size = Math.min(TURN_BYTES, tokens * BYTES_PER_TOKEN - bytes);
    const args = { path: `src/part-${i}.ts`, from: i };
    turns.push({ content: text(size / 6), name: 'read_file', args, result: text((size * 4) / 6) });
  }
  return conversation(turns);
}

/** Returns the body of an agent's chat of so many calls, each of about so many bytes, most of them in the arguments: it edits files. */
export const editingBody = (calls: number, bytes: number): string =>
  conversation(
    Array.from({ length: calls }, (_, i) => ({
      content: '',
      name: 'edit_file',
      args: { path: `src/part-${i}.ts`, old: text(bytes / 4), new: text(bytes / 4) },
      result: text(bytes / 4),
    })),
  );

export const chatLoad = ({ child, port }: Purser, tokens: readonly string[], connections = CONNECTIONS): Load => ({
  pid: child.pid,
  port,
  path: '/v1/chat/completions',
  body: chatBody(),
  connections,
  tokens,
});

export const walletLoad = ({ child, port }: Purser, { accountKey }: Installation): Load => ({
  pid: child.pid,
  port,
  path: '/v1/wallets',
  body: JSON.stringify({ name: 'bench', budget_cents: 100, expires_in_seconds: 86_400 }),
  connections: CONNECTIONS,
  tokens: [accountKey],
});
