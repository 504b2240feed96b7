import assert from 'node:assert/strict';
import test from 'node:test';
import { CommanderError } from 'commander';
import { createProgram } from '../../cli/program.ts';
import { VERSION } from '../../src/files/version.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { onTerminal } from '../helper/terminal.ts';
import { openUpstream } from '../helper/upstream.ts';

test('the first start on a terminal says where it listens, what is missing, and the next two commands', async (t) => {
  const purser = installation(t, { settings: null, env: { PURSER_LISTEN: '127.0.0.1:0' } });
  const at = onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'serve'], {
    env: { PURSER_LISTEN: '127.0.0.1:0', NO_COLOR: '1', PURSER_LOG_LEVEL: 'error' }, // No warning of a tmpfs, where the test may be.
    columns: 200,
  });
  await at.shows(/account credit default 10\.00\n/);
  const url = /listens on (http:\S+);/.exec(at.screen())?.[1];
  const given = `purser --data ${purser.directory}`;
  assert.equal(
    at.screen(),
    `Creating a new installation in ${purser.directory}.
Purser ${VERSION} listens on ${url}; agents are given ${url}.
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
  await ready.json('account', 'credit', 'default', '1000c');
  const again = onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'serve'], {
    env: { NO_COLOR: '1', PURSER_LOG_LEVEL: 'error' },
    columns: 200,
  });
  await again.shows(/purser --data \S+ status\n/);
  assert.match(
    again.screen(),
    /^Purser \d+\.\d+\.\d+ listens on http:\/\/0\.0\.0\.0:\d+; agents are given http:\/\/(?!0\.)[\d.]+:\d+\.\nData: .*\nwarn listen: 0\.0\.0\.0 .*(\nwarn .*)+\nNext, in another terminal:\n {2}purser --data \S+ wallet create --name agent-1 --budget 5\.00\n {2}purser --data \S+ status\n$/,
  );
  again.type('\u0003');
  assert.equal(await again.ended, 0);
});

test('what cannot be undone is asked about on a terminal; --yes and scripts are not', async (t) => {
  const purser = installation(t);
  await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  const create = async (name: string) =>
    (await purser.operate('wallet.create', { account: 'default', name, budget_cents: 100 })).id;
  const id = await create('one');
  const close = (...more: string[]) =>
    onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'wallet', 'close', ...more]);
  const status = async (id: string) => (await purser.operate('wallet.show', { id })).status;
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

/** Returns what the program prints of a command line that it refuses before it does anything; that the exit code is 2, one test shows. */
async function usageOf(...args: string[]): Promise<string> {
  let printed = '';
  const program = createProgram({
    writeErr: (text) => {
      printed += text;
    },
  });
  await assert.rejects(program.parseAsync(args, { from: 'user' }), CommanderError);
  return printed;
}

test('12.50, $5 and 500c are amounts, 5 is none, and 1d is a duration, wherever one is asked for', async (t) => {
  const purser = installation(t);
  await purser.serve();
  const credited = await purser.json('account', 'credit', 'default', '12.50');
  assert.equal(credited.available_cents, 1250);
  assert.equal((await purser.json('account', 'credit', 'default', '$5')).available_cents, 1750);
  assert.equal((await purser.json('account', 'debit', 'default', '50c', '--reason', 'in cents')).available_cents, 1700);
  const made = ['wallet', 'create', '--name', 'a', '--budget', '2.00', '--expires', '1d'];
  const { id } = await purser.json(...made);
  const wallet = await purser.json('wallet', 'show', id);
  assert.deepEqual([wallet.budget_cents, wallet.expires_at - wallet.created_at], [200, 86_400]);
  assert.equal((await purser.json('wallet', 'raise', id, '1.25')).budget_cents, 325);
  assert.equal((await purser.json('wallet', 'refill', id, '--amount', '5.00', '--every', 'day')).refill.cents, 500);
  const refused = await purser.cli('wallet', 'raise', id, '1.5');
  assert.deepEqual([refused.code, refused.stdout], [2, '']);
  assert.match(refused.stderr, /It must be an amount as 12\.50, "\$12" or 1250c\./);
  for (const wrong of ['0.001', 'five', '5,00', '€5'])
    assert.match(await usageOf('wallet', 'raise', id, wrong), /It must be an amount as 12\.50, "\$12" or 1250c\./);
  for (const bare of [
    ['account', 'credit', 'default', '5'],
    ['account', 'debit', 'default', '5', '--reason', 'r'],
    ['account', 'create', 'other', '--credit', '5'],
    ['wallet', 'create', '--name', 'b', '--budget', '5'],
    ['wallet', 'raise', id, '5'],
    ['wallet', 'lower', id, '5'],
    ['wallet', 'refill', id, '--amount', '5', '--every', 'day'],
    ['wallet', 'refill', id, '--amount', '5.00', '--every', 'day', '--carry', '5'],
    ['run', '--budget', '5', '--', 'true'],
  ])
    assert.match(await usageOf(...bare), /Write 5\.00 for 5 dollars, or 5c for 5 cents\./, bare.join(' '));
  const both = ['wallet', 'create', '--name', 'b', '--budget', '5.00', '--budget-cents', '500'];
  assert.match(await usageOf(...both), /cannot be used with/);
  assert.match(await usageOf('wallet', 'raise', id, ''), /the shell expands \$5 unless it is quoted/);
  const poor = await purser.cli('wallet', 'raise', id, '5000.00');
  assert.match(poor.stderr, /The budget needs 5000\.00 USD; the account has 13\.75 available/);
  assert.match((await purser.cli('account', 'show', 'default')).stdout, /^available_usd +13\.75$/m);
  assert.match(
    (await purser.cli('account', 'statement', 'default')).stdout,
    /^default: 13\.75 USD available, 3\.25 in wallets, 0\.00 spent/m,
  );
});

test('a wallet says when it expires, and how to change that', async (t) => {
  const purser = installation(t);
  await purser.serve();
  await purser.json('account', 'credit', 'default', '12.50');
  const create = (...more: string[]) => purser.cli('wallet', 'create', '--name', 'a', '--budget', '2.00', ...more);
  const made = await create();
  assert.match(made.stdout, /^expires_at +\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ \(in (1 d|2\d h)\)$/m);
  assert.equal(made.stderr, 'It expires in a day. For another time: --expires 7d, or --expires never.\n');
  const asked = await create('--expires', '7d');
  assert.match(asked.stdout, /^expires_at .* \(in [67] d\)$/m);
  const never = await create('--expires', 'never');
  assert.match(never.stdout, /^expires_at +never$/m);
  assert.deepEqual([asked.stderr, never.stderr], ['', '']);
  const { wallets } = await purser.json('wallet', 'list');
  assert.deepEqual(
    wallets.map(
      (it: { expires_at: number | null; created_at: number }) => it.expires_at && it.expires_at - it.created_at,
    ),
    [null, 7 * 86_400, 86_400],
  );
});

test('the log is text on a terminal unless log_format says JSON', async (t) => {
  const serve = async (settings: Record<string, unknown>) => {
    const purser = installation(t, { settings });
    const at = onTerminal(t, [EXECUTABLE, '--data', purser.directory, 'serve'], {
      env: { NO_COLOR: '1' },
      columns: 400,
    });
    await at.shows(/\bserving\b.*\bready\b.*\n/); // The terminal writes ^C where the cursor is.
    at.type('\u0003');
    assert.equal(await at.ended, 0);
    return at.screen();
  };
  const when = String.raw`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`;
  const text = await serve({});
  assert.match(
    text,
    new RegExp(`${when} info {2}serving {2}listen=http://127\\.0\\.0\\.1:\\d+ .* {2}ready=true$`, 'm'),
  );
  assert.match(text, new RegExp(`${when} info {2}stopped$`, 'm'));
  assert.doesNotMatch(text, /"event"/);
  assert.match(await serve({ log_format: 'json' }), /^\{"level":30,"time":"[^"]+","event":"serving",/m);
});
