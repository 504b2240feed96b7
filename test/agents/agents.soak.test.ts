import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import type { ClientName } from '../../src/wire/client-settings.ts';
import { event } from '../helper/sse.ts';
import { failure, type Handler, reset } from '../helper/upstream.ts';
import { AGENTS, type Agent } from './agents.ts';
import { record } from './fixtures.ts';
import { hasAgent } from './installed.ts';
import { type Fault, type Ran, runAgent } from './run.ts';

// The agents themselves, as npm has them, with the settings that `purser wallet env` prints, against the executable.

const run = (t: TestContext, { client, args }: Agent, more: { fault?: Fault; isPoor?: boolean } = {}) =>
  runAgent(t, { client, args, ...more });

/** Does it to the first request of the task. */
const first =
  (handler: (models: Parameters<Fault>[0]) => Handler): Fault =>
  (models) => {
    let isFirst = true;
    return (call, response) => {
      const handle = isFirst ? handler(models) : models.handle;
      isFirst = false;
      return handle(call, response);
    };
  };

/** The model server leaves after its first answer, and is back when somebody has missed it. */
const dies: Fault = (models, upstream, serving) => {
  let isFirst = true;
  return async (call, response) => {
    await models.handle(call, response);
    if (!isFirst) return;
    isFirst = false;
    if (!response.writableFinished) await new Promise((resolve) => response.once('finish', resolve));
    const comeBack = await upstream.leave();
    await serving.logged('operation.released');
    await comeBack();
  };
};

/** Half an answer, which nobody has counted. */
const cutOff: Handler = ({ body }, response) => {
  const choices = [{ index: 0, delta: { role: 'assistant', content: 'Half an ' }, finish_reason: null }];
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.write(event({ id: 'c', object: 'chat.completion.chunk', created: 1, model: body.model, choices }), () =>
    response.destroy(),
  );
};

/** What only those of `FULLY_TESTED` meet: the others meet the reset, after which a repeated request could cost most. */
const FAULTS: [name: string, fault: Fault][] = [
  ['is busy (429)', first(() => failure(429, undefined, { 'retry-after': '1' }))],
  ['is overloaded (503)', first(() => failure(503))],
  ['breaks its stream off, and tells what it has counted', first(({ breakOff }) => breakOff)],
  ['dies, and is back later', dies],
];
const FULLY_TESTED: ReadonlySet<string> = new Set(['claude', 'codex']);

function assertDone({ code, said, proof, note, counted, exchanges }: Ran): void {
  const all = `${said.slice(-4000)}\n${exchanges.map((it) => `${it.method} ${it.path} ${it.status}`).join('\n')}`;
  assert.equal(proof, note, all);
  assert.equal(code, 0, all);
  assert(counted.length >= 3, all);
}

/** To the nano-dollar, and nothing is held. */
function assertPaid({ used, cost, held, estimatedCount }: Ran): void {
  assert.deepEqual({ used, held, estimatedCount }, { used: cost, held: 0n, estimatedCount: 0 });
}

const ODD_CLIENTS: ReadonlySet<ClientName> = new Set(['claude', 'codex', 'pi', 'continue']);
const ODD_ID = `it's "odd" $(id) \\ x/y:z`;

/** A PDF of one empty page. */
const PDF = `%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 72 72]>>endobj
trailer<</Root 1 0 R>>
%%EOF
`;

/** A model that reads the PDF, and says that it saw something in its place. */
function pdfModel({ messages, tools = [] }: Record<string, any>): Record<string, any> {
  const read = tools.find((it: any) => it.function.name === 'Read');
  if (!read || JSON.stringify(messages).includes('[A document, PDF'))
    return { role: 'assistant', content: read ? 'It is a PDF, and I go on.' : 'A title' };
  if (messages.some(({ role }: any) => role === 'tool')) return { role: 'assistant', content: 'Nothing came.' };
  const call = { name: 'Read', arguments: JSON.stringify({ file_path: 'a.pdf' }) };
  return { role: 'assistant', content: null, tool_calls: [{ id: 'call_1', type: 'function', function: call }] };
}

