import * as v from 'valibot';
import type { App } from '../app.ts';

/** One command of the operator API: what it takes, and what it answers as a JSON value. */
export type Command<I extends v.GenericSchema = v.GenericSchema, O = unknown> = {
  input: I;
  run(app: App, input: v.InferOutput<I>): Promise<O> | O;
};

/** Keeps a command's types together. */
export function command<I extends v.GenericSchema, O>(input: I, run: Command<I, O>['run']): Command<I, O> {
  return { input, run };
}

export const NOTHING = v.strictObject({});
export const Id = v.pipe(v.string(), v.minLength(1));
export const Reason = v.pipe(v.string(), v.minLength(1, 'a reason is needed'), v.maxLength(500));
