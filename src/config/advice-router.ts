import type { Config } from './config.ts';

/** Notes for the operator on the limits of models. They are not faults. */
export function adviceOnRouter({ router }: Pick<Config, 'router'>): string[] {
  const notes: string[] = [];
  for (const { id, context_length: context, max_output_tokens: max = 0, fallbacks, ...model } of router.models) {
    const note = (text: string) => notes.push(`router.models ${id}: ${text}.`);
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
