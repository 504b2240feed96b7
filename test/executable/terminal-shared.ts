export const ESCAPE = '\u001b';
