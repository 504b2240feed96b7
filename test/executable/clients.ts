import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { Serving } from '../helper/executable.ts';
import type { Answer } from '../helper/server.ts';

const WORKER_COUNT = 12;
/** So many of the latest acknowledgements are asked for again after each restart. */
const LATEST_COUNT = 12;
export const BUDGET_CENTS = 10_000;

export type WalletEntry = {
  kind: 'wallet';
  key: string;
  outcome: 'unknown' | 'open' | 'closed';
  id: string;
  token: string;
  /** What the first acknowledged close said. */
  closed?: Answer['body'];
};
export type ChatEntry = {
  kind: 'chat';
  key: string;
  wallet: WalletEntry;
  /** `lost`: charged by policy, the answer is gone. `refused`: a definite no that cost nothing. */
  outcome: 'unknown' | 'charged' | 'lost' | 'refused';
  text: string;
};

/** Not what a server says whose books have lost something. */
const DISK_FAILED =
  /(Whether this took effect is not known|Nothing can be written|This installation is not served): (a commit |a read |the disk |the data directory |another directory )/;

/** Returns whether a server says that its disk confirms nothing, of what was in flight or of what came later. */
export const saysDiskFailed = ({ status, text }: Answer): boolean => status === 503 && DISK_FAILED.test(text);

/** The answer never came, or not whole: the server is gone. */
export class Gone extends Error {}

/**
 * Concurrent clients with a journal of their own: of every request they know its key and body, and whether its outcome
 * was acknowledged, refused, or never heard of (Jepsen's ok, fail, info). Where the disk may fail, a server that says so is
 * gone for a client, whatever it had asked for.
 */
export function openClients(accountKey: string, random: () => number, { diskMayFail = false } = {}) {
  const wallets: WalletEntry[] = [];
  const chats: ChatEntry[] = [];
  let latest: ChatEntry[] = [];

  async function ask(server: Serving, method: string, path: string, asked: Parameters<Serving['ask']>[2]) {
    const answer = await server.ask(method, path, asked).catch((cause) => {
      throw new Gone('no answer', { cause });
    });
    if (diskMayFail && saysDiskFailed(answer)) throw new Gone(answer.text);
    return answer;
  }

  async function createWallet(server: Serving, entry: WalletEntry) {
    const body = { name: 'agent', budget_cents: BUDGET_CENTS, expires_in_seconds: 0 };
    const answer = await ask(server, 'POST', '/v1/wallets', { token: accountKey, key: entry.key, body });
    assert.equal(answer.status, 201, answer.text);
    if (entry.id) assert.deepEqual([answer.body.id, answer.body.agent_token], [entry.id, entry.token]);
    entry.id = answer.body.id;
    entry.token = answer.body.agent_token;
    entry.outcome = 'open';
  }

  async function chat(server: Serving, entry: ChatEntry) {
    const body = { model: 'chat', messages: [{ role: 'user', content: entry.key }], max_tokens: 100 };
    if (entry.outcome === 'refused') entry.outcome = 'unknown'; // A new attempt.
    const answer = await ask(server, 'POST', '/v1/chat/completions', {
      token: entry.wallet.token,
      key: entry.key,
      body,
    });
    const code = answer.body.error?.code;
    if (entry.outcome === 'charged' || entry.outcome === 'lost')
      assert.deepEqual(
        [answer.status, answer.text],
        [200, entry.text],
        'what was acknowledged is still there, word for word',
      );
    else if (answer.status === 200) {
      entry.outcome = 'charged';
      entry.text = answer.text;
      latest.push(entry);
    } else if (code === 'operation_uncertain') entry.outcome = 'unknown';
    else if (code === 'answer_lost') entry.outcome = 'lost';
    else {
      assert(
        ['rate_limited', 'gateway_unavailable', 'wallet_closed'].includes(code),
        `${answer.status} ${answer.text}`,
      );
      entry.outcome = 'refused';
    }
  }

  async function closeWallet(server: Serving, entry: WalletEntry) {
    entry.outcome = 'unknown';
    const answer = await ask(server, 'POST', `/v1/wallets/${entry.id}/close`, { token: accountKey });
    if (answer.status === 409) return assert.equal(answer.body.error.code, 'cleanup_pending', answer.text);
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.body.status, 'closed');
    if (entry.closed) assert.deepEqual(answer.body, entry.closed);
    entry.closed = answer.body;
    entry.outcome = 'closed';
  }

  /** One request, chosen at random among those that make sense. */
  async function anything(server: Serving) {
    const open = wallets.filter((it) => it.outcome === 'open');
    const fate = random();
    if (open.length < 4 || (fate < 0.05 && open.length < 30)) {
      const entry: WalletEntry = { kind: 'wallet', key: randomUUID(), outcome: 'unknown', id: '', token: '' };
      wallets.push(entry);
      return createWallet(server, entry);
    }
    const wallet = open[Math.floor(random() * open.length)] as WalletEntry;
    if (fate < 0.08) return closeWallet(server, wallet);
    const entry: ChatEntry = { kind: 'chat', key: randomUUID(), wallet, outcome: 'unknown', text: '' };
    chats.push(entry);
    await chat(server, entry);
    // A refusal frees the key: some try again with it.
    if (entry.outcome === 'refused' && random() < 0.5) await chat(server, entry);
  }

  const unknownNow = () => ({
    wallets: wallets.filter((it) => it.outcome === 'unknown'),
    chats: chats.filter((it) => it.outcome === 'unknown'),
  });

  /** Asks again, with its key, for everything whose outcome is not known. */
  async function replay(server: Serving, unknown = unknownNow()) {
    await inTurn(unknown.wallets, (it) => (it.id ? closeWallet(server, it) : createWallet(server, it)));
    await inTurn(unknown.chats, (it) => chat(server, it));
  }

  /** Work until the server is gone. Whatever else goes wrong is thrown. */
  async function untilGone(work: () => Promise<unknown>) {
    try {
      for (;;) await work();
    } catch (error) {
      if (!(error instanceof Gone)) throw error;
    }
  }

  return {
    wallets,
    chats,
    replay,
    /** Replays what is unknown and the latest acknowledgements, and goes on working beside it until the server is gone. */
    async load(server: Serving) {
      const again = latest.slice(-LATEST_COUNT);
      latest = [];
      const unknown = unknownNow(); // Not what the workers are about to begin: they may have closed it by the time it is asked for.
      const replaying = untilGone(async () => {
        await inTurn(again, (it) => chat(server, it));
        await replay(server, unknown);
        throw new Gone('all is replayed');
      });
      const workers = Array.from({ length: WORKER_COUNT }, () => untilGone(() => anything(server)));
      await Promise.all([replaying, ...workers]);
    },
    /** Closes every wallet. */
    async close(server: Serving) {
      await inTurn(wallets, (it) => closeWallet(server, it));
    },
  };
}

/** `work` for each item, a few at a time. */
async function inTurn<T>(items: readonly T[], work: (item: T) => Promise<unknown>): Promise<void> {
  const queue = [...items];
  const lane = async () => {
    for (let item = queue.shift(); item !== undefined; item = queue.shift()) await work(item);
  };
  await Promise.all(Array.from({ length: 4 }, lane));
}
