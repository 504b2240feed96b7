import type { RouterKey } from './access/router-keys.ts';
import type { Change } from './config/change.ts';
import type { FaultPlace } from './fault.ts';
import type { Account, FundingOrder } from './ledger/account.ts';
import type { Checkout, Creation, PaymentReport } from './ledger/checkout.ts';
import type { Keep } from './ledger/keep.ts';
import type { WalletChange } from './ledger/move.ts';
import type { Operation, Outcome } from './ledger/operation.ts';
import type { Refilled } from './ledger/refill.ts';
import type { Resource } from './ledger/resource.ts';
import type { ReversalReport } from './ledger/reversal.ts';
import type { Verdict } from './ledger/verify.ts';
import type { Wallet } from './ledger/wallet.ts';
import type { Log } from './log.ts';
import { createMetrics } from './metrics.ts';
import { formatUsd, type Nanos } from './money.ts';
import { parseJson } from './parse-json.ts';
import type { Timing } from './router/call.ts';
import type { Learned, Route } from './router/catalogue.ts';
import type { Reply } from './router/upstream.ts';
import type { Usage } from './router/usage.ts';
import type { DropReason } from './tracing/exporter.ts';
import type { OperationSpans } from './tracing/operation-spans.ts';

/** One function per business event writes the log line and the counter together. Ids go into the log, never into labels. */
export type Events = ReturnType<typeof createEvents>;

const NANOS_PER_USD = 1e9;

const learnedIn = ({ overheadTokens, permille, contextTokens }: Learned) => ({
  bound_overhead_tokens: overheadTokens,
  bound_factor: permille / 1000,
  context_tokens: contextTokens,
});

const factsOf = (it: Checkout) => ({
  checkout: it.id,
  account: it.accountId,
  cents: it.amountCents,
  session: it.sessionId,
});

