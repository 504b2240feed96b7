import type { Duplex, Readable } from 'node:stream';
import type { LineSession } from '../egress/line.ts';
import type { List } from '../egress/list.ts';
import type { EngineRoom } from './kit/capacity.ts';

/** The three slots of the interface, each a shape of spec. */
export const SLOTS = ['provider_one', 'provider_two', 'provider_three'] as const;
export type Slot = (typeof SLOTS)[number];

/** The spec of a lease, by its slot (design, section 7). */
export type SpecOne = { gpu: string | null; gpus: number; cpus: number; memory_gib: number; max_seconds: number };
export type SpecTwo = { chip: string; max_seconds: number };
export type SpecThree = { offer_id: string; disk_gb: number; max_seconds: number };
export type Spec = SpecOne | SpecTwo | SpecThree;

/** The price and the limits of one machine. */
export type MachineQuote = {
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
  /** The most that it has, where that is known. */
  size?: { cpus: number; memoryGib: number; gpus: number };
  /** The prices of one more CPU and one more GiB, for a spec with chosen sizes. */
  unitPrices?: { cpu: bigint; memoryGib: bigint };
  /** The runtime that its machines run under, by its engine's name for it, where the settings name one. */
  runtime?: string | undefined;
  priceHourly: bigint;
  minSeconds: number;
  maxSeconds: number;
  available: boolean;
};

/** A machine's id at its backend. */
export type Ref = string;

/** The outcome of a create: made, refused for certain (no machine exists), or unknown. */
export type Created =
  | { kind: 'created'; ref: Ref }
  /**
   * `reason` is Purser's own sentence, for the caller; `words` are the provider's, for the operator and the log only.
   */
  | {
      kind: 'refused';
      code: 'capacity_unavailable' | 'provider_unavailable' | 'offer_not_found' | 'lease_limit_exceeded';
      reason: string;
      words?: string;
    }
  | { kind: 'unknown'; reason: string };

/**
 * A machine as the backend sees it. An `ended` one, also one beyond its disk limit (`exceeded`), still has to be destroyed. `note`
 * explains to the operator why it does not run; `waitsFor` explains `provisioning` to the tenant, without internals.
 */
export type Machine = {
  ref: Ref;
  state: 'provisioning' | 'running' | 'ended';
  deadline?: number;
  note?: string | undefined;
  waitsFor?: string;
  exceeded?: 'disk';
};
/** A machine that carries this installation's tag. */
export type Owned = Machine & { tag: string; createdAt: number };

export type Extended = { kind: 'done' } | { kind: 'refused'; reason: string } | { kind: 'unknown'; reason: string };

