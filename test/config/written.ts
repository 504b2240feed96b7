import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { type Flags, readConfig } from '../../src/config/config.ts';
import { ConfigurationFault } from '../../src/config/fault.ts';
import { temporaryDirectory } from '../ledger/books.ts';

export type Environment = Record<string, string>;

/** Creates a data directory, with `yaml` as its purser.yaml if that is given. */
export function write(t: TestContext, yaml?: string) {
  const directory = temporaryDirectory(t);
  const file = join(directory, 'purser.yaml');
  if (yaml !== undefined) writeFileSync(file, yaml);
  const read = (env: Environment = {}, flags: Flags = {}) => readConfig({ data: directory, ...flags }, env);
  /** Returns every fault, without the file's name. */
  function faults(env: Environment = {}): string[] {
    try {
      read(env);
    } catch (error) {
      assert(error instanceof ConfigurationFault, String(error));
      return error.faults.map((it) => it.replace(`${file}:`, 'yaml:'));
    }
    return [];
  }
  return { directory, file, read, faults };
}

/** One upstream and one model, of which `lines` are part. */
export const model = (...lines: string[]) => `router:
  upstreams:
    - { name: purser, base_url: http://127.0.0.1:8000/v1, api_key: sk-purser }
  models:
    - id: chat
      upstream: purser
      context_length: 100
      max_output_tokens: 10
${lines.map((line) => `      ${line}\n`).join('')}`;
