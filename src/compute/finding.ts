import type { Finding } from './backend.ts';

/** Begins the detail of what is no fault and may become one, in words and in JSON. */
export const WARNING = 'Warning: ';
export const warning = (text: string) => WARNING + text;

/** Looks at one thing: what `look` answers is so, what it throws is wrong and says what to do. Never throws. */
export async function finding(name: string, look: () => string | Promise<string>): Promise<Finding> {
  try {
    return { name, ok: true, detail: await look() };
  } catch (error) {
    return { name, ok: false, detail: (error as Error).message };
  }
}
