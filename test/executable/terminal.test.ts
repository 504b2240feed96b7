import assert from 'node:assert/strict';
import test from 'node:test';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { onTerminal } from '../helper/terminal.ts';
import { openUpstream } from '../helper/upstream.ts';

test('the first start on a terminal says where it listens, what is missing, and the next two commands', async (t) => {
  const purser = installation(t, { settings: null, env: { PURSER_LISTEN: '127.0.0.1:0' } });
  const at = onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'serve'], {
    env: { PURSER_LISTEN: '127.0.0.1:0', NO_COLOR: '1', PURSER_LOG_LEVEL: 'warn' },
    columns: 200,
  });
  await at.shows(/account credit default 10\.00\n/);
  const url = /listens on (http:\S+);/.exec(at.screen())?.[1];
  const given = `purser --data ${purser.directory}`;
  assert.equal(
    at.screen(),
    `Creating a new installation in ${purser.directory}.
Purser 0.1.0 listens on ${url}; agents are given ${url}.
Data: ${purser.directory}. Settings: none, so every setting has its default.
Copy ${purser.directory}/master.key to where your backups are not: no backup can be restored without it.
Nobody can spend yet: no model is configured, and no account has credit.
Next, in another terminal:
  ${given} init
  ${given} account credit default 10.00
`,
  );
  at.type('\u0003');
  assert.equal(await at.ended, 0);

  const upstream = await openUpstream(t);
  const ready = installation(t, { upstream, directory: purser.directory, settings: { listen: '0.0.0.0:0' } });
  await ready.json('account', 'credit', 'default', '1000');
  const again = onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'serve'], {
    env: { NO_COLOR: '1', PURSER_LOG_LEVEL: 'warn' },
    columns: 200,
  });
  await again.shows(/purser --data \S+ status\n/);
  assert.match(
    again.screen(),
    /^Purser 0\.1\.0 listens on http:\/\/0\.0\.0\.0:\d+; agents are given http:\/\/(?!0\.)[\d.]+:\d+\.\nData: .*\nwarn listen: 0\.0\.0\.0 .*(\nwarn .*)+\nNext, in another terminal:\n {2}purser --data \S+ wallet create --name agent-1 --budget-cents 5\.00\n {2}purser --data \S+ status\n$/,
  );
  again.type('\u0003');
  assert.equal(await again.ended, 0);
});

test('what cannot be undone is asked about on a terminal; --yes and scripts are not', async (t) => {
  const purser = installation(t);
  await purser.serve();
  await purser.json('account', 'credit', 'default', '1000');
  const create = async (name: string) =>
    (await purser.json('wallet', 'create', '--name', name, '--budget-cents', '100')).id as string;
  const id = await create('one');
  const close = (...more: string[]) =>
    onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'wallet', 'close', ...more]);
  const status = async (of: string) => (await purser.json('wallet', 'show', of)).status;
  for (const answer of ['n\n', '\n', 'what\n', '\u0004', '\u0003']) {
    const asked = close('one');
    await asked.shows(/Close the wallet one for good\? Tokens end, and machines are destroyed\. \[y\/N\] /);
    asked.type(answer);
    assert.equal(await asked.ended, 4, asked.screen());
    assert.match(asked.screen(), /Nothing was changed\.\n$/);
    assert.equal(await status(id), 'active');
  }
  const meant = close('one');
  await meant.shows(/\[y\/N\] /);
  meant.type('y\n');
  assert.equal(await meant.ended, 0, meant.screen());
  assert.equal(await status(id), 'closed');
  const second = await create('two');
  const unasked = close('two', '--yes');
  assert.equal(await unasked.ended, 0);
  assert.ok(!unasked.screen().includes('?'));
  assert.equal(await status(second), 'closed');
  await create('three');
  assert.equal((await purser.cli('wallet', 'close', 'three')).code, 0, 'a script');
});

test('12.50 and $5 are amounts, and 1d is a duration, wherever one is asked for', async (t) => {
  const purser = installation(t);
  await purser.serve();
  const credited = await purser.json('account', 'credit', 'default', '12.50');
  assert.equal(credited.available_cents, 1250);
  assert.equal((await purser.json('account', 'credit', 'default', '$5')).available_cents, 1750);
  assert.equal(
    (await purser.json('account', 'debit', 'default', '50', '--reason', 'cents as ever')).available_cents,
    1700,
  );
  const made = ['wallet', 'create', '--name', 'a', '--budget-cents', '2.00', '--expires-in-seconds', '1d'];
  const { id } = await purser.json(...made);
  const wallet = await purser.json('wallet', 'show', id);
  assert.deepEqual([wallet.budget_cents, wallet.expires_at - wallet.created_at], [200, 86_400]);
  assert.equal((await purser.json('wallet', 'raise', id, '1.25')).budget_cents, 325);
  assert.equal((await purser.json('wallet', 'refill', id, '--cents', '5.00', '--every', 'day')).refill.cents, 500);
  for (const wrong of ['1.5', '0.001', 'five', '5,00', '€5']) {
    const refused = await purser.cli('wallet', 'raise', id, wrong);
    assert.equal(refused.code, 2, wrong);
    assert.match(refused.stderr, /a whole number of cents, as "1250", or USD, as "12\.50" or "\$12"/);
  }
  assert.match((await purser.cli('account', 'show', 'default')).stdout, /^available_usd +13\.75$/m);
  assert.match(
    (await purser.cli('account', 'statement', 'default')).stdout,
    /^default: 13\.75 USD available, 3\.25 in open/m,
  );
});
