import assert from 'node:assert/strict';
import { chmodSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { parse, stringify } from 'yaml';
import { openReceiver, status } from '../helper/receiver.ts';
import { MODELS, openTestServer, type TestServer } from '../helper/server.ts';
import { completion, failure, gate, openUpstream, reset } from '../helper/upstream.ts';

type Settings = Record<string, any>;

/** Changes purser.yaml in place. */
function rewrite(purser: TestServer, change: (settings: Settings) => void): void {
  const file = join(purser.directory, 'purser.yaml');
  const settings = parse(readFileSync(file, 'utf8')) as Settings;
  change(settings);
  writeFileSync(file, stringify(settings));
}

const FLAT = { ...MODELS[1], id: 'new', pricing: { request: '0.05' } };
const NOTHING = { added: [], removed: [], changed: [] };

test('a reload adds, removes and reprices models; a chat in flight keeps its model, its price and its upstream', async (t) => {
  const purser = await openTestServer(t);
  const other = await openUpstream(t);
  const wallet = await purser.openWallet();
  const late = gate();
  purser.upstream.handle = late.handler;
  const inFlight = purser.chat(wallet.token, { model: 'flat' });
  await purser.upstream.arrived(1);

  rewrite(purser, ({ router }) => {
    router.upstreams = [{ name: 'other', base_url: other.url, api_key: 'sk-the-new-key-0123456789' }];
    router.models = [
      { ...FLAT, upstream: 'other' },
      { ...MODELS[0], upstream: 'other' },
    ];
  });
  assert.deepEqual(await purser.run('reload', {}), {
    models: { added: ['new'], removed: ['flat', 'free', 'dear', 'unpriced'], changed: ['chat'] },
    upstreams: { added: ['other'], removed: ['local'], changed: [] },
    receivers: NOTHING,
    settings: [],
  });
  assert.equal((await purser.chat(wallet.token, { model: 'new' })).status, 200);
  assert.equal(other.calls[0]?.headers.authorization, 'Bearer sk-the-new-key-0123456789');
  assert.equal((await purser.chat(wallet.token, { model: 'flat' })).body.error.code, 'model_not_found');

  late.open();
  assert.equal((await inFlight).status, 200);
  assert.equal((await purser.budget(wallet.token)).used_usd, '0.06'); // 0.01 as it was priced, and 0.05.
  assert.equal(purser.app.openedUpstreams.size, 1); // The one that nobody uses any more is closed.
  const listed = await purser.ask('GET', '/v1/models', { token: wallet.token });
  assert.deepEqual(
    listed.body.data.map((it: { id: string }) => it.id),
    ['new', 'chat'],
  );
  assert.deepEqual(purser.problems(), []);
});

test('a chat in flight falls back to the upstream that it was priced with, though a reload removed it', async (t) => {
  const second = await openUpstream(t);
  const purser = await openTestServer(t, {
    change(settings) {
      settings.router.upstreams.push({ name: 'second', base_url: second.url });
      settings.router.models = [{ ...MODELS[1], fallbacks: [{ upstream: 'second' }] }];
      return settings;
    },
  });
  const wallet = await purser.openWallet();
  const late = gate(failure(500));
  purser.upstream.handle = late.handler;
  const inFlight = purser.chat(wallet.token, { model: 'flat' });
  await purser.upstream.arrived(1);
  rewrite(purser, ({ router }) => {
    router.upstreams = router.upstreams.slice(0, 1);
    router.models = [{ ...FLAT, id: 'flat' }];
  });
  await purser.run('reload', {});
  late.open();
  assert.equal((await inFlight).status, 200);
  assert.equal(second.calls.length, 1);
  assert.equal((await purser.budget(wallet.token)).used_usd, '0.01');
});

test('a reload is all or nothing: a broken file and a setting that needs a restart change nothing, by name', async (t) => {
  const purser = await openTestServer(t);
  const wallet = await purser.openWallet();
  const original = readFileSync(join(purser.directory, 'purser.yaml'), 'utf8');
  const add = ({ router }: Settings) => void router.models.push(FLAT);
  const reload = () =>
    purser.run('reload', {}).then(
      () => assert.fail('it was not refused'),
      (error) => `${error.code}: ${error.message}`,
    );

  rewrite(purser, (it) => {
    add(it);
    it.lisen = 'x';
    it.router.models[0].upstream = 'nobody';
  });
  assert.match(
    await reload(),
    /^conflict: Nothing was changed\. The configuration cannot be used:\n.*purser\.yaml:\d+: router.*no upstream is named "nobody"\n.*purser\.yaml:\d+: lisen: unknown setting\. Did you mean listen\?$/,
  );
  writeFileSync(join(purser.directory, 'purser.yaml'), original);
  rewrite(purser, (it) => {
    add(it);
    it.listen = '127.0.0.1:1';
    it.opentelemetry = { endpoint: 'http://127.0.0.1:1' };
    it.transfer = {
      endpoint: 'http://s3.test',
      region: 'r',
      bucket: 'bucket',
      access_key_id: 'i',
      secret_access_key: 'sss',
    };
  });
  assert.equal(
    await reload(),
    'conflict: Nothing was changed: a change of listen, opentelemetry, transfer need a restart. Restart Purser, or put them back and reload.',
  );
  assert.equal((await purser.chat(wallet.token, { model: 'new' })).status, 404);
  assert.equal((await purser.chat(wallet.token)).status, 200);
  assert.equal(purser.log.filter((line) => line.includes('"reload.refused"')).length, 2);

  writeFileSync(join(purser.directory, 'purser.yaml'), original);
  assert.deepEqual(await purser.run('reload', {}), {
    models: NOTHING,
    upstreams: NOTHING,
    receivers: NOTHING,
    settings: [],
  });
});

test('a reload keeps the counts of limits that did not change, and the bounds that were learned', async (t) => {
  const purser = await openTestServer(t, { settings: { limits: { wallet_requests_per_minute: 3 } } });
  const wallet = await purser.openWallet();
  purser.upstream.handle = completion({ prompt_tokens: 900, completion_tokens: 1 });
  const late = gate(completion({ prompt_tokens: 1500, completion_tokens: 1 }));
  await purser.chat(wallet.token);
  purser.upstream.handle = late.handler;
  const inFlight = purser.chat(wallet.token);
  await purser.upstream.arrived(2);
  const { learned } = purser.app.catalogue.find('chat').routes[0];
  assert(learned.overheadTokens > 0);

  rewrite(purser, (it) => {
    it.limits.account_requests_per_minute = 100;
    it.log_level = 'warn';
  });
  assert.deepEqual((await purser.run('reload', {})).settings, ['limits', 'log_level']);
  assert.equal(purser.app.log.level, 'warn');
  assert.deepEqual(purser.app.catalogue.find('chat').routes[0].learned, learned);
  late.open();
  assert.equal((await inFlight).status, 200);
  assert(purser.app.catalogue.find('chat').routes[0].learned.overheadTokens > learned.overheadTokens); // Learned by the request in flight.
  assert.equal((await purser.chat(wallet.token)).status, 200);
  assert.equal((await purser.chat(wallet.token)).body.error.code, 'rate_limited'); // The fourth of this minute.

  rewrite(purser, (it) => {
    it.limits.wallet_requests_per_minute = 0;
  });
  await purser.run('reload', {});
  assert.equal((await purser.chat(wallet.token)).status, 200);
});

test('a reload keeps open circuits, which close with the next answer; those of a changed upstream start anew', async (t) => {
  const purser = await openTestServer(t);
  const wallet = await purser.openWallet();
  const asked = async (user: string) => {
    const { status, text } = await purser.chat(wallet.token, { user });
    return text.includes('circuit_open') ? 'circuit_open' : status;
  };
  const circuits = () => purser.log.flatMap((line) => /"event":"upstream\.(circuit_\w+)"/.exec(line)?.[1] ?? []);
  const open = async (name: string) => {
    purser.upstream.handle = reset;
    for (let i = 0; i < 3; i++) assert.equal(await asked(`${name} ${i}`), 503);
    assert.equal(await asked(`${name} 3`), 'circuit_open');
  };
  await open('first');
  rewrite(purser, ({ router }) => {
    router.models[0].pricing.request = '0.0002';
  });
  await purser.run('reload', {});
  assert.equal(await asked('after a reload'), 'circuit_open');
  purser.upstream.handle = completion();
  purser.clock.advance(5);
  assert.equal(await asked('trial'), 200);
  assert.deepEqual(circuits(), ['circuit_open', 'circuit_closed']);

  await open('second');
  purser.upstream.handle = completion();
  rewrite(purser, ({ router }) => {
    router.upstreams[0].timeout_seconds = 99;
  });
  assert.deepEqual((await purser.run('reload', {})).upstreams.changed, ['local']);
  assert.equal(await asked('after a change'), 200);
});

test('a body that was measured before its model changed is refused, and a retry is measured anew', async (t) => {
  const purser = await openTestServer(t);
  const wallet = await purser.openWallet({ budget_cents: 10_000 });
  const content = 'x'.repeat(300 * 1024); // Read in the worker thread.
  const send = () => purser.chat(wallet.token, { messages: [{ role: 'user', content }] });
  const [isRead, isChanged] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const { read } = purser.app.modelRequests;
  purser.app.modelRequests.read = async (...order) => {
    const request = await read(...order);
    isRead.resolve();
    await isChanged.promise;
    return request;
  };
  const reading = send();
  await isRead.promise;
  rewrite(purser, ({ router }) => {
    router.models[0].context_length = 1_000_000;
  });
  await purser.run('reload', {});
  isChanged.resolve();
  const { status, body } = await reading;
  assert.equal(`${status} ${body.error.code}`, '503 gateway_unavailable');
  const late = gate();
  purser.upstream.handle = late.handler;
  const retried = send();
  await purser.upstream.arrived(1);
  assert((await purser.budget(wallet.token)).held_usd > '0.3', 'all of the prompt is held for, not the former context');
  late.open();
  assert.equal((await retried).status, 200);
});

test('a file that others may write is not read again', async (t) => {
  const purser = await openTestServer(t);
  chmodSync(join(purser.directory, 'purser.yaml'), 0o666);
  await assert.rejects(purser.run('reload', {}), /Nothing was changed\. .*can be changed by other users/);
});

test('a request that is held for calls the upstream that it was priced with, though a reload came before the call', async (t) => {
  const purser = await openTestServer(t);
  const wallet = await purser.openWallet();
  const { held } = purser.app.events;
  purser.app.events.held = (operation) => {
    held(operation);
    purser.app.upstreams = new Map(); // Between the hold and the call.
  };
  assert.equal((await purser.chat(wallet.token)).status, 200);
});

const SECRET = 'a plain signing secret';

test('a reload changes receivers of events: added, changed and removed, each with what waits for it', async (t) => {
  const [kept, changed, removed, added] = [
    await openReceiver(t),
    await openReceiver(t),
    await openReceiver(t),
    await openReceiver(t),
  ];
  const receiver = (name: string, { url }: { url: string }) => ({ name, url, secret: SECRET });
  const purser = await openTestServer(t, {
    writesHere: false, // The thread that writes has to hear of it.
    settings: {
      events: { receivers: [receiver('kept', kept), receiver('changed', changed), receiver('removed', removed)] },
    },
  });
  const closeOne = async () => {
    const { id } = await purser.openWallet();
    await purser.run('wallet.close', { id });
    return id;
  };
  const walletsOf = (it: typeof kept) => it.accepted().map(({ data }) => data.wallet_id);
  // One answers late, over the reload; one does not take what it is sent.
  const late = Promise.withResolvers<void>();
  changed.reply = async (got, response) => {
    await late.promise;
    return status(204)(got, response);
  };
  removed.reply = status(500);
  const first = await closeOne();
  await kept.until(() => kept.accepted().length === 1);
  await changed.until(() => changed.got.length === 1);
  await removed.until(() => removed.got[0]?.status === 500);

  rewrite(purser, ({ events }) => {
    events.account_low_cents = 100;
    events.receivers = [
      receiver('kept', kept),
      { ...receiver('changed', changed), url: `${changed.url}/new`, types: ['wallet.closed'] },
      receiver('added', added),
    ];
  });
  const { receivers, settings } = await purser.run('reload', {});
  assert.deepEqual(receivers, { added: ['added'], removed: ['removed'], changed: ['changed'] });
  assert.deepEqual(settings, ['events.account_low_cents']);
  const second = await closeOne();
  await kept.until(() => kept.accepted().length === 2);
  await added.until(() => added.accepted().length === 1);
  assert.equal(changed.got.length, 1, 'nothing new before the former has its answer');
  late.resolve();
  await changed.until(() => changed.accepted().length === 2);
  assert.deepEqual(
    [kept, changed, added].map(walletsOf),
    [[first, second], [first, second], [second]],
    'in order, and nothing twice',
  );
  assert.deepEqual(
    changed.got.map(({ path }) => path),
    ['/', '/new'],
  );
  assert.equal(removed.got.length, 1);

  // Back again, it gets what waited for it, and nothing of the time in between.
  removed.reply = status(204);
  rewrite(purser, ({ events }) => void events.receivers.push(receiver('removed', removed)));
  assert.deepEqual((await purser.run('reload', {})).receivers.added, ['removed']);
  purser.clock.advance(60);
  purser.app.notifier.wake();
  await removed.until(() => removed.accepted().length === 1);
  assert.deepEqual(walletsOf(removed), [first]);
  assert(!purser.log.join('\n').includes(SECRET));
});

for (const [way, paths] of [
  ['changes twice', ['/b', '/c']],
  ['is removed and added', [undefined, '/b']],
] as const)
  test(`a receiver that ${way} while it is slow to answer gets one event at a time, in order`, async (t) => {
    const [slow, other] = [await openReceiver(t), await openReceiver(t)];
    const others = { name: 'other', url: other.url, secret: SECRET };
    const slowAt = (path: string) => ({ name: 'slow', url: `${slow.url}${path}`, secret: SECRET });
    const purser = await openTestServer(t, { settings: { events: { receivers: [slowAt('/a'), others] } } });
    const answer = Promise.withResolvers<void>();
    slow.reply = async (got, response) => {
      await answer.promise;
      return status(204)(got, response);
    };
    const told: string[] = [];
    const closeOne = async () => {
      const { id } = await purser.openWallet();
      await purser.run('wallet.close', { id });
      told.push(id);
    };
    await closeOne();
    await closeOne();
    await slow.until(() => slow.got.length === 1);
    for (const path of paths) {
      rewrite(purser, ({ events }) => {
        events.receivers = path === undefined ? [others] : [slowAt(path), others];
      });
      await purser.run('reload', {});
    }
    // By the time that these have arrived, a second queue would have sent something as well.
    for (let i = 0; i < 5; i++) {
      await closeOne();
      await other.until(() => other.accepted().length === told.length);
    }
    assert.equal(slow.got.length, 1);
    answer.resolve();
    await slow.until(() => slow.accepted().length === told.length);
    assert.deepEqual(
      slow.got.map(({ path }) => path),
      told.map((_, i) => (i === 0 ? '/a' : paths[1])),
    );
    assert.deepEqual(
      slow.accepted().map(({ data }) => data.wallet_id),
      told,
    );
  });

test('a reload that is refused leaves the receivers as they are', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openTestServer(t, {
    settings: { events: { receivers: [{ name: 'it', url: receiver.url, secret: SECRET }] } },
  });
  rewrite(purser, (it) => {
    it.events.receivers = [];
    it.listen = '127.0.0.1:1';
  });
  await assert.rejects(purser.run('reload', {}), /a change of listen needs a restart/);
  const { id } = await purser.openWallet();
  await purser.run('wallet.close', { id });
  await receiver.until(() => receiver.accepted().length === 1);
});

