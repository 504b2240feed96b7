import type { CheckFinding } from './backend.ts';

/** The prefix that marks a finding as a warning, in text and in JSON. */
export const WARNING = 'Warning: ';
/** Makes the detail of a finding a warning. */
export const warning = (text: string) => WARNING + text;

/** Makes the finding of a check that found nothing wrong, but something that the operator may not have meant. */
export const note = (name: string, text: string): CheckFinding => ({ name, ok: true, detail: warning(text) });

/** Makes one finding: `check` returns the detail of a success, or throws an error with the remedy. Never throws. */
export async function finding(name: string, check: () => string | Promise<string>): Promise<CheckFinding> {
  try {
    return { name, ok: true, detail: await check() };
  } catch (error) {
    return { name, ok: false, detail: (error as Error).message };
  }
}
