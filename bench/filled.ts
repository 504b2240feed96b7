import { statSync } from 'node:fs';
import { join } from 'node:path';
import type { Flags } from './flags.ts';
import { run } from './process.ts';
import type { Installation } from './purser.ts';

const TOKENS = 1000;

/** A filled installation, and the tokens of some of its wallets. */
export type Filled = { installation: Installation; tokens: string[]; megabytes: number };

/** Fills a stopped, new installation in a separate process (bench/fill.ts). */
export async function fillInstallation(
  installation: Installation,
  { wallets, entries }: Pick<Flags, 'wallets' | 'entries'>,
): Promise<Filled> {
  const { directory } = installation;
  const script = join(import.meta.dirname, 'fill.ts');
  const output = await run(process.execPath, [script, directory, `${wallets}`, `${entries}`, `${TOKENS}`]);
  const megabytes = Math.round(statSync(join(directory, 'purser.db')).size / 1e6);
  return { installation, tokens: JSON.parse(output) as string[], megabytes };
}
