import { randomUUID } from 'node:crypto';
import type { Serving } from '../test/helper/executable.ts';
import type { Answer, Asked } from '../test/helper/server.ts';
import type { Chance } from './chance.ts';
import { count, type Journal, note, type OrderEntry, type WalletEntry } from './journal.ts';
import { ASKED, TOKENS_MAX } from './prices.ts';

/** Thrown when no complete answer came: the server is gone, or does not respond. */
export class Gone extends Error {}

export type Ask = (method: string, path: string, asked: Asked) => Promise<Answer>;

/** Creates what the clients can order. Every answer is recorded. Every request goes to the server that runs at that moment. */
export function openOrders(journal: Journal, server: () => Promise<Serving>, accountKey: string) {
  const ask: Ask = async (method, path, asked) => {
    const at = await server();
    try {
      return await at.ask(method, path, asked);
    } catch (cause) {
      throw new Gone('no answer', { cause });
    }
  };
  const unexpected = (what: string, { status, text }: Answer) =>
    void journal.findings.push({ failure: 'unexpected answers', what: `${what}: ${status} ${text.slice(0, 300)}` });

  async function createWallet(wallet: WalletEntry): Promise<void> {
    const body = { name: 'agent', budget_cents: wallet.budgetCents, expires_in_seconds: wallet.expiresInSeconds };
    const answer = await ask('POST', '/v1/wallets', { token: accountKey, key: wallet.key, body });
    const code = answer.body?.error?.code;
    count(journal.answers, `wallet ${code ?? answer.status}`);
    if (code === 'read_only') return;
    if (code === 'wallet_expired' || code === 'wallet_closed') {
      // It was made without an acknowledgement; only its expiry can have ended it.
      wallet.id ||= /wal_\w+/.exec(answer.text)?.[0] ?? '';
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

  async function closeWallet(wallet: WalletEntry, by: 'account' | 'agent' = 'account'): Promise<void> {
    const answer =
      by === 'agent' && wallet.token
        ? await ask('POST', '/v1/run/close', { token: wallet.token })
        : await ask('POST', `/v1/wallets/${wallet.id}/close`, { token: accountKey });
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
    try {
      const answer = await ask('POST', order.path, { token, key: order.key, body: order.body });
      note(journal, order, before, answer, together === 1 && order.flying === 1);
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

  async function stream(wallet: WalletEntry, chance: Chance): Promise<OrderEntry | undefined> {
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
    return entry;
  }

  const lease = (wallet: WalletEntry, offer: string, seconds: number) =>
    order(wallet, {
      kind: 'create',
      what: offer,
      path: '/v1/compute/create',
      body: { provider: 'provider_three', spec: { offer_id: offer, disk_gb: 5, max_seconds: seconds } },
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

  function wallet(budgetCents: number, expiresInSeconds: number): WalletEntry {
    const entry: WalletEntry = {
      kind: 'wallet',
      key: randomUUID(),
      budgetCents,
      expiresInSeconds,
      outcome: 'unknown',
      id: '',
      token: '',
      routerKey: '',
      askedAt: Date.now(),
      known: 0n,
    };
    journal.wallets.push(entry);
    return entry;
  }

  return { ask, unexpected, wallet, createWallet, closeWallet, send, chat, stream, lease, extension, stop };
}
export type Orders = ReturnType<typeof openOrders>;
