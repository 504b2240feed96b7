import assert from 'node:assert/strict';
import test from 'node:test';
import { readConfig } from '../../src/config/config.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { checkModels } from '../../src/router/check.ts';
import { openTestServer } from '../helper/server.ts';
import { completion, hang } from '../helper/upstream.ts';

test('an upstream that hangs is a fault after the time of its route, and hides no other', async (t) => {
  const house = await openTestServer(t);
  const { config } = readConfig({ data: house.directory }, {});
  house.upstream.handle = (call, response) => (call.body.model === 'flat' ? hang : completion())(call, response);
  const checks = await checkModels(createCatalogue(config), house.app.upstreams, async () => new Map(), 1);
  const details = Object.fromEntries(checks.map(({ name, ok, detail }) => [name, `${ok} ${detail}`]));
  assert.equal(details['flat on house'], 'false Its answer took longer than 1 s.');
  assert.equal(checks.length, 4);
  assert(
    checks.every(({ detail }) => /It counted 5 completion|took longer/.test(detail)),
    JSON.stringify(checks),
  );
});
