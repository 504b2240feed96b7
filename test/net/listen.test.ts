import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import test from 'node:test';
import { listen } from '../../src/net/listen.ts';

const COUNT = 700;

test('of many connections that come in one moment none has to try again', async (t) => {
  const server = createServer();
  const { port } = await listen(server, { host: '127.0.0.1', port: 0 }, assert.fail, 'a test');
  const clients = Array.from({ length: COUNT }, () => connect(port, '127.0.0.1').on('error', () => {}));
  // By then the system has made these connections, and the server has accepted none: this turn of its loop is not over.
  await new Promise<void>((resolve) => process.nextTick(resolve));
  const [, waiting] =
    new RegExp(`: 0100007F:${port.toString(16).toUpperCase().padStart(4, '0')} 00000000:0000 0A \\w+:(\\w+)`).exec(
      readFileSync('/proc/net/tcp', 'latin1'),
    ) ?? [];
  t.after(() => {
    for (const it of clients) it.destroy();
    server.close();
    server.closeAllConnections();
  });
  const allowed = Number(readFileSync('/proc/sys/net/core/somaxconn', 'latin1')) + 1;
  assert.equal(Number.parseInt(waiting ?? '', 16), Math.min(COUNT, allowed));
});
