import { createPublicKey, hash, type KeyObject, verify } from 'node:crypto';
import * as v from 'valibot';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';

// The relying party's two ceremonies of Web Authentication (W3C, level 3), without attestation: it does not matter who made an
// authenticator. A library would add 25 packages and a fifth to the bundle, nearly all of it for attestation.

/** Algorithms of COSE that are offered: ES256, EdDSA, and RS256 for the TPMs of older machines. */
const ALGORITHMS = [-7, -8, -257];
/** The time for which the browser waits for the authenticator. */
const WAIT_MILLISECONDS = 300_000;
const RSA_BITS_MIN = 2048;
const CREDENTIAL_BYTES_MAX = 1023;

/** Flags of an authenticator's answer: somebody was there, and was recognised; may be and is copied; has a new credential. */
const PRESENT = 0x01;
const RECOGNISED = 0x04;
const COPYABLE = 0x08;
const COPIED = 0x10;
const HAS_CREDENTIAL = 0x40;

/** Parts of the authenticator's data, by their first byte. */
const FLAGS_AT = 32;
const COUNT_AT = 33;
const LENGTH_AT = 53;
const CREDENTIAL_AT = 55;
const DATA_BYTES_MIN = 37;

const Bytes = v.pipe(
  v.string(),
  v.regex(/^[\w-]+$/),
  v.transform((text) => Buffer.from(text, 'base64url')),
);
const ClientData = v.object({
  type: v.string(),
  challenge: v.string(),
  origin: v.string(),
  crossOrigin: v.optional(v.boolean(), false),
  topOrigin: v.optional(v.string()),
});
/** The JSON of a new credential, and below that of an answer with one, as the browser's `toJSON()` makes them. */
const Made = v.object({
  rawId: Bytes,
  type: v.literal('public-key'),
  response: v.object({ clientDataJSON: Bytes, authenticatorData: Bytes, publicKey: Bytes }),
});
const Shown = v.object({
  rawId: Bytes,
  type: v.literal('public-key'),
  response: v.object({
    clientDataJSON: Bytes,
    authenticatorData: Bytes,
    signature: Bytes,
    userHandle: v.nullish(Bytes),
  }),
});

/** The challenge, and the origin of the page, that an answer has to be for. */
export type Expected = { challenge: string; origin: string };
export type Credential = { credentialId: Buffer; publicKey: Buffer; useCount: number };
/** An answer of an authenticator, not verified yet. */
export type Answer = v.InferOutput<typeof Shown>;

/**
 * Returns the name under which passkeys of the page at this origin are kept; undefined where browsers make none: they do
 * over TLS under a name, and on `localhost`.
 */
export function relyingPartyOf(origin: string): string | undefined {
  const { protocol, hostname } = new URL(origin);
  if (hostname === 'localhost') return hostname;
  const isAddress = hostname.startsWith('[') || /^[\d.]+$/.test(hostname);
  return protocol === 'https:' && !isAddress ? hostname : undefined;
}

/** Returns what the browser needs to make a passkey. `known` are the passkeys that exist already. */
export function creationOptions(
  { challenge, origin }: Expected,
  user: { handle: Buffer; name: string },
  known: readonly Buffer[],
): object {
  return {
    challenge,
    rp: { id: relyingPartyOf(origin), name: 'Purser' },
    user: { id: user.handle.toString('base64url'), name: user.name, displayName: user.name },
    pubKeyCredParams: ALGORITHMS.map((alg) => ({ type: 'public-key', alg })),
    authenticatorSelection: { residentKey: 'required', requireResidentKey: true, userVerification: 'required' },
    excludeCredentials: known.map((id) => ({ type: 'public-key', id: id.toString('base64url') })),
    attestation: 'none',
    timeout: WAIT_MILLISECONDS,
  };
}

/** Returns what the browser needs to sign in with a passkey. It names none: a visitor does not learn which there are. */
export const requestOptions = ({ challenge, origin }: Expected): object => ({
  challenge,
  rpId: relyingPartyOf(origin),
  userVerification: 'required',
  timeout: WAIT_MILLISECONDS,
});

