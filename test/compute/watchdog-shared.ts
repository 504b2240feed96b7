import { join } from 'node:path';

export const FOLDER = join(import.meta.dirname, '../../src/compute/backends/container/watchdog');
