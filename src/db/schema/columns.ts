import { sql } from 'drizzle-orm';
import { type AnySQLiteColumn, blob, customType, text } from 'drizzle-orm/sqlite-core';
import { Nanos } from '../../base/money.ts';

/** A whole number of nano-dollars, as Nanos on both sides. */
export const nanos = customType<{ data: Nanos; driverData: bigint }>({
  dataType: () => 'integer',
  fromDriver: Nanos,
  toDriver(value) {
    if (typeof value !== 'bigint') throw new TypeError('nanos: a bigint is expected');
    return value;
  },
});

/** Cents, seconds, counts: a safe integer. */
export const count = customType<{ data: number; driverData: bigint }>({
  dataType: () => 'integer',
  fromDriver: Number,
  toDriver(value: number | null) {
    // drizzle keeps a null from the encoder for a value, but not for a placeholder of a prepared statement.
    if (value === null) return null as never;
    if (!Number.isSafeInteger(value)) throw new TypeError(`a whole number is expected: ${value}`);
    return BigInt(value);
  },
});

/** The condition that a column has one of these values. */
export const oneOf = (column: AnySQLiteColumn, values: readonly string[]) =>
  sql`${column} in (${sql.raw(values.map((it) => `'${it}'`).join(', '))})`;

export const hash = (name: string) => blob(name, { mode: 'buffer' });

/** The id of another row. */
export const refersTo = (name: string, id: () => AnySQLiteColumn) => text(name).notNull().references(id);

/** The row's checksum (src/db/checksum.ts). */
export const seal = () => count().notNull();
