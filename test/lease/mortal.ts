import assert from 'node:assert/strict';
import type { Ledger } from '../../src/ledger/ledger.ts';
import { allLiveResources } from '../../src/ledger/resource.ts';
import type { Answer } from '../helper/server.ts';
import { waitFor } from '../helper/waiting.ts';
import type { LeaseServer } from './leases.ts';

/**
 * Servers that die at a chosen step. A step is what a server does outside its process: a call to an engine, or a commit. They are
 * counted in a life without a death, so that a step which is added later is a place to die at as well.
 *
 * A server may die `before` a step; `after` it, when nobody has heard the answer; or with a call under way, which the engine carries
 * out `late`, when the next server has looked already. Nothing outside changes between two steps, so a death after one leaves the
 * same as a death before the next. A death before a call that changes nothing likewise leaves the same as one before the next. The
 * gate leaves these out, and the soak does not.
 */
export type Moment = 'before' | 'after' | 'late';
export type Place = { nth: number; moment: Moment };

/** The life of one server. */
export type Life = ReturnType<typeof createLife>;
export function createLife(counts: (step: string, isEvery: boolean) => boolean) {
  const died = Promise.withResolvers<void>();
  const never = Promise.withResolvers<never>();
  never.promise.catch(() => {});
  let place: Place | undefined;
  let isEvery = false;
  const die = () => {
    life.isDead = true;
    died.resolve();
    return never.promise;
  };
  const life = {
    isDead: false,
    /** The steps since `watch`. */
    steps: [] as string[],
    /** What an engine got, and has not carried out yet. */
    late: undefined as (() => Promise<unknown>) | undefined,
    died: died.promise,
    die,
    /** Counts steps from now on, those that change nothing only if `every` one counts, and dies at one of them. */
    watch(at: Place | undefined, every: boolean) {
      life.steps = [];
      place = at;
      isEvery = every;
    },
    /** Ends what waits for the answers to a dead server. */
    bury: () => never.reject(new Error('it is dead')),
    /** Does a step. Does not return if the server dies. */
    async step<T>(name: string, carryOut: () => Promise<T>): Promise<T> {
      if (life.isDead) return never.promise;
      const doesCount = counts(name, isEvery);
      if (doesCount) life.steps.push(name);
      const moment = doesCount && place?.nth === life.steps.length ? place.moment : undefined;
      if (moment === 'late') life.late = carryOut;
      if (moment === 'late' || moment === 'before') return die();
      if (moment === 'after') {
        await carryOut().catch(() => {});
        return die();
      }
      const answer = await carryOut();
      return life.isDead ? never.promise : answer;
    },
  };
  return life;
}

/** Makes every write of a ledger a step. */
export function stepThroughWrites(ledger: Ledger, life: Life): void {
  const { write } = ledger;
  ledger.write = (it, data) => life.step(`write ${it.name}`, () => write(it, data));
}

export type Mortal = LeaseServer & {
  /** The life of the server that runs now. */
  life: Life;
  /** Returns when a server may die at a step. */
  momentsOf(step: string, isEvery: boolean): Moment[];
  /** Whether it may come to fewer steps in another life, and not die. */
  mayLive: boolean;
  /** Has the server die, and another take its place on a copy of its files. */
  succeed(): Promise<void>;
  /** Returns which machines nobody knows, or are there twice. A sweep would find them, and is the last resort. */
  strangers(): Promise<string[]>;
  /** Returns what is wrong on the engine once all is settled. */
  faults(): Promise<string[]>;
};

export type Wallet = { id: string; token: string };
/** What a server does until it dies, and what an agent asks of the next one until it is done. */
export type Story<P extends Mortal = Mortal, S = any> = {
  /** Makes what there is before. */
  before?(purser: P, wallet: Wallet): Promise<S>;
  /** Done once more by the server that comes after a death. */
  act(purser: P, wallet: Wallet, made: S): Promise<Answer | unknown>;
  /** Checks what only this story promises, once it is done. */
  check?(purser: P, wallet: Wallet, made: S): Promise<void>;
};

