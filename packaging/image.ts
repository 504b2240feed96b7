import { hash } from 'node:crypto';
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Architecture, run } from './tools.ts';

const USER = '65532:65532';

/** What a container of it runs, as the Dockerfile says. */
const CONFIG = {
  User: USER,
  ExposedPorts: { '7420/tcp': {}, '7422/tcp': {} },
  Env: ['PURSER_DATA=/data', 'PURSER_LISTEN=0.0.0.0:7420'],
  Entrypoint: ['/purser'],
  Cmd: ['serve'],
  Volumes: { '/data': {} },
  Healthcheck: { Test: ['CMD', '/purser', 'ledger', 'head'], Interval: 30e9, Timeout: 5e9, StartPeriod: 30e9 },
};

/** One platform: the executable, and a root directory with the libraries that it loads. */
export type Platform = { architecture: Architecture; executable: string; libraries: string };

type Blob = { mediaType: string; digest: string; size: number };

/**
 * Writes an archive in OCI's layout with the image of every platform. The first one bears the plain tag also in `manifest.json`,
 * which Docker before 29 reads; the others bear it with their architecture's name.
 */
export function writeImage(
  file: string,
  tag: string,
  platforms: readonly Platform[],
  from: { seconds: number; revision: string },
) {
  const layout = mkdtempSync(join(tmpdir(), 'purser-image-'));
  const blobs = join(layout, 'blobs/sha256');
  mkdirSync(blobs, { recursive: true });
  const store = (mediaType: string, content: Buffer | object): Blob => {
    const bytes = Buffer.isBuffer(content) ? content : Buffer.from(JSON.stringify(content));
    const sum = hash('sha256', bytes);
    writeFileSync(join(blobs, sum), bytes);
    return { mediaType: `application/vnd.oci.image.${mediaType}`, digest: `sha256:${sum}`, size: bytes.length };
  };
  const pathOf = ({ digest }: Blob) => `blobs/${digest.replace(':', '/')}`;
  const created = new Date(from.seconds * 1000).toISOString();
  try {
    const images = platforms.map(({ architecture: { debian }, executable, libraries }) => {
      const own = join(layout, debian);
      mkdirSync(join(own, 'root'), { recursive: true });
      mkdirSync(join(own, 'volume/data'), { recursive: true });
      copyFileSync(executable, join(own, 'root/purser'));
      const tars = [
        tarOf(libraries, from.seconds),
        tarOf(join(own, 'root'), from.seconds),
        tarOf(join(own, 'volume'), from.seconds, USER, 'u=rwx,go='),
      ];
      rmSync(own, { recursive: true });
      const layers = tars.map((tar) =>
        store('layer.v1.tar+gzip', run('gzip', ['--no-name', '--stdout'], { input: tar })),
      );
      const platform = { architecture: debian, os: 'linux' };
      const config = store('config.v1+json', {
        ...platform,
        created,
        config: { ...CONFIG, Labels: { 'org.opencontainers.image.revision': from.revision } },
        rootfs: { type: 'layers', diff_ids: tars.map((tar) => `sha256:${hash('sha256', tar)}`) },
      });
      const manifest = store('manifest.v1+json', {
        schemaVersion: 2,
        mediaType: 'application/vnd.oci.image.manifest.v1+json',
        config,
        layers,
      });
      return { platform, manifest, config, layers };
    });
    const index = store('index.v1+json', {
      schemaVersion: 2,
      mediaType: 'application/vnd.oci.image.index.v1+json',
      manifests: images.map(({ platform, manifest }) => ({ ...manifest, platform })),
    });
    const [, version] = tag.split(':');
    const annotations = {
      'io.containerd.image.name': `docker.io/library/${tag}`,
      'org.opencontainers.image.ref.name': version,
    };
    const put = (name: string, content: object) => writeFileSync(join(layout, name), JSON.stringify(content));
    put('oci-layout', { imageLayoutVersion: '1.0.0' });
    put('index.json', { schemaVersion: 2, manifests: [{ ...index, annotations }] });
    put(
      'manifest.json',
      images.map(({ platform, config, layers }, i) => ({
        Config: pathOf(config),
        RepoTags: i === 0 ? [tag] : [`${tag}-${platform.architecture}`],
        Layers: layers.map(pathOf),
      })),
    );
    writeFileSync(file, tarOf(layout, from.seconds));
  } finally {
    rmSync(layout, { recursive: true, force: true });
  }
}

/** Returns a directory's content as a tar, the same for the same content. */
function tarOf(directory: string, seconds: number, owner = '0:0', mode = 'u=rwX,go=rX'): Buffer {
  const [user, group] = owner.split(':');
  const same = [
    `--mtime=@${seconds}`,
    '--sort=name',
    '--numeric-owner',
    `--owner=${user}`,
    `--group=${group}`,
    `--mode=${mode}`,
  ];
  return run('tar', ['--create', '--format=gnu', ...same, '--directory', directory, ...readdirSync(directory)]);
}
