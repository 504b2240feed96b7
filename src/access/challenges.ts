import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';

/** A passkey is asked for again after this long: by a telephone it takes a while. */
export const CHALLENGE_SECONDS = 300;
/** The most used challenges that are remembered. Each is forgotten when it expires. */
const USED_COUNT_MAX = 10_000;
const BYTES = 32;

export type Challenges = {
  /** Returns a new challenge, and the text that the browser keeps in a cookie until it answers. `now` is Unix seconds. */
  make(purpose: string, now: number): { challenge: string; kept: string };
  /**
   * Returns the challenge that a browser kept, for its first answer only; undefined if it was made for another purpose, has
   * expired or was answered before.
   */
  take(kept: string, purpose: string, now: number): string | undefined;
};

/**
 * Creates the challenges of passkeys. They are authenticated rather than stored, since any visitor may ask for one: only
 * those that were answered are remembered. A restart ends all of them.
 */
export function createChallenges(): Challenges {
  const key = randomBytes(BYTES);
  const used = new Map<string, number>();
  const sign = (challenge: string, until: number, purpose: string) =>
    createHmac('sha256', key).update(`${challenge}\n${until}\n${purpose}`).digest();
  return {
    make(purpose, now) {
      const challenge = randomBytes(BYTES).toString('base64url');
      const until = now + CHALLENGE_SECONDS;
      const seal = sign(challenge, until, purpose).toString('base64url');
      return { challenge, kept: [challenge, until, seal].join('.') };
    },
    take(kept, purpose, now) {
      const [challenge = '', untilText = '', seal = ''] = kept.split('.');
      const until = Number(untilText);
      const sealed = Buffer.from(seal, 'base64url');
      const wanted = sign(challenge, until, purpose);
      if (sealed.length !== wanted.length || !timingSafeEqual(sealed, wanted)) return undefined;
      for (const [earlier, end] of used) if (end <= now || used.size >= USED_COUNT_MAX) used.delete(earlier);
      if (now >= until || used.has(challenge)) return undefined;
      used.set(challenge, until);
      return challenge;
    },
  };
}
