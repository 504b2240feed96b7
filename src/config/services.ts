import * as v from 'valibot';
import { url } from './router.ts';

/** The settings of the parts that touch other people's services (design, section 4): sign-in, checkout and transfer storage. */

const word = (most: number) => v.pipe(v.string(), v.trim(), v.minLength(1), v.maxLength(most));

const origin = v.pipe(
  url,
  v.check((text) => /^https?:\/\/[^/]+$/.test(text), 'must be scheme, host and port alone'),
);

/** Sign-in by the access tokens of an OpenID Connect issuer. */
export const Identity = v.pipe(
  v.strictObject({
    /** Compared as it stands with what the issuer calls itself: a slash at the end counts. */
    issuer: v.pipe(
      v.string(),
      v.check((text) => /^https?:\/\/[^\s?#]+$/.test(text) && URL.canParse(text), 'not an http:// or https:// address'),
    ),
    audience: word(500),
    /** Takes only tokens whose header says that they are access tokens (RFC 9068); without it `JWT` and none are taken too. */
    token_type: v.optional(v.literal('at+jwt', 'must be at+jwt')),
    /** The applications whose tokens are taken, by `client_id` or `azp`; without it every application of the issuer. */
    client_ids: v.optional(v.pipe(v.array(word(500)), v.minLength(1, 'must name at least one client'))),
    /** Demands the claim email_verified; without this it only must not be false. */
    require_verified_email: v.optional(v.boolean(), false),
    required_claim: v.optional(v.strictObject({ name: word(200), value: word(500) })),
    welcome_credit_cents: v.optional(v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(1_000_000)), 0),
  }),
  v.forward(
    v.partialCheck(
      [['required_claim'], ['welcome_credit_cents']],
      ({ required_claim: claim, welcome_credit_cents: cents }) => cents === 0 || claim !== undefined,
      'needs required_claim: a public issuer would hand out money to whoever signs up',
    ),
    ['welcome_credit_cents'],
  ),
);
export type IdentitySettings = v.InferOutput<typeof Identity>;

/** Object storage that speaks S3's protocol. `endpoint` is the address under which a sandbox reaches it: it is signed. */
export const Transfer = v.strictObject({
  endpoint: origin,
  region: v.optional(word(100), 'us-east-1'),
  bucket: v.pipe(word(63), v.regex(/^[a-z0-9][a-z0-9.-]+$/i, 'is no name of a bucket')),
  access_key_id: word(200),
  secret_access_key: word(500),
  /** https://host/bucket/object, as self-hosted servers want it; false is https://bucket.host/object. */
  path_style: v.optional(v.boolean(), true),
});
type Keys = 'access_key_id' | 'secret_access_key';
type Parsed = v.InferOutput<typeof Transfer>;
export type TransferSettings = Omit<Parsed, Keys>;
export type TransferKeys = Pick<Parsed, Keys>;

/** The settings without their secrets, and these. */
export function partTransfer(
  parsed: Parsed | undefined,
): { transfer: TransferSettings; transferKeys: TransferKeys } | { transfer: undefined; transferKeys: undefined } {
  if (!parsed) return { transfer: undefined, transferKeys: undefined };
  const { access_key_id, secret_access_key, ...transfer } = parsed;
  return { transfer, transferKeys: { access_key_id, secret_access_key } };
}

const landing = v.pipe(
  v.string(),
  v.check((text) => /^https?:\/\/\S+$/.test(text) && URL.canParse(text), 'not an http:// or https:// address'),
);
/** Hosted checkout by Stripe. */
export const Billing = v.strictObject({
  stripe: v.pipe(
    v.strictObject({
      secret_key: v.pipe(
        v.string(),
        v.regex(/^[rs]k_(test|live)_\w+$/, 'must begin with sk_live_, sk_test_, rk_live_ or rk_test_'),
      ),
      /** Of the webhook endpoint; several while one is being replaced. None: Stripe is only asked. */
      webhook_secrets: v.optional(v.array(v.pipe(v.string(), v.trim(), v.minLength(8), v.maxLength(500))), []),
      /** Where the browser goes when it has paid, and when it has not. */
      success_url: landing,
      cancel_url: v.optional(landing),
      api_base: v.optional(origin, 'https://api.stripe.com'),
    }),
    v.forward(
      v.partialCheck(
        [['secret_key'], ['success_url']],
        ({ secret_key: key, success_url: at }) => !key.includes('_live_') || at.startsWith('https:'),
        'must be https:// in live mode',
      ),
      ['success_url'],
    ),
  ),
});
type ParsedBilling = v.InferOutput<typeof Billing>;
type StripeKeys = 'secret_key' | 'webhook_secrets';
export type BillingKeys = Pick<ParsedBilling['stripe'], StripeKeys>;
/** `livemode` is what the key says: whether the money is real. */
export type BillingSettings = { stripe: Omit<ParsedBilling['stripe'], StripeKeys> & { livemode: boolean } };

/** The settings without their secrets, and these. */
export function partBilling(
  parsed: ParsedBilling | undefined,
): { billing: BillingSettings; billingKeys: BillingKeys } | { billing: undefined; billingKeys: undefined } {
  if (!parsed) return { billing: undefined, billingKeys: undefined };
  const { secret_key, webhook_secrets, ...stripe } = parsed.stripe;
  const livemode = secret_key.includes('_live_');
  return { billing: { stripe: { ...stripe, livemode } }, billingKeys: { secret_key, webhook_secrets } };
}
