/**
 * Replaces every control character (C0, DEL, C1), bidirectional control and line separator by its JSON escape: the text can neither
 * control a terminal nor reorder a line. Keeps line feeds, tabs, and the value of JSON text.
 */
export function visible(text: string): string {
  return text.replace(HIDDEN, (it) => `\\u${it.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

// All of these are single UTF-16 code units, so each has one four-digit escape.
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Bidi_Control}\p{Zl}\p{Zp}]/gu;
