import { hash, type KeyObject, randomBytes, sign } from 'node:crypto';
import { isIP } from 'node:net';

/**
 * Certificates (RFC 5280), signed by ECDSA with SHA-256, with only what strict verifiers ask for: Node has no call that makes a
 * certificate, and each library that does is larger than everything else about TLS here.
 */

type CertificateOrder = {
  subject: string;
  /** The public key, on a curve of NIST. */
  publicKey: KeyObject;
  /** The name and the private key (P-256) of the authority; the subject's own for a certificate that signs itself. */
  issuer: { name: string; publicKey: KeyObject; privateKey: KeyObject };
  /** Unix seconds. */
  from: number;
  to: number;
  /** The host names and IPv4 addresses of a server. None for an authority, which signs certificates of servers alone. */
  names?: readonly string[];
};

const [BOOLEAN, INTEGER, BITS, BYTES, TEXT] = [0x01, 0x02, 0x03, 0x04, 0x0c];
const [UTC_TIME, GENERAL_TIME, SEQUENCE, SET] = [0x17, 0x18, 0x30, 0x31];
const context = (number: number, isConstructed = false) => (isConstructed ? 0xa0 : 0x80) | number;
const TRUE = element(BOOLEAN, Buffer.from([0xff]));
const ECDSA_SHA256 = sequence(oid(1, 2, 840, 10045, 4, 3, 2));
const SERVER_AUTHENTICATION = oid(1, 3, 6, 1, 5, 5, 7, 3, 1);
/** Key usages as bits, with the count of unused ones before them. */
const [DIGITAL_SIGNATURE, SIGNS_CERTIFICATES] = [Buffer.from([7, 0x80]), Buffer.from([2, 0x04])];

/** Makes a certificate, in PEM. */
export function makeCertificate({ subject, publicKey, issuer, from, to, names }: CertificateOrder): string {
  const isAuthority = names === undefined;
  const extensions = [
    isAuthority
      ? extension(19, sequence(TRUE, element(INTEGER, Buffer.from([0]))), true)
      : extension(17, sequence(...names.map(alternativeName))),
    extension(15, element(BITS, isAuthority ? SIGNS_CERTIFICATES : DIGITAL_SIGNATURE), true),
    ...(isAuthority ? [] : [extension(37, sequence(SERVER_AUTHENTICATION))]),
    extension(14, element(BYTES, keyId(publicKey))),
    extension(35, sequence(element(context(0), keyId(issuer.publicKey)))),
  ];
  const content = sequence(
    element(context(0, true), element(INTEGER, Buffer.from([2]))), // Version 3.
    element(INTEGER, Buffer.concat([Buffer.from([1]), randomBytes(15)])),
    ECDSA_SHA256,
    nameOf(issuer.name),
    sequence(time(from), time(to)),
    nameOf(subject),
    spki(publicKey),
    element(context(3, true), sequence(...extensions)),
  );
  const signature = element(BITS, Buffer.from([0]), sign('sha256', content, issuer.privateKey));
  const body = sequence(content, ECDSA_SHA256, signature).toString('base64');
  return `-----BEGIN CERTIFICATE-----\n${body.replace(/.{1,64}/g, '$&\n')}-----END CERTIFICATE-----\n`;
}

const spki = (key: KeyObject) => key.export({ type: 'spki', format: 'der' });
const keyId = (key: KeyObject) => hash('sha1', spki(key), 'buffer');
const nameOf = (text: string) => sequence(element(SET, sequence(oid(2, 5, 4, 3), element(TEXT, Buffer.from(text)))));
const alternativeName = (it: string) =>
  isIP(it) ? element(context(7), Buffer.from(it.split('.').map(Number))) : element(context(2), Buffer.from(it));

/** An extension of those that RFC 5280 defines, by its number there. */
const extension = (number: number, content: Buffer, isCritical = false) =>
  sequence(oid(2, 5, 29, number), ...(isCritical ? [TRUE] : []), element(BYTES, content));

/** An element of DER (X.690), of less than 64 KiB. */
function element(tag: number, ...content: Buffer[]): Buffer {
  const body = Buffer.concat(content);
  const { length } = body;
  const size = length < 128 ? [length] : length < 256 ? [0x81, length] : [0x82, length >> 8, length & 255];
  return Buffer.concat([Buffer.from([tag, ...size]), body]);
}

function sequence(...content: Buffer[]): Buffer {
  return element(SEQUENCE, ...content);
}

function oid(first: number, second: number, ...more: number[]): Buffer {
  const bytes = more.flatMap((it) => {
    const digits = [it & 127];
    for (let rest = it >> 7; rest; rest >>= 7) digits.unshift((rest & 127) | 128);
    return digits;
  });
  return element(0x06, Buffer.from([40 * first + second, ...bytes]));
}

/** A time: with two digits of its year before 2050, as verifiers expect it. */
function time(seconds: number): Buffer {
  const text = `${new Date(seconds * 1000).toISOString().replace(/[-:T]|\.\d+/g, '')}`;
  return text < '2050' ? element(UTC_TIME, Buffer.from(text.slice(2))) : element(GENERAL_TIME, Buffer.from(text));
}
