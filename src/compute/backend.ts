import type { Duplex, Readable } from 'node:stream';

/** The three slots of the interface, each a shape of spec. */
export const SLOTS = ['provider_one', 'provider_two', 'provider_three'] as const;
export type Slot = (typeof SLOTS)[number];

/** The spec of a lease, by its slot (design, section 7). */
export type SpecOne = { gpu: string | null; gpus: number; cpus: number; memory_gib: number; max_seconds: number };
export type SpecTwo = { chip: string; max_seconds: number };
export type SpecThree = { offer_id: string; disk_gb: number; max_seconds: number };
export type Spec = SpecOne | SpecTwo | SpecThree;

/** What one machine costs and may do. `backendSpec` is the backend's own: what `create` needs beside the spec. */
export type Quote = {
  spec: Spec;
  /** Nano-dollars per hour, for the whole machine. */
  priceHourly: bigint;
  /** The longest a lease may last in all, extensions included. */
  maxSeconds: number;
  /** Unix seconds after which the provider itself ends the machine, if there is such a date. */
  endsBy?: number;
};

export type Offer = {
  offerId: string | null;
  description: string;
  spec: Spec;
  priceHourly: bigint;
  minSeconds: number;
  maxSeconds: number;
  available: boolean;
};

/** The backend's own reference of a machine. */
export type Ref = string;

/** Three outcomes, always: made, a clear no, or nobody knows. */
export type Created =
  | { kind: 'created'; ref: Ref }
  /** `reason` is our own sentence, for the caller; `words` are what the engine said, for the operator and the log alone. */
  | {
      kind: 'refused';
      code: 'capacity_unavailable' | 'provider_unavailable' | 'offer_not_found';
      reason: string;
      words?: string;
    }
  | { kind: 'unknown'; reason: string };

/** A machine as the backend sees it. `ended` still has to be destroyed; `note` says for people why it does not run. */
export type Machine = {
  ref: Ref;
  state: 'provisioning' | 'running' | 'ended';
  deadline?: number;
  note?: string | undefined;
};
/** One that carries this installation's tag. */
export type Owned = Machine & { tag: string; createdAt: number };

export type Extended = { kind: 'done' } | { kind: 'refused'; reason: string } | { kind: 'unknown'; reason: string };

export type ExecOrder = {
  command: string;
  timeoutSeconds: number;
  /** Each stream is cut at so many bytes; what follows is read and thrown away. */
  streamBytesMax: number;
  budget?: OutputBudget | undefined;
};
/** Bounds what is kept of a command's output beside `streamBytesMax`. */
export type OutputBudget = {
  /** Counts a piece. False where there is no room for it: it is thrown away, and so is the rest of its stream. */
  take(piece: Buffer): boolean;
  /** Aborted when nobody waits for the output any more: what was kept of it is let go. */
  unwanted: AbortSignal;
};
export type ExecResult = {
  exitCode: number;
  stdout: Buffer;
  stderr: Buffer;
  stdoutTruncated: boolean;
  stderrTruncated: boolean;
  timedOut: boolean;
};

/** One live session inside a machine, for the SSH gateway. */
export type Session = {
  stdin: Duplex | NodeJS.WritableStream;
  stdout: Readable;
  /** Undefined with a terminal: there the two are one. */
  stderr: Readable | undefined;
  resize(columns: number, rows: number): void;
  /** The exit code, or the signal's name. */
  ended: Promise<{ code: number } | { signal: string }>;
  kill(): void;
};
export type SessionOrder = {
  /** Undefined is a login shell. */
  command: string | undefined;
  terminal: { term: string; columns: number; rows: number } | undefined;
};

/** One thing that was looked at: `detail` says what is so, or what is wrong and what to do about it. */
export type Finding = { name: string; ok: boolean; detail: string };

/**
 * What drives something real behind a slot (design, section 7). Every call has a time limit of its own and, unless its
 * result says otherwise, throws when the backend cannot be asked; whoever throws has promised nothing.
 */
export type Backend = {
  name: string;
  /** What `GET /v1/compute/offers` says of this slot. */
  offers(): Promise<Offer[]>;
  /** What this spec costs and may do. Refuses with `offer_not_found` and `invalid_request`. Asks nobody outside where it can. */
  quote(spec: Spec): Promise<Quote>;
  /** Makes one machine that carries `tag` and ends by itself at `deadline` (Unix seconds). */
  create(order: { tag: string; quote: Quote; deadline: number }): Promise<Created>;
  /** Every machine with this tag, ended ones included. */
  find(tag: string): Promise<Machine[]>;
  /** The machine, or undefined when the backend confirms that there is none. */
  inspect(ref: Ref): Promise<Machine | undefined>;
  /** Sets the backend's own deadline. */
  extend(ref: Ref, deadline: number): Promise<Extended>;
  /** Ends and removes a machine, whatever its state; one that is gone is done. Absence is confirmed by `inspect`. */
  destroy(ref: Ref): Promise<void>;
  /** Everything that carries a tag with this prefix. Throws when the list would be partial. */
  listOwned(prefix: string): Promise<Owned[]>;
  exec(ref: Ref, order: ExecOrder): Promise<ExecResult>;
  /** Writes a file whole or not at all; parents are created. */
  upload(ref: Ref, path: string, content: Buffer): Promise<void>;
  session(ref: Ref, order: SessionOrder): Promise<Session>;
  /**
   * What runs as the same users as this installation's machines and does not carry its tag: only shown, unless there is
   * `end`. `list` throws when the list would be partial.
   */
  strangers?: { list(prefix: string): Promise<Owned[]>; end?: (ref: Ref) => Promise<void> };
  /** So many empty lists, so many seconds apart, prove that a create left nothing behind. */
  absence: { lists: number; apartSeconds: number };
  /** What of the configuration this machine needs and no longer has, in words. Asks nobody. */
  misses?(machine: { tag: string; ref: Ref | null }): string | undefined;
  /** Looks at everything that has to be so for a lease, and makes none. Never throws. */
  check?(): Promise<Finding[]>;
  /**
   * In words, which limit of a machine that runs is not set inside it; undefined where all are. To be believed only while
   * no tenant has been in it.
   */
  unlimited?(ref: Ref, quote: Quote): Promise<string | undefined>;
  /** Whether a machine may be made only to try it. */
  trial?: 'free' | 'costs_money';
  close(): Promise<void>;
};

/** The tag of a resource's machine: it names the installation, so that no other's is ever touched. */
export const tagPrefix = (installationId: string) => `purser-${installationId.replace('_', '-')}-`;
export const tagOf = (installationId: string, resourceId: string) =>
  tagPrefix(installationId) + resourceId.replace('_', '-');
export const resourceIdOf = (prefix: string, tag: string) => tag.slice(prefix.length).replace('-', '_');

/** What a backend is opened with, beside its settings. */
export type Surroundings = {
  /** The directory for what a backend keeps of its machines, above all their deadlines. */
  leases: string;
  /** How the tags of this installation begin. */
  prefix: string;
  /** Unix seconds. */
  now: () => number;
  /** The provider's key, where the settings have one. */
  key: string | undefined;
};
