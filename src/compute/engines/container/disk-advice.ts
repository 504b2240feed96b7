import type { CheckFinding } from '../../backend.ts';
import { note } from '../../finding.ts';
import { type ComputeSettings, listBackends } from '../../settings.ts';
import { imagesOf, type OffersSettings } from './settings.ts';

/** Asks the engines whether they enforce the whole disk that offers promise. Returns a finding for each that does not. Never throws. */
export async function findDiskLimits(compute: ComputeSettings): Promise<CheckFinding[]> {
  const findings = listBackends(compute).map(({ slotPath, settings }) =>
    settings.backend === 'container' && 'offers' in settings ? findDiskLimit(slotPath, settings) : [],
  );
  return (await Promise.all(findings)).flat();
}

async function findDiskLimit(slotPath: string, settings: OffersSettings): Promise<CheckFinding[]> {
  const { checkDisk } = await import('./check.ts');
  const { openEngine } = await import('./engine.ts');
  const engine = openEngine(settings);
  try {
    const { limited, detail } = await checkDisk(engine, imagesOf(settings)[0] as string);
    return limited === 'all' ? [] : [note(`compute.${slotPath}`, `${detail}.`)];
  } finally {
    engine.close();
  }
}
