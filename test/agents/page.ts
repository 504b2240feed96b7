import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const DOCS = join(import.meta.dirname, '../../docs');

/** The settings of one agent: files with their paths, and shell commands, of which the last starts the agent. */
export type Settings = { files: { path: string; text: string }[]; script: string };

/** Reads the settings that docs/mcp.md prints for the agent whose name is the first bold words of a paragraph. */
export function settingsOf(title: string): Settings {
  const text = readFileSync(join(DOCS, 'mcp.md'), 'utf8');
  const part = text.split(/^(?=## |\*\*)/m).find((it) => it.startsWith(`**${title}**`));
  assert(part, `mcp.md speaks of ${title}`);
  const settings: Settings = { files: [], script: '' };
  let path: string | undefined;
  for (const [, named, language, block] of part.matchAll(
    /`([~\w./-]+\.(?:json|toml|yaml))`|^```(\w+)\n([\s\S]*?)^```$/gm,
  ))
    if (named) path = named;
    else if (language === 'sh') settings.script += block;
    else {
      assert(path, `${title}: the page names the file before it prints it`);
      settings.files.push({ path, text: block as string });
    }
  return settings;
}

/** Puts together the settings of an agent and of a server of its tools. What starts the agent comes last. */
export function together(agent: Settings, server: Settings): Settings {
  const files = new Map(agent.files.map(({ path, text }) => [path, text]));
  for (const { path, text } of server.files) {
    const before = files.get(path) ?? '';
    const isJson = before !== '' && path.endsWith('.json');
    files.set(path, isJson ? JSON.stringify({ ...JSON.parse(before), ...JSON.parse(text) }) : before + text);
  }
  return { files: [...files].map(([path, text]) => ({ path, text })), script: server.script + agent.script };
}
