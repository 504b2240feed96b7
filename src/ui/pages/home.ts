import { startsBetween } from '../../base/calendar.ts';
import { newId } from '../../base/id.ts';
import { Refusal } from '../../base/refusal.ts';
import { createCheckout } from '../../http/routes/billing.ts';
import { accountOf } from '../../ledger/account.ts';
import { moneyOf } from '../../ledger/figures.ts';
import { spendingByPeriod } from '../../ledger/spending.ts';
import { countWallets, listWallets } from '../../ledger/wallet.ts';
import { html } from '../html.ts';
import type { Page } from '../layout.ts';
import { buttonLink, card, cents, count, form, link } from '../parts.ts';
import { moneyBar, spendingChart } from '../pictures.ts';
import { callEndpoint, isPerson, type Visit } from '../visit.ts';
import { partsOf } from './accounts.ts';
import { centsIn, walletTable } from './wallets.ts';

const WALLET_COUNT = 10;
const DAY_SECONDS = 86_400;
const SPEND_DAYS = 30;

function ownAccount({ app, viewer }: Visit) {
  if (viewer.kind !== 'account') throw new Refusal('not_found', 'The operator has no account of their own.');
  return accountOf(app.ledger.read, viewer.accountId);
}

/** Shows the first page of the holder of an account: its money, and where it goes. */
export async function homePage(visit: Visit): Promise<Page> {
  const { app, now, zone } = visit;
  const { read } = app.ledger;
  const account = ownAccount(visit);
  const since = now - SPEND_DAYS * DAY_SECONDS;
  const starts = startsBetween('day', zone, since, now);
  const cells = await spendingByPeriod(read, {
    by: ['model'],
    scope: { account: account.id },
    since: starts[0],
    cells: starts,
  });
  const filter = { accountId: account.id, status: 'active' as const, now };
  const wallets = listWallets(read, filter, { limit: WALLET_COUNT });
  const total = countWallets(read, filter);
  const topUpForm = form({
    action: '/top-up',
    hidden: { key: newId('req') },
    fields: [
      {
        name: 'amount',
        label: 'Top up by',
        required: true,
        inputmode: 'decimal',
        placeholder: '20.00',
        hint: 'Dollars, 5.00 to 1,000.00. You pay on the page of the payment provider.',
      },
    ],
    submit: 'Continue to payment',
    tone: 'primary',
  });
  const body = html`
    ${account.suspendedAt !== null && html`<p class="notice warn">This account is suspended: it spends nothing until the operator resumes it.</p>`}
    ${account.disputedAt !== null && html`<p class="notice warn">A payment of this account is disputed: it opens no wallet and raises no budget until that is decided, or the operator resumes it.</p>`}
    ${account.owedCents > 0 && html`<p class="notice bad">This account owes ${cents(account.owedCents)} of a payment that was taken back. The next credit pays it first.</p>`}
    ${card('Balance', moneyBar('Credit', partsOf(moneyOf(read, account))))}
    ${card('Open wallets', walletTable(visit, wallets, 'Open wallets', html`No wallet is open. A wallet is a budget that an agent spends by its token. ${link('/wallets/new', 'Make one')}`), total > wallets.length ? link('/wallets', `All ${count(total)}`) : '')}
    <div class="two">
      ${card(
        'Spending, last 30 days',
        cells.length
          ? spendingChart(
              'Spending by day and model',
              cells.map((it) => ({ at: it.at, key: it.keys[0] as string, amount: it.charged })),
              { starts, every: 'day', zone, what: 'Model' },
            )
          : html`<div class="empty">Nothing was spent in the last 30 days.</div>`,
        link('/spend', 'More'),
      )}
      ${card(
        'Top up',
        !app.payments
          ? html`<p>No payment provider is configured here: the operator credits accounts.</p>`
          : isPerson(visit)
            ? topUpForm
            : html`<p>You signed in with a key, and a key pays nothing in. Sign in with your identity provider, or ask the operator.</p>`,
      )}
    </div>
    ${card('Your sessions', html`<p>Ends every session of this account, this one included.</p>${form({ action: '/sign-out/everywhere', submit: 'Sign out everywhere' })}`)}`;
  return {
    title: 'Overview',
    body,
    section: '/',
    stream: '/live?page=home',
    aside: buttonLink('/wallets/new', 'New wallet', 'primary'),
  };
}

/** Creates a checkout. The payment page is opened by a link: a form may not lead to another site. */
export async function topUp(visit: Visit): Promise<Page> {
  ownAccount(visit);
  const raw = { amount_cents: centsIn(visit.form.get('amount')) };
  const key = visit.form.get('key') ?? undefined;
  const checkout = await callEndpoint<{ url: string | null }>(visit, createCheckout, { raw, key });
  if (checkout.url === null) throw new Refusal('conflict', 'This payment can no longer be made. Begin again.');
  const body = card(
    `Pay ${cents(raw.amount_cents)}`,
    html`<p>The credit is there as soon as the payment provider confirms the payment.</p><p>${buttonLink(checkout.url, 'Go to the payment page', 'primary')}</p>`,
  );
  return { title: 'Top up', body, section: '/' };
}
