import * as v from 'valibot';

/** The offers that E2B's SDKs rent by the name of a template. */

const spec = <const E extends v.ObjectEntries>(entries: E) => v.strictObject(entries);
/** A command that runs in each new sandbox, before its client has it. */
const start = v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(65_536)));

/** A template: an offer as POST /v1/compute/create takes it, without `max_seconds`, which each create brings. */
const Template = v.variant('provider', [
  v.strictObject({
    provider: v.literal('provider_one'),
    spec: spec({
      gpu: v.optional(v.nullable(v.string())),
      gpus: v.optional(v.number()),
      cpus: v.number(),
      memory_gib: v.number(),
    }),
    start,
  }),
  v.strictObject({ provider: v.literal('provider_two'), spec: spec({ chip: v.string() }), start }),
  v.strictObject({
    provider: v.literal('provider_three'),
    spec: spec({ offer_id: v.string(), disk_gb: v.number() }),
    start,
  }),
]);

/** The templates by their names, which E2B's SDKs give as `templateID`. */
export const Templates = v.record(
  v.pipe(v.string(), v.regex(/^[\w][\w.:/-]{0,127}$/, 'not a name of letters, digits, dots, dashes and slashes')),
  Template,
);
export type Templates = v.InferOutput<typeof Templates>;
