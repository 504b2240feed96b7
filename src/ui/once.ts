import { randomUUID } from 'node:crypto';
import { Refusal } from '../base/refusal.ts';
import { createKept } from '../base/shares.ts';
import type { Visit } from './visit.ts';

/** Time for which a repeated form gets the answer of the first one, with any secret in it. */
const ANSWER_MILLISECONDS = 60_000;
/** Maximum number of remembered forms of one session, and of all: forms of other sessions do not push out the operator's. */
const FORM_COUNT_MAX = { each: 100, all: 1000 };
/** The key of a form of this page, from any start of the server: scripts may send keys of their own. */
const OURS = /^[\da-f-]{36}\.[\da-f-]{36}$/;

export type Once = {
  /** Returns a key for the field `key` of a new form. */
  newKey(): string;
  /** Runs the action of a form, unless this session has sent the very same form before. Throws `conflict`. */
  run<A>(visit: Pick<Visit, 'viewer' | 'path' | 'form'>, make: () => Promise<A>): Promise<A>;
};

/**
 * Creates the memory of sent forms, for actions without an idempotency key in the books: a form has its own key in the field `key`.
 * Within a minute a repeated form gets the first answer; later it is a `conflict`, since a shown secret is not kept. A failed form
 * may be sent again. A form that was shown before the server started is also a `conflict`: whether it was sent is no longer known.
 */
export function createOnce(): Once {
  const sent = new Map<string, { answer: Promise<unknown> | undefined }>();
  const kept = createKept<string>(FORM_COUNT_MAX, (name) => sent.delete(name));
  const start = randomUUID();
  const newKey = () => `${start}.${randomUUID()}`;
  const run = <A>(
    { viewer, path, form }: Pick<Visit, 'viewer' | 'path' | 'form'>,
    make: () => Promise<A>,
  ): Promise<A> => {
    const key = form.get('key');
    if (!key) return make();
    if (OURS.test(key) && !key.startsWith(`${start}.`))
      throw new Refusal(
        'conflict',
        'The server was restarted since this form was shown, and may have done it before. Go back, reload the page, look whether it is done, and send it anew if it is not.',
      );
    const name = `${viewer.sessionId} ${path} ${form}`; // Scripts may send one key to several paths.
    const earlier = sent.get(name);
    if (earlier?.answer) return earlier.answer as Promise<A>;
    if (earlier)
      throw new Refusal('conflict', 'This form was sent before, and is done. Go back and reload the page for another.');
    const answer = make();
    const entry: { answer: Promise<unknown> | undefined } = { answer };
    sent.set(name, entry);
    kept.keep(viewer.sessionId, name);
    const forget = () => {
      entry.answer = undefined;
    };
    answer.then(
      () => setTimeout(forget, ANSWER_MILLISECONDS).unref(),
      () => {
        sent.delete(name);
        kept.drop(viewer.sessionId, name);
      },
    );
    return answer;
  };
  return { newKey, run };
}
