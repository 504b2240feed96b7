import assert from 'node:assert/strict';
import type { Answer, TestServer } from '../helper/server.ts';

/**
 * Asserts a refusal as it is documented: status, code, the one body shape of all errors (interface, section 2), and a
 * request id that is the same in body and header (design 2.21).
 */
export function assertRefused(answer: Answer, status: number, code: string, what = ''): void {
  const where = `${what} ${answer.status} ${answer.text.slice(0, 300)}`;
  assert.equal(answer.status, status, where);
  assert.equal(answer.body?.error?.code, code, where);
  assertErrorShape(answer, where);
}

/** Asserts the body shape of an error, whatever its code. */
export function assertErrorShape(answer: Answer, where = answer.text): void {
  assert.match(String(answer.headers['content-type']), /^application\/json\b/, where);
  assert.deepEqual(Object.keys(answer.body).sort(), ['error', 'request_id'], where);
  assert.deepEqual(Object.keys(answer.body.error).sort(), ['code', 'message'], where);
  assert.match(answer.body.error.message, /^\S.*[.!?…]$/s, `a message is a sentence: ${where}`);
  assert.match(answer.body.request_id, /^req_[0-9a-z]{26}$/, where);
  assert.equal(answer.headers['x-request-id'], answer.body.request_id, where);
}

/** Every figure and row that a request could move: two equal footprints are proof that nothing happened in between. */
export async function footprint(purser: TestServer) {
  const { accounts } = await purser.run('account.list', {});
  const { wallets } = await purser.run('wallet.list', {});
  const { operations } = await purser.run('operation.list', {});
  const { keys } = await purser.run('key.list', { account: purser.accountId });
  const { seq } = await purser.run('ledger.head', {});
  return { accounts, wallets, operations, seq, keys: keys.map((it) => it.id), calls: purser.upstream.calls.length };
}

/** Asserts that `act` moved no money, made nothing, told the upstream nothing, and that nothing of ours broke. */
export async function assertNothingMoves(purser: TestServer, act: () => Promise<unknown>): Promise<void> {
  const before = await footprint(purser);
  await act();
  assert.deepEqual(await footprint(purser), before);
  assert.deepEqual(purser.problems(), []);
  assert.deepEqual(errorsIn(purser), [], 'a healthy server logs no error, whatever it is sent');
}

/** The lines of level error and above in the log. */
export function errorsIn(purser: TestServer): string[] {
  return purser.log.filter((line) => (JSON.parse(line) as { level: number }).level >= 50);
}
