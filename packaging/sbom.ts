import { readFileSync } from 'node:fs';
import Database from 'better-sqlite3';
import type { Notice } from '../src/files/bundle.ts';

type Locked = { version: string; integrity?: string; dependencies?: Record<string, string> };
type Part = Omit<Notice, 'text'>;

/** Where vulnerability lists keep what is no package of npm. */
const OTHERS: Readonly<Record<string, { name: string; type: string; cpe: string }>> = {
  'Node.js': { name: 'node', type: 'platform', cpe: 'nodejs:node.js' },
  SQLite: { name: 'sqlite', type: 'library', cpe: 'sqlite:sqlite' },
};

/**
 * Returns the bill of materials in CycloneDX 1.5 of an executable whose notices are `parts`: what is inside it, with Node and SQLite,
 * and nothing that only builds or tests it.
 */
export function billOfMaterials(parts: readonly Part[], from: { seconds: number; revision: string }): object {
  const own = JSON.parse(readFileSync('package.json', 'utf8'));
  const lock: Record<string, Locked> = JSON.parse(readFileSync('package-lock.json', 'utf8')).packages;
  const locked = new Map(
    Object.entries(lock).map(([folder, it]) => [`${folder.split('node_modules/').at(-1)}@${it.version}`, it]),
  );
  const sqlite = String(new Database(':memory:').prepare('select sqlite_version()').pluck().get());
  const root = `pkg:npm/${own.name}@${own.version}`;
  const components = new Map(
    parts
      .filter(({ name }) => name !== own.name)
      .map(({ name, version: told, license }) => {
        const other = OTHERS[name];
        const version = told || sqlite;
        const purl = other ? `pkg:generic/${other.name}@${version}` : `pkg:npm/${name.replace('@', '%40')}@${version}`;
        const { integrity } = locked.get(`${name}@${version}`) ?? {};
        const component = {
          type: other?.type ?? 'library',
          'bom-ref': purl,
          name: other?.name ?? name,
          version,
          purl,
          ...(other ? { cpe: `cpe:2.3:a:${other.cpe}:${version}:*:*:*:*:*:*:*` } : {}),
          licenses: [/ and /.test(license) ? { license: { name: license } } : { expression: license }],
          ...(integrity ? { hashes: [hashOf(integrity)] } : {}),
        };
        return [purl, component] as const;
      }),
  );
  const refs = new Map([...components.values()].map((it) => [it.name, it['bom-ref']]));
  const inside = (names: readonly string[]) => names.map((it) => refs.get(it)).filter((it) => it !== undefined);
  return {
    bomFormat: 'CycloneDX',
    specVersion: '1.5',
    version: 1,
    metadata: {
      timestamp: new Date(from.seconds * 1000).toISOString(),
      component: {
        type: 'application',
        'bom-ref': root,
        name: own.name,
        version: own.version,
        purl: root,
        licenses: [{ expression: own.license }],
        properties: [{ name: 'purser:revision', value: from.revision }],
      },
    },
    components: [...components.values()],
    dependencies: [
      { ref: root, dependsOn: inside(['node', 'sqlite', ...Object.keys(own.dependencies)]) },
      ...[...components.values()].map(({ name, version, 'bom-ref': ref }) => ({
        ref,
        dependsOn: inside(Object.keys(locked.get(`${name}@${version}`)?.dependencies ?? {})),
      })),
    ],
  };
}

/** The sum that the lock file has, as CycloneDX writes it. */
function hashOf(integrity: string): { alg: string; content: string } {
  const [name = '', base64 = ''] = integrity.split('-');
  return { alg: name.toUpperCase().replace('SHA', 'SHA-'), content: Buffer.from(base64, 'base64').toString('hex') };
}
