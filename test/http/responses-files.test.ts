import assert from 'node:assert/strict';
import test from 'node:test';
import { failure } from '../helper/upstream.ts';
import { bodyOf, open } from './dialects-shared.ts';
import { latest, open as openNative, RESPONSE_COST, response, sent, usd } from './native-shared.ts';

// Files in OpenAI's Responses, in a user's turn and in the output of a call. On routes to a server of this API they pass and hold
// the context; elsewhere a sentence is in their place, so that a session that has one goes on.

const PDF = Buffer.from('%PDF-1.7 a few pages').toString('base64');
const FILES = {
  pdf: { type: 'input_file', filename: 'rules.pdf', file_data: `data:application/pdf;base64,${PDF}` },
  bare: { type: 'input_file', file_data: PDF, file_url: null },
  sheet: { type: 'input_file', filename: 'a.xlsx', file_data: 'data:application/vnd.ms-excel;base64,AAAA' },
  text: {
    type: 'input_file',
    filename: 'a.md',
    file_data: `data:text/markdown;charset=utf-8;base64,${Buffer.from('No smöking.').toString('base64')}`,
  },
  bytes: { type: 'input_file', filename: 'b.txt', file_data: 'data:text/plain;base64,/w==' },
  url: { type: 'input_file', file_url: 'https://example.test/a.pdf' },
};
const SEEN = {
  pdf: '[A document, rules.pdf, PDF, 20 bytes: this model cannot read it.]',
  bare: '[A document, PDF, 20 bytes: this model cannot read it.]',
  sheet: '[A document, a.xlsx, application/vnd.ms-excel, 3 bytes: this model cannot read it.]',
  text: 'a.md\n\nNo smöking.',
  bytes: '[A document, b.txt, text/plain, 1 bytes: this model cannot read it.]',
  url: '[A document at https://example.test/a.pdf: this model cannot read it.]',
};

/** A conversation in which the output of a call, and the user after it, give this part. */
const giving = (part: object) => [
  { role: 'user', content: 'look' },
  { type: 'function_call', call_id: 'call_1', name: 'read', arguments: '{}' },
  { type: 'function_call_output', call_id: 'call_1', output: [part] },
  { role: 'user', content: [part] },
];

test('a file is its text, or a sentence, in a chat completion', async (t) => {
  const { purser, gateway } = await open(t);
  for (const [name, file] of Object.entries(FILES)) {
    const answer = await gateway.ask('POST', '/responses', { body: { model: 'chat', input: giving(file) } });
    assert.equal(answer.status, 200, answer.text);
    const seen = SEEN[name as keyof typeof SEEN];
    assert.deepEqual(
      bodyOf(purser, -1).messages.slice(2),
      [
        { role: 'tool', tool_call_id: 'call_1', content: seen },
        { role: 'user', content: seen },
      ],
      name,
    );
  }
});

test('a server of this API gets a file as it came, and it holds the rest of the context', async (t) => {
  const { purser, gateway } = await openNative(t);
  purser.upstream.handle = response;
  const ask = async (part: object) => {
    const body = { model: 'own', max_output_tokens: 100, input: giving(part) };
    const answer = await gateway.ask('POST', '/responses', { body });
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.headers['x-purser-cost-usd'], usd(RESPONSE_COST), 'it is charged by what the server counted');
    return { input: sent(purser).body.input, bound: (await latest(purser)).price.bound_prompt_tokens };
  };
  assert((await ask({ type: 'input_text', text: 'No smoking.' })).bound < 5000);
  for (const it of [FILES.pdf, FILES.sheet, FILES.text])
    assert.deepEqual(await ask(it), { input: giving(it), bound: 200_000 });
  const unread = await ask(FILES.url);
  assert.deepEqual(unread.input, giving({ type: 'input_text', text: SEEN.url }), 'this model takes no addresses');
  assert(unread.bound < 5000);
});

test('a file goes by its address where the model takes addresses', async (t) => {
  const { purser, gateway } = await openNative(t, {}, undefined, { image_urls: true });
  purser.upstream.handle = response;
  const body = { model: 'own', max_output_tokens: 100, input: giving(FILES.url) };
  assert.equal((await gateway.ask('POST', '/responses', { body })).status, 200);
  assert.deepEqual(sent(purser).body.input, body.input);
  assert.equal((await latest(purser)).price.bound_prompt_tokens, 200_000);
});

test('a file does not stop a fail-over to a server of chat completions', async (t) => {
  const { purser, other, gateway } = await openNative(t);
  purser.upstream.handle = failure(503);
  const body = { model: 'both', max_output_tokens: 100, input: giving(FILES.pdf) };
  const answer = await gateway.ask('POST', '/responses', { body });
  assert.equal(answer.status, 200, answer.text);
  assert.deepEqual(sent({ upstream: other }).body.messages.at(-1), { role: 'user', content: SEEN.pdf });
  assert(!sent({ upstream: other }).text.includes(PDF));
});

test('a file by its id, in two ways or in none is refused, on every route', async (t) => {
  const { purser, gateway } = await openNative(t);
  const cases: [object, string, RegExp][] = [
    [{ file_id: 'file_1' }, 'unsupported_parameter', /by its id is not offered/],
    [{ ...FILES.pdf, file_id: 'file_1' }, 'unsupported_parameter', /by its id is not offered/],
    [{ ...FILES.pdf, file_url: 'https://example.test/b' }, 'invalid_request', /either file_data or file_url/],
    [{ filename: 'a' }, 'invalid_request', /either file_data or file_url/],
    [{ file_data: 7 }, 'invalid_request', /file_data: must be a string/],
    [{ file_url: ['a'] }, 'invalid_request', /file_url: must be a string/],
  ];
  for (const [part, code, said] of cases) {
    const body = { model: 'own', input: giving({ type: 'input_file', ...part }) };
    const answer = await gateway.ask('POST', '/responses', { body });
    assert.deepEqual([answer.status, answer.body.error.code], [400, code], answer.text);
    assert.match(answer.body.error.message, said);
  }
  assert.deepEqual(purser.upstream.calls, []);
});
