import assert from 'node:assert/strict';
import test from 'node:test';
import { inspect } from 'node:util';
import { openEngineConnections } from '../../src/compute/engines/container/connection.ts';

test('the options of a request to an engine can be inspected without all its connections', (t) => {
  const { agent, close } = openEngineConnections({ socket: 'unix:///run/docker.sock' });
  t.after(close);
  // As docker-modem does for each request, also when nothing is logged.
  assert.equal(inspect({ agent }, { showHidden: true, depth: null }), '{ agent: the connections to the engine }');
});
