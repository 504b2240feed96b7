import { assetText } from './asset.ts';

/** The version of this Purser. */
export const VERSION = (JSON.parse(assetText('package.json')) as { version: string }).version;
