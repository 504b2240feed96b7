import { inspect } from 'node:util';
import * as v from 'valibot';

const SHOWN = '[set]';
/** The shortest word of a secret that is redacted by itself. */
const WORD_LENGTH_MIN = 8;

/** A secret of the settings. It is printed as `[set]`, and a copy of it for another thread is empty. Only `reveal` returns its text. */
export class Secret {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  /** Returns the text, for the one call that sends it or signs with it. */
  reveal(): string {
    return this.#text;
  }

  toString(): string {
    return SHOWN;
  }

  toJSON(): string {
    return SHOWN;
  }

  [inspect.custom](): string {
    return SHOWN;
  }
}

/** Returns a schema of a secret: text that `schema` accepts. */
export const secret = <S extends v.GenericSchema<string, string>>(schema: S) =>
  v.pipe(
    schema,
    v.transform((text: string) => new Secret(text)),
  );

/** Returns every secret in a value, at any depth. */
export function secretsIn(value: unknown): Secret[] {
  if (value instanceof Secret) return [value];
  return typeof value === 'object' && value !== null ? Object.values(value).flatMap(secretsIn) : [];
}

/**
 * Returns the texts that a log must redact for these settings: every secret, and its longer words, as an answer may repeat a
 * key without the `Bearer` before it. Each also as JSON writes it, as the lines of a log are JSON.
 */
export function redactedTexts(settings: unknown): string[] {
  const texts = secretsIn(settings).map((it) => it.reveal());
  return texts
    .flatMap((it) => [it, ...it.split(' ').filter((word) => word.length >= WORD_LENGTH_MIN && word !== it)])
    .flatMap((it) => [...new Set([it, JSON.stringify(it).slice(1, -1)])]);
}

/** Returns whether two values of settings are the same, with their secrets, and with their members in the same order. */
export function isSame(a: unknown, b: unknown): boolean {
  const text = (it: unknown) =>
    JSON.stringify([it, secretsIn(it).map((secret) => secret.reveal())], (_, value) =>
      typeof value === 'bigint' ? `${value}n` : value,
    );
  return text(a) === text(b);
}
