import { join } from 'node:path';

export const FOLDER = join(import.meta.dirname, '../../src/compute/kit/watchdog');
