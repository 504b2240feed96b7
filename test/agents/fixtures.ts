import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Exchange } from './recorder.ts';

const DIRECTORY = join(import.meta.dirname, 'fixtures');

/** A request that an agent has sent, with its texts cut short. */
export type Recorded = { path: string; body: Record<string, any> };

export const readFixtures = (): { program: string; requests: Recorded[] }[] =>
  readdirSync(DIRECTORY).map((name) => ({
    program: name.replace('.json', ''),
    requests: JSON.parse(readFileSync(join(DIRECTORY, name), 'utf8')),
  }));

const TEXT_LENGTH_MAX = 80;
const RESULT_LENGTH_MAX = 300;
/** What is written for what the note said. */
const NOTE = 'note-1';
/** Of each kind of tool the first ones are kept. */
const TOOL_COUNT_MAX = 4;

/**
 * Writes down what an agent has asked: the first request of the task, and the last one, which has both results. Texts are cut, so
 * that neither the vendor's prompts nor anything of this machine is kept.
 */
export function record(program: string, exchanges: readonly Exchange[], directory: string, note: string): void {
  const asked = exchanges
    .filter(({ method, status, body }) => method === 'POST' && status === 200 && body.includes('"tools"'))
    .map(
      ({ path, body }): Recorded => ({
        path,
        body: JSON.parse(body.replaceAll(directory, '/project').replaceAll(note, NOTE)),
      }),
    );
  const requests = [asked.at(0), asked.at(-1)].map((it) => it && { path: it.path, body: shorten(it.body) });
  writeFileSync(join(DIRECTORY, `${program}.json`), `${JSON.stringify(requests, null, 2)}\n`);
}

const ID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32,}/g;

function shorten(value: any, name = ''): any {
  if (name === 'arguments') return value; // It has to stay JSON.
  if (typeof value === 'string') {
    const length = value.includes(NOTE) ? RESULT_LENGTH_MAX : TEXT_LENGTH_MAX;
    return value.replace(ID, '0').slice(0, length);
  }
  if (Array.isArray(value)) {
    const seen = new Map<string, number>();
    const kept = value.filter((it) => {
      if (name !== 'tools') return true;
      const count = (seen.get(it.type) ?? 0) + 1;
      seen.set(it.type, count);
      return count <= TOOL_COUNT_MAX;
    });
    return kept.map((it) => shorten(it));
  }
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([key, it]) => [key, shorten(it, key)]));
}
