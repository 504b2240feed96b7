import assert from 'node:assert/strict';
import test from 'node:test';
import { COME_BACK_SECONDS, createAudience, type OnResponseEnd } from '../../src/spend/audience.ts';
import { holdTimeouts } from '../helper/held-timeouts.ts';

const PATIENCE_SECONDS = 3;

/** A client whose response is over when the test says so. */
function client(): { whenOver: OnResponseEnd; leave(isDelivered?: boolean): void } {
  let tell: Parameters<OnResponseEnd>[0] = () => assert.fail('nobody listens');
  return {
    whenOver: (listener) => {
      tell = listener;
    },
    leave: (isDelivered = false) => tell(isDelivered),
  };
}

test('nobody is missed before the last has gone for so long, and not when somebody came in between', (t) => {
  const limits = holdTimeouts(t, PATIENCE_SECONDS * 1000);
  const audience = createAudience();
  const [one, two, three] = [client(), client(), client()];
  let missed = 0;
  audience.admit(one.whenOver);
  audience.watch(
    () => PATIENCE_SECONDS,
    () => missed++,
  );
  audience.admit(two.whenOver);
  one.leave();
  assert.equal(limits.count(), 0);
  two.leave();
  assert.equal(limits.count(), 1);
  audience.admit(three.whenOver);
  limits.expire();
  assert.deepEqual([missed, audience.isGivenUp()], [0, false]);
  three.leave();
  limits.expire();
  assert.deepEqual([missed, audience.isGivenUp()], [1, true]);
});

test('who was told to come back is there until then', (t) => {
  const seat = holdTimeouts(t, COME_BACK_SECONDS * 1000);
  const audience = createAudience();
  const [one, two] = [client(), client()];
  let asked = 0;
  audience.watch(
    () => {
      asked++;
      return undefined;
    },
    () => assert.fail('it waits for ever'),
  );
  assert.equal(asked, 1, 'nobody is there yet');
  audience.admit(one.whenOver);
  audience.admit(two.whenOver);
  one.leave();
  two.leave(true);
  assert.deepEqual([asked, seat.count()], [1, 1]);
  seat.expire();
  assert.equal(asked, 2);
});

test('a client who cannot be seen to go stays, and after its end an attempt waits for nobody', (t) => {
  const limits = holdTimeouts(t, PATIENCE_SECONDS * 1000);
  const audience = createAudience();
  const seen = client();
  audience.admit(undefined);
  audience.admit(seen.whenOver);
  audience.watch(() => PATIENCE_SECONDS, assert.fail);
  seen.leave();
  assert.equal(limits.count(), 0);
  const other = createAudience();
  const last = client();
  other.admit(last.whenOver);
  const end = other.watch(() => PATIENCE_SECONDS, assert.fail);
  last.leave();
  end();
  other.close();
  limits.expire();
  assert.equal(other.isGivenUp(), false);
});
