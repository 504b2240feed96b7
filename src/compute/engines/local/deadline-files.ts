import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** The deadline files of a backend's machines, one directory each. */
type DeadlineFiles = {
  directory(tag: string): string;
  write(tag: string, deadline: number): void;
  read(tag: string): number | undefined;
  remove(tag: string): void;
};

export function createDeadlineFiles(root: string): DeadlineFiles {
  const directory = (tag: string) => join(root, tag);
  const file = (tag: string) => join(directory(tag), 'deadline');
  return {
    directory,
    write(tag, deadline) {
      mkdirSync(directory(tag), { recursive: true });
      const fresh = `${file(tag)}.new`;
      writeFileSync(fresh, `${deadline}\n`, { flush: true });
      renameSync(fresh, file(tag));
    },
    read(tag) {
      try {
        return Number(readFileSync(file(tag), 'utf8'));
      } catch {
        return undefined;
      }
    },
    remove: (tag) => rmSync(directory(tag), { recursive: true, force: true }),
  };
}
