import assert from 'node:assert/strict';
import type { TestServer } from '../helper/server.ts';

/** A lease of provider_one, in a wallet of its own: its id, the wallet's token, and `sh`, which returns what a command prints. */
export async function rentOne(purser: TestServer, size: { cpus: number; memory_gib: number }) {
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const body = { provider: 'provider_one', spec: { ...size, max_seconds: 600 } };
  const created = await purser.ask('POST', '/v1/compute/create', { token, key: 'k', body });
  assert.equal(created.status, 200, created.text);
  const { id } = created.body as { id: string };
  return {
    id,
    token,
    async sh(command: string): Promise<string> {
      const answer = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command } });
      assert.equal(answer.status, 200, answer.text);
      return `${answer.body.stdout}${answer.body.stderr}`;
    },
  };
}
