import type { Json } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';

/** Builds the refusal of a member that is not forwarded. Of a name, the first 80 characters are shown. */
export function unsupported(name: string): Refusal {
  return new Refusal(
    'unsupported_parameter',
    `"${name.slice(0, 80)}" is not known here, or has no price, so it is not forwarded. Leave it out.`,
    { param: name.slice(0, 80) },
  );
}

/** Builds the refusal of a member of another API that has no equivalent in a chat completion. */
export function notKnown(name: string): Refusal {
  const param = name.slice(0, 80);
  return new Refusal('unsupported_parameter', `${param}: this gateway does not know it. Leave it out.`, { param });
}

/** Builds the refusal of a member whose value is malformed: `what` it must be or has. */
export function invalid(field: string, what: string): Refusal {
  return new Refusal('invalid_request', `${field}: ${what}.`, { param: field });
}

/** Returns a member that is a whole number from 1 to `max`; undefined if it is absent. Throws `invalid_request`. */
export function wholeNumber(request: Readonly<Json>, name: string, max = Number.MAX_SAFE_INTEGER): number | undefined {
  const value = request[name];
  if (value === undefined) return undefined;
  if (Number.isSafeInteger(value) && (value as number) >= 1 && (value as number) <= max) return value as number;
  throw invalid(name, `must be a whole number from 1${max < 1e6 ? ` to ${max}` : ''}`);
}
