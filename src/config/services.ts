import * as v from 'valibot';
import { type Secret, secret } from '../base/secret.ts';
import { url } from './router.ts';

/** Schemas of the settings for third-party services (design, section 4): sign-in, checkout and transfer storage. */

const word = (max: number) => v.pipe(v.string(), v.trim(), v.minLength(1), v.maxLength(max));

const origin = v.pipe(
  url,
  v.check((text) => /^https?:\/\/[^/]+$/.test(text), 'must be scheme, host and port alone'),
);

/**
 * Claims that many issuers let a user write (OpenID Connect Core 1.0, 5.1; the metadata of Auth0, Supabase and Clerk), that the
 * browser's request decides, or that every user of an issuer has. None of them may make an operator.
 */
const OWN_WORDS = new Set([
  ...['name', 'given_name', 'family_name', 'middle_name', 'nickname', 'preferred_username', 'profile', 'picture'],
  ...['website', 'gender', 'birthdate', 'zoneinfo', 'locale', 'phone_number', 'address', 'updated_at'],
  ...['user_metadata', 'raw_user_meta_data', 'unsafe_metadata', 'unsafeMetadata'],
  ...['scope', 'scp', 'aud', 'azp', 'client_id', 'nonce', 'acr', 'amr', 'iss', 'typ'],
]);
/** Returns whether a claim, or for a dotted path the claim that it leads into, may hold what a user chose. */
const isOwnWord = (name: string) => OWN_WORDS.has(name) || OWN_WORDS.has(name.split('.', 1)[0] as string);

/** Sign-in by the access tokens of an OpenID Connect issuer. */
export const Identity = v.pipe(
  v.strictObject({
    /** Compared character by character with the issuer's own name: a trailing slash matters. */
    issuer: v.pipe(
      v.string(),
      v.check((text) => /^https?:\/\/[^\s?#]+$/.test(text) && URL.canParse(text), 'not an http:// or https:// address'),
    ),
    audience: word(500),
    /** Accepts only tokens whose header marks them as access tokens (RFC 9068). If unset, `JWT` and no type are accepted too. */
    token_type: v.optional(v.literal('at+jwt', 'must be at+jwt')),
    /** The applications whose tokens are accepted, by `client_id` or `azp`. If unset, every application of the issuer. */
    client_ids: v.optional(v.pipe(v.array(word(500)), v.minLength(1, 'must name at least one client'))),
    /** The page's own registration at the issuer, which gives it "Sign in"; and its secret if the issuer issued one. */
    client_id: v.optional(word(500)),
    client_secret: v.optional(secret(word(500))),
    /** Requires the claim email_verified. If unset, the claim may be missing, but not false. */
    require_verified_email: v.optional(v.boolean(), false),
    required_claim: v.optional(v.strictObject({ name: word(200), value: word(500) })),
    /** The users who sign in to the page as operators: those whose claim is the value, or a list with it. */
    operators: v.optional(
      v.strictObject({
        claim: v.pipe(
          word(200),
          v.check((name) => !isOwnWord(name), 'must be a claim that users cannot set themselves, such as groups'),
        ),
        value: word(500),
      }),
    ),
    welcome_credit_cents: v.optional(v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(1_000_000)), 0),
  }),
  v.forward(
    v.partialCheck(
      [['required_claim'], ['welcome_credit_cents']],
      ({ required_claim: claim, welcome_credit_cents: cents }) => cents === 0 || claim !== undefined,
      'needs required_claim: a public issuer would hand out money to anybody who signs up',
    ),
    ['welcome_credit_cents'],
  ),
  v.forward(
    v.partialCheck(
      [['client_id'], ['client_secret']],
      ({ client_id: id, client_secret: secret }) => secret === undefined || id !== undefined,
      'needs client_id',
    ),
    ['client_secret'],
  ),
  v.forward(
    v.partialCheck(
      [['client_id'], ['operators']],
      ({ client_id: id, operators }) => operators === undefined || id !== undefined,
      'needs client_id: operators sign in on the page',
    ),
    ['operators'],
  ),
);
export type IdentitySettings = v.InferOutput<typeof Identity>;

/** S3-compatible object storage. `endpoint` is the address at which a sandbox reaches it: it is part of the signature. */
export const Transfer = v.strictObject({
  endpoint: origin,
  region: v.optional(word(100), 'us-east-1'),
  bucket: v.pipe(word(63), v.regex(/^[a-z0-9][a-z0-9.-]+$/i, 'is not a valid bucket name')),
  access_key_id: secret(word(200)),
  secret_access_key: secret(word(500)),
  /** True: https://host/bucket/object, as self-hosted servers expect. False: https://bucket.host/object. */
  path_style: v.optional(v.boolean(), true),
});
export type TransferSettings = v.InferOutput<typeof Transfer>;

const landing = v.pipe(
  v.string(),
  v.check((text) => /^https?:\/\/\S+$/.test(text) && URL.canParse(text), 'not an http:// or https:// address'),
);
/** Returns whether the money is real, by the prefix of the key. */
export const isLive = ({ secret_key: key }: { secret_key: Secret }): boolean => key.reveal().includes('_live_');

/** Hosted checkout by Stripe. */
export const Billing = v.strictObject({
  stripe: v.pipe(
    v.strictObject({
      secret_key: secret(
        v.pipe(
          v.string(),
          v.regex(/^[rs]k_(test|live)_\w+$/, 'must begin with sk_live_, sk_test_, rk_live_ or rk_test_'),
        ),
      ),
      /** Signing secrets of the webhook endpoint; several while one is being replaced. If empty, Stripe is only polled. */
      webhook_secrets: v.optional(v.array(secret(v.pipe(v.string(), v.trim(), v.minLength(8), v.maxLength(500)))), []),
      /** The pages that the browser goes to after paying, and after cancelling. */
      success_url: landing,
      cancel_url: v.optional(landing),
      api_base: v.optional(origin, 'https://api.stripe.com'),
    }),
    v.forward(
      v.partialCheck(
        [['secret_key'], ['success_url']],
        ({ success_url: at, ...it }) => !isLive(it) || at.startsWith('https:'),
        'must be https:// in live mode',
      ),
      ['success_url'],
    ),
  ),
});
export type BillingSettings = v.InferOutput<typeof Billing>;