test('a reload takes back what an account counts as low', async (t) => {
  const receiver = await openReceiver(t);
  const purser = await openTestServer(t, {
    creditCents: 2000,
    settings: {
      events: {
        account_low_cents: 1500,
        receivers: [{ name: 'it', url: receiver.url, secret: SECRET, types: ['account.low', 'wallet.closed'] }],
      },
    },
  });
  rewrite(purser, ({ events }) => void delete events.account_low_cents);
  assert.deepEqual((await purser.run('reload', {})).settings, ['events.account_low_cents']);
  const { id } = await purser.openWallet();
  await purser.run('wallet.close', { id });
  await receiver.until(() => receiver.accepted().length === 1);
  assert.deepEqual(
    receiver.accepted().map(({ type }) => type),
    ['wallet.closed'],
  );
});

test('a call of a server that a reload has replaced or removed tells nothing about the one of its name', async (t) => {
  const receiver = await openReceiver(t);
  const settings = { events: { receivers: [{ name: 'it', url: receiver.url, secret: SECRET }] } };
  const purser = await openTestServer(t, { settings });
  const [other, last] = [await openUpstream(t), await openUpstream(t)];
  const wallet = await purser.openWallet();
  const asked = (user: string) => purser.chat(wallet.token, { model: 'flat', user });
  const health = async () => /^purser_upstream_up.*$/m.exec(await purser.app.events.registry.metrics())?.[0];
  const events = () => receiver.accepted().map(({ type }) => type);
  const end = gate(reset);
  purser.upstream.handle = end.handler;
  const inFlight = ['a', 'b', 'c'].map(asked);
  await purser.upstream.arrived(3);

  rewrite(purser, ({ router }) => {
    router.upstreams[0].base_url = other.url;
  });
  await purser.run('reload', {});
  assert.equal((await asked('d')).status, 200);
  end.open();
  for (const it of inFlight) assert.equal((await it).body.error.code, 'operation_uncertain');
  assert.equal(await health(), 'purser_upstream_up{upstream="local"} 1');
  assert(!purser.log.some((line) => line.includes('"upstream.down"')), 'the former server has died, not this one');

  const late = gate();
  other.handle = late.handler;
  const answered = asked('e');
  await other.arrived(2);
  rewrite(purser, ({ router }) => {
    router.upstreams[0] = { name: 'new', base_url: last.url };
    router.models = [{ ...FLAT, id: 'flat', upstream: 'new' }];
  });
  await purser.run('reload', {});
  assert.equal((await asked('f')).status, 200);
  late.open();
  assert.equal((await answered).status, 200);
  assert.equal(await health(), 'purser_upstream_up{upstream="new"} 1');
  await purser.run('wallet.close', { id: wallet.id });
  await receiver.until(() => events().includes('wallet.closed'));
  assert(!events().some((type) => type.startsWith('upstream.')), `${events()}`);
});

