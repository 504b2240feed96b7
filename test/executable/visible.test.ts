import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { failure, openUpstream } from '../helper/upstream.ts';

/** What would steer a terminal, ring its bell, end a text, or turn a line round. */
const ODD = 'red\u001b[31m bell\u0007 csi\u009b2J nul\u0000 turned\u202egnp.exe line\u2028 end';
const NAME = 'agent \u202egnp.exe';
const RAW = /(?![\n])[\p{Cc}\p{Bidi_Control}\u2028\u2029]/u;

test('no control or bidirectional character from outside reaches a terminal or the log', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream });
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 10_000 });
  const create = { account: 'default', name: NAME, budget_cents: 500 };
  const { id, agent_token: token } = await purser.operate('wallet.create', create);
  upstream.handle = failure(400, { error: { message: ODD } });
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 10 };
  const answer = await server.ask('POST', '/v1/chat/completions', { token, key: randomUUID(), body });
  assert.equal(answer.status, 400, answer.text);

  for (const args of [
    ['operation', 'list'],
    ['wallet', 'timeline', id],
    ['wallet', 'list'],
    ['wallet', 'show', id],
  ]) {
    for (const globals of [[], ['--json']]) {
      const { code, stdout, stderr } = await purser.cli(...globals, ...args);
      assert.equal(code, 0, stderr);
      assert.doesNotMatch(stdout + stderr, RAW, [...globals, ...args].join(' '));
      if (args[0] === 'wallet') assert(stdout.includes('\\u202egnp.exe'), stdout);
    }
  }
  const { wallets } = await purser.json('wallet', 'list');
  assert.equal(wallets[0].name, NAME, 'in JSON it is the same value, escaped');
  const { stderr } = await purser.cli('wallet', 'show', `wal_${ODD.replaceAll('\0', '')}`);
  assert.doesNotMatch(stderr, RAW);
  assert.match(stderr, /\\u001b\[31m/);
  const words = ODD.replaceAll('\0', '');
  for (const args of [[words], ['wallet', 'list', `--${words}`], ['account', 'credit', 'default', words]]) {
    const wrong = await purser.cli(...args);
    assert.equal(wrong.code, 2, wrong.stderr);
    assert.doesNotMatch(wrong.stdout + wrong.stderr, RAW, 'a usage error quotes what it does not understand');
  }

  await server.stop();
  assert.doesNotMatch(server.output.stderr, RAW);
  assert.match(server.output.stderr, /\\u009b2J/, 'the log has the sentence, escaped');
});
