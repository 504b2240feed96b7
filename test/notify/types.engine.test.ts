import assert from 'node:assert/strict';
import test from 'node:test';
import { openReceiver } from '../helper/receiver.ts';
import { openTestServer } from '../helper/server.ts';
import { openSmallDisk } from '../helper/small-disk.ts';
import { SECRET, withEvents } from './types-shared.ts';

test('a disk that gets full is told', async (t) => {
  const disk = openSmallDisk(t, 16);
  if (!disk) return;
  const receiver = await openReceiver(t);
  const { TMPDIR } = process.env;
  process.env.TMPDIR = disk.directory;
  t.after(() => {
    if (TMPDIR === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = TMPDIR;
  });
  const purser = await openTestServer(t, withEvents({ receivers: [{ url: receiver.url, secret: SECRET }] }));
  purser.app.diskReserve.release(); // On a slow machine it has been made already.
  disk.fill(700 * 1024);
  const ready = () => purser.ask('GET', '/readyz');
  while ((await ready()).status === 200); // A look at the disk is good for a moment.
  await receiver.until(() => receiver.accepted().length === 1);
  const [low] = receiver.accepted();
  assert.equal(low?.type, 'disk.low');
  assert.match(low?.data.reason, /MiB free/);
  disk.free();
});
