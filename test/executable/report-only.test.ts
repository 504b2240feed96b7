import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { installation } from '../helper/executable.ts';

test('an accepted loss only reports until the operator says so, in words and as JSON, with and without a server', async (t) => {
  const purser = installation(t);
  await (await purser.serve()).stop();
  assert.match((await purser.cli('resource', 'reconcile')).stdout, /^Machines that no row knows:\n\(none\)\n$/);

  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '100c'); // Books without an entry have lost none.
  rmSync(join(purser.directory, 'ledger.head'));
  const server = await purser.serve('--accept-loss');
  assert.equal((await server.logged('report_only')).reason, 'the loss of entries was accepted');
  const ready = await server.ask('GET', '/readyz');
  assert.deepEqual([ready.status, ready.body.ready], [200, true]);
  assert.match(ready.body.report_only, /resource reconcile --apply/);

  const { stdout: words } = await purser.cli('resource', 'reconcile');
  assert.match(
    words,
    /^Since \d{4}-\S+ \S+ this installation only reports: the loss of entries was accepted\. Nothing/,
  );
  assert.match(
    words,
    /purser resource reconcile --apply\n\nLeases of before:\n\(none\)\n\nMachines that no row knows:\n/,
  );
  await server.stop();

  const doctor = await purser.cli('doctor');
  assert.equal(doctor.code, 1);
  assert.match(doctor.stdout, /^BAD {2}leases: report only: .*Review it with: purser resource reconcile$/m);
  const { report_only: state, ...shown } = await purser.json('resource', 'reconcile');
  assert.deepEqual(shown, { applied: false, leases: [], orphans: [], faults: [] });
  assert.equal(state.reason, 'the loss of entries was accepted');
  assert.match((await purser.cli('resource', 'reconcile', '--apply')).stdout, /That is over\./);
  assert.equal((await purser.json('resource', 'reconcile')).report_only, null);
  assert.match((await purser.cli('doctor')).stdout, /^ok {3}leases: /m);
});
