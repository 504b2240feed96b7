import { centsToNanos, formatUsd, Nanos, nanosToCentsUp, parseUsd } from '../base/money.ts';
import { ECHO_MODEL } from './echo-model.ts';
import { rent } from './lease-scenario.ts';
import { createNarrator, type Narrator, type Response } from './narrator.ts';

/** Prices in USD per token and per request, high on purpose, so that a few calls spend a dollar. */
export const DEMO_PRICING = { prompt: '0.0005', completion: '0.002', request: '0.001' };
const CREDIT_CENTS = 5000;
const BUDGET_CENTS = 100;
const MESSAGE = 'Every paid operation first holds its maximum price, then calls out, then settles.';
const CALL_COUNT_MAX = 100;

/** The server that the scenario runs against. */
type ScenarioServer = {
  baseUrl: string;
  /** Credits the account through the operator command, as the CLI does. */
  credit(cents: number): Promise<void>;
  operatorKey: string;
  /** True if it offers leases. */
  rents: boolean;
  /** A directory for the files of a client. */
  directory: string;
  /** Returns the faults that `ledger verify` finds. */
  problems(): string[];
};

/**
 * Shows the whole life of a wallet over HTTP, step by step with its amounts. Every figure is computed independently of the
 * server and compared. Returns how many figures differed.
 */
export async function runScenario(
  server: ScenarioServer,
  print: (line: string) => void,
  signal: AbortSignal,
): Promise<number> {
  const narrator = createNarrator(server.baseUrl, print, signal);
  const { step, note, check, ask } = narrator;

  step('The operator credits the account.');
  await server.credit(CREDIT_CENTS);
  const before = await ask('GET', '/v1/account', server.operatorKey);
  check('available cents', before.body.available_cents, CREDIT_CENTS);

  step('A wallet is opened with a part of it.');
  const order = { name: 'demo agent', budget_cents: BUDGET_CENTS };
  const opened = await ask('POST', '/v1/wallets', server.operatorKey, order, 'demo-wallet');
  check('status', opened.status, 201);
  const { id, agent_token: token } = opened.body as { id: string; agent_token: string };
  const set = await ask('GET', '/v1/account', server.operatorKey);
  check('available cents', set.body.available_cents, CREDIT_CENTS - BUDGET_CENTS);
  check('reserved cents', set.body.reserved_cents, BUDGET_CENTS);

  step('The agent calls a model with its wallet token.');
  let spent = 0n;
  const call = (key: string) =>
    ask(
      'POST',
      '/v1/chat/completions',
      token,
      { model: ECHO_MODEL, messages: [{ role: 'user', content: MESSAGE }], max_tokens: 40 },
      key,
    );
  const first = await call('demo-call-1');
  check('status', first.status, 200);
  note(`it answered: ${JSON.stringify(first.body.choices?.[0]?.message?.content)}`);
  note(`usage: ${first.body.usage?.prompt_tokens} prompt and ${first.body.usage?.completion_tokens} completion tokens`);
  spent += priceOf(first);

  step('The budget shows the exact price, and nothing is held any more.');
  const budget = await ask('GET', '/v1/budget', token);
  check('used USD', budget.body.used_usd, formatUsd(Nanos(spent)));
  check('held USD', budget.body.held_usd, '0.00');

  step('The same request with the same key gets the same answer, and is paid for once.');
  const again = await call('demo-call-1');
  check('replayed', again.replayed, true);
  check('used USD', (await ask('GET', '/v1/budget', token)).body.used_usd, formatUsd(Nanos(spent)));

  const leases = server.rents ? await rent(narrator, token, { directory: server.directory, signal }) : undefined;
  if (leases) {
    step('The budget shows what the leases cost, to the nano-dollar.');
    spent += leases.spent;
    const rented = await ask('GET', '/v1/budget', token);
    check('used USD', rented.body.used_usd, formatUsd(Nanos(spent)));
    check('held USD', rented.body.held_usd, '0.00');
  }

  step('It goes on calling the model until the wallet cannot cover the next call.');
  let calls = 1;
  let refused: Response | undefined;
  while (!refused && calls < CALL_COUNT_MAX) {
    const next = await call(`demo-call-${calls + 1}`);
    if (next.status === 200) {
      spent += priceOf(next);
      calls++;
    } else refused = next;
  }
  check('refused with', refused?.status, 402);
  note(`${refused?.body.error?.message}`);
  const rest = await ask('GET', '/v1/budget', token);
  check(`used USD after ${calls} calls`, rest.body.used_usd, formatUsd(Nanos(spent)));
  check('available USD', rest.body.available_usd, formatUsd(Nanos(centsToNanos(BUDGET_CENTS) - spent)));

  await closeWallet(narrator, server, id, spent, leases?.running);
  return narrator.wrong();
}

/** Computes the price of an answer from its usage. */
function priceOf({ body }: Response): bigint {
  const { prompt_tokens: prompt, completion_tokens: completion } = body.usage as {
    prompt_tokens: number;
    completion_tokens: number;
  };
  return (
    BigInt(prompt) * parseUsd(DEMO_PRICING.prompt) +
    BigInt(completion) * parseUsd(DEMO_PRICING.completion) +
    parseUsd(DEMO_PRICING.request)
  );
}

/** Closes the wallet, and shows that its rest is back in the account and its lease has ended. */
async function closeWallet(
  { step, check, ask }: Narrator,
  server: ScenarioServer,
  id: string,
  spent: bigint,
  runningLease: string | undefined,
): Promise<void> {
  step('The wallet is closed: what is left returns to the account, in whole cents.');
  const closed = await ask('POST', `/v1/wallets/${id}/close`, server.operatorKey);
  const usedCents = nanosToCentsUp(Nanos(spent));
  check('status', closed.body.status, 'closed');
  check('used cents', closed.body.used_cents, usedCents);
  check('returned cents', closed.body.returned_cents, BUDGET_CENTS - usedCents);

  if (runningLease !== undefined) {
    step('The lease that was still running has ended with it.');
    const { resources } = (await ask('GET', `/v1/wallets/${id}/resources`, server.operatorKey)).body;
    const lease = resources?.find((it: { id: string }) => it.id === runningLease);
    check('provider_three', lease?.status, 'stopped');
    check('because', lease?.end_reason, 'wallet_closed');
  }

  step('Every cent that was not spent is back in the account.');
  const after = await ask('GET', '/v1/account', server.operatorKey);
  check('available cents', after.body.available_cents, CREDIT_CENTS - usedCents);
  check('reserved cents', after.body.reserved_cents, 0);
  check('spent cents', after.body.spent_cents, usedCents);
  check('faults in the books', server.problems().length, 0);
}
