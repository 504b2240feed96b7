import assert from 'node:assert/strict';
import test from 'node:test';
import { installation, type Serving } from '../helper/executable.ts';
import { completion, failure, openUpstream, reset } from '../helper/upstream.ts';
import { walletWith } from './cli-shared.ts';

/** The names and types of a JSON value's members: a shape to hold against the design. */
function shapeOf(value: unknown): unknown {
  if (value === null) return 'null';
  if (Array.isArray(value)) return value.map(shapeOf);
  if (typeof value !== 'object') return typeof value;
  return Object.fromEntries(Object.entries(value).map(([name, it]) => [name, shapeOf(it)]));
}

const ACCOUNT = {
  id: 'string',
  name: 'string',
  available_cents: 'number',
  reserved_cents: 'number',
  spent_cents: 'number',
  welcome_credit_cents: 'number',
  // Beside the shape of design section 4: its state, and its exact figures.
  spent_usd: 'string',
  in_wallets_usd: 'string',
  owed_cents: 'number',
  created_at: 'number',
  suspended_at: 'null',
  disputed_at: 'null',
};

const KEY = {
  id: 'string',
  name: 'string',
  prefix: 'string',
  last4: 'string',
  created_at: 'number',
  last_used_at: 'null',
  revoked_at: 'null',
  account_id: 'string',
  minted_by: 'string',
};

const WALLET = {
  id: 'string',
  name: 'string',
  status: 'string',
  budget_cents: 'number',
  used_cents: 'number',
  returned_cents: 'null',
  budget_usd: 'string',
  used_usd: 'string',
  held_usd: 'string',
  delegated_usd: 'string',
  available_usd: 'string',
  parent_id: 'null',
  frozen_at: 'null',
  freeze_reason: 'null',
  refill: 'null',
  created_at: 'number',
  expires_at: 'number',
  closed_at: 'null',
  close_reason: 'null',
  cleanup: { pending: 'boolean', attempts: 'number', last_error: 'null' },
  token_hint: 'string',
  account_id: 'string',
};

const ALLOCATION = {
  id: 'string',
  status: 'string',
  agent_token: 'string',
  env: { SVC_BROKER_URL: 'string', SVC_BROKER_TOKEN: 'string' },
};

const STEP = {
  seq: 'number',
  at: 'number',
  what: 'string',
  amount_usd: 'string',
  available_usd: 'string',
  operation_id: 'string',
  request_id: 'string',
  subject: 'string',
  usage: 'null',
  settled_by: 'null',
  reason: 'null',
};

