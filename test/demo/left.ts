import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** What is left of a demo: its files, and other processes that know of its directory. */
export function leftOf(directory: string): string[] {
  const processes = readdirSync('/proc').flatMap((it) => {
    if (!/^\d+$/.test(it) || Number(it) === process.pid) return [];
    try {
      const [command, ...rest] = ['cmdline', 'environ'].map((name) => readFileSync(join('/proc', it, name), 'utf8'));
      return [command, ...rest].some((text) => text?.includes(directory)) ? [`process ${it}: ${command}`] : [];
    } catch {
      return []; // It has just ended.
    }
  });
  return [...readdirSync(directory), ...processes];
}
