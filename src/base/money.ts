/**
 * Money. Internally an amount is `Nanos`: whole nano-dollars in a bigint (INTEGER in SQLite). The account API uses whole cents, the
 * agent API exact decimal USD strings (interface, section 1). Every conversion is here, with its rounding in its name.
 */
declare const nanos: unique symbol;

/** A whole number of nano-dollars: 1 USD is 1_000_000_000n. */
export type Nanos = bigint & { readonly [nanos]: true };

/** Brands a bigint as Nanos. Throws RangeError when it does not fit SQLite's 64-bit INTEGER. */
export function Nanos(value: bigint): Nanos {
  if (BigInt.asIntN(64, value) !== value) throw new RangeError(`does not fit an INTEGER: ${value}`);
  return value as Nanos;
}

export const ZERO = Nanos(0n);
const NANOS_PER_CENT = 10_000_000n;
const USD_DECIMALS = 9;
const DECIMAL = /^(\d{1,12})(?:\.(\d{1,18}))?$/;

/** Converts whole cents to nano-dollars, exactly. Throws RangeError for anything but a safe integer. */
export function centsToNanos(cents: number): Nanos {
  if (!Number.isSafeInteger(cents)) throw new RangeError(`not a whole number of cents: ${cents}`);
  return Nanos(BigInt(cents) * NANOS_PER_CENT);
}

/** Formats cents as USD with two decimals. Throws RangeError for anything but a safe integer. */
export const formatCents = (cents: number): string => formatUsd(centsToNanos(cents));

/** Rounds `amount` (>= 0) up to whole cents. */
export function nanosToCentsUp(amount: Nanos): number {
  return Number((amount + NANOS_PER_CENT - 1n) / NANOS_PER_CENT);
}

/** Rounds `amount` (>= 0) down to whole cents. */
export function nanosToCentsDown(amount: Nanos): number {
  return Number(amount / NANOS_PER_CENT);
}

/**
 * Parses a plain decimal ("12", "0.5", "0.0000001") as an integer scaled by 10^decimals, exactly. Throws RangeError for
 * any other notation, and for more digits than the scale holds.
 */
export function parseDecimal(text: string, decimals: number): bigint {
  const match = DECIMAL.exec(text);
  if (!match) throw new RangeError(`not a plain decimal number: ${JSON.stringify(text)}`);
  const fraction = (match[2] ?? '').replace(/0+$/, '');
  if (fraction.length > decimals) throw new RangeError(`more than ${decimals} decimals: ${JSON.stringify(text)}`);
  return BigInt(match[1] + fraction.padEnd(decimals, '0'));
}

/** Parses an exact decimal USD string as nanos. Throws RangeError as `parseDecimal` does. */
export function parseUsd(text: string): Nanos {
  return Nanos(parseDecimal(text, USD_DECIMALS));
}

/**
 * Formats nanos as a decimal USD string: plain notation, two to nine decimals, no trailing zeros beyond the second
 * (design 2.1).
 */
export function formatUsd(amount: Nanos): string {
  return formatDecimal(amount, USD_DECIMALS, 2);
}

const ZERO_CODE = 0x30;

/**
 * Formats an integer scaled by 10^decimals as a plain decimal string with at least `min` decimals and no further
 * trailing zeros.
 */
export function formatDecimal(scaled: bigint, decimals: number, min: number): string {
  const sign = scaled < 0n ? '-' : '';
  const digits = (scaled < 0n ? -scaled : scaled).toString().padStart(decimals + 1, '0');
  const point = digits.length - decimals;
  let end = digits.length;
  while (end > point + min && digits.charCodeAt(end - 1) === ZERO_CODE) end--;
  const whole = `${sign}${digits.slice(0, point)}`;
  return end > point ? `${whole}.${digits.slice(point, end)}` : whole;
}

/** Returns the sum of the amounts. Throws RangeError when it does not fit. */
export function sum(...amounts: bigint[]): Nanos {
  return Nanos(amounts.reduce((total, amount) => total + amount, 0n));
}