/** The same commands, once over the socket of a server that runs, once in the command's own process. */
for (const way of ['over the socket of a running server', 'in its own process'] as const) {
  const settle = async (server: Serving) => {
    if (way === 'in its own process') assert.deepEqual(await server.stop(), { code: 0, signal: null });
  };

  test(`accounts, keys and wallets have the documented shapes, asked ${way}`, async (t) => {
    const purser = installation(t);
    const server = await purser.serve();
    await settle(server);

    const { accounts } = await purser.json('account', 'list');
    assert.deepEqual(accounts.map(shapeOf), [ACCOUNT]);
    assert.equal(accounts[0].name, 'default', 'serve makes it on its first start');
    const account = await purser.json('account', 'create', 'research', '--credit-cents', '5000');
    assert.deepEqual(shapeOf(account), ACCOUNT);
    assert.equal(account.available_cents, 5000);
    assert.deepEqual(await purser.json('account', 'show', account.id), account);
    assert.deepEqual(await purser.json('account', 'credit', account.id, '250c'), { ...account, available_cents: 5250 });
    assert.deepEqual(await purser.json('account', 'debit', account.id, '50c', '--reason', 'a slip'), {
      ...account,
      available_cents: 5200,
    });
    const suspended = await purser.json('account', 'suspend', account.id);
    assert.deepEqual(shapeOf(suspended), { ...ACCOUNT, suspended_at: 'number' });
    assert.equal((await purser.json('account', 'resume', account.id)).suspended_at, null);
    assert.equal((await purser.json('account', 'list')).accounts.length, 2);

    const operator = await purser.json('operator-key', 'mint', '--name', 'laptop');
    assert.deepEqual(shapeOf(operator), { id: 'string', name: 'string', account_id: 'string', key: 'string' });
    assert.equal(operator.account_id, accounts[0].id, 'bound to the default account unless told otherwise');
    assert.match(operator.key, /^cnv_operator_[0-9A-Za-z]{49}$/);
    const bound = await purser.json('operator-key', 'mint', '--account', account.id);
    assert.equal(bound.account_id, account.id);
    const { keys: operators } = await purser.json('operator-key', 'list');
    assert.deepEqual(operators.map(shapeOf), [KEY, KEY]);
    assert(!JSON.stringify(operators).includes(operator.key), 'never their secrets');
    const revoked = await purser.json('operator-key', 'revoke', operator.id);
    assert.deepEqual(shapeOf(revoked), { id: 'string', revoked: 'boolean', revoked_at: 'number' });
    assert.deepEqual(await purser.json('operator-key', 'revoke', operator.id), revoked, 'also the second time');

    const key = await purser.json('key', 'create', '--account', account.id, '--name', 'ci');
    assert.deepEqual(shapeOf(key), { id: 'string', name: 'string', account_id: 'string', key: 'string' });
    assert.match(key.key, /^cnv_live_[0-9A-Za-z]{49}$/);
    const { keys } = await purser.json('key', 'list', '--account', account.id);
    assert.deepEqual(keys.map(shapeOf), [KEY]);
    assert(!JSON.stringify(keys).includes(key.key));
    assert.equal((await purser.json('key', 'revoke', key.id)).revoked, true);

    const options = ['--name', 'agent', '--budget-cents', '500'];
    const allocation = await purser.json('wallet', 'create', '--account', account.id, ...options);
    assert.deepEqual(shapeOf(allocation), ALLOCATION);
    assert.equal(allocation.env.SVC_BROKER_TOKEN, allocation.agent_token);
    assert.deepEqual(await purser.json('wallet', 'token', allocation.id), { agent_token: allocation.agent_token });
    const wallet = await purser.json('wallet', 'show', allocation.id);
    assert.deepEqual(shapeOf(wallet), WALLET);
    assert.equal(wallet.expires_at - wallet.created_at, 86_400);
    assert.deepEqual(await purser.json('wallet', 'list'), { wallets: [wallet], total: 1 });
    const forever = await purser.json('wallet', 'create', '--account', account.id, ...options, '--expires', 'never');
    assert.equal((await purser.json('wallet', 'show', forever.id)).expires_at, null);
    const closed = await purser.json('wallet', 'close', allocation.id);
    assert.deepEqual(shapeOf(closed), {
      ...WALLET,
      returned_cents: 'number',
      closed_at: 'number',
      close_reason: 'string',
    });
    assert.deepEqual([closed.status, closed.close_reason, closed.returned_cents], ['closed', 'operator', 500]);
    assert.deepEqual(await purser.json('wallet', 'close', allocation.id, '--wait'), closed, 'also the second time');

    assert.deepEqual(await purser.json('resource', 'list'), { resources: [], next_cursor: '', total: 0 });

    const after = await purser.json('account', 'show', account.id);
    assert.deepEqual(
      [after.available_cents, after.reserved_cents, after.spent_cents],
      [4700, 500, 0],
      'what was not spent came back',
    );
  });

  test(`a wallet's timeline, its operations and the journal tell one story, asked ${way}`, async (t) => {
    const upstream = await openUpstream(t);
    const purser = installation(t, { upstream });
    const server = await purser.serve();
    const wallet = await walletWith(purser);
    const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
    const chat = (key: string) => server.ask('POST', '/v1/chat/completions', { token: wallet.agent_token, key, body });
    upstream.handle = completion({ prompt_tokens: 11, completion_tokens: 7 });
    const charged = await chat('one');
    upstream.handle = failure(429);
    const refused = await chat('two');
    upstream.handle = reset;
    const lost = await chat('three');
    assert.deepEqual([charged.status, refused.status, lost.status], [200, 429, 503]);
    await settle(server);

    const { wallet: record, steps, open } = await purser.json('wallet', 'timeline', wallet.id);
    const ids = [charged, refused, lost].map((it) => it.headers['x-request-id']);
    assert.deepEqual(
      steps.map((it: { what: string; request_id: string }) => [it.what, ids.indexOf(it.request_id)]),
      [
        ['opened', -1],
        ['held', 0],
        ['charged', 0],
        ['released', 0],
        ['held', 1],
        ['released', 1],
        ['held', 2],
      ],
    );
    assert.deepEqual(shapeOf(steps[1]), STEP);
    assert.deepEqual(shapeOf(steps[0]), { ...STEP, operation_id: 'null', subject: 'null' });
    assert.equal(steps[2].amount_usd, '0.000125'); // 11 × 0.000001 + 7 × 0.000002 + 0.0001
    assert.deepEqual(steps[2].usage, { prompt_tokens: 11, completion_tokens: 7 });
    assert.deepEqual(shapeOf(record), WALLET);
    assert.equal(record.used_usd, '0.000125');
    assert.equal(steps.at(-1).available_usd, record.available_usd);
    assert.equal(open.length, 1);

    const { operations } = await purser.json('operation', 'list');
    assert.deepEqual(
      operations.map((it: { idempotency_key: string }) => it.idempotency_key),
      ['three', 'two', 'one'],
    );
    const { operations: uncertain } = await purser.json('operation', 'list', '--uncertain');
    assert.deepEqual(uncertain, [operations[0]]);
    const [operation] = uncertain;
    assert.deepEqual(await purser.json('operation', 'show', operation.id), operation);
    assert.equal(operation.request_id, ids[2]);
    assert.deepEqual([operation.state, operation.outcome, operation.hold_usd], ['uncertain', null, record.held_usd]);

    const resolved = await purser.json(
      'operation',
      'resolve',
      operation.id,
      '--release',
      '--reason',
      'it never got it',
    );
    assert.deepEqual(
      [resolved.state, resolved.outcome, resolved.charge_usd, resolved.settled_by, resolved.reason],
      ['settled', 'released', '0.00', 'operator', 'it never got it'],
    );
    assert.equal((await purser.json('wallet', 'show', wallet.id)).held_usd, '0.00');
    assert.deepEqual(await purser.json('operation', 'list', '--uncertain'), { operations: [], total: 0, next: null });

    const jsonl = await purser.cli('ledger', 'export');
    const entries = jsonl.stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));
    const csv = await purser.cli('ledger', 'export', '--format', 'csv');
    const [heading, ...rows] = csv.stdout.trimEnd().split('\n');
    assert.equal(heading, 'seq,at,cause_id,debit,credit,amount_usd,prev_hash,hash');
    assert.deepEqual(
      rows,
      entries.map((entry) => Object.values(entry).join(',')),
    );
    assert.deepEqual(
      entries.map((it) => it.seq),
      entries.map((_, i) => i + 1),
    );
    const told = entries.filter(
      (it) => it.cause_id === wallet.id || operations.some((op: { id: string }) => op.id === it.cause_id),
    );
    assert.equal(told.length, steps.length + 1, 'the timeline, and the release by hand');

    const { seq, hash } = entries.at(-1);
    assert.deepEqual(await purser.json('ledger', 'verify'), {
      ok: true,
      entries: seq,
      head: { seq, hash },
      problems: [],
    });
    assert.deepEqual(await purser.json('ledger', 'head'), { seq, hash, epoch: 1 });
  });

  test(`a freeze stops what is new and nothing else, asked ${way}`, async (t) => {
    const purser = installation(t);
    await settle(await purser.serve());
    const { accounts } = await purser.json('account', 'list');
    const { id } = await purser.json('account', 'credit', accounts[0].id, '1000c');
    const create = ['wallet', 'create', '--account', id, '--name', 'n', '--budget-cents', '100'];
    const { id: wallet } = await purser.json(...create);

    const frozen = await purser.json('freeze');
    assert.deepEqual(shapeOf(frozen), {
      installation_id: 'string',
      frozen: 'boolean',
      frozen_at: 'number',
      freeze_reason: 'null',
    });
    assert.deepEqual(await purser.json('freeze'), frozen, 'also the second time');
    const refused = await purser.cli(...create);
    assert.equal(refused.code, 5);
    assert.match(refused.stderr, /has frozen this installation/);
    assert.equal((await purser.json('wallet', 'close', wallet)).status, 'closed', 'cleanup goes on');
    assert.equal((await purser.json('account', 'credit', id, '1c')).available_cents, 1001);
    assert.deepEqual(await purser.json('unfreeze'), { ...frozen, frozen: false, frozen_at: null });
    await purser.json(...create);
  });

  test(`a scripted credit is safe to repeat: one key credits once, asked ${way}`, async (t) => {
    const purser = installation(t);
    await settle(await purser.serve());
    const { id } = await purser.json('account', 'create', 'research');
    const credit = ['account', 'credit', id, '5000c', '--reason', 'invoice 17', '--key', 'invoice-17'];
    for (let i = 0; i < 3; i++) assert.equal((await purser.json(...credit)).available_cents, 5000);
    const all = await Promise.all(
      Array.from({ length: 4 }, () => purser.json('account', 'credit', id, '1c', '--key', 'raced')),
    );
    assert(
      all.every((it) => it.available_cents === 5001),
      JSON.stringify(all),
    );
    const other = await purser.cli('account', 'credit', id, '5001c', '--key', 'invoice-17');
    assert.equal(other.code, 4);
    assert.match(other.stderr, /was used for another amount/);
    const { stdout } = await purser.cli('ledger', 'export');
    assert.equal(stdout.split(`account:${id}`).length - 1, 2, 'two credits are in the journal');
  });
}
