import { Counter, Gauge, Registry } from 'prom-client';
import type { RouterKey } from './access/router-keys.ts';
import type { Account, FundingOrder } from './ledger/account.ts';
import type { Checkout, Creation, PaymentReport } from './ledger/checkout.ts';
import type { Operation, Outcome } from './ledger/operation.ts';
import type { Resource } from './ledger/resource.ts';
import type { ReversalReport } from './ledger/reversal.ts';
import type { Verdict } from './ledger/verify.ts';
import type { Wallet } from './ledger/wallet.ts';
import type { Log } from './log.ts';
import { formatUsd, type Nanos } from './money.ts';
import type { Route } from './router/catalogue.ts';

/** One function per business event writes the log line and the counter together. Ids go into the log, never into labels. */
export type Events = ReturnType<typeof createEvents>;

const NANOS_PER_USD = 1e9;

const factsOf = (it: Checkout) => ({
  checkout: it.id,
  account: it.accountId,
  cents: it.amountCents,
  session: it.sessionId,
});

export function createEvents(log: Log) {
  const registry = new Registry();
  const counter = <L extends string>(name: string, help: string, labelNames: L[] = []) =>
    new Counter({ name: `purser_${name}`, help, labelNames, registers: [registry] });

  const operations = counter('operations_total', 'Operations by kind and outcome.', ['kind', 'outcome']);
  const charged = counter('charged_usd_total', 'Charged to wallets.', ['kind']);
  const boundExceeded = counter(
    'bound_exceeded_total',
    'Answers whose usage was above the bound; charged by usage, at most the hold.',
  );
  const estimated = counter(
    'usage_missing_total',
    'Answers without readable usage, charged by an estimate: the model server reported none, or broke off.',
  );
  const boundsLearned = counter('bounds_learned_total', 'Prompt bounds raised after a count above them.', ['upstream']);
  const walletsOpened = counter('wallets_opened_total', 'Wallets opened.');
  const walletsClosed = counter('wallets_closed_total', 'Wallets closed, by reason.', ['reason']);
  const leases = counter('leases_total', 'Lease events.', ['slot', 'event']);
  const checkouts = counter('checkouts_total', 'Checkout events.', ['event']);
  const clawedBack = counter('clawed_back_cents_total', 'Taken back by refunds and disputes.');
  const refusals = counter('refusals_total', 'Requests refused, by code.', ['code']);
  const cutOff = counter('connections_cut_off_total', 'Connections closed by the server, by reason.', ['reason']);
  const failures = counter('failures_total', 'Internal failures, by place.', ['where']);

  return {
    registry,
    gauge(name: string, help: string, read: () => number) {
      new Gauge({
        name: `purser_${name}`,
        help,
        registers: [registry],
        collect() {
          this.set(read());
        },
      });
    },

    walletOpened(wallet: Wallet) {
      walletsOpened.inc();
      log.info(
        {
          event: 'wallet.opened',
          wallet: wallet.id,
          account: wallet.accountId,
          budget_usd: formatUsd(wallet.budget),
          expires_at: wallet.expiresAt,
          request_id: wallet.requestId,
        },
        'wallet opened',
      );
    },
    walletClosed(wallet: Wallet) {
      walletsClosed.inc({ reason: wallet.closeReason ?? 'none' });
      log.info(
        {
          event: 'wallet.closed',
          wallet: wallet.id,
          account: wallet.accountId,
          reason: wallet.closeReason,
          used_usd: formatUsd(wallet.spent),
          returned_cents: wallet.returnedCents,
        },
        'wallet closed',
      );
    },
    routerKeyOpened(key: RouterKey) {
      log.info(
        { event: 'router_key.opened', key: key.id, wallet: key.walletId, options: JSON.parse(key.options) },
        'gateway key opened',
      );
    },
    signedUp(account: Account, identity: { issuer: string; subject: string }) {
      log.info(
        {
          event: 'account.signed_up',
          account: account.id,
          ...identity,
          welcome_credit_cents: account.welcomeCreditCents,
        },
        'a first sign-in opened an account',
      );
    },
    funded(account: Account, kind: FundingOrder['kind'], cents: number) {
      log.info(
        { event: 'account.funded', account: account.id, kind, cents, available_cents: account.availableCents },
        'account funded',
      );
    },
    checkoutAsked(it: Checkout, outcome: Creation['kind']) {
      checkouts.inc({ event: outcome });
      const facts = { ...factsOf(it), request_id: it.requestId };
      if (outcome === 'created') log.info({ event: 'checkout.opened', ...facts }, 'checkout opened');
      else
        log.error(
          { event: `checkout.${outcome}`, ...facts, reason: it.lastError },
          'the payment provider did not confirm a checkout',
        );
    },
    checkoutMoved(it: Checkout) {
      checkouts.inc({ event: it.status });
      const facts = { event: `checkout.${it.status}`, ...factsOf(it) };
      if (it.status === 'mismatch' || it.status === 'abandoned') {
        failures.inc({ where: 'checkout' });
        log.error({ ...facts, reason: it.lastError }, 'a checkout needs the operator: nothing was credited');
      } else log.info(facts, 'checkout');
    },
    paymentUnknown(it: PaymentReport, account: string | undefined) {
      failures.inc({ where: 'checkout' });
      const facts = { session: it.sessionId, checkout: it.checkoutId, account, cents: it.amountCents };
      log.error(
        { event: 'checkout.unknown', ...facts, currency: it.currency },
        'a payment arrived that matches no checkout: check it, and credit it by hand',
      );
    },
    reversed(it: Checkout, movedCents: number, by?: ReversalReport) {
      if (movedCents > 0) clawedBack.inc(movedCents);
      const facts = { ...factsOf(it), moved_cents: movedCents, taken_cents: it.takenCents };
      log.warn(
        { event: 'checkout.reversed', ...facts, ...(by ? { kind: by.kind, id: by.id, state: by.state } : {}) },
        'a payment was refunded or disputed, or a refund or dispute was undone',
      );
    },
    webhookRefused(requestId: string, error: unknown) {
      failures.inc({ where: 'webhook' });
      log.warn(
        { event: 'webhook.refused', request_id: requestId, reason: (error as Error).message },
        'a webhook has a wrong signature: does webhook_secrets belong to this endpoint?',
      );
    },
    held(operation: Operation) {
      log.debug(
        {
          event: 'operation.held',
          operation: operation.id,
          wallet: operation.walletId,
          hold_usd: formatUsd(operation.hold),
          request_id: operation.requestId,
        },
        'held',
      );
    },
    settled(operation: Operation, outcome: Outcome<unknown>, moved: boolean) {
      const facts = {
        operation: operation.id,
        wallet: operation.walletId,
        subject: operation.subject,
        request_id: operation.requestId,
      };
      if (!moved) {
        failures.inc({ where: 'late_evidence' });
        log.error(
          { event: 'operation.late', ...facts, outcome: outcome.kind },
          'an answer arrived after the operation had been resolved',
        );
      } else if (outcome.kind === 'done') {
        operations.inc({ kind: operation.kind, outcome: 'charged' });
        charged.inc({ kind: operation.kind }, Number(outcome.charge) / NANOS_PER_USD);
        log.info(
          {
            event: 'operation.charged',
            ...facts,
            hold_usd: formatUsd(operation.hold),
            charge_usd: formatUsd(outcome.charge),
          },
          'charged',
        );
      } else if (outcome.kind === 'refused') {
        operations.inc({ kind: operation.kind, outcome: 'released' });
        log.info({ event: 'operation.released', ...facts, code: outcome.code, reason: outcome.reason }, 'released');
      } else {
        operations.inc({ kind: operation.kind, outcome: 'uncertain' });
        log.warn(
          { event: 'operation.uncertain', ...facts, hold_usd: formatUsd(operation.hold), reason: outcome.reason },
          'the outcome is unknown; the hold stays',
        );
      }
    },
    uncertain(operation: Operation) {
      operations.inc({ kind: operation.kind, outcome: 'uncertain' });
      log.warn(
        {
          event: 'operation.uncertain',
          operation: operation.id,
          wallet: operation.walletId,
          hold_usd: formatUsd(operation.hold),
          reason: operation.reason,
        },
        'the outcome is unknown; the hold stays',
      );
    },
    decided(operation: Operation) {
      operations.inc({ kind: operation.kind, outcome: operation.outcome ?? 'none' });
      if (operation.outcome === 'charged')
        charged.inc({ kind: operation.kind }, Number(operation.charge) / NANOS_PER_USD);
      log.info(
        {
          event: 'operation.decided',
          operation: operation.id,
          wallet: operation.walletId,
          by: operation.settledBy,
          outcome: operation.outcome,
          charge_usd: formatUsd(operation.charge as Nanos),
          reason: operation.reason,
        },
        'an uncertain operation was resolved',
      );
    },
    passedOver(operation: Operation, upstream: string, reason: string) {
      failures.inc({ where: 'upstream' });
      log.warn(
        { event: 'upstream.passed_over', operation: operation.id, subject: operation.subject, upstream, reason },
        'an upstream refused; the next one is tried',
      );
    },
    boundExceeded(operation: Operation, usage: string) {
      boundExceeded.inc();
      log.error(
        {
          event: 'operation.bound_exceeded',
          operation: operation.id,
          subject: operation.subject,
          usage,
          hold_usd: formatUsd(operation.hold),
        },
        'the usage was above the bound; it was charged, up to the hold. Run `purser models check` to see what to set',
      );
    },
    estimated(operation: Operation, usage: string) {
      estimated.inc();
      log.warn(
        {
          event: 'operation.estimated',
          operation: operation.id,
          subject: operation.subject,
          usage,
          hold_usd: formatUsd(operation.hold),
        },
        'no readable usage; charged the bound of the prompt and what was delivered',
      );
    },
    misconfigured(operation: Operation, fault: string) {
      failures.inc({ where: 'upstream_configuration' });
      log.error(
        { event: 'upstream.misconfigured', operation: operation.id, subject: operation.subject, fault },
        'an upstream refused because of the configuration; nothing was charged',
      );
    },
    boundLearned(operation: Operation, { upstream, upstreamModel, learned }: Route, counted: number, bound: number) {
      boundsLearned.inc({ upstream });
      log.error(
        {
          event: 'bound.learned',
          operation: operation.id,
          subject: operation.subject,
          upstream,
          upstream_model: upstreamModel,
          counted_tokens: counted,
          bound_tokens: bound,
          bound_factor: learned.permille / 1000,
          context_tokens: learned.contextTokens,
        },
        'a prompt had more tokens than its bound, so the bound of this route was raised. Set prompt_overhead_tokens, tokens_per_byte or context_length',
      );
    },
    refused(code: string, requestId: string, message: string, path: string) {
      refusals.inc({ code });
      log.debug({ event: 'request.refused', code, request_id: requestId, path, message }, 'refused');
    },
    cutOff(reason: 'no_room' | 'pipelined' | 'stalled') {
      cutOff.inc({ reason });
      log.debug({ event: 'connection.cut_off', reason }, 'a connection was closed');
    },
    leaseReady(it: Resource) {
      leases.inc({ slot: it.slot, event: 'ready' });
      log.info(
        {
          event: 'lease.ready',
          resource: it.id,
          wallet: it.walletId,
          slot: it.slot,
          backend: it.backend,
          ref: it.ref,
          expires_at: it.expiresAt,
          charge_usd: formatUsd(it.charged),
        },
        'lease ready',
      );
    },
    leaseAdopted(it: Resource) {
      leases.inc({ slot: it.slot, event: 'adopted' });
      log.warn(
        { event: 'lease.adopted', resource: it.id, wallet: it.walletId, slot: it.slot, ref: it.ref },
        'a machine of an unknown create was found and adopted',
      );
    },
    leaseEnded(it: Resource) {
      leases.inc({ slot: it.slot, event: 'ended' });
      log.info(
        {
          event: 'lease.ended',
          resource: it.id,
          wallet: it.walletId,
          slot: it.slot,
          ref: it.ref,
          reason: it.endReason,
        },
        'lease ended',
      );
    },
    leaseAbandoned(it: Resource, reason: string) {
      leases.inc({ slot: it.slot, event: 'abandoned' });
      log.error(
        { event: 'lease.abandoned', resource: it.id, wallet: it.walletId, backend: it.backend, ref: it.ref, reason },
        'the operator abandoned a lease: nobody confirmed that its machine is gone',
      );
    },
    orphan(backend: string, ref: string, tag: string) {
      leases.inc({ slot: 'none', event: 'orphan' });
      log.error({ event: 'lease.orphan', backend, ref, tag }, 'an orphaned machine was destroyed');
    },
    orphanSeen(backend: string, ref: string, tag: string) {
      leases.inc({ slot: 'none', event: 'orphan_seen' });
      log.warn({ event: 'lease.orphan_seen', backend, ref, tag }, 'an orphaned machine was left alone');
    },
    leaseHeldBack(it: Resource, reason: string) {
      leases.inc({ slot: it.slot, event: 'held_back' });
      log.warn(
        { event: 'lease.held_back', resource: it.id, wallet: it.walletId, slot: it.slot, ref: it.ref, reason },
        'a lease has to end, but its machine was left alone: it may belong to another installation',
      );
    },
    reportOnly(reason: string, leaseCount: number) {
      log.warn(
        { event: 'report_only', reason, leases: leaseCount },
        'orphans and existing leases are only reported; `purser resource reconcile` shows them, --apply ends this state',
      );
    },
    trusted(leaseCount: number) {
      log.warn(
        { event: 'report_only.over', leases: leaseCount },
        'the operator ended the report-only state: orphans and leases are ended again',
      );
    },
    leaseTrouble(it: Resource, error: string, attempts: number) {
      failures.inc({ where: 'lease' });
      log.error(
        {
          event: 'lease.trouble',
          resource: it.id,
          wallet: it.walletId,
          slot: it.slot,
          ref: it.ref,
          status: it.status,
          attempts,
          error,
        },
        'a step of a lease failed; it will be retried',
      );
    },
    rotated(previous: string, next: string, from: string) {
      log.warn({ event: 'master_key.rotated', previous, next, from }, 'the master key was rotated');
    },
    booksExamined({ ok, entries, problems }: Verdict, milliseconds: number) {
      const facts = { event: 'books.examined', ok, entries, problems: problems.length, milliseconds };
      log.info(facts, 'the books were examined');
    },
    diskLow(reason: string) {
      failures.inc({ where: 'disk' });
      log.warn({ event: 'disk.low', reason }, 'no new work is started until there is disk space');
    },
    diskEnough(freeBytes: number) {
      log.info({ event: 'disk.enough', free_bytes: freeBytes }, 'there is disk space again');
    },
    reserveMade(bytes: number) {
      log.info({ event: 'disk.reserve_made', bytes }, 'disk space for settlements is reserved');
    },
    reserveUsed() {
      log.warn({ event: 'disk.reserve_used' }, 'the disk is full; requests in flight are settled from the reserve');
    },
    failed(where: string, error: unknown, facts: Record<string, unknown> = {}) {
      failures.inc({ where });
      log.error({ event: `${where}.failed`, ...facts, err: error }, 'failed');
    },
  };
}
