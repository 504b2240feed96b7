import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'node:test';
import { Pool } from 'undici';
import { contain, containCall } from '../../src/net/contain.ts';
import { containedConnector } from '../../src/net/contained-connector.ts';

test('an exception of a listener goes to whom it belongs, and the next event comes as before', () => {
  const emitter = new EventEmitter();
  const heard: unknown[] = [];
  contain(emitter, (error) => heard.push(error.message));
  emitter.on('data', (word: string) => {
    if (word === 'bad') throw new Error('a bad word');
    heard.push(word);
  });
  assert.deepEqual(
    ['good', 'bad', 'better'].map((word) => emitter.emit('data', word)),
    [true, true, true],
  );
  assert.equal(emitter.emit('nobody listens'), false);
  emitter.emit('error', new Error('nobody listens to this either'));
  containCall(
    () => {
      throw new Error('a call');
    },
    (error) => heard.push(error.message),
  );
  assert.deepEqual(heard, ['good', 'a bad word', 'better', 'nobody listens to this either', 'a call']);
});

test('an exception of the HTTP client on a socket fails its request only', async (t) => {
  const server = createServer((_, response) => response.end('answer')).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const connect = containedConnector(1000);
  let isFaulty = true;
  const pool = new Pool(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, {
    connect: (options, callback) =>
      connect(options, (...[error, socket]) => {
        if (error) return callback(error, null);
        callback(null, socket);
        if (isFaulty)
          socket.prependListener('readable', () => {
            throw new Error('a broken invariant');
          });
      }),
  });
  t.after(() => pool.destroy());
  await assert.rejects(pool.request({ path: '/', method: 'GET' }), /a broken invariant/);
  isFaulty = false;
  assert.equal(await (await pool.request({ path: '/', method: 'GET' })).body.text(), 'answer');
});
