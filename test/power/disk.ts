import { dirname } from 'node:path';
import type { Step } from './trace.ts';

/** A change of a file that may or may not be on the disk: its bytes at an offset, or its length. */
type Change = { seq: number } & ({ offset: number; bytes: Buffer } | { length: number });
type File = { synced: Buffer; pending: Change[] };
type NameChange = { seq: number; from?: string; to?: string; file?: File };
type Open = { path: string; file: File | undefined; appends: boolean; position: number };

/** What of the changes that were not synced has reached the disk by the power cut. */
export type Luck = 'none' | 'some' | 'all';
/** The files of a data directory, by their path. */
export type Image = Map<string, Buffer>;

const SECTOR_BYTES = 512;

/**
 * A disk that promises only what POSIX does: the bytes of a file are there when it was synced, its name when its directory
 * was. Everything else may be there or not, each change for itself, and a write may be there in part.
 */
export class Disk {
  #names = new Map<string, File>();
  #pendingNames: NameChange[] = [];
  /** As the running system sees it. */
  #live = new Map<string, File>();
  #open = new Map<number, Open>();
  /** By who syncs what: the newest change that this sync is sure of. */
  #syncing = new Map<string, number>();
  #seq = 0;
  readonly #directory: string;

  constructor(directory: string, image: Image) {
    this.#directory = directory;
    for (const [path, bytes] of image) {
      const file = { synced: bytes, pending: [] };
      this.#names.set(path, file);
      this.#live.set(path, file);
    }
  }

  take(step: Step): void {
    switch (step.kind) {
      case 'open':
        this.#openFile(step);
        break;
      case 'close':
        this.#open.delete(step.fd);
        break;
      case 'write':
        this.#write(step);
        break;
      case 'truncate':
        this.#open.get(step.fd)?.file?.pending.push({ seq: this.#seq++, length: step.length });
        break;
      case 'sync-begins':
        this.#syncing.set(`${step.by} ${step.fd}`, this.#seq);
        break;
      case 'sync-ends':
        this.#sync(step.fd, step.by);
        break;
      case 'rename': {
        const { from, to } = step;
        const file = this.#live.get(from);
        if (!file) break;
        this.#live.delete(from);
        this.#live.set(to, file);
        this.#pendingNames.push({ seq: this.#seq++, from, to, file });
        break;
      }
      case 'link': {
        const file = this.#live.get(step.from);
        if (!file) break;
        this.#live.set(step.to, file);
        this.#pendingNames.push({ seq: this.#seq++, to: step.to, file });
        break;
      }
      case 'copy':
        this.#copy(step);
        break;
      case 'unlink':
        if (this.#live.delete(step.path)) this.#pendingNames.push({ seq: this.#seq++, from: step.path });
    }
  }

  #write({ fd, offset, bytes }: Step & { kind: 'write' }): void {
    const open = this.#open.get(fd);
    if (!open?.file) return; // A socket, or somebody else's file.
    const at = offset ?? (open.appends ? lengthOf(open.file) : open.position);
    open.file.pending.push({ seq: this.#seq++, offset: at, bytes });
    if (offset === undefined) open.position = at + bytes.length;
  }

  #copy({ from, offset, to, length }: Step & { kind: 'copy' }): void {
    const source = this.#open.get(from);
    if (!source?.file) throw new Error('a copy of a file that is not on this disk');
    const at = offset ?? source.position;
    if (offset === undefined) source.position += length;
    const bytes = withChanges(source.file.synced, source.file.pending).subarray(at, at + length);
    this.#write({ kind: 'write', fd: to, offset: undefined, bytes });
  }

  #openFile({ fd, path, creates, truncates, appends }: Step & { kind: 'open' }): void {
    this.#open.delete(fd);
    if (path !== this.#directory && !path.startsWith(`${this.#directory}/`)) return;
    let file = this.#live.get(path);
    if (!file && creates) {
      file = { synced: Buffer.alloc(0), pending: [] };
      this.#live.set(path, file);
      this.#pendingNames.push({ seq: this.#seq++, to: path, file });
    }
    if (file && truncates) file.pending.push({ seq: this.#seq++, length: 0 });
    this.#open.set(fd, { path, file, appends, position: 0 }); // Without a file it is a directory.
  }

  #sync(fd: number, by: number): void {
    const open = this.#open.get(fd);
    const before = this.#syncing.get(`${by} ${fd}`) ?? 0;
    this.#syncing.delete(`${by} ${fd}`);
    if (open?.file) {
      const { file } = open;
      const isSure = (it: Change) => it.seq < before;
      file.synced = withChanges(file.synced, file.pending.filter(isSure));
      file.pending = file.pending.filter((it) => !isSure(it));
    } else if (open) {
      const isSure = (it: NameChange) => it.seq < before && dirname(it.to ?? (it.from as string)) === open.path;
      rename(this.#names, this.#pendingNames.filter(isSure));
      this.#pendingNames = this.#pendingNames.filter((it) => !isSure(it));
    }
  }

  /** What is found after a power cut at this moment. */
  cut(luck: Luck, random: () => number): Image {
    const isKept = () => luck === 'all' || (luck === 'some' && random() < 0.5);
    const names = new Map(this.#names);
    rename(names, this.#pendingNames.filter(isKept));
    const image: Image = new Map();
    for (const [path, file] of names) {
      const kept = file.pending.filter(isKept).map((it) => (luck === 'some' ? torn(it, random) : it));
      image.set(path, withChanges(file.synced, kept));
    }
    return image;
  }
}

function rename(names: Map<string, File>, changes: readonly NameChange[]): void {
  for (const { from, to, file } of changes) {
    if (from !== undefined) names.delete(from);
    if (to !== undefined && file) names.set(to, file);
  }
}

function lengthOf({ synced, pending }: File): number {
  return pending.reduce(
    (length, it) => ('length' in it ? it.length : Math.max(length, it.offset + it.bytes.length)),
    synced.length,
  );
}

/** One in four writes reaches the disk up to some sector only. */
function torn(change: Change, random: () => number): Change {
  if ('length' in change || random() < 0.75) return change;
  const sectors = Math.floor((change.bytes.length / SECTOR_BYTES) * random());
  return { ...change, bytes: change.bytes.subarray(0, sectors * SECTOR_BYTES) };
}

function withChanges(before: Buffer, changes: readonly Change[]): Buffer {
  if (!changes.length) return before;
  const max = Math.max(
    before.length,
    ...changes.map((it) => ('length' in it ? it.length : it.offset + it.bytes.length)),
  );
  const bytes = Buffer.alloc(max);
  before.copy(bytes);
  let { length } = before;
  for (const it of changes) {
    if ('length' in it) {
      bytes.fill(0, Math.min(it.length, length), length);
      length = it.length;
    } else {
      it.bytes.copy(bytes, it.offset);
      length = Math.max(length, it.offset + it.bytes.length);
    }
  }
  return bytes.subarray(0, length);
}
