import * as v from 'valibot';
import { type Secret, secret } from '../base/secret.ts';
import { isReservedVariable } from '../compute/kit/trust.ts';
import { parseHost, parsePort } from '../egress/list.ts';
import { isPassedOn } from '../egress/request-head.ts';

/** The schema of settings of single accounts: the secrets that their leases use without having them. */

const SECRET_COUNT_MAX = 32;

/** Returns whether a text is NAME or NAME:PORT, the host of a secret. */
function isHost(text: string): boolean {
  const [name = '', port, ...more] = text.split(':');
  return parseHost(name)?.kind === 'name' && (port === undefined || parsePort(port) !== undefined) && !more.length;
}

const LeaseSecret = v.strictObject({
  /** The variable that holds the placeholder. */
  name: v.pipe(
    v.string(),
    v.maxLength(200),
    v.regex(/^[A-Za-z_]\w*$/, 'is no name of a variable'),
    v.check((it) => !isReservedVariable(it), 'is a variable that Purser sets itself, or that programs are run by'),
  ),
  /** The only host that gets the value, with its port unless that is 443. */
  host: v.pipe(
    v.string(),
    v.toLowerCase(),
    v.check(isHost, 'must be the name of one host (api.example.com), with :PORT unless that is 443'),
  ),
  /** The only header in which it is replaced. */
  header: v.pipe(
    v.string(),
    v.toLowerCase(),
    v.maxLength(200),
    v.regex(/^[a-z0-9!#$%&'*+.^_`|~-]+$/, 'is no name of a header'),
    v.check(isPassedOn, 'is a header of the connection, which carries no secret'),
  ),
  value: secret(
    v.pipe(
      v.string(),
      v.minLength(8),
      v.maxLength(4096),
      v.regex(/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/, 'must be printable ASCII on one line, as a header has it'),
    ),
  ),
});

/** Accounts by their names. */
export const Accounts = v.record(
  v.pipe(v.string(), v.minLength(1)),
  v.strictObject({
    secrets: v.optional(
      v.pipe(
        v.array(LeaseSecret),
        v.maxLength(SECRET_COUNT_MAX, `has more than ${SECRET_COUNT_MAX} secrets`),
        v.check((all) => new Set(all.map(({ name }) => name)).size === all.length, 'has two secrets of one name'),
      ),
      [],
    ),
  }),
);
export type LeaseSecretSettings = { name: string; host: string; header: string; value: Secret };
