import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import { isIP } from 'node:net';
import { createSecureContext, type SecureVersion } from 'node:tls';

/** The files, in PEM, of a certificate with those between it and its authority, and of its private key. They may be one. */
export type CertificateFiles = { cert: string; key: string };

/** A certificate that can be served, with its private key. */
export type Certificate = {
  cert: Buffer;
  key: Buffer;
  /** Unix seconds. */
  validFrom: number;
  validTo: number;
  /** Returns whether another one is this one. */
  isSame(other: Certificate): boolean;
  /** Returns whether it is for this host name or IP address. */
  isFor(host: string): boolean;
};

/** Thrown where the files cannot be served. The message begins with the setting; it contains nothing of the files. */
export class CertificateFault extends Error {}

/** Returns why clients refuse a certificate at this time, in Unix seconds; undefined if its dates are good. */
export function datesFault({ validFrom, validTo }: Certificate, now: number): string | undefined {
  const day = (seconds: number) => new Date(seconds * 1000).toISOString().slice(0, 10);
  if (now >= validTo) return `The certificate expired on ${day(validTo)}.`;
  if (now < validFrom) return `The certificate is valid from ${day(validFrom)} on.`;
  return undefined;
}

/** Thousands of certificates: far more than any chain. A larger file was named by mistake. */
const FILE_BYTES_MAX = 1024 * 1024;

/** The oldest version of TLS that clients may use: earlier ones are forbidden (RFC 8996). */
export const TLS_VERSION_MIN: SecureVersion = 'TLSv1.2';

/** Reads and checks both files, through symbolic links. Throws CertificateFault. An expired certificate is read, too. */
export function readCertificate(files: CertificateFiles): Certificate {
  const [cert, key] = [readPem('cert', files.cert), readPem('key', files.key)];
  const leaf = firstCertificate(files.cert, cert);
  if (!leaf.checkPrivateKey(privateKey(files.key, key)))
    throw new CertificateFault(
      `tls.key: ${files.key} is not the key of the first certificate in ${files.cert}. Put the server's own certificate first there, or name its key.`,
    );
  try {
    createSecureContext({ cert, key, minVersion: TLS_VERSION_MIN });
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw new CertificateFault(`tls: ${files.cert} with ${files.key} cannot be served (${code ?? message}).`);
  }
  const seconds = (date: string) => Math.floor(Date.parse(date) / 1000);
  return {
    cert,
    key,
    validFrom: seconds(leaf.validFrom),
    validTo: seconds(leaf.validTo),
    isSame: (other) => other.cert.equals(cert) && other.key.equals(key),
    isFor: (host) => (isIP(host) ? leaf.checkIP(host) : leaf.checkHost(host)) !== undefined,
  };
}

function readPem(name: keyof CertificateFiles, path: string): Buffer {
  try {
    const it = statSync(path);
    if (!it.isFile()) throw new CertificateFault(`tls.${name}: ${path} is not a file.`);
    if (it.size > FILE_BYTES_MAX) throw new CertificateFault(`tls.${name}: ${path} is larger than 1 MiB.`);
    return readFileSync(path);
  } catch (error) {
    if (error instanceof CertificateFault) throw error;
    const { code } = error as NodeJS.ErrnoException;
    const what = {
      ENOENT: `there is no file ${path}.`,
      EACCES: `${path} may not be read by the user that Purser runs as (uid ${process.getuid?.()}). Give this user a copy, or the right to read it.`,
    };
    throw new CertificateFault(
      `tls.${name}: ${what[code as keyof typeof what] ?? `${path} cannot be read (${code}).`}`,
    );
  }
}

function firstCertificate(path: string, pem: Buffer): X509Certificate {
  try {
    if (pem.includes('-----BEGIN')) return new X509Certificate(pem);
  } catch {}
  throw new CertificateFault(`tls.cert: ${path} contains no certificate in PEM ("-----BEGIN CERTIFICATE-----").`);
}

function privateKey(path: string, pem: Buffer): KeyObject {
  try {
    return createPrivateKey(pem);
  } catch {
    const what = /ENCRYPTED/.test(pem.toString('latin1'))
      ? 'is encrypted. Purser has no passphrase: give it the key without one.'
      : 'contains no private key in PEM ("-----BEGIN PRIVATE KEY-----").';
    throw new CertificateFault(`tls.key: ${path} ${what}`);
  }
}
