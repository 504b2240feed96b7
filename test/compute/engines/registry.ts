import { hash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { packBusybox } from './docker.ts';

const MANIFEST = 'application/vnd.docker.distribution.manifest.v2+json';
const digestOf = (bytes: Buffer) => `sha256:${hash('sha256', bytes)}`;

/** A registry on loopback with one image, after the distribution specification. Its layer is sent when the test says so. */
export type Registry = {
  host: string;
  image: string;
  /** How often the layer was requested. An engine requests it once, however many pulls wait for it. */
  layerCount(): number;
  /** How often the tag was resolved: once per pull. */
  pullCount(): number;
  /** Whether the image exists. Default: true. */
  isThere: boolean;
  release(): void;
  close(): Promise<void>;
};

export async function openRegistry(): Promise<Registry> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-registry-'));
  const archive = readFileSync(packBusybox(directory));
  rmSync(directory, { recursive: true });
  const layer = gzipSync(archive);
  const config = Buffer.from(
    JSON.stringify({
      architecture: process.arch === 'arm64' ? 'arm64' : 'amd64',
      os: 'linux',
      config: {},
      rootfs: { type: 'layers', diff_ids: [digestOf(archive)] },
    }),
  );
  const describe = (bytes: Buffer, mediaType: string) => ({ mediaType, size: bytes.length, digest: digestOf(bytes) });
  const manifest = Buffer.from(
    JSON.stringify({
      schemaVersion: 2,
      mediaType: MANIFEST,
      config: describe(config, 'application/vnd.docker.container.image.v1+json'),
      layers: [describe(layer, 'application/vnd.docker.image.rootfs.diff.tar.gzip')],
    }),
  );
  const released = Promise.withResolvers<void>();
  let layerCount = 0;
  let pullCount = 0;
  const registry: Registry = {
    host: '',
    image: '',
    isThere: true,
    layerCount: () => layerCount,
    pullCount: () => pullCount,
    release: () => released.resolve(),
    async close() {
      released.resolve();
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
  const server = createServer(async ({ url = '', method }, response) => {
    if (url.endsWith('/manifests/1')) pullCount++;
    const answer = (status: number, body: Buffer | string, type = 'application/octet-stream') =>
      response
        .writeHead(status, {
          'content-type': type,
          'content-length': Buffer.byteLength(body),
          'docker-content-digest': digestOf(Buffer.from(body)),
        })
        .end(method === 'HEAD' ? undefined : body);
    if (url === '/v2/') answer(200, '{}', 'application/json');
    else if (!registry.isThere) answer(404, '{"errors":[{"code":"MANIFEST_UNKNOWN","message":"there is none"}]}');
    else if (url.includes('/manifests/')) answer(200, manifest, MANIFEST);
    else if (url.endsWith(digestOf(config))) answer(200, config);
    else if (url.endsWith(digestOf(layer))) {
      layerCount++;
      await released.promise;
      answer(200, layer);
    } else answer(404, '{"errors":[]}');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  registry.host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  registry.image = `${registry.host}/busybox:1`;
  return registry;
}
