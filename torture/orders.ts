import { randomUUID } from 'node:crypto';
import { formatUsd, Nanos } from '../src/base/money.ts';
import type { Serving } from '../test/helper/executable.ts';
import type { Answer, Asked } from '../test/helper/server.ts';
import type { Chance } from './chance.ts';
import type { Kind } from './engine.ts';
import { count, ENDED, type Journal, note, type OrderEntry, type WalletEntry } from './journal.ts';
import { expiryOf, frozenState, MOVE_REFUSED, type MoveEntry, noteMove, zoneOfNextMidnight } from './move.ts';
import { ASKED, SLOW, TOKENS_MAX } from './prices.ts';

const NANOS_PER_CENT = 10_000_000n;
/** How far ahead a refill's boundary may be. */
const REFILL_MINUTES = 3;
const HALF_A_DAY_MILLISECONDS = 43_200_000;
/** Longer than a server is stopped, with what clients have sent it in its buffers. */
const LOST_MILLISECONDS = 60_000;
/** Codes that are a definite no to a child wallet. */
const CHILD_REFUSED = [...MOVE_REFUSED, 'wallet_frozen'];

/** Thrown when no complete answer came: the server is gone, or does not respond. */
export class Gone extends Error {}

export type Ask = (method: string, path: string, asked: Asked) => Promise<Answer>;

/** What a server says to those who wait, in 503, before it ends because of its disk. */
const STORAGE_FAILED = /^Whether this took effect is not known: /;