export type ExecOrder = {
  command: string;
  timeoutSeconds: number;
  /** The most bytes kept of each stream; the rest is read and discarded. */
  streamBytesMax: number;
  budget?: OutputBudget | undefined;
};
/** Limits how much of a command's output is kept, in addition to `streamBytesMax`. */
export type OutputBudget = {
  /** Counts a piece. Returns false when it does not fit: the piece and the rest of its stream are discarded. */
  take(piece: Buffer): boolean;
  /** Aborted when the output is no longer wanted; what was kept of it is then released. */
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

/** A live session inside a machine, for the SSH gateway. */
export type GuestSession = {
  stdin: Duplex | NodeJS.WritableStream;
  stdout: Readable;
  /** Undefined with a terminal, which has one stream for both. */
  stderr: Readable | undefined;
  resize(columns: number, rows: number): void;
  /** The exit code, or the signal's name. */
  ended: Promise<{ code: number } | { signal: string }>;
  kill(): void;
};
export type SessionOrder = {
  /** The command; undefined starts a login shell. */
  command: string | undefined;
  terminal: { term: string; columns: number; rows: number } | undefined;
};

/** The result of one check: `detail` describes the finding, or the fault and its remedy. */
export type CheckFinding = { name: string; ok: boolean; detail: string };

/**
 * The use of a machine: since its start for processor and network, at present for memory and disk. A member that its engine does
 * not report is left out.
 */
export type Usage = {
  cpuSeconds?: number | undefined;
  /** The memory that it holds; where the engine reports it, without the part of its file cache that the kernel drops first. */
  memoryBytes?: number | undefined;
  /** The bytes on its disk that it wrote and has not removed, when they were last measured. */
  diskBytes?: number | undefined;
  /** Received and sent together, beside what it sent to itself. */
  networkBytes?: number | undefined;
  /** Of each GPU, in the order of the machine's own list. Only a command inside can read it. */
  gpus?: GpuUsage[] | undefined;
};
/** The use of a GPU at present. A member that its driver does not report is left out. */
export type GpuUsage = {
  /** The part of its last moments in which anything ran on it, 0 to 100. */
  utilizationPercent?: number | undefined;
  memoryBytes?: number | undefined;
};

/** The pause of machines. All of it may be repeated. */
export type Pausing = {
  /**
   * Stops all processes in a machine, has it end at `deadline` (Unix seconds), also without Purser, and takes its processors away.
   * `stopped` runs once all has stopped, before the rest. A result other than `done` may be partial: `end` undoes it.
   */
  begin(ref: Ref, deadline: number, stopped?: () => Promise<unknown>): Promise<Extended>;
  /** Takes the processors of a machine away that has the deadline of its pause already. */
  complete(ref: Ref): Promise<void>;
  /** Has a machine end at `deadline`, and then gives its processors back and continues what ran. `refused`: nothing was changed. */
  end(ref: Ref, deadline: number): Promise<Extended>;
  /** Takes the processors of a paused machine out of what is free, until `letGo`. Returns what is lacking, in words. */
  takeRoom(tag: string): Promise<string | undefined>;
  /** Counts a machine by its lease alone again: in full, or as paused. */
  letGo(tag: string): void;
};

/** The order of a snapshot. */
type SnapshotOrder = {
  ref: Ref;
  /** The name that the engine finds it by; it follows from the installation and the snapshot. */
  tag: string;
  /** True if processes run in the machine, false if they are paused. */
  isRunning: boolean;
  /** The most bytes that it may keep beyond the image of its template. */
  bytesMax: number;
};
/** The outcome of a snapshot. `refused`: there is none. */
export type Taken =
  | { kind: 'taken'; bytes: number }
  | {
      kind: 'refused';
      code: 'provider_unavailable' | 'capacity_unavailable' | 'lease_limit_exceeded';
      reason: string;
      words?: string;
    };

/** The snapshots of machines: their disks, kept by the engine. A call that throws proves nothing about its effect. */
export type Snapshots = {
  /** Nano-dollars for a GiB and a day; undefined where none are sold. */
  price: bigint | undefined;
  /** Returns the GiB that a snapshot of a machine of this spec takes at most. */
  gibMax(spec: Spec): number;
  /**
   * Keeps the disk of a machine, with the settings of its lease's image and without Purser's own files. Its processes stand still
   * during the copy, where the engine can do that without its watchdog.
   */
  take(order: SnapshotOrder): Promise<Taken>;
  /** Lets run what a take that broke off has stopped. Does nothing where nothing is stopped. */
  letRun(ref: Ref): Promise<void>;
  /**
   * Returns the bytes that a snapshot keeps beyond the image of its template, with those of the snapshot below; undefined when the
   * engine confirms that there is none.
   */
  find(tag: string): Promise<number | undefined>;
  /** Removes a snapshot, and what a take that broke off has left of it; succeeds if it is gone already. `find` confirms its absence. */
  remove(tag: string): Promise<void>;
  /** Lists every snapshot whose tag has this prefix, and what was left of one. Throws when the list would be partial. */
  list(prefix: string): Promise<{ tag: string; createdAt: number }[]>;
};

/** The calls into the machines of a backend. */
export type Guest = {
  exec(ref: Ref, order: ExecOrder): Promise<ExecResult>;
  /** Writes a file whole or not at all; parents are created. */
  upload(ref: Ref, path: string, content: Buffer): Promise<void>;
  session(ref: Ref, order: SessionOrder): Promise<GuestSession>;
  /**
   * Tries a running machine before it is paid for: a command, and the GPUs that were sold. Returns the fault, or undefined.
   * Reliable only until a tenant has been inside.
   */
  prove(ref: Ref): Promise<string | undefined>;
  /** Asks the engine what a machine uses. Without it, only a command inside can measure that. */
  usage?(ref: Ref): Promise<Usage>;
  /**
   * Returns the number of GPUs that a machine was sold with, as far as that is known without a call. May throw where the configuration
   * no longer has its offer. Without it, none are sold.
   */
  gpus?(ref: Ref, spec: Spec): number;
  /**
   * The path, inside every machine, of the program that `port.ts` runs as `PROGRAM relay PORT` (watchdog.c). Without it,
   * the tools of the image are used.
   */
  relay?: string;
  /** The way out of machines that have a list of what they reach. Without it, the backend's settings alone decide that. */
  egress?: {
    /** Returns what machines of this spec reach; nothing where they have no way out. Throws `offer_not_found`. */
    listOf(spec: Spec): List;
    /** Starts the program of the way out (watchdog/egress.h). It ends with its input. */
    begin(ref: Ref): Promise<LineSession>;
  };
  /** The pause of its machines, or why they have none. */
  pause?: Pausing | string;
  /** The snapshots of its machines, or why they have none. */
  snapshots?: Snapshots | string;
};

/** The examination of a backend by `doctor`. */
type Examination = {
  /** Checks everything that a lease depends on, without making one. Never throws. */
  check(): Promise<CheckFinding[]>;
  /** The cost of making a machine only to try the backend. One that costs money is not made. */
  trial: 'free' | 'costs_money';
  /**
   * Returns the limit or wall that a running machine lacks; undefined if none. Reliable only until a tenant has been inside. May
   * end the machine.
   */
  unlimited?(ref: Ref, quote: MachineQuote): Promise<string | undefined>;
  /** Describes what of a running machine's disk counts, for `doctor`. Throws where its limit does not hold. */
  tryDisk?(ref: Ref, quote: MachineQuote): Promise<string>;
};

/** The secrets that a machine uses without having them. */
export type SecretsOrder = {
  /** Variables, each with the placeholder of a secret. */
  variables: Readonly<Record<string, string>>;
  /** The certificate, in PEM, of the authority that the machine has to trust. */
  authority: string;
};

/**
 * The machines behind a slot (design, section 7). Every call has its own time limit and, unless its result says otherwise, throws
 * when the backend cannot be asked. An error proves nothing about the effect.
 */
export type Backend = {
  name: string;
  /**
   * Returns the identity of the engine that answers: it keeps its own, and no other has it. Undefined where it reports none;
   * without this call there is only one engine. Throws when the engine cannot be asked: then nothing is known.
   */
  identity?(): Promise<string | undefined>;
  /**
   * Lists the offers of this slot. An engine that does not report its free capacity within `waitMilliseconds` (2,000) has nothing
   * available.
   */
  offers(waitMilliseconds?: number): Promise<Offer[]>;
  /**
   * Returns the price and limits of this spec. Refuses with `offer_not_found` and `invalid_request`. Calls the provider only if
   * it has to.
   */
  quote(spec: Spec): Promise<MachineQuote>;
  /**
   * Returns how many more machines of this spec fit, as of a few seconds ago. Without this call, `offers` shows whether one does.
   */
  freeFor?(spec: Spec): Promise<number>;
  /**
   * Makes one machine with `tag` that ends by itself at `deadline` (Unix seconds). Machines of different wallets must not reach
   * each other; one without a wallet must not be reached by any. Of one for a trial the backend may keep more, to explain its end.
   * Secrets are given to machines with `guest.egress` alone.
   */
  create(order: {
    tag: string;
    quote: MachineQuote;
    deadline: number;
    walletId?: string;
    isTrial?: boolean;
    secrets?: SecretsOrder | undefined;
    /** The tag of the snapshot that it is made from, in place of the image of its offer. */
    snapshot?: string | undefined;
  }): Promise<Created>;
  /** Returns every machine with this tag, ended ones included. */
  find(tag: string): Promise<Machine[]>;
  /**
   * Returns the machine, or undefined when the backend confirms that there is none. Where a moved deadline needs a further call to
   * be in force, makes that call, unless the caller may `onlyLook`: it does not hold the lease's lock.
   */
  inspect(ref: Ref, options?: { onlyLook?: boolean }): Promise<Machine | undefined>;
  /** Sets the backend's own deadline. */
  extend(ref: Ref, deadline: number): Promise<Extended>;
  /** Ends and removes a machine in any state; succeeds if it is gone already. `inspect` confirms its absence. */
  destroy(ref: Ref): Promise<void>;
  /** Lists everything that carries a tag with this prefix. Throws when the list would be partial. */
  listOwned(prefix: string): Promise<Owned[]>;
  /** The calls into its machines. An engine starts programs; `createGuest` makes the rest from that. */
  guest: Guest;
  /**
   * Machines of the same users as this installation's that do not carry its tag. They are only reported, unless there
   * is an `end`. `list` throws when the list would be partial.
   */
  strangers?: { list(prefix: string): Promise<Owned[]>; end?: (ref: Ref) => Promise<void> };
  /**
   * The part of the backend that a machine depends on, where parts fail and return one by one: the host of a pool. Undefined
   * where it is the whole backend.
   */
  partOf?(ref: Ref): string | undefined;
  /** The proof that a create left nothing behind: this number of empty lists, this many seconds apart. */
  absence: { lists: number; apartSeconds: number };
  /** Names the settings that this machine still needs and the configuration no longer has, as sentences. Calls no provider. */
  misses?(machine: { tag: string; ref: Ref | null }): string | undefined;
  /** The calls that only `doctor` makes. */
  doctor: Examination;
  close(): Promise<void>;
};

/**
 * Returns the prefix of all tags of an installation, so that no other installation's machine is ever touched.
 */
export const tagPrefix = (installationId: string) => `purser-${installationId.replace('_', '-')}-`;
/** Returns the tag of a resource's machine. */
export const tagOf = (installationId: string, resourceId: string) =>
  tagPrefix(installationId) + resourceId.replace('_', '-');
/** Returns the id of the resource that a tag with this prefix names. */
export const resourceIdOf = (prefix: string, tag: string) => tag.slice(prefix.length).replace('-', '_');

/** The surroundings that a backend is opened with, beside its settings. */
export type Surroundings = {
  dataDirectory: string;
  /** The directory for a backend's own records of its machines, above all their deadlines. */
  leases: string;
  /** The prefix of this installation's tags. */
  prefix: string;
  /** Unix seconds. */
  now: () => number;
  /** Returns whether the lease with this tag is paused. Without it, none is. */
  isPaused?: ((tag: string) => boolean) | undefined;
  /** Returns whether the machine with this tag is a warm one: it takes room, and gives way to a lease. Without it, none is. */
  isWarm?: ((tag: string) => boolean) | undefined;
  /** The reservations on engines, by their addresses, of all backends of a server. Without it, each backend has its own. */
  rooms?: Map<string, EngineRoom> | undefined;
};
