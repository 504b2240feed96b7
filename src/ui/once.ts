import { Refusal } from '../refusal.ts';
import type { Visit } from './visit.ts';

/** For so long a form that is sent again gets the answer of the first time, with the secret that may be in it. */
const ANSWER_MILLISECONDS = 60_000;
const FORM_COUNT_MAX = 1000;

/** Runs what a form asks for, unless this session has sent the very same form before. */
export type Once = <A>(visit: Pick<Visit, 'viewer' | 'form'>, make: () => Promise<A>) => Promise<A>;

/**
 * Creates the memory of forms that were sent, for what has no idempotency key in the books: a form has a key of its own in
 * the field `key`. Within a minute the second answer is the first; later it is a `conflict`, since the secret that was
 * shown is kept nowhere. What failed may be sent again.
 */
export function createOnce(): Once {
  const sent = new Map<string, { answer: Promise<unknown> | undefined }>();
  return <A>({ viewer, form }: Pick<Visit, 'viewer' | 'form'>, make: () => Promise<A>): Promise<A> => {
    if (!form.get('key')) return make();
    const name = `${viewer.sessionId} ${form}`;
    const earlier = sent.get(name);
    if (earlier?.answer) return earlier.answer as Promise<A>;
    if (earlier)
      throw new Refusal('conflict', 'This form was sent before, and is done. Go back and reload the page for another.');
    const answer = make();
    const entry: { answer: Promise<unknown> | undefined } = { answer };
    sent.set(name, entry);
    if (sent.size > FORM_COUNT_MAX) sent.delete(sent.keys().next().value as string);
    const forget = () => {
      entry.answer = undefined;
    };
    answer.then(
      () => setTimeout(forget, ANSWER_MILLISECONDS).unref(),
      () => sent.delete(name),
    );
    return answer;
  };
}
