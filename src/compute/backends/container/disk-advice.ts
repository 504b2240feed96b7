import type { ComputeSettings } from '../../settings.ts';

/** Asks the engine whether it enforces the disk that offers promise. Returns notes for the operator. Never throws. */
export async function adviceOnDisk({ provider_three: three }: ComputeSettings): Promise<string[]> {
  if (three?.backend !== 'container') return [];
  const { checkDisk } = await import('./check.ts');
  const { openEngine } = await import('./engine.ts');
  const { isEnforced, detail } = await checkDisk(openEngine(three.socket), three.image);
  return isEnforced ? [] : [`compute.provider_three: ${detail}.`];
}
