import { formatUsd, Nanos } from '../base/money.ts';
import type { Config } from './config.ts';

/** In 2026 models cost between 0.01 and 600 USD per million tokens. */
const DEAR = 1_000n * 10n ** 9n;
const CHEAP = 10n ** 6n;

/** Notes for the operator on the limits of models. They are not faults. */
export function adviceOnRouter({ router }: Pick<Config, 'router'>): string[] {
  const notes: string[] = [];
  for (const { id, context_length: context, max_output_tokens: max = 0, fallbacks, ...model } of router.models) {
    const note = (text: string) => notes.push(`router.models ${id}: ${text}.`);
    if (!model.pricing && !model.pricing_per_million) note('it has no price, so it is not offered');
    const shortest = Math.min(context, ...fallbacks.map((it) => it.context_length ?? context));
    if (max >= shortest)
      note(
        `max_output_tokens ${max} leaves no room for a prompt in a context_length of ${shortest}: prompt and answer share it`,
      );
    const standard = model.default_output_tokens ?? 0;
    if (standard < max && standard >= shortest)
      note(`default_output_tokens ${standard} leaves no room for a prompt in a context_length of ${shortest}`);
    if ((model.prompt_overhead_tokens ?? 0) >= shortest)
      note(
        `prompt_overhead_tokens is not below the context_length of ${shortest}: every prompt is held for at that length`,
      );
    if (model.image_urls)
      note('image_urls lets agents have the model server fetch any http(s) address, inside your network, too');
  }
  return notes;
}

/** Notes on prices of a token that look like those of a million tokens, and the other way round. */
export function adviceOnPrices({ router }: Pick<Config, 'router'>): string[] {
  return router.models.flatMap(({ id, fallbacks, ...model }) =>
    [model, ...fallbacks].flatMap(({ pricing, pricing_per_million: million }) =>
      (['prompt', 'completion'] as const).flatMap((rate) => {
        const price = (pricing ?? million)?.[rate];
        if (!price || (pricing ? price <= DEAR : price >= CHEAP)) return [];
        const [unit, setting] = pricing ? ['a million tokens', 'pricing_per_million'] : ['one token', 'pricing'];
        const cost = `${rate} costs ${formatUsd(Nanos(price))} USD per million tokens`;
        return [`router.models ${id}: ${cost}. If the price is meant for ${unit}, it belongs under ${setting}.`];
      }),
    ),
  );
}
