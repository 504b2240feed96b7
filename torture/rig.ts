import type { SmallDisk } from '../test/helper/small-disk.ts';
import type { Engines } from './engine.ts';
import type { Journal } from './journal.ts';
import type { Models } from './models.ts';
import type { Site, WallClock } from './site.ts';

/** Everything that can be tortured, and what observes it. */
export type Rig = {
  site: Site;
  journal: Journal;
  models: Models;
  engines: Engines;
  disk: SmallDisk | undefined;
  clock: WallClock | undefined;
  accountId: string;
  accountKey: string;
  /** Removed at the end, unless the run failed. */
  directory: string;
};
