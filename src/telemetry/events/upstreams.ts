import type { Operation } from '../../ledger/operation.ts';
import type { Timing } from '../../router/call.ts';
import type { Learned, Route } from '../../router/catalogue.ts';
import type { Reply } from '../../router/reply.ts';
import type { TokenUsage } from '../../router/usage.ts';
import type { Sinks } from '../sinks.ts';

const learnedIn = ({ overheadTokens, permille, contextTokens }: Learned) => ({
  bound_overhead_tokens: overheadTokens,
  bound_factor: permille / 1000,
  context_tokens: contextTokens,
});

/** The events of model servers and of the bounds learned from them. */
export function upstreamEvents(sinks: Sinks) {
  const { log, metrics } = sinks;
  /** The logged fault of the configuration, by model server. */
  const faults = new Map<string, string>();

  return {
    ...boundEvents(sinks),
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
    /** Counts a call of a model server that was answered, was refused or failed, or a stream that began. */
    upstreamCalled(operation: Operation, route: Route, reply: Reply, isStream: boolean, timing: Timing) {
      const model = operation.subject;
      const { upstream } = route;
      sinks.spans?.called(operation, route, isStream, timing.firstByteSeconds);
      metrics.upstreamCalls.add(1, model, upstream, reply.kind === 'refused' ? reply.code : reply.kind);
      if (reply.kind !== 'answered' && reply.kind !== 'streaming') return;
      faults.delete(upstream);
      const stream = String(isStream);
      const { firstByteSeconds: first } = timing;
      if (first !== undefined) metrics.firstByteSeconds.observe(first, model, upstream, stream);
      if (reply.kind === 'answered') metrics.upstreamSeconds.observe(timing.seconds, model, upstream, stream);
    },
    streamEnded({ subject }: Operation, { upstream }: Route, seconds: number) {
      metrics.upstreamSeconds.observe(seconds, subject, upstream, 'true');
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
    /** The settings of a model server have changed, or it is no longer configured: what was wrong with it is logged anew. */
    upstreamChanged(upstream: string) {
      faults.delete(upstream);
    },
    /** A model server is no longer configured. */
    upstreamRemoved(upstream: string) {
      metrics.upstreamUp.remove({ upstream });
    },
    charged(model: string, upstream: string, { promptTokens, completionTokens }: TokenUsage) {
      metrics.tokens.add(promptTokens, model, upstream, 'prompt');
      metrics.requestTokens.observe(promptTokens, model, upstream, 'prompt');
      metrics.tokens.add(completionTokens, model, upstream, 'completion');
      metrics.requestTokens.observe(completionTokens, model, upstream, 'completion');
    },
    upstreamSkipped(operation: Operation, upstream: string, reason: string) {
      metrics.failures.inc({ where: 'upstream' });
      log.warn(
        { event: 'upstream.passed_over', operation: operation.id, subject: operation.subject, upstream, reason },
        'an upstream refused; the next one is tried',
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
  };
}

/** The events of bounds that are learned and forgotten. */
const boundEvents = ({ log, metrics }: Sinks) => ({
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
});
