import { readFileSync } from 'node:fs';

/** Returns the unit of docs/purser.service for what the package installs: its paths, and no word on how to install it. */
export function unitText(): string {
  const text = readFileSync('docs/purser.service', 'utf8');
  return text
    .slice(text.indexOf('[Unit]'))
    .replaceAll('/usr/local/bin/purser', '/usr/bin/purser')
    .replace(/^(Environment=PURSER_DATA=.*)$/m, '$1\nEnvironment=PURSER_CONFIG=/etc/purser/purser.yaml');
}
