// A client that is in the middle of its work while the server restarts. It prints its sandbox when it is, and hears a line when the
// server is back.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { Sandbox } from 'e2b';
import { play } from './played.mjs';

await play({
  async 'a restart in the middle'() {
    const sandbox = await Sandbox.create('base', { envs: { HOUSE: 'here' } });
    await sandbox.files.write('left', 'before');
    const running = await sandbox.commands.run('sleep 1000', { background: true });
    const lost = assert.rejects(running.wait());
    process.stdout.write(`${JSON.stringify({ sandbox: sandbox.sandboxId })}\n`);
    await lost;
    await once(process.stdin, 'data');
    process.stdin.destroy();
    const again = await Sandbox.connect(sandbox.sandboxId);
    assert.equal(await sandbox.files.read('left'), 'before'); // By the token that it had.
    assert.equal((await again.commands.run('echo "$HOUSE"')).stdout, 'here\n');
    assert.equal(await again.kill(), true);
  },
});