test('what nobody knows is decided by the policy of the upstream that was asked, though its model has moved to another', async (t) => {
  const purser = await openTestServer(t, {
    change(settings) {
      settings.router.upstreams[0].uncertain = { policy: 'release', after_seconds: 60 };
      return settings;
    },
  });
  await purser.app.reaper.stop();
  const other = await openUpstream(t);
  const wallet = await purser.openWallet();
  purser.upstream.handle = reset;
  const told = await purser.chat(wallet.token, { model: 'flat' });
  assert.match(told.body.error.message, /USD held for it are given back after 60 s/);
  rewrite(purser, ({ router }) => {
    router.upstreams.push({ name: 'other', base_url: other.url });
    router.models[1].upstream = 'other';
  });
  await purser.run('reload', {});
  purser.clock.advance(60);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
  const { operations } = await purser.run('operation.list', {});
  assert.deepEqual(
    operations.map((it) => it.outcome),
    ['released'],
  );
});

test('a fault of the configuration is logged again where a reload has changed the upstream and it remains', async (t) => {
  const purser = await openTestServer(t);
  const wallet = await purser.openWallet();
  const logged = () => purser.log.filter((line) => line.includes('"upstream.misconfigured"')).length;
  const ask = async () => assert.equal((await purser.chat(wallet.token, { model: 'flat' })).status, 503);
  const late = gate(failure(401));
  purser.upstream.handle = failure(401);
  await ask();
  await ask();
  assert.equal(logged(), 1, 'once until it answers');
  purser.upstream.handle = late.handler;
  const inFlight = ask();
  await purser.upstream.arrived(3);
  rewrite(purser, ({ router }) => {
    router.upstreams[0].api_key = 'sk-another-wrong-key-0123456789';
  });
  await purser.run('reload', {});
  late.open();
  await inFlight;
  assert.equal(logged(), 1, 'that was the former key');
  purser.upstream.handle = failure(401);
  await ask();
  await ask();
  assert.equal(logged(), 2);
});

