import assert from 'node:assert/strict';
import { createECDH, createHmac, X509Certificate } from 'node:crypto';
import { findResource } from '../../src/ledger/resource.ts';
import type { TestServer } from '../helper/server.ts';

/** Returns the key of a lease's authority and what it is derived from, after a proof that the certificate is that key's. */
export function keysOf(purser: TestServer, id: string, certificate: string): Buffer[] {
  const { walletId } = findResource(purser.app.ledger.read, id) as { walletId: string };
  const master = purser.app.keyring.find(purser.wallet(walletId).masterKeyId) as Buffer;
  const seed = createHmac('sha256', master).update(`purser/secret-authority/v1\0${id}\0`).digest();
  const key = createHmac('sha256', seed).update('0').digest();
  const curve = createECDH('prime256v1');
  curve.setPrivateKey(key);
  const point = new X509Certificate(certificate).publicKey.export({ type: 'spki', format: 'der' }).subarray(-65);
  assert.ok(curve.getPublicKey().equals(point));
  return [key, seed];
}

/** Returns whether a text shows some bytes: as they are, in hex, or in base64, alone or within others, on lines of any length. */
export function shows(text: string, bytes: Buffer): boolean {
  const coded = [0, 1, 2].flatMap((shift) => {
    const it = Buffer.concat([Buffer.alloc(shift), bytes])
      .toString('base64')
      .slice(4, -4);
    return [it, it.replaceAll('+', '-').replaceAll('/', '_')];
  });
  const onOneLine = text.replaceAll(/\\n|\n/g, '');
  return [bytes.toString('latin1'), bytes.toString('hex'), ...coded].some((it) => onOneLine.includes(it));
}
