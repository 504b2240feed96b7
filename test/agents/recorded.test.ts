import assert from 'node:assert/strict';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { costOf, nanosOf, openModelServer } from '../helper/model-server.ts';
import { openTestServer } from '../helper/server.ts';
import { readFixtures } from './fixtures.ts';
import { MODEL, PRICES } from './model.ts';
import { taskModel } from './task.ts';

// What agents have sent, as agents.test.ts recorded it with PURSER_TEST_RECORD=1, asked again without them.

/** How a stream ends that is whole. */
const ends = (path: string) =>
  path.includes('/messages')
    ? /\nevent: message_stop\ndata: \{"type":"message_stop"\}\n\n$/
    : path.includes('/responses')
      ? /\ndata: \{"type":"response\.completed".*\}\n\n$/
      : /\ndata: \[DONE\]\n\n$/;

for (const { program, requests } of readFixtures())
  test(`the recorded requests of ${program} are taken, and both results of the task reach the model`, async (t) => {
    const purser = await openTestServer(t, {
      change: (settings) => ({ ...settings, router: { ...settings.router, models: [MODEL] } }),
    });
    const models = openModelServer(taskModel('/project'));
    purser.upstream.handle = models.handle;
    const { ask, token } = await openGateway(purser);
    for (const { path, body } of requests) {
      const answer = await ask('POST', path.replace('/v1/router', ''), { body });
      assert.equal(answer.status, 200, answer.text);
      assert.match(answer.text, ends(path));
    }
    const [first, last] = purser.upstream.calls.map(({ body }) => body) as any[];
    assert(first.tools.length > 0);
    const results = last.messages.filter((it: any) => it.role === 'tool');
    const calls = last.messages.flatMap((it: any) => it.tool_calls ?? []);
    assert.equal(results.length, 2);
    assert.deepEqual(
      results.map((it: any) => it.tool_call_id),
      calls.map((it: any) => it.id),
    );
    for (const it of results) assert(it.content.length > 0);
    for (const it of calls) assert.doesNotThrow(() => JSON.parse(it.function.arguments));
    const cost = models.counted.reduce((sum, it) => sum + costOf(it, PRICES), 0n);
    assert.equal(nanosOf((await purser.budget(token)).used_usd), cost);
    assert.deepEqual(purser.problems(), []);
  });
