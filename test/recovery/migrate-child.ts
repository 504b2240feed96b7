// Opens a database as a start does, and ends: `node test/recovery/migrate-child.ts <file>`.
import { openDatabase } from '../../src/db/open.ts';

openDatabase(process.argv[2] as string, { migrate: true }).client.close();