/** Creates what the clients can order. Every answer is recorded. Every request goes to the server that runs at that moment. */
export function openOrders(journal: Journal, server: () => Promise<Serving>, accountKey: string) {
  const ask: Ask = async (method, path, asked) => {
    const at = await server();
    const answer = await at.ask(method, path, asked).catch((cause) => {
      throw new Gone('no answer', { cause });
    });
    // It says no more than no answer does: whether anything was written is not known, and the server ends.
    if (STORAGE_FAILED.test(answer.body?.error?.message)) throw new Gone('its disk failed');
    return answer;
  };
  const unexpected = (what: string, { status, text }: Answer) =>
    void journal.findings.push({ failure: 'unexpected answers', what: `${what}: ${status} ${text.slice(0, 300)}` });

  async function createWallet(wallet: WalletEntry): Promise<void> {
    const { parent, key, budget, expiresInSeconds: expires_in_seconds } = wallet;
    const answer = parent
      ? await ask('POST', '/v1/run/wallets', {
          token: parent.token,
          key,
          body: { name: 'helper', budget_usd: formatUsd(Nanos(budget)), expires_in_seconds },
        })
      : await ask('POST', '/v1/wallets', {
          token: accountKey,
          key,
          body: { name: 'agent', budget_cents: Number(budget / NANOS_PER_CENT), expires_in_seconds },
        });
    const code = answer.body?.error?.code;
    count(journal.answers, `${parent ? 'child' : 'wallet'} ${code ?? answer.status}`);
    if (code === 'read_only') return;
    const named = /wal_\w+/.exec(answer.text)?.[0];
    const isEnded = ENDED.includes(code);
    if (parent && isEnded && named === parent.id) parent.isOver = true;
    if (parent && wallet.id === '' && (isEnded ? named === parent.id : CHILD_REFUSED.includes(code))) {
      wallet.outcome = 'refused';
      return;
    }
    if (isEnded) {
      // It was made without an acknowledgement; only its expiry can have ended it.
      wallet.id ||= named ?? '';
      wallet.outcome = 'open';
      return;
    }
    if (answer.status !== 201) return unexpected(`wallet ${wallet.key}`, answer);
    if (wallet.id && (answer.body.id !== wallet.id || answer.body.agent_token !== wallet.token))
      journal.findings.push({
        failure: 'acknowledged and lost',
        what: `wallet ${wallet.key} was ${wallet.id}, and is now ${answer.text}`,
      });
    wallet.madeAt ??= Date.now();
    wallet.id ||= answer.body.id;
    wallet.token ||= answer.body.agent_token;
    if (wallet.outcome === 'unknown') wallet.outcome = 'open';
  }

  async function closeWallet(wallet: WalletEntry, by: 'account' | 'agent' | 'parent' = 'account'): Promise<void> {
    const { id, token, parent } = wallet;
    const answer =
      by === 'agent' && token
        ? await ask('POST', '/v1/run/close', { token })
        : by === 'parent' && parent?.token
          ? await ask('POST', `/v1/run/wallets/${id}/close`, { token: parent.token })
          : await ask('POST', `/v1/wallets/${id}/close`, { token: accountKey });
    const code = answer.body?.error?.code;
    count(journal.answers, `close ${code ?? answer.status}`);
    if (code === 'cleanup_pending' || code === 'read_only') return;
    if (answer.status !== 200 || answer.body.status !== 'closed') return unexpected(`close of ${wallet.id}`, answer);
    wallet.outcome = 'closed';
    wallet.closedAt ??= Date.now();
    if (by === 'agent') return;
    if (wallet.closed && JSON.stringify(wallet.closed) !== JSON.stringify(answer.body))
      journal.findings.push({
        failure: 'acknowledged and lost',
        what: `${wallet.id} was closed with ${JSON.stringify(wallet.closed)}, and is now ${answer.text}`,
      });
    wallet.closed ??= answer.body;
  }

  /** Sends an order, also if it was sent before. Throws Gone if no complete answer came. */
  async function send(order: OrderEntry): Promise<void> {
    const before = order.outcome;
    const token = order.kind === 'stream' ? order.wallet.routerKey : order.wallet.token;
    if (before === 'refused') order.outcome = 'unknown'; // A new attempt.
    const together = ++order.flying;
    const frozen = frozenState(order.wallet);
    try {
      const answer = await ask('POST', order.path, { token, key: order.key, body: order.body });
      const now = frozenState(order.wallet);
      const state = now.turn === frozen.turn ? now.state : 'maybe';
      note(journal, order, before, answer, together === 1 && order.flying === 1, state);
    } catch (error) {
      if (error instanceof Gone) count(journal.answers, `${order.kind} gone`);
      throw error;
    } finally {
      order.isNew = false;
      order.flying--;
    }
  }

  function order(wallet: WalletEntry, it: Pick<OrderEntry, 'kind' | 'what' | 'path' | 'body'>): OrderEntry {
    const entry: OrderEntry = {
      key: randomUUID(),
      wallet,
      outcome: 'unknown',
      text: '',
      charged: undefined,
      operationId: '',
      resourceId: '',
      isNew: true,
      flying: 0,
      ...it,
    };
    journal.orders.push(entry);
    return entry;
  }

  function chat(wallet: WalletEntry, chance: Chance): OrderEntry {
    const model = chance.weighed(ASKED);
    const entry = order(wallet, { kind: 'chat', what: model, path: '/v1/chat/completions', body: {} });
    entry.body = { model, messages: [{ role: 'user', content: entry.key }], max_tokens: TOKENS_MAX };
    return entry;
  }

  /** Makes an order of a stream, if the wallet still has a gateway key; the model server takes its time for a slow one. */
  async function stream(wallet: WalletEntry, chance: Chance, isSlow = false): Promise<OrderEntry | undefined> {
    if (!wallet.routerKey) {
      const answer = await ask('POST', '/v1/router/key', { token: wallet.token, body: {} });
      const code = answer.body?.error?.code;
      if (['wallet_closed', 'wallet_expired', 'read_only'].includes(code)) return undefined;
      if (answer.status !== 200) return void unexpected(`gateway key of ${wallet.id}`, answer);
      wallet.routerKey = answer.body.api_key;
    }
    const entry = chat(wallet, chance);
    entry.kind = 'stream';
    entry.path = '/v1/router/chat/completions';
    entry.body = { ...entry.body, stream: true, stream_options: { include_usage: true } };
    if (isSlow) entry.body.stop = [SLOW];
    return entry;
  }

  /** Sends an order of a stream and leaves after a while. What became of it, its key says later. */
  async function leave(order: OrderEntry, milliseconds: number): Promise<void> {
    const { path, key, body, wallet } = order;
    const signal = AbortSignal.timeout(milliseconds);
    order.flying++;
    try {
      await ask('POST', path, { token: wallet.routerKey, key, body, signal });
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      count(journal.answers, `stream ${signal.aborted ? 'left' : 'left too late'}`);
      order.isNew = false;
      order.flying--;
    }
  }

  const lease = (wallet: WalletEntry, { provider, spec }: Kind, seconds: number) =>
    order(wallet, {
      kind: 'create',
      what: provider,
      path: '/v1/compute/create',
      body: { provider, spec: spec(seconds) },
    });
  const extension = (made: OrderEntry, seconds: number) =>
    order(made.wallet, {
      kind: 'extend',
      what: made.what,
      path: '/v1/compute/extend',
      body: { id: made.resourceId, additional_seconds: seconds },
    });

  async function stop(made: OrderEntry): Promise<void> {
    const answer = await ask('POST', '/v1/compute/stop', { token: made.wallet.token, body: { id: made.resourceId } });
    count(journal.answers, `stop ${answer.body?.error?.code ?? answer.body?.status ?? answer.status}`);
    if (answer.body?.error?.code === 'read_only') return;
    if (answer.status !== 200) return unexpected(`stop of ${made.resourceId}`, answer);
    if (['stopped', 'failed'].includes(answer.body.status)) made.stoppedAt ??= Date.now();
  }

  function move(wallet: WalletEntry, kind: MoveEntry['kind'], by: number): MoveEntry {
    const entry: MoveEntry = { kind, key: randomUUID(), wallet, by, outcome: 'unknown', flying: 0 };
    journal.moves.push(entry);
    return entry;
  }

  /** Sends a move, also if it was sent before. Throws Gone if no complete answer came. */
  async function sendMove(move: MoveEntry): Promise<void> {
    const { kind, key, by, outcome: before, wallet } = move;
    const [verb, body] = kind === 'extend' ? ['extend', { seconds: by }] : ['budget', { add_cents: by }];
    const together = ++move.flying;
    try {
      const answer = await ask('POST', `/v1/wallets/${wallet.id}/${verb}`, { token: accountKey, key, body });
      noteMove(journal, move, before, answer, together === 1 && move.flying === 1);
    } finally {
      move.flying--;
    }
  }

  /**
   * Freezes a wallet or ends that. Its state is known again once an answer came, if no other such request was on its way
   * meanwhile, as the later sent may be carried out first, and none was lost a while ago: a server that was stopped has it in
   * its buffers, and may carry it out after the one that it answered.
   */
  async function freeze(wallet: WalletEntry, isFrozen: boolean): Promise<void> {
    const { frozen } = wallet;
    frozen.state = 'maybe';
    const turn = ++frozen.turn;
    const together = ++frozen.flying;
    const verb = isFrozen ? 'freeze' : 'unfreeze';
    const answer = await ask('POST', `/v1/wallets/${wallet.id}/${verb}`, {
      token: accountKey,
      ...(isFrozen ? { body: { reason: 'torture' } } : {}),
    })
      .catch((error) => {
        frozen.lostAt = performance.now();
        throw error;
      })
      .finally(() => frozen.flying--);
    const code = answer.body?.error?.code;
    count(journal.answers, `${verb} ${code ?? answer.status}`);
    if (ENDED.includes(code)) wallet.isOver = true;
    if (ENDED.includes(code) || code === 'read_only') return;
    if (answer.status !== 200) return unexpected(`${verb} of ${wallet.id}`, answer);
    const isLost = frozen.lostAt !== undefined && performance.now() - frozen.lostAt < LOST_MILLISECONDS;
    if (together > 1 || turn !== frozen.turn || isLost) return;
    frozen.turn++;
    frozen.state = isFrozen ? 'yes' : 'no';
  }

  /**
   * Sets a daily refill whose boundary is the next whole minute that the server's clock has not reached: that is ahead for
   * good after a short leap. A request without an answer is not repeated, as that would set the boundary after it.
   */
  async function setRefill(wallet: WalletEntry, cents: number): Promise<void> {
    const refill: NonNullable<WalletEntry['refill']> = { cents, isPast: false };
    wallet.refill = refill;
    for (let minutes = 0; minutes < REFILL_MINUTES; minutes++) {
      const zone = zoneOfNextMidnight(Date.now() + minutes * 60_000);
      const body = { cents, every: 'day', zone };
      const answer = await ask('PUT', `/v1/wallets/${wallet.id}/refill`, { token: accountKey, body });
      const code = answer.body?.error?.code;
      count(journal.answers, `refill ${code ?? answer.status}`);
      if (ENDED.includes(code) || code === 'read_only') return;
      if (answer.status !== 200) return unexpected(`refill of ${wallet.id}`, answer);
      refill.dueAt = answer.body.refill.next_at * 1000;
      if (refill.dueAt < Date.now() + REFILL_MINUTES * 60_000) return;
    }
  }

  /**
   * Looks whether a refill whose boundary has passed has happened: the next one is then a day on. One that met a full disk
   * is a minute on, and a wallet that has ended is refilled no more.
   */
  async function lookForRefill({ id, refill }: WalletEntry): Promise<void> {
    const answer = await ask('GET', `/v1/wallets/${id}`, { token: accountKey });
    if (!refill?.dueAt || answer.body?.error?.code === 'read_only') return;
    if (answer.status !== 200) return unexpected(`wallet ${id}`, answer);
    if (answer.body.refill?.next_at * 1000 > refill.dueAt + HALF_A_DAY_MILLISECONDS) refill.isPast = true;
    else if (answer.body.status !== 'active') delete refill.dueAt;
  }

  function wallet(budget: bigint, expiresInSeconds: number, parent?: WalletEntry): WalletEntry {
    const entry: WalletEntry = {
      kind: 'wallet',
      key: randomUUID(),
      budget,
      parent,
      parentExpiredAt: parent && expiryOf(journal, parent).earliest,
      frozen: { state: 'no', turn: 0, flying: 0 },
      expiresInSeconds,
      outcome: 'unknown',
      isOver: false,
      id: '',
      token: '',
      routerKey: '',
      askedAt: Date.now(),
      known: 0n,
    };
    journal.wallets.push(entry);
    return entry;
  }

  return {
    ask,
    unexpected,
    wallet,
    createWallet,
    closeWallet,
    send,
    chat,
    stream,
    leave,
    lease,
    extension,
    stop,
    move,
    sendMove,
    freeze,
    setRefill,
    lookForRefill,
  };
}
export type Orders = ReturnType<typeof openOrders>;
