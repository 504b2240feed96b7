import type { Context } from 'hono';
import type * as v from 'valibot';
import { Refusal } from '../../base/refusal.ts';
import type { Env, HttpApp } from '../endpoint.ts';
import { callGuest, explainFailure } from '../routes/guest-call.ts';
import { answerList, answerMessage, readMessage, WrittenList } from './connect.ts';
import { type Opened, type Running, runningOf } from './envd.ts';
import { guestLost } from './errors.ts';
import type { Processes } from './processes.ts';
import type { Watchers } from './watchers.ts';

/** A call of a service of E2B's agent, whose caller was let in. */
export type Envd = { app: HttpApp; c: Context<Env>; opened: Opened; processes: Processes; watchers: Watchers };
export type Rpc = (call: Envd) => Promise<Response>;

/** Returns who pays for the memory of a call. */
export const ownerOf = ({ app, opened }: Envd): string => app.tenantOf(opened.wallet.id).treeId;

/** Turns a unary call on a running sandbox into a handler. A list that may be long is returned as `writeList` makes it. */
export const unary =
  <S extends v.GenericSchema>(
    schema: S,
    run: (call: Envd & { running: Running }, message: v.InferOutput<S>) => Promise<object> | object,
  ): Rpc =>
  async (call) => {
    const message = await readMessage(call.app, call.c, ownerOf(call), schema);
    const answer = await run({ ...call, running: runningOf(call.app, call.opened) }, message);
    if (answer instanceof WrittenList) return answerList(call.app, call.c, ownerOf(call), answer);
    return answerMessage(call.app, call.c, ownerOf(call), answer);
  };

/** Calls into a sandbox. A failure that is no refusal leaves it unknown whether something was changed. */
export const callInto = <T>(
  { app }: Pick<Envd, 'app'>,
  { resource }: Running,
  seconds: number,
  call: () => Promise<T>,
): Promise<T> =>
  callGuest(app, resource, seconds, call).catch(async (error) => {
    throw await explainFailure(app, resource.id, error);
  });

/** Throws why a connection into the machine of a lease failed: a refusal, or that it was lost, or that the machine has ended. */
export async function throwLost(app: HttpApp, id: string, error: unknown): Promise<never> {
  throw await explainFailure(app, id, error instanceof Refusal ? error : guestLost(error));
}
