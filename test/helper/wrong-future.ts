import type { TestServer } from './server.ts';

/** The most that a clock may be ahead over a boot of the machine and be believed, less a day. */
export const AHEAD = 6 * 86_400;

/**
 * Runs `act` on a server that believes a clock which is `ahead` seconds ahead. Afterwards the clock is right, and the operator has
 * accepted it. Returns what `act` returns.
 */
export async function inWrongFuture<A>(
  purser: Pick<TestServer, 'reopen' | 'clock'>,
  act: () => Promise<A>,
  ahead = AHEAD,
): Promise<A> {
  const bootWith = (seconds: number) => () => {
    purser.clock.bootAgain();
    purser.clock.leap(seconds);
  };
  await purser.reopen(bootWith(ahead));
  const done = await act();
  await purser.reopen(bootWith(-ahead));
  await purser.reopen(undefined, { acceptClock: true });
  return done;
}
