import type { Notice } from './src/files/bundle.ts';

export function packagesOf(
  metafiles: readonly { outputs: Record<string, { inputs: Record<string, { bytesInOutput: number }> }> }[],
): string[];
export function noticeOf(folder: string): Notice;
export function collectNotices(metafiles: Parameters<typeof packagesOf>[0], runtime: string): Notice[];
