import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { length, randomFrom, SEED } from '../helper/random.ts';
import type { Answer } from '../helper/server.ts';
import { openMemoryServer } from './leases.ts';

const WALK_COUNT = length(3, 12);
const STEP_COUNT = 120;
/** The share of a backend's calls that fail before they reach it, and of those whose answer is lost. */
const FAULT_SHARE = 0.15;
/** A call of a backend takes so long, in milliseconds, so that others come in between. */
const CALL_MILLISECONDS_MAX = 25;
const CREDIT_CENTS = 100_000;
const CALLS = ['create', 'find', 'inspect', 'extend', 'destroy', 'listOwned'] as const;

type Wallet = { id: string; token: string };
type Lease = { id: string; wallet: Wallet };

for (let walk = 0; walk < WALK_COUNT; walk++)
  test(`rent, extend, stop, keep, close, resolve and reap in any order, with lost answers (PURSER_TEST_SEED=${SEED + walk})`, async (t) => {
    assert.deepEqual(await faultsOf(t, SEED + walk), []);
  });

/** Walks at random through what can happen to leases, lets all of it end, and returns what is wrong then. */
async function faultsOf(t: TestContext, seed: number): Promise<string[]> {
  const random = randomFrom(seed);
  const below = (count: number) => Math.floor(random() * count);
  const any = <T>(list: readonly T[]) => list[below(list.length)] as T;
  const limits = { wallet_requests_per_minute: 0, account_requests_per_minute: 0, released_per_minute: 0 };
  const purser = await openMemoryServer(t, { creditCents: CREDIT_CENTS, settings: { limits } });
  const { memory, clock } = purser;
  let isFaulty = false;
  for (const when of ['before', 'after'] as const)
    for (const call of CALLS)
      memory[when][call] = async () => {
        if (!isFaulty) return;
        if (random() < FAULT_SHARE) throw new Error(`${call}: the line died ${when} it`);
        if (random() < 0.4) await delay(below(CALL_MILLISECONDS_MAX));
      };

  const wallets: Wallet[] = [];
  for (const seconds of [0, 3600])
    wallets.push(await purser.openWallet({ budget_cents: 1000, expires_in_seconds: seconds }));
  const leases = new Map<string, Lease>();
  const ordered: { wallet: Wallet; key: string }[] = [];
  const answers: Promise<unknown>[] = [];
  const faults: string[] = [];
  const note = (wallet: Wallet) => (answer: Answer) => {
    if (answer.status === 500) faults.push(answer.text);
    if (answer.status === 200) leases.set(answer.body.id, { id: answer.body.id, wallet });
  };
  const rent = (order: { wallet: Wallet; key: string }) =>
    purser.rent(order.wallet.token, order.key).then(note(order.wallet));
  const lease = () => any([...leases.values()]);

  const steps: [weight: number, needsLease: boolean, () => Promise<unknown> | undefined][] = [
    [
      8,
      false,
      () => {
        const order = { wallet: any(wallets), key: `rent-${ordered.length}` };
        ordered.push(order);
        return rent(order);
      },
    ],
    [10, false, () => (ordered.length ? rent(any(ordered)) : undefined)],
    [22, true, () => extend(lease(), `extend-${below(40)}`)],
    [5, true, () => stop(lease())],
    [4, true, () => keep(lease())],
    [8, false, () => resolve()],
    [14, false, () => void clock.advance(any([1, 2, 5, 10, 30, 60, 120, 200]))],
    [23, false, () => purser.app.reaper.runOnce()],
    [2, false, () => makeReady(!memory.ready)],
    [10, true, () => raceAtEnd()],
  ];
  const extend = ({ id, wallet }: Lease, key: string) => purser.extend(wallet.token, id, any([30, 60, 300]), key);
  const stop = ({ id, wallet }: Lease) => purser.stop(wallet.token, id);
  const keep = ({ id, wallet: { token } }: Lease) =>
    purser.ask('POST', '/v1/compute/keep', {
      token,
      key: randomUUID(),
      body: { id, extend_seconds: 60, max_seconds: 600 },
    });
  async function resolve() {
    const { operations } = await purser.run('operation.list', { uncertain: true });
    const it = any(operations);
    if (!it) return;
    // An extension that the operator charges while its lease is being ended is paid for nothing: that is no fault.
    const decision = it.kind === 'compute_extend' ? 'release' : any(['charge', 'release'] as const);
    await purser.run('operation.resolve', { id: it.id, decision, reason: 'a walk' });
  }
  /** Has the end of a lease come while it is being extended. */
  async function raceAtEnd() {
    const now = clock.wall() / 1000;
    const running = (await purser.run('resource.list', { all: true })).resources.filter(
      (it) => it.ended_at === null && it.ready_at !== null && it.expires_at > now + 2,
    );
    const first = running.sort((a, b) => a.expires_at - b.expires_at)[0];
    const it = first && leases.get(first.id);
    if (!it) return;
    clock.advance(first.expires_at - 1 - Math.ceil(clock.wall() / 1000));
    const racing: Promise<unknown>[] = [extend(it, randomUUID())];
    await delay(below(10));
    clock.advance(2);
    racing.push(any([() => purser.app.reaper.runOnce(), () => stop(it)])());
    await Promise.allSettled(racing);
  }
  async function makeReady(isReady: boolean) {
    memory.ready = isReady;
    if (isReady) for (const machine of memory.machines.values()) machine.state = 'running';
  }

  const weighed = steps.flatMap((step) => Array<typeof step>(step[0]).fill(step));
  for (const wallet of [...wallets, ...wallets]) await rent({ wallet, key: randomUUID() });
  isFaulty = true;
  for (let step = 0; step < STEP_COUNT; step++) {
    const [, needsLease, act] = any(weighed);
    if (needsLease && !leases.size) continue;
    answers.push(Promise.resolve(act()).catch(() => {})); // Refusals are answers; what they leave is judged at the end.
    if (step === STEP_COUNT / 2) answers.push(purser.closeWallet((wallets[0] as Wallet).id));
    if (random() < 0.7) await delay(below(20));
  }
  isFaulty = false;
  await makeReady(true);
  await Promise.all(answers);
  const check = (when: string) => faults.push(...purser.problems().map((it) => `${when}: ${it}`));
  check('when all was answered');
  const pass = async (count: number, seconds: number) => {
    for (let i = 0; i < count; i++) {
      clock.advance(seconds);
      await purser.app.reaper.runOnce();
    }
  };
  await pass(8, 1);
  await pass(8, 70);
  check('after the reaper');
  for (const it of (await purser.run('resource.list', { all: true })).resources) {
    if (it.end_reason === 'lease_expired' && (it.ended_at as number) < it.expires_at)
      faults.push(`${it.id} ended early`);
    if (it.ready_at === null) continue;
    const price = (Number(it.price_hourly_usd) * it.purchased_seconds) / 3600;
    if (Math.abs(Number(it.charged_usd) - price) > 1e-6)
      faults.push(`${it.id} was charged ${it.charged_usd} for ${it.purchased_seconds} s`);
    if (it.ended_at === null && it.expires_at !== it.ready_at + it.purchased_seconds)
      faults.push(`${it.id} does not end when it is paid until`);
  }
  for (const { id } of wallets) await purser.closeWallet(id);
  await pass(8, 61);
  for (const { token } of wallets) {
    const { status, held_usd: held } = await purser.budget(token);
    if (status !== 'closed' || held !== '0.00') faults.push(`a wallet is ${status} and holds ${held}`);
  }
  if (memory.machines.size) faults.push(`${memory.machines.size} machines are left`);
  check('when all was closed');
  const account = (await purser.ask('GET', '/v1/account', { token: purser.accountKey })).body;
  if (account.reserved_cents !== 0 || account.available_cents + account.spent_cents !== CREDIT_CENTS)
    faults.push(`the account has ${JSON.stringify(account)}`);
  return faults;
}