test('a reload that changes an upstream keeps its calls in flight within its limit, which may be another; another server starts anew', async (t) => {
  const purser = await openTestServer(t, {
    change(settings) {
      settings.router.upstreams[0].max_concurrent = 2;
      return settings;
    },
  });
  const other = await openUpstream(t);
  const wallet = await purser.openWallet();
  const ask = () => purser.chat(wallet.token, { model: 'flat' });
  const reload = async (change: object) => {
    rewrite(purser, ({ router }) => void Object.assign(router.upstreams[0], change));
    assert.deepEqual((await purser.run('reload', {})).upstreams.changed, ['local']);
    // Whoever was refused a moment ago would come first.
    purser.clock.advance(5);
  };
  const late = gate();
  purser.upstream.handle = late.handler;
  const inFlight = [ask(), ask()];
  await purser.upstream.arrived(2);
  await reload({ timeout_seconds: 99 });
  assert.equal((await ask()).status, 429);
  await reload({ max_concurrent: 1 });
  assert.equal((await ask()).status, 429);
  await reload({ max_concurrent: 3 });
  inFlight.push(ask());
  await purser.upstream.arrived(3);
  assert.equal((await ask()).status, 429);
  await reload({ base_url: other.url, max_concurrent: 1 });
  assert.equal((await ask()).status, 200);
  await reload({ base_url: purser.upstream.url });
  late.open();
  for (const it of inFlight) assert.equal((await it).status, 200);
  assert.equal((await ask()).status, 200, 'all places are free again');
});
