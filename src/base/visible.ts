/**
 * Replaces every control character (C0, DEL, C1), bidirectional control and line separator by its JSON escape, so that the
 * text can neither control a terminal nor reorder a line. JSON text keeps its value, as these characters occur only inside
 * its strings. Line feeds and tabs are kept.
 */
export function visible(text: string): string {
  return text.replace(HIDDEN, (it) => `\\u${it.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

// All of these are single UTF-16 code units, so each has one four-digit escape.
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Bidi_Control}\p{Zl}\p{Zp}]/gu;
