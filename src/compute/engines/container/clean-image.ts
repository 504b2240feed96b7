import { hash } from 'node:crypto';
import { pack } from '../../kit/tar.ts';
import type { Engine } from './engine.ts';

/** The part of an engine's answer about an image that is used. */
export type ImageFacts = {
  /** All bytes of its layers. */
  Size: number;
  Architecture: string;
  Os: string;
  Config: { Labels?: Record<string, string> | null };
  RootFS: { Layers: string[] };
};

const LOAD_MILLISECONDS = 300_000;
const TAR_LAYER = 'application/vnd.oci.image.layer.v1.tar';
const CONFIG = 'application/vnd.oci.image.config.v1+json';
const MANIFEST = 'application/vnd.oci.image.manifest.v1+json';

const digestOf = (bytes: Buffer) => `sha256:${hash('sha256', bytes)}`;
const json = (value: unknown) => Buffer.from(JSON.stringify(value));

type CleanOrder = {
  /** Paths in `/` that the image is not to show. */
  hidden: readonly string[];
  /** Unix seconds. */
  now: number;
};

/**
 * Creates the call that makes an image of layers that the engine has, with these settings alone. A commit would keep the settings
 * of the container; an archive need not contain layers that the engine has.
 */
export function createCleanImage({ docker, ask, isPodman }: Engine) {
  return async function load(name: string, facts: ImageFacts, { hidden, now }: CleanOrder): Promise<void> {
    const file = (path: string, content: Buffer) => ({ name: path, content, mode: 0o644, owner: 0 });
    // A layer marks by this name that a file of those below is gone.
    const cover = pack(...hidden.map((path) => file(`.wh.${path.slice(1)}`, Buffer.alloc(0))));
    const diffIds = [...facts.RootFS.Layers, digestOf(cover)];
    const config = json({
      architecture: facts.Architecture,
      os: facts.Os,
      created: new Date(now * 1000).toISOString(),
      config: facts.Config,
      rootfs: { type: 'layers', diff_ids: diffIds },
    });
    const blob = (it: Buffer) => file(`blobs/sha256/${digestOf(it).slice(7)}`, it);
    const entries = (await isPodman()) ? forPodman() : forDocker();
    await send(pack(...entries));

    /** `docker save` writes this. The names of layers that the engine has are not looked up. */
    function forDocker() {
      const layers = facts.RootFS.Layers.map((_, at) => `${at}/layer.tar`);
      const manifest = json([{ Config: 'config.json', RepoTags: [name], Layers: [...layers, 'cover/layer.tar'] }]);
      return [file('config.json', config), file('cover/layer.tar', cover), file('manifest.json', manifest)];
    }

    /** The image layout of OCI. */
    function forPodman() {
      const layers = diffIds.map((digest) => ({ mediaType: TAR_LAYER, digest, size: cover.length }));
      const about = { mediaType: CONFIG, digest: digestOf(config), size: config.length };
      const manifest = json({ schemaVersion: 2, mediaType: MANIFEST, config: about, layers });
      const annotations = { 'org.opencontainers.image.ref.name': name };
      const own = { mediaType: MANIFEST, digest: digestOf(manifest), size: manifest.length, annotations };
      return [
        file('oci-layout', json({ imageLayoutVersion: '1.0.0' })),
        file('index.json', json({ schemaVersion: 2, manifests: [own] })),
        ...[cover, config, manifest].map(blob),
      ];
    }
  };

  async function send(archive: Buffer): Promise<void> {
    await ask(
      'load',
      async (abortSignal) => {
        const answer = await docker.loadImage(archive as never, { abortSignal });
        let failure: string | undefined;
        await new Promise<void>((resolve, reject) =>
          docker.modem.followProgress(
            answer,
            (error) => (error ? reject(error) : resolve()),
            // The status is 200 before anything was loaded; a later error is a line of the body.
            (line: { error?: string }) => {
              failure ??= line.error;
            },
          ),
        );
        // The engine has answered that there is no image.
        if (failure !== undefined) throw Object.assign(new Error(failure), { statusCode: 500 });
      },
      LOAD_MILLISECONDS,
    );
  }
}
