import {
  generateAuthenticationOptions,
  generateRegistrationOptions,
  verifyAuthenticationResponse,
  verifyRegistrationResponse,
} from '@simplewebauthn/server';
import { cose, decodeAttestationObject, decodeCredentialPublicKey, isoCBOR } from '@simplewebauthn/server/helpers';
import * as v from 'valibot';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import { relyingPartyOf } from './relying-party.ts';

// The two ceremonies of Web Authentication by SimpleWebAuthn, without attestation: it does not matter who made an
// authenticator. Import this module where a passkey is used (`await import`): a start does not need the library.

/** Algorithms of COSE that are offered: ES256, EdDSA, and RS256 for the TPMs of older machines. */
const ALGORITHMS = [cose.COSEALG.ES256, cose.COSEALG.EdDSA, cose.COSEALG.RS256];
/** The time for which the browser waits for the authenticator. */
const WAIT_MILLISECONDS = 300_000;
const RSA_BYTES_MIN = 2048 / 8;
const CREDENTIAL_BYTES_MAX = 1023;
const UNREADABLE = 'the browser’s answer cannot be read';
const ANOTHER_PAGE = 'it was asked for by another page';

/**
 * The reasons that the reader is given for the library's errors, in the order of its checks. Any other means an answer that cannot
 * be read.
 */
const REASONS: readonly (readonly [error: RegExp, why: string])[] = [
  [/^Unexpected \w+ response type/, 'it answers another question'],
  [/^Unexpected \w+ response challenge/, 'it answers another challenge'],
  [/^Unexpected \w+ response origin/, ANOTHER_PAGE],
  [/^Unexpected RP ID hash/, 'it is for another site'],
  [/^User (presence was required|not present)/, 'nobody was present'],
  [/^User verification( was)? required/, 'the device did not recognise you (PIN, fingerprint or face)'],
  [/^No (credential ID|public key) was provided/, 'it has no credential'],
  [/^Unexpected public key alg/, 'its key is of a kind that was not asked for'],
];

const Base64url = v.pipe(v.string(), v.regex(/^[\w-]+$/));
/** The JSON of a new credential, and below that of an answer with one, as the browser's `toJSON()` makes them. */
const Made = v.object({
  id: Base64url,
  rawId: Base64url,
  type: v.literal('public-key'),
  response: v.object({ clientDataJSON: Base64url, attestationObject: Base64url }),
});
const Shown = v.object({
  id: Base64url,
  rawId: Base64url,
  type: v.literal('public-key'),
  response: v.object({
    clientDataJSON: Base64url,
    authenticatorData: Base64url,
    signature: Base64url,
    userHandle: v.nullish(Base64url),
  }),
});
const ClientData = v.object({ crossOrigin: v.optional(v.boolean(), false), topOrigin: v.optional(v.string()) });

/** The challenge, and the origin of the page, that an answer has to be for. */
export type Ceremony = { challenge: string; origin: string };
/** A new passkey: its public key is in the form of COSE (RFC 9052). */
export type Credential = { credentialId: Buffer; publicKey: Buffer; useCount: number };
/** An answer of an authenticator, not verified yet. */
type AuthenticatorAnswer = v.InferOutput<typeof Shown>;

/** Returns what the browser needs to make a passkey. `known` are the passkeys that exist already. */
export const creationOptions = (
  { challenge, origin }: Ceremony,
  user: { handle: Buffer; name: string },
  known: readonly Buffer[],
): Promise<object> =>
  generateRegistrationOptions({
    challenge: bytesOf(challenge),
    rpID: relyingPartyOf(origin) ?? '',
    rpName: 'Purser',
    userID: Uint8Array.from(user.handle),
    userName: user.name,
    userDisplayName: user.name,
    supportedAlgorithmIDs: ALGORITHMS,
    authenticatorSelection: { residentKey: 'required', userVerification: 'required' },
    excludeCredentials: known.map((id) => ({ id: id.toString('base64url') })),
    timeout: WAIT_MILLISECONDS,
  });

/** Returns what the browser needs to sign in with a passkey. It names none: a visitor does not learn which there are. */
export const requestOptions = ({ challenge, origin }: Ceremony): Promise<object> =>
  generateAuthenticationOptions({
    challenge: bytesOf(challenge),
    rpID: relyingPartyOf(origin) ?? '',
    userVerification: 'required',
    timeout: WAIT_MILLISECONDS,
  });