/** Seconds until an engine has carried out what it got late; a second server has looked before. */
const LATE_SECONDS = 9;
/** Seconds until all is settled, each before a pass of the reaper; and until a sweep ends what is no longer young. */
const [SETTLING, SWEPT] = [[1, 61], [301]];
/** More seconds than pass from a death until all is settled and checked. */
export const SETTLED_SECONDS = 400;

async function settle({ app, clock }: Mortal, seconds: readonly number[]): Promise<void> {
  for (const it of seconds) {
    clock.advance(it);
    await app.reaper.runOnce();
    await app.warm.tend(); // A pass does not wait for it.
  }
}

/** Tells a story with a death at a place, and returns what its wallet has paid in the end, and the steps. */
async function tell<P extends Mortal, S>(
  purser: P,
  story: Story<P, S>,
  { place, isEvery }: { place?: Place; isEvery: boolean },
): Promise<{ paid: string; steps: string[]; died: boolean }> {
  const wallet = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 30 * 86_400 });
  const made = (await story.before?.(purser, wallet)) as S;
  purser.life.watch(place, isEvery);
  const acted = story.act(purser, wallet, made);
  const { life } = purser;
  if (place) {
    const lived = acted.then(() => assert(purser.mayLive, 'it lived on'));
    lived.catch(() => {}); // What the dead life still says is heard by nobody.
    await waitFor('it dies', Promise.race([life.died, lived]));
    life.watch(undefined, isEvery);
    if (life.isDead) await purser.succeed();
    await settle(purser, [0]);
    purser.clock.advance(LATE_SECONDS);
    await life.late?.().catch(() => {});
    await settle(purser, SETTLING);
    assert.deepEqual(await purser.strangers(), []);
    await settle(purser, SWEPT);
    assert.deepEqual(await purser.faults(), []);
    await story.act(purser, wallet, made);
  } else await acted;
  const steps = [...purser.life.steps];
  assert.deepEqual(await purser.faults(), []);
  await story.check?.(purser, wallet, made);
  const closed = await purser.closeWallet(wallet.id);
  assert.equal(closed.status, 200, closed.text);
  await settle(purser, SWEPT);
  assert.deepEqual([...(await purser.faults()), ...purser.problems()], []);
  assert.deepEqual(allLiveResources(purser.app.ledger.read), []);
  const { held_usd, used_usd } = (await purser.ask('GET', `/v1/wallets/${wallet.id}`, { token: purser.accountKey }))
    .body;
  assert.equal(held_usd, '0.00');
  return { paid: used_usd, steps, died: life.isDead };
}

/**
 * Tells a story once without a death, and then with one at each place, or `isEvery` one. Returns how many deaths there were.
 */
export async function dieEverywhere<P extends Mortal, S>(
  purser: P,
  story: Story<P, S>,
  { isEvery = false } = {},
): Promise<number> {
  const { paid, steps } = await tell(purser, story, { isEvery });
  assert.ok(steps.length > 0);
  const all: Place[] = steps.flatMap((step, at) =>
    purser.momentsOf(step, isEvery).map((moment) => ({ nth: at + 1, moment })),
  );
  const last = steps.length;
  if (!all.some(({ nth, moment }) => nth === last && moment === 'after')) all.push({ nth: last, moment: 'after' });
  // A death before the first step leaves what any restart leaves.
  if (!isEvery && all[0]?.moment === 'before') all.shift();
  let deaths = 0;
  for (const place of all)
    try {
      const told = await tell(purser, story, { place, isEvery });
      assert.equal(told.paid, paid, 'it has paid something else');
      if (told.died) deaths++;
    } catch (error) {
      const where = `${place.moment} step ${place.nth} (${steps[place.nth - 1]}) of ${steps.join(', ')}`;
      throw new Error(`it died ${where}: ${(error as Error).message}`, { cause: error });
    }
  assert(deaths > all.length / 2, `${deaths} of ${all.length} died`);
  return deaths;
}