describe('the agents', { concurrency: 2 }, () => {
  test('Claude Code goes on after it has read a PDF, which a model of chats cannot read', async (t) => {
    if (!hasAgent(t, 'claude')) return;
    const settings = { files: [{ path: 'a.pdf', text: PDF }], script: '' };
    const args = ['-p', 'Read a.pdf.', '--permission-mode', 'acceptEdits'];
    const ran = await runAgent(t, { client: 'claude', settings, args, model: pdfModel });
    assert.match(ran.said, /It is a PDF, and I go on\./);
    assert.deepEqual(
      [ran.code, ran.exchanges.filter(({ method, status }) => method === 'POST' && status >= 400)],
      [0, []],
    );
    assert(
      ran.exchanges.some(({ body }) => body.includes('"type":"document"')),
      'it sends the PDF itself',
    );
    assertPaid(ran);
  });

  // One of each language that the settings are written in: shell, TOML, JSON and YAML.
  for (const { title, client, program, args } of AGENTS.filter((it) => ODD_CLIENTS.has(it.client)))
    test(`${title} takes a model whose name is full of quotes, as it is`, async (t) => {
      if (!hasAgent(t, program)) return;
      const ran = await runAgent(t, { client, args, modelId: ODD_ID });
      assertDone(ran);
      assertPaid(ran);
      assert.deepEqual([...new Set(ran.counted.map(({ model }) => model))], [ODD_ID]);
    });

  for (const agent of AGENTS) {
    test(`${agent.title} does a task with two tools, and pays what the model server counted`, async (t) => {
      if (!hasAgent(t, agent.program)) return;
      const ran = await run(t, agent);
      assertDone(ran);
      assertPaid(ran);
      if (process.env.PURSER_TEST_RECORD) record(agent.program, ran.exchanges, ran.directory, ran.note);
    });

    test(`${agent.title} is told that its wallet cannot pay, says so and stops`, async (t) => {
      if (!hasAgent(t, agent.program)) return;
      const ran = await run(t, agent, { isPoor: true });
      assert.match(ran.said, /insufficient_funds|the wallet has 0\.01 USD available/i);
      assert(ran.exchanges.some(({ status }) => status === 402));
      assert.deepEqual([ran.upstream.calls, ran.proof], [[], undefined]);
      assertPaid(ran);
    });

    test(`${agent.title} ${agent.whenUncertain} after a reset`, async (t) => {
      if (!hasAgent(t, agent.program)) return;
      const ran = await run(t, agent, { fault: first(() => reset) });
      if (agent.whenUncertain === 'stops') {
        assert.match(ran.said, /The outcome is not known/);
        assert.deepEqual([ran.proof, ran.upstream.calls.length], [undefined, 1]);
      } else assertDone(ran);
      if (agent.whenUncertain === 'repeats') return assertPaid(ran);
      // The hold of the first request stays until it is decided.
      assert.equal(ran.used, ran.cost);
      assert(ran.held > 0n);
    });

    if (!FULLY_TESTED.has(agent.program)) continue;
    for (const [name, fault] of FAULTS)
      test(`${agent.title} asks again where the model server ${name}, and pays what was counted`, async (t) => {
        if (!hasAgent(t, agent.program)) return;
        const ran = await run(t, agent, { fault });
        assertDone(ran);
        assertPaid(ran);
      });

    test(`${agent.title} asks again after a stream that nobody counted, which is estimated`, async (t) => {
      if (!hasAgent(t, agent.program)) return;
      const ran = await run(t, agent, { fault: first(() => cutOff) });
      assertDone(ran);
      assert.deepEqual([ran.estimatedCount, ran.held], [1, 0n]);
      assert(ran.used > ran.cost);
    });
  }
});
