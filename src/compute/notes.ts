import type { Config } from '../config.ts';

/**
 * What the configuration promises and the engine behind it does not keep, in words: asked of the engine, and no fault of
 * the configuration. Never throws.
 */
export async function notesOn({ compute: { provider_three: three } }: Pick<Config, 'compute'>): Promise<string[]> {
  if (three?.backend !== 'container') return [];
  const { checkDisk } = await import('./backends/container-check.ts');
  const { openEngine } = await import('./backends/container-engine.ts');
  const { isEnforced, detail } = await checkDisk(openEngine(three.socket), three.image);
  return isEnforced ? [] : [`compute.provider_three: ${detail}`];
}