/** Returns the credential of a new passkey. Throws `invalid_request` for one that was not made for this challenge and page. */
export function readCreation(text: string, expected: Expected): Credential {
  const { rawId, response } = read(Made, text);
  checkClientData(response.clientDataJSON, 'webauthn.create', expected);
  const data = response.authenticatorData;
  const { flags, useCount } = checkAuthenticatorData(data, expected);
  const length = data.length > CREDENTIAL_AT ? data.readUInt16BE(LENGTH_AT) : 0;
  const credentialId = data.subarray(CREDENTIAL_AT, CREDENTIAL_AT + length);
  if (!(flags & HAS_CREDENTIAL) || length === 0 || length > CREDENTIAL_BYTES_MAX || !credentialId.equals(rawId))
    throw invalid('it has no credential');
  const key = keyOf(response.publicKey);
  return { credentialId, publicKey: key.export({ type: 'spki', format: 'der' }), useCount };
}

/** Reads the answer of an authenticator. Throws `invalid_request`. */
export const readAnswer = (text: string): Answer => read(Shown, text);

/**
 * Verifies an answer with the public key of its passkey, and returns the uses that the authenticator has counted. Throws
 * `invalid_request` for another challenge, page or person, and for a wrong signature.
 */
export function checkAnswer(
  { response }: Answer,
  expected: Expected,
  { publicKey, handle }: { publicKey: Buffer; handle: Buffer },
): number {
  checkClientData(response.clientDataJSON, 'webauthn.get', expected);
  const { useCount } = checkAuthenticatorData(response.authenticatorData, expected);
  if (response.userHandle && !response.userHandle.equals(handle)) throw invalid('it belongs to another user');
  const signed = Buffer.concat([response.authenticatorData, hash('sha256', response.clientDataJSON, 'buffer')]);
  const key = keyOf(publicKey);
  if (!verify(key.asymmetricKeyType === 'ed25519' ? null : 'sha256', signed, key, response.signature))
    throw invalid('its signature is wrong');
  return useCount;
}

const invalid = (why: string) => new Refusal('invalid_request', `This passkey was not accepted: ${why}.`);

function read<S extends v.GenericSchema>(schema: S, text: string): v.InferOutput<S> {
  let value: unknown;
  try {
    value = parseJson(text);
  } catch {}
  const parsed = v.safeParse(schema, value);
  if (!parsed.success) throw invalid('the browser’s answer cannot be read');
  return parsed.output;
}

function checkClientData(bytes: Buffer, type: string, { challenge, origin }: Expected): void {
  const data = read(ClientData, bytes.toString());
  if (data.type !== type) throw invalid('it answers another question');
  if (data.challenge !== challenge) throw invalid('it answers another challenge');
  if (data.origin !== origin || data.crossOrigin || data.topOrigin !== undefined)
    throw invalid('it was asked for by another page');
}

function checkAuthenticatorData(data: Buffer, { origin }: Expected): { flags: number; useCount: number } {
  if (data.length < DATA_BYTES_MIN) throw invalid('the browser’s answer cannot be read');
  if (!data.subarray(0, FLAGS_AT).equals(hash('sha256', relyingPartyOf(origin) ?? '', 'buffer')))
    throw invalid('it is for another site');
  const flags = data.readUInt8(FLAGS_AT);
  if (!(flags & PRESENT)) throw invalid('nobody was present');
  if (!(flags & RECOGNISED)) throw invalid('the device did not recognise you (PIN, fingerprint or face)');
  if (flags & COPIED && !(flags & COPYABLE)) throw invalid('the browser’s answer cannot be read');
  return { flags, useCount: data.readUInt32BE(COUNT_AT) };
}

/** Returns a public key of an offered algorithm. */
function keyOf(der: Buffer): KeyObject {
  let key: KeyObject | undefined;
  try {
    key = createPublicKey({ key: der, format: 'der', type: 'spki' });
  } catch {}
  const { namedCurve, modulusLength = 0 } = key?.asymmetricKeyDetails ?? {};
  const isOffered =
    (key?.asymmetricKeyType === 'ec' && namedCurve === 'prime256v1') ||
    key?.asymmetricKeyType === 'ed25519' ||
    (key?.asymmetricKeyType === 'rsa' && modulusLength >= RSA_BITS_MIN);
  if (key && isOffered) return key;
  throw invalid('its key is of a kind that was not asked for');
}
