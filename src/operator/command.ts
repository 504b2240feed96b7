import * as v from 'valibot';
import type { KeySource } from '../access/rotation.ts';
import type { ServerHealth } from '../base/health.ts';
import type { ReplicasWatch } from '../books/replicas-watch.ts';
import type { Reload } from '../config/change.ts';
import type { Config } from '../config/config.ts';
import type { DiskReserve } from '../db/disk-reserve.ts';
import type { Catalogue } from '../router/catalogue.ts';
import type { UpstreamOutages } from '../router/upstream-outages.ts';
import type { CloseApp } from '../wallet/close.ts';
import type { OpenApp } from '../wallet/open.ts';

/** The part of the App that commands use. */
export type OperatorApp = CloseApp &
  OpenApp & {
    state: { readonly baseUrl: string };
    health: ServerHealth;
    catalogue: Catalogue;
    keySource: KeySource;
    diskReserve: DiskReserve;
    replicas: Pick<ReplicasWatch, 'now'>;
    upstreamOutages: UpstreamOutages;
    reload?: Reload;
    backUpNow?: () => Promise<string>;
  } & {
    config: Pick<Config, 'router' | 'dataDirectory' | 'events' | 'ui' | 'backup'>;
  };

/** A command of the operator API: the schema of its input, and a function that returns a JSON value. */
export type Command<I extends v.GenericSchema = v.GenericSchema, O = unknown> = {
  input: I;
  run(app: OperatorApp, input: v.InferOutput<I>): Promise<O> | O;
};

/** Checks the types of a command against each other. */
export function command<I extends v.GenericSchema, O>(input: I, run: Command<I, O>['run']): Command<I, O> {
  return { input, run };
}

export const NOTHING = v.strictObject({});
export const Id = v.pipe(v.string(), v.minLength(1));
/** The input that every list accepts: rows before an id, a maximum number, made at or after a time (Unix seconds). */
export const PAGE = {
  before: v.optional(Id),
  limit: v.optional(v.pipe(v.number(), v.safeInteger(), v.minValue(1), v.maxValue(1000))),
  since: v.optional(v.pipe(v.number(), v.safeInteger(), v.minValue(0))),
};
export const Reason = v.pipe(v.string(), v.minLength(1, 'a reason is needed'), v.maxLength(500));
