/**
 * The text with every control character (C0, DEL, C1), bidirectional control and line separator written as its JSON
 * escape, so that it neither steers a terminal nor reorders a line. A text of JSON stays JSON of the same value: there
 * these characters stand inside strings only. Line feeds and tabs stay as they are.
 */
export function visible(text: string): string {
  return text.replace(HIDDEN, (it) => `\\u${it.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

// Every one of them is a single UTF-16 unit, so each has one four-digit escape.
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Bidi_Control}\p{Zl}\p{Zp}]/gu;