/** Creates the events of a server: one function per business event, which writes its log line and its counter together. */
export function createEvents(log: Log) {
  const metrics = createMetrics();
  /** By model server: the fault of the configuration that was logged. */
  const faults = new Map<string, string>();
  let spans: OperationSpans | undefined;

  const countCharge = ({ kind, subject }: Operation, nanos: Nanos) =>
    metrics.charged.inc({ kind, subject }, Number(nanos) / NANOS_PER_USD);
  const countLease = ({ slot, backend }: Pick<Resource, 'slot' | 'backend'>, event: string) =>
    metrics.leases.inc({ slot, backend, event });

  /** The faults so far, and the last of them. */
  let faultCount = 0;
  let lastFault: { where: FaultPlace; milliseconds: number } | undefined;

  function failed(where: string, error: unknown, facts: Record<string, unknown> = {}) {
    metrics.failures.inc({ where });
    log.error({ event: `${where}.failed`, ...facts, err: error }, 'failed');
  }

  return {
    registry: metrics.registry,
    gauge: metrics.gauge,
    gauges: metrics.gauges,
    /** From now on every operation and every lease becomes a span as well. */
    trace(to: OperationSpans) {
      spans = to;
    },
    walletOpened(wallet: Wallet) {
      metrics.walletsOpened.inc();
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
    walletChanged(wallet: Wallet, { kind, amount, requestId }: WalletChange) {
      log.info(
        {
          event: `wallet.${kind}`,
          wallet: wallet.id,
          account: wallet.accountId,
          amount_usd: formatUsd(amount),
          budget_usd: formatUsd(wallet.budget),
          expires_at: wallet.expiresAt,
          request_id: requestId,
        },
        'wallet changed',
      );
    },
    frozen(sentence: string) {
      log.warn({ event: 'frozen', reason: sentence }, 'new holds are refused');
    },
    walletFrozen(wallet: Wallet) {
      const facts = { wallet: wallet.id, account: wallet.accountId };
      if (wallet.frozenAt === null) log.info({ event: 'wallet.unfrozen', ...facts }, 'wallet unfrozen');
      else log.warn({ event: 'wallet.frozen', ...facts, reason: wallet.freezeReason }, 'wallet frozen');
    },
    refillSet(wallet: Wallet) {
      const refill = wallet.refill === null ? null : parseJson(wallet.refill);
      log.info({ event: 'wallet.refill_set', wallet: wallet.id, refill, next_at: wallet.refillAt }, 'refill set');
    },
    refilled(it: Refilled) {
      const facts = { wallet: it.wallet.id, account: it.wallet.accountId };
      if (it.kind === 'refilled')
        log.info(
          { event: 'wallet.refilled', ...facts, period: it.change.period, amount_usd: formatUsd(it.change.amount) },
          'wallet refilled',
        );
      else
        log.warn(
          { event: 'wallet.refill_short', ...facts, period: it.period, reason: it.reason },
          'the account cannot pay a refill; it is tried again every minute',
        );
    },
    walletClosed(wallet: Wallet) {
      metrics.walletsClosed.inc({ reason: wallet.closeReason ?? 'none' });
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
        { event: 'router_key.opened', key: key.id, wallet: key.walletId, options: parseJson(key.options) },
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
      metrics.checkouts.inc({ event: outcome });
      const facts = { ...factsOf(it), request_id: it.requestId };
      if (outcome === 'created') log.info({ event: 'checkout.opened', ...facts }, 'checkout opened');
      else
        log.error(
          { event: `checkout.${outcome}`, ...facts, reason: it.lastError },
          'the payment provider did not confirm a checkout',
        );
    },
    checkoutMoved(it: Checkout) {
      metrics.checkouts.inc({ event: it.status });
      const facts = { event: `checkout.${it.status}`, ...factsOf(it) };
      if (it.status === 'mismatch' || it.status === 'abandoned') {
        metrics.failures.inc({ where: 'checkout' });
        log.error({ ...facts, reason: it.lastError }, 'a checkout needs the operator: nothing was credited');
      } else log.info(facts, 'checkout');
    },
    paymentUnknown(it: PaymentReport, account: string | undefined) {
      metrics.failures.inc({ where: 'checkout' });
      const facts = { session: it.sessionId, checkout: it.checkoutId, account, cents: it.amountCents };
      log.error(
        { event: 'checkout.unknown', ...facts, currency: it.currency },
        'a payment arrived that matches no checkout: check it, and credit it by hand',
      );
    },
    reversed(it: Checkout, movedCents: number, by?: ReversalReport) {
      if (movedCents > 0) metrics.clawedBack.inc(movedCents);
      const facts = { ...factsOf(it), moved_cents: movedCents, taken_cents: it.takenCents };
      log.warn(
        { event: 'checkout.reversed', ...facts, ...(by ? { kind: by.kind, id: by.id, state: by.state } : {}) },
        'a payment was refunded or disputed, or a refund or dispute was undone',
      );
    },
    webhookRefused(requestId: string, error: unknown) {
      metrics.failures.inc({ where: 'webhook' });
      log.warn(
        { event: 'webhook.refused', request_id: requestId, reason: (error as Error).message },
        'a webhook has a wrong signature: does webhook_secrets belong to this endpoint?',
      );
    },
    held(operation: Operation, traceparent?: string | string[]) {
      spans?.held(operation, traceparent);
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
      if (moved) spans?.settled(operation, outcome);
      if (!moved) {
        metrics.failures.inc({ where: 'late_evidence' });
        log.error(
          { event: 'operation.late', ...facts, outcome: outcome.kind },
          'an answer arrived after the operation had been resolved',
        );
      } else if (outcome.kind === 'done') {
        metrics.operations.inc({ kind: operation.kind, outcome: outcome.isCancelled ? 'cancelled' : 'charged' });
        countCharge(operation, outcome.charge);
        const sums = { hold_usd: formatUsd(operation.hold), charge_usd: formatUsd(outcome.charge) };
        if (outcome.isCancelled)
          log.info(
            { event: 'operation.cancelled', ...facts, ...sums },
            'its clients had gone; it was stopped, and charged',
          );
        else log.info({ event: 'operation.charged', ...facts, ...sums }, 'charged');
      } else if (outcome.kind === 'refused') {
        metrics.operations.inc({ kind: operation.kind, outcome: outcome.isCancelled ? 'cancelled' : 'released' });
        log.info({ event: 'operation.released', ...facts, code: outcome.code, reason: outcome.reason }, 'released');
      } else {
        metrics.operations.inc({ kind: operation.kind, outcome: 'uncertain' });
        log.warn(
          { event: 'operation.uncertain', ...facts, hold_usd: formatUsd(operation.hold), reason: outcome.reason },
          'the outcome is unknown; the hold stays',
        );
      }
    },
    uncertain(operation: Operation) {
      metrics.operations.inc({ kind: operation.kind, outcome: 'uncertain' });
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
    /** A request has waited for money that others in flight held. */
    fundsWaited(end: string, seconds: number) {
      metrics.fundsWaitSeconds.observe({ end }, seconds);
    },
    decided(operation: Operation) {
      metrics.operations.inc({ kind: operation.kind, outcome: operation.outcome ?? 'none' });
      spans?.decided(operation);
      if (operation.outcome === 'charged') countCharge(operation, operation.charge as Nanos);
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
    takenOver(operation: Operation, requestId: string, traceparent?: string | string[]) {
      spans?.held(operation, traceparent);
      log.info(
        {
          event: 'operation.taken_over',
          operation: operation.id,
          wallet: operation.walletId,
          hold_usd: formatUsd(operation.hold),
          request_id: requestId,
        },
        'a retry without a key asks again on the hold of an attempt without an answer',
      );
    },
    /** A circuit has opened, for a tree of wallets, for an account, or for `all`, or has closed. */
    circuit({ upstream, upstreamModel }: Route, isOpen: boolean, whose?: string) {
      const facts = { upstream, model: upstreamModel, ...(whose === undefined ? {} : { closed_for: whose }) };
      if (!isOpen) return log.info({ event: 'upstream.circuit_closed', ...facts }, 'an upstream answers again');
      metrics.failures.inc({ where: 'circuit' });
      log.error(
        { event: 'upstream.circuit_open', ...facts },
        'an upstream left several requests without a known outcome; it is asked by one request at a time',
      );
    },
    /** One call of a model server has been answered, refused, or failed, or a stream has begun. */
    upstreamCalled(operation: Operation, route: Route, reply: Reply, isStream: boolean, timing: Timing) {
      const [model, { upstream }] = [operation.subject, route];
      spans?.called(operation, route, isStream, timing.firstByteSeconds);
      metrics.upstreamCalls.inc({ model, upstream, code: reply.kind === 'refused' ? reply.code : reply.kind });
      if (reply.kind !== 'answered' && reply.kind !== 'streaming') return;
      faults.delete(upstream);
      const labels = { model, upstream, stream: String(isStream) };
      if (timing.firstByteSeconds !== undefined) metrics.firstByteSeconds.observe(labels, timing.firstByteSeconds);
      if (reply.kind === 'answered') metrics.upstreamSeconds.observe(labels, timing.seconds);
    },
    streamEnded({ subject }: Operation, { upstream }: Route, seconds: number) {
      metrics.upstreamSeconds.observe({ model: subject, upstream, stream: 'true' }, seconds);
    },
    upstreamUp(upstream: string) {
      metrics.upstreamUp.set({ upstream }, 1);
    },
    upstreamDown(upstream: string, reason: string) {
      metrics.upstreamUp.set({ upstream }, 0);
      log.warn({ event: 'upstream.down', upstream, reason }, 'a model server is down; logged again when it is back');
    },
    upstreamBack(upstream: string) {
      metrics.upstreamUp.set({ upstream }, 1);
      log.warn({ event: 'upstream.back', upstream }, 'a model server answers again');
    },
    /** It is no longer configured. */
    upstreamRemoved(upstream: string) {
      metrics.upstreamUp.remove({ upstream });
      faults.delete(upstream);
    },
    charged(model: string, upstream: string, { promptTokens, completionTokens }: Usage) {
      for (const [kind, count] of [
        ['prompt', promptTokens],
        ['completion', completionTokens],
      ] as const) {
        metrics.tokens.inc({ model, upstream, kind }, count);
        metrics.requestTokens.observe({ model, upstream, kind }, count);
      }
    },
    backendCalled(slot: string, backend: string, call: string, code: string, seconds: number) {
      metrics.backendCalls.inc({ slot, backend, call, code });
      metrics.backendSeconds.observe({ slot, backend, call }, seconds);
    },
    spansSent(count: number) {
      metrics.spansSent.inc(count);
    },
    spansDropped(reason: DropReason, count: number) {
      metrics.spansDropped.inc({ reason }, count);
    },
    collectorFailing(reason: string) {
      log.warn(
        { event: 'collector.failing', reason },
        'the collector of spans does not take them; nothing waits for it',
      );
    },
    collectorBack() {
      log.info({ event: 'collector.back' }, 'the collector of spans takes them again');
    },
    passedOver(operation: Operation, upstream: string, reason: string) {
      metrics.failures.inc({ where: 'upstream' });
      log.warn(
        { event: 'upstream.passed_over', operation: operation.id, subject: operation.subject, upstream, reason },
        'an upstream refused; the next one is tried',
      );
    },
    boundExceeded(operation: Operation, usage: string) {
      metrics.boundExceeded.inc();
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
      metrics.estimated.inc();
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
    /** Counts every such refusal, and logs a fault once until the model server answers. */
    misconfigured(operation: Operation, upstream: string, fault: string) {
      metrics.failures.inc({ where: 'upstream_configuration' });
      if (faults.get(upstream) === fault) return;
      faults.set(upstream, fault);
      log.error(
        { event: 'upstream.misconfigured', operation: operation.id, subject: operation.subject, fault },
        'an upstream refused because of the configuration; nothing was charged',
      );
    },
    boundLearned(operation: Operation, { upstream, upstreamModel, learned }: Route, counted: number, bound: number) {
      metrics.boundsLearned.inc({ upstream });
      log.error(
        {
          event: 'bound.learned',
          operation: operation.id,
          subject: operation.subject,
          upstream,
          upstream_model: upstreamModel,
          counted_tokens: counted,
          bound_tokens: bound,
          ...learnedIn(learned),
        },
        'a prompt had more tokens than its bound, so the bound of this route was raised. Set prompt_overhead_tokens, tokens_per_byte or context_length',
      );
    },
    boundForgotten(upstream: string, upstreamModel: string, learned: Learned) {
      log.info(
        { event: 'bound.forgotten', upstream, upstream_model: upstreamModel, ...learnedIn(learned) },
        'what was learned of the prompt bound of a route is forgotten, as the operator asked',
      );
    },
    refused(code: string, requestId: string, message: string, path: string) {
      metrics.refusals.inc({ code });
      log.debug({ event: 'request.refused', code, request_id: requestId, path, message }, 'refused');
    },
    cutOff(reason: 'no_room' | 'pipelined' | 'stalled') {
      metrics.cutOff.inc({ reason });
      log.debug({ event: 'connection.cut_off', reason }, 'a connection was closed');
    },
    leaseReady(it: Resource) {
      countLease(it, 'ready');
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
      countLease(it, 'adopted');
      log.warn(
        { event: 'lease.adopted', resource: it.id, wallet: it.walletId, slot: it.slot, ref: it.ref },
        'a machine of an unknown create was found and adopted',
      );
    },
    keepBegun(it: Keep) {
      log.info(
        {
          event: 'lease.keep_begun',
          resource: it.resourceId,
          wallet: it.walletId,
          keep: it.id,
          extend_seconds: it.extendSeconds,
          max_seconds: it.maxSeconds,
          request_id: it.requestId,
        },
        'a lease is extended while its machine is busy',
      );
    },
    keepEnded(it: Keep) {
      metrics.keepsEnded.inc({ reason: it.endReason ?? 'none' });
      log.info(
        {
          event: 'lease.keep_ended',
          resource: it.resourceId,
          wallet: it.walletId,
          keep: it.id,
          bought_seconds: it.boughtSeconds,
          reason: it.endReason,
          message: it.endMessage,
        },
        'a lease is no longer extended by itself',
      );
    },
    leaseEnded(it: Resource) {
      spans?.leaseEnded(it);
      countLease(it, 'ended');
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
      countLease(it, 'abandoned');
      log.error(
        { event: 'lease.abandoned', resource: it.id, wallet: it.walletId, backend: it.backend, ref: it.ref, reason },
        'the operator abandoned a lease: nobody confirmed that its machine is gone',
      );
    },
    orphan(backend: string, ref: string, tag: string) {
      countLease({ slot: 'none', backend }, 'orphan');
      log.error({ event: 'lease.orphan', backend, ref, tag }, 'an orphaned machine was destroyed');
    },
    orphanSeen(backend: string, ref: string, tag: string) {
      countLease({ slot: 'none', backend }, 'orphan_seen');
      log.warn({ event: 'lease.orphan_seen', backend, ref, tag }, 'an orphaned machine was left alone');
    },
    leaseHeldBack(it: Resource, reason: string) {
      countLease(it, 'held_back');
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
    /** Counts every failure, and logs those that are news. */
    leaseTrouble(it: Resource, error: string, attempts: number, isNews: boolean) {
      metrics.failures.inc({ where: 'lease' });
      if (!isNews) return;
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
        'a step of a lease failed; it and others like it are retried, and logged rarely',
      );
    },
    leaseTroubleOver(place: string, seconds: number) {
      log.info({ event: 'lease.trouble_over', place, seconds }, 'no lease there fails any more');
    },
    reloaded(change: Change) {
      metrics.reloads.inc({ outcome: 'done' });
      log.info({ event: 'reloaded', ...change }, 'the settings were read again');
    },
    reloadRefused(error: unknown) {
      metrics.reloads.inc({ outcome: 'refused' });
      log.error(
        { event: 'reload.refused', reason: (error as Error).message },
        'the settings were not changed; the server goes on with those of before',
      );
    },
    backupMade(file: string, removed: readonly string[]) {
      log.info({ event: 'backup.made', file, removed }, 'backup made');
    },
    /** Counts every failure, and logs the first. */
    backupFailed(error: unknown, isNews: boolean) {
      metrics.failures.inc({ where: 'backup' });
      if (!isNews) return;
      const reason = (error as Error).message;
      log.error({ event: 'backup.failed', reason }, 'no backup was made; it is retried, and logged when it succeeds');
    },
    rotated(previous: string, next: string, from: string) {
      log.warn({ event: 'master_key.rotated', previous, next, from }, 'the master key was rotated');
    },
    booksExamined({ ok, entries, faults }: Verdict, milliseconds: number) {
      const facts = { event: 'books.examined', ok, entries, problems: faults, milliseconds };
      log.info(facts, 'the books were examined');
    },
    eventDelivered(receiver: string) {
      metrics.delivered.inc({ receiver });
    },
    eventFailed(receiver: string) {
      metrics.undelivered.inc({ receiver });
    },
    receiverFailing(receiver: string, error: string) {
      log.warn({ event: 'receiver.failing', receiver, error }, 'a receiver of events does not take them; they wait');
    },
    receiverBack(receiver: string) {
      log.info({ event: 'receiver.back', receiver }, 'a receiver of events takes them again');
    },
    gaveUpEvent(receiver: string, id: string, type: string, error: string) {
      metrics.gaveUp.inc({ receiver });
      log.error(
        { event: 'receiver.gave_up', receiver, id, type, error },
        'an event was not delivered for 3 days and was given up; `purser events resend` sends it again',
      );
    },
    diskLow(reason: string) {
      metrics.failures.inc({ where: 'disk' });
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
    failed,
    /** An error that nobody foresaw has ended one request, connection or turn of a timer, and nothing else. */
    faulted(where: FaultPlace, error: unknown, facts: Record<string, unknown> = {}) {
      metrics.faults.inc({ where });
      faultCount++;
      lastFault = { where, milliseconds: performance.now() };
      failed(where, error, facts);
    },
    /** Returns how many there were since the start, and of the last one its place and how long ago it was. */
    faults: () => ({
      count: faultCount,
      last: lastFault && {
        where: lastFault.where,
        secondsAgo: Math.floor((performance.now() - lastFault.milliseconds) / 1000),
      },
    }),
  };
}
