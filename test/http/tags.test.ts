import assert from 'node:assert/strict';
import test from 'node:test';
import { tagsOf, tagsOfBody } from '../../src/http/tags.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer } from '../helper/server.ts';
import { assertRefused } from './refused.ts';

const parsed = (text: string | null) => (text === null ? {} : JSON.parse(text));

test('tags are the string members of metadata that are valid, at most eight', () => {
  const metadata = {
    team: 'red',
    'Not-A-Name': 'x',
    n: 3,
    empty: '',
    long: 'x'.repeat(129),
    odd: '\ud800',
    bell: '\u0007',
  };
  assert.deepEqual(tagsOfBody({ metadata }), [['team', 'red']]);
  assert.deepEqual(parsed(tagsOf({}, tagsOfBody({ metadata: JSON.parse('{"__proto__":"p","constructor":"c"}') }))), {
    ...JSON.parse('{"__proto__":"p"}'),
    constructor: 'c',
  });
  const many = Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`n${i}`, 'v']));
  assert.equal(Object.keys(parsed(tagsOf({}, tagsOfBody({ metadata: many })))).length, 8);
  for (const nothing of [undefined, null, 'text', ['a'], {}]) assert.deepEqual(tagsOfBody({ metadata: nothing }), []);
});

test('the ids that Claude Code and Codex send become user and session', () => {
  const hash = 'a'.repeat(64);
  const older = `user_${hash}_account_8f2c_session_1f0e2d3c-4b5a-6978-8796-a5b4c3d2e1f0`;
  const newer = JSON.stringify({ device_id: hash, account_uuid: '', session_id: '1f0e2d3c' });
  assert.deepEqual(parsed(tagsOf({}, tagsOfBody({ metadata: { user_id: older } }))), {
    user: hash,
    session: '1f0e2d3c-4b5a-6978-8796-a5b4c3d2e1f0',
  });
  assert.deepEqual(parsed(tagsOf({}, tagsOfBody({ metadata: { user_id: newer } }))), {
    user: hash,
    session: '1f0e2d3c',
  });
  assert.deepEqual(parsed(tagsOf({}, tagsOfBody({ metadata: { user_id: 'anna' } }))), { user_id: 'anna' });
  assert.deepEqual(parsed(tagsOf({}, tagsOfBody({ prompt_cache_key: 'c1' }))), { session: 'c1' });
  assert.deepEqual(parsed(tagsOf({ session_id: 'c2' }, tagsOfBody({ metadata: { a: 'b' } }))), {
    a: 'b',
    session: 'c2',
  });
});

test('an id that is no JSON, or JSON beyond what a body may be, is left out, and its request is served', async (t) => {
  const deep = `{"device_id":"d","a":${'['.repeat(450)}${']'.repeat(450)}}`;
  for (const user_id of [deep, `{"device_id":"d"${']'.repeat(450)}`, '{"device_id":'])
    assert.deepEqual(tagsOfBody({ metadata: { user_id, team: 'red' } }).slice(-1), [['team', 'red']], user_id);
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const messages = [{ role: 'user', content: 'hi' }];
  const metadata = { user_id: deep };
  assert.equal((await gateway.chat({ metadata })).status, 200);
  const body = { model: 'chat', max_tokens: 10, metadata, messages };
  assert.equal((await gateway.ask('POST', '/messages', { body })).status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('tags are stored with the hold, shown, and summed; a header wins over metadata', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const ask = (headers: Record<string, string>, key: string) =>
    purser.ask('POST', '/v1/chat/completions', {
      token,
      key,
      headers,
      body: {
        model: 'flat',
        messages: [{ role: 'user', content: 'hi' }],
        max_tokens: 10,
        metadata: { team: 'red', step: '1' },
      },
    });
  assert.equal((await ask({ 'X-Purser-Tag-Team': 'bl\u00c3\u00bc' }, 'a')).status, 200);
  const [operation] = (await purser.run('operation.list', {})).operations;
  assert.deepEqual(operation?.tags, { team: 'blü', step: '1' });
  assert.deepEqual(
    (await purser.run('spend', { by: 'tag' })).rows.map((it) => [it.key, it.charged_usd]),
    [
      ['step=1', '0.01'],
      ['team=blü', '0.01'],
    ],
  );
  assert.equal((await purser.run('spend', { by: 'tag' })).total_usd, '0.01');
  assert.deepEqual(purser.problems(), []);

  const nine = Object.fromEntries(Array.from({ length: 9 }, (_, i) => [`X-Purser-Tag-n${i}`, 'v']));
  for (const headers of [
    nine,
    { 'X-Purser-Tag-a!': 'v' },
    { 'X-Purser-Tag-a': 'v'.repeat(129) },
    { 'X-Purser-Tag-a': '' },
  ])
    assertRefused(await ask(headers as Record<string, string>, 'b'), 400, 'invalid_request', JSON.stringify(headers));
  assert.equal((await purser.run('operation.list', {})).operations.length, 1, 'nothing was held');
});
