import assert from 'node:assert/strict';
import { Duplex } from 'node:stream';
import test from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { LxdApi } from '../../src/compute/engines/lxd/api.ts';
import { beginIn } from '../../src/compute/engines/lxd/program.ts';
import { MessageStream } from '../../src/compute/engines/lxd/websocket.ts';
import { createGuest } from '../../src/compute/machine/guest.ts';
import { waitFor } from '../helper/waiting.ts';

test('a command that LXD says runs for ever is given up after its limit, and left', async () => {
  const connections: Duplex[] = [];
  const lxd = {
    ask: async () => ({ id: 'x', metadata: { fds: {} } }),
    wait: () => new Promise(() => {}),
    async connect() {
      const connection = new Duplex({ read() {}, write: (_, _encoding, done) => done() });
      connections.push(connection);
      return new MessageStream(connection);
    },
  } as unknown as LxdApi;
  const order = { command: 'true', timeoutSeconds: 0, streamBytesMax: 100 };
  const tenant = { user: 1, directory: '/' };
  const guest = createGuest((ref, it) => beginIn(lxd, ref, it, tenant), { graceMilliseconds: 1 });
  const ran = guest.exec('x', order);
  await assert.rejects(waitFor('it is given up', ran), { name: 'TimeoutError' });
  await nextTurn();
  assert.deepEqual(
    connections.map((it) => it.destroyed),
    [true, true, true, true],
  );
});
