import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { Sha256 } from '@aws-crypto/sha256-js';
import { getCanonicalHeaders, getSigningKey, SignatureV4 } from '@smithy/signature-v4';
import { whenRead } from '../helper/listener.ts';

export const KEYS = {
  access_key_id: 'AKIAIOSFODNN7EXAMPLE',
  secret_access_key: 'canary-secret/K7MDENG/bPxRfiCYEXAMPLEKEY',
};
export const REGION = 'garage';

type HttpRequest = Parameters<SignatureV4['presign']>[0];

/** The steps of Signature Version 4 one by one: its own `presign` would add a parameter that not every client sends. */
class Verifier extends SignatureV4 {
  async compute(request: HttpRequest, longDate: string): Promise<string> {
    const scope = `${longDate.slice(0, 8)}/${REGION}/s3/aws4_request`;
    const canonical = this.createCanonicalRequest(request, getCanonicalHeaders(request), 'UNSIGNED-PAYLOAD');
    const text = await this.createStringToSign(longDate, scope, canonical, 'AWS4-HMAC-SHA256');
    const key = await getSigningKey(this.sha256, await this.credentialProvider(), longDate.slice(0, 8), REGION, 's3');
    const hash = new this.sha256(key);
    hash.update(text);
    return Buffer.from(await hash.digest()).toString('hex');
  }
}

/** A store that takes only URLs whose signature an implementation that is not ours computes alike. */
export type ObjectStore = {
  url: string;
  objects: Map<string, Buffer>;
  refused: string[];
  /** Gives its objects to whoever asks. */
  isPublic: boolean;
};

/** `now` is the store's own clock, in Unix seconds. */
export async function openObjectStore(t: Pick<TestContext, 'after'>, now: () => number): Promise<ObjectStore> {
  const signer = new Verifier({
    service: 's3',
    region: REGION,
    credentials: { accessKeyId: KEYS.access_key_id, secretAccessKey: KEYS.secret_access_key },
    sha256: Sha256,
    uriEscapePath: false, // The path comes escaped; S3 does not escape it again.
    applyChecksum: false,
  });
  const store: ObjectStore = { url: '', objects: new Map(), refused: [], isPublic: false };

  async function faultOf(request: http.IncomingMessage, url: URL): Promise<string | undefined> {
    const { 'X-Amz-Signature': signature, ...query } = Object.fromEntries(url.searchParams);
    const date = query['X-Amz-Date'] ?? '';
    const at = Date.parse(date.replace(/^(....)(..)(..)T(..)(..)(..)Z$/, '$1-$2-$3T$4:$5:$6Z'));
    const seconds = Number(query['X-Amz-Expires']);
    if (!signature || Number.isNaN(at) || !(seconds >= 1 && seconds <= 604_800))
      return 'AuthorizationQueryParametersError';
    if (now() >= at / 1000 + seconds || now() < at / 1000 - 900) return 'AccessDenied: Request has expired';
    const computed = await signer.compute(
      {
        method: request.method as string,
        protocol: 'http:',
        hostname: request.headers.host as string,
        path: url.pathname,
        query,
        headers: { host: request.headers.host as string },
      },
      date,
    );
    return computed === signature ? undefined : 'SignatureDoesNotMatch';
  }

  // Long enough that no connection is closed just when it is reused, even if the test's process is busy.
  const server = http.createServer(
    { keepAliveTimeout: 60_000 },
    whenRead(async (request, response, body) => {
      const url = new URL(request.url as string, store.url);
      const fault = store.isPublic && request.method === 'GET' ? undefined : await faultOf(request, url);
      if (fault) {
        store.refused.push(fault);
        response.writeHead(403).end(`<Error><Code>${fault}</Code><Message>no</Message></Error>`);
        return;
      }
      const key = decodeURIComponent(url.pathname);
      if (request.method === 'PUT') store.objects.set(key, body);
      if (request.method === 'DELETE') store.objects.delete(key);
      const object = store.objects.get(key);
      if (request.method === 'GET' && !object) response.writeHead(404).end('<Error><Code>NoSuchKey</Code></Error>');
      else response.end(request.method === 'GET' ? object : undefined);
    }),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  store.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  t.after(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return store;
}
