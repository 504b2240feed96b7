import assert from 'node:assert/strict';
import test from 'node:test';
import { createPortLinks } from '../../src/http/port-links.ts';

test('after a restart no link opens anything, whether it was used or not, and every session does', () => {
  const start = () =>
    createPortLinks(
      () => Buffer.alloc(32, 1),
      () => 1000,
    );
  const to = { resourceId: 'res_1', port: 80 };
  const links = start();
  const [{ code }, unused] = [links.mint(to, 5000), links.mint(to, 5000)];
  assert.ok(links.isUnused(code, to));
  const { session } = links.redeem(code, to) ?? {};
  assert.deepEqual([links.isUnused(code, to), links.redeem(code, to)], [false, undefined]);
  const after = start();
  for (const it of [code, unused.code])
    assert.deepEqual([after.isUnused(it, to), after.redeem(it, to)], [false, undefined]);
  assert.ok(after.opens(session as string, to));
  assert.ok(links.redeem(unused.code, to));
});
