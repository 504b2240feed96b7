// Collects the notices of everything that build.mjs puts into the executable: `purser licenses` prints them.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const TEXT = /^(licen[cs]e|copying|notice)([-.][\w.-]*)?$/i;

const apache = () => readFileSync('node_modules/dockerode/LICENSE', 'utf8'); // The standard text.
const isc = (holder) => `ISC License

Copyright (c) ${holder}

Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted, provided
that the above copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED
WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR
CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT,
NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.
`;

/** The packages that ship no text of their licence: what they are under by their package.json, and its standard text. */
const WITHOUT_TEXT = {
  'drizzle-orm': { license: 'Apache-2.0', text: apache },
  'split-ca': { license: 'ISC', text: () => isc('Charles Bushong') },
};

const SQLITE = {
  name: 'SQLite',
  version: '',
  license: 'blessing',
  text: 'SQLite is in the public domain (https://sqlite.org/copyright.html). It is part of better-sqlite3.\n',
};

/** Returns the folders of the packages of which something is in the bundles that esbuild's metafiles describe. */
export function packagesOf(metafiles) {
  const inputs = metafiles.flatMap(({ outputs }) =>
    Object.values(outputs).flatMap((output) => Object.entries(output.inputs)),
  );
  const folders = inputs
    .filter(([, { bytesInOutput }]) => bytesInOutput > 0)
    .map(([input]) => /^(?:.*:)?(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(input)?.[1]);
  return [...new Set(folders.filter(Boolean))];
}

/** Returns name, version, licence and texts of the package in a folder. Throws when it has no text, and is not in the table above. */
export function noticeOf(folder) {
  const { name, version, license, licenses } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
  const files = readdirSync(folder)
    .filter((file) => TEXT.test(file))
    .sort();
  const isTold = files.some((file) => !/^notice/i.test(file));
  const standard = isTold ? undefined : WITHOUT_TEXT[name];
  if (!isTold && standard?.license !== license)
    throw new Error(`${folder} (${license}) has no text of its licence: look for it, and add it to WITHOUT_TEXT`);
  const texts = files.map((file) => readFileSync(join(folder, file), 'utf8').replaceAll('\r\n', '\n'));
  const text = [...(standard ? [standard.text()] : []), ...texts].map((it) => it.trim()).join('\n\n');
  return { name, version, license: license ?? licenses?.[0]?.type ?? 'see its text', text: `${text}\n` };
}

/** Returns the notice of the runtime: its file has those of V8, OpenSSL, ICU and the others that are part of Node. */
function noticeOfRuntime(runtime) {
  const file = join(dirname(dirname(runtime)), 'LICENSE');
  if (!existsSync(file)) throw new Error(`${runtime} has no LICENSE beside it`);
  return {
    name: 'Node.js',
    version: process.versions.node,
    license: 'MIT and others',
    text: readFileSync(file, 'utf8'),
  };
}

/** The package of the native addon, of which nothing is in a bundle. */
const ADDON = 'node_modules/better-sqlite3';

const mit = (holder) => `(The MIT License)

Copyright (c) ${holder}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the
'Software'), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge,
publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so,
subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED 'AS IS', WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE
FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION
WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`;

/** What packages have bundled themselves: here the SDK of MCP. Its package need not be installed, so its text stands here. */
const BUNDLED_BEFORE = [
  { name: 'content-type', version: '1.0.5', license: 'MIT', text: mit('2015 Douglas Christopher Wilson') },
];

/** Returns the notices of everything inside: Purser, the runtime, SQLite, its addon, and each package that was bundled. */
export function collectNotices(metafiles, runtime) {
  const { name, version, license } = JSON.parse(readFileSync('package.json', 'utf8'));
  const own = { name, version, license, text: readFileSync('LICENSE', 'utf8') };
  const packages = [...[...new Set([...packagesOf(metafiles), ADDON])].map(noticeOf), ...BUNDLED_BEFORE];
  const byName = (a, b) => (`${a.name} ${a.version}` < `${b.name} ${b.version}` ? -1 : 1);
  return [own, noticeOfRuntime(runtime), SQLITE, ...packages.sort(byName)];
}