/** Returns the credential of a new passkey. Throws `invalid_request` for one that was not made for this challenge and page. */
export async function readCreation(text: string, expected: Ceremony): Promise<Credential> {
  const made = read(Made, text);
  refuseFrame(made.response.clientDataJSON);
  const { registrationInfo } = await checked(() =>
    verifyRegistrationResponse({
      response: {
        ...made,
        response: { ...made.response, attestationObject: withoutStatement(made.response.attestationObject) },
        clientExtensionResults: {},
      },
      ...wanted(expected),
      supportedAlgorithmIDs: ALGORITHMS,
    }),
  );
  if (!registrationInfo) throw invalid(UNREADABLE);
  const { id, publicKey, counter: useCount } = registrationInfo.credential;
  const credentialId = bytesOf(id);
  if (id !== made.id || credentialId.length > CREDENTIAL_BYTES_MAX) throw invalid('it has no credential');
  const key = decodeCredentialPublicKey(publicKey);
  const isWeak = cose.isCOSEPublicKeyRSA(key) && (key.get(cose.COSEKEYS.n)?.length ?? 0) < RSA_BYTES_MIN;
  if (isWeak) throw invalid('its key is of a kind that was not asked for');
  return { credentialId, publicKey: Buffer.from(publicKey), useCount };
}

/** Reads the answer of an authenticator. Throws `invalid_request`. */
export const readAnswer = (text: string): AuthenticatorAnswer => read(Shown, text);

/**
 * Verifies an answer with the public key of its passkey, and returns the uses that the authenticator has counted. Throws
 * `invalid_request` for another challenge, page or person, and for a wrong signature.
 */
export async function checkAnswer(
  { response, ...answer }: AuthenticatorAnswer,
  expected: Ceremony,
  { publicKey, handle }: { publicKey: Buffer; handle: Buffer },
): Promise<number> {
  const { userHandle, ...signed } = response;
  refuseFrame(signed.clientDataJSON);
  if (userHandle && !bytesOf(userHandle).equals(handle)) throw invalid('it belongs to another user');
  const { verified, authenticationInfo } = await checked(() =>
    verifyAuthenticationResponse({
      response: { ...answer, response: signed, clientExtensionResults: {} },
      ...wanted(expected),
      // The write that opens the session compares the counter, as other answers may be verified at the same time.
      credential: { id: answer.id, publicKey: Uint8Array.from(publicKey), counter: 0 },
    }),
  );
  if (!verified) throw invalid('its signature is wrong');
  return authenticationInfo.newCounter;
}

const bytesOf = (base64url: string) => Buffer.from(base64url, 'base64url');

const invalid = (why: string, cause?: unknown) =>
  new Refusal('invalid_request', `This passkey was not accepted: ${why}.`, { cause });

const wanted = ({ challenge, origin }: Ceremony) => ({
  expectedChallenge: challenge,
  expectedOrigin: origin,
  expectedRPID: relyingPartyOf(origin) ?? '',
  requireUserVerification: true,
});

/** Runs a check of the library; what it throws becomes `invalid_request`. */
async function checked<T>(check: () => Promise<T>): Promise<T> {
  try {
    return await check();
  } catch (error) {
    const { message } = error as Error;
    throw invalid(REASONS.find(([pattern]) => pattern.test(message))?.[1] ?? UNREADABLE, error);
  }
}

function read<S extends v.GenericSchema>(schema: S, text: string): v.InferOutput<S> {
  let value: unknown;
  try {
    value = parseJson(text);
  } catch {}
  const parsed = v.safeParse(schema, value);
  if (!parsed.success) throw invalid(UNREADABLE);
  return parsed.output;
}

/** Refuses an answer that the page was asked for in a frame: the library lets some pass. */
function refuseFrame(clientDataJSON: string): void {
  const { crossOrigin, topOrigin } = read(ClientData, bytesOf(clientDataJSON).toString());
  if (crossOrigin || topOrigin !== undefined) throw invalid(ANOTHER_PAGE);
}

/**
 * Returns an attestation object without its statement. None was asked for, and the library would verify one that comes all the
 * same: with certificates, for which it asks servers that they name.
 */
function withoutStatement(attestationObject: string): string {
  try {
    const object = decodeAttestationObject(Uint8Array.from(bytesOf(attestationObject)));
    const bare = new Map<string, string | Uint8Array | Map<string, string>>([
      ['fmt', 'none'],
      ['attStmt', new Map()],
      ['authData', object.get('authData')],
    ]);
    return Buffer.from(isoCBOR.encode(bare)).toString('base64url');
  } catch (error) {
    throw invalid(UNREADABLE, error);
  }
}
