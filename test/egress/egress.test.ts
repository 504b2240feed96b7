import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import test from 'node:test';
import { createEgress } from '../../src/egress/egress.ts';
import { systemOutside } from '../../src/egress/outside.ts';
import { hold } from '../lease/leases.ts';
import { NO_SECRETS } from './proxy-shared.ts';

test('a program that starts after the time for it is ended', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const held = hold();
  const killed = Promise.withResolvers<void>();
  const egress = createEgress({
    outside: { ...systemOutside, lookUp: async () => [], dial: () => assert.fail(), isOwn: () => false },
    listsOf: () => undefined,
    secretsOf: () => NO_SECRETS,
    isLive: () => true,
    async begin() {
      await held.wait();
      const [stdin, stdout] = [new PassThrough(), new PassThrough()];
      return { stdin, stdout, ended: killed.promise, kill: killed.resolve };
    },
    enter: () => () => {},
    passed() {},
    refused() {},
    failed() {},
  });
  const opening = egress.open('res_1');
  await held.arrived;
  t.mock.timers.tick(20_000);
  await assert.rejects(opening, /took longer than 20 s/);
  egress.close();
  held.go();
  await killed.promise;
});
