import { type ComputeSettings, listBackends } from '../../settings.ts';
import { imagesOf, type OffersSettings } from './settings.ts';

/** Asks the engines whether they enforce the disk that offers promise. Returns notes for the operator. Never throws. */
export async function adviceOnDisk(compute: ComputeSettings): Promise<string[]> {
  const notes = listBackends(compute).map(({ slotPath, settings }) =>
    settings.backend === 'container' && 'offers' in settings ? adviceOn(slotPath, settings) : [],
  );
  return (await Promise.all(notes)).flat();
}

async function adviceOn(directory: string, settings: OffersSettings): Promise<string[]> {
  const { checkDisk } = await import('./check.ts');
  const { openEngine } = await import('./engine.ts');
  const engine = openEngine(settings);
  try {
    const { isEnforced, detail } = await checkDisk(engine, imagesOf(settings)[0] as string);
    return isEnforced ? [] : [`compute.${directory}: ${detail}.`];
  } finally {
    engine.close();
  }
}
