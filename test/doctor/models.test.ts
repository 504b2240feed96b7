import assert from 'node:assert/strict';
import test from 'node:test';
import { readConfig } from '../../src/config/config.ts';
import { checkModels } from '../../src/doctor/models.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { openTestServer } from '../helper/server.ts';
import { completion, failure, hang } from '../helper/upstream.ts';

test('an upstream that hangs is a fault after the time of its route, and hides no other', async (t) => {
  const purser = await openTestServer(t);
  const config = readConfig({ data: purser.directory }, {});
  purser.upstream.handle = (call, response) => (call.body.model === 'flat' ? hang : completion())(call, response);
  const checks = await checkModels(createCatalogue(config), purser.app.upstreams, async () => new Map(), 1);
  const details = Object.fromEntries(checks.map(({ name, ok, detail }) => [name, `${ok} ${detail}`]));
  assert.equal(details['flat on local'], 'false Its answer took longer than 1 s.');
  assert.equal(checks.length, 4);
  assert(
    checks.every(({ detail }) => /It counted 5 completion|took longer/.test(detail)),
    JSON.stringify(checks),
  );
});

test('an upstream is asked in each API that it is said to speak', async (t) => {
  const purser = await openTestServer(t, {
    change: (all) => {
      const [local] = all.router.upstreams;
      const upstreams = [{ ...local, wires: ['messages', 'responses'] }];
      return { ...all, router: { upstreams, models: all.router.models.slice(0, 1) } };
    },
  });
  const config = readConfig({ data: purser.directory }, {});
  const usage = { input_tokens: 5, output_tokens: 1 };
  purser.upstream.handle = (call, response) => {
    if (call.path.endsWith('/responses')) return failure(404)(call, response);
    if (!call.path.endsWith('/messages')) return completion({ prompt_tokens: 5, completion_tokens: 1 })(call, response);
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ type: 'message', content: [{ type: 'text', text: 'ok' }], usage }));
  };
  const [check] = await checkModels(createCatalogue(config), purser.app.upstreams, async () => new Map());
  assert.equal(check?.ok, false);
  assert.match(String(check?.detail), /It is said to speak responses: .* Take it out of wires/);
  assert.doesNotMatch(String(check?.detail), /speak messages|In messages/);
  const asked = purser.upstream.calls.find(({ path }) => path.endsWith('/messages'));
  assert.equal(asked?.headers['anthropic-version'], '2023-06-01');
});
