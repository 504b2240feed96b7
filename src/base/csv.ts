/**
 * Formats one cell as RFC 4180 specifies. A text that a spreadsheet would run as a formula gets an apostrophe: agents choose
 * their tags.
 */
export function csvCell(value: string | number): string {
  const text = typeof value === 'string' && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
