/** The client of a Purser wallet. Money is an exact string of US dollars, as "4.83". */
export declare const version: string;

export type WalletOptions = {
  /** Instead of SVC_BROKER_URL. */
  url?: string;
  /** Instead of SVC_BROKER_TOKEN. */
  token?: string;
  /** Seconds for which a call is repeated while its outcome is not known (600). */
  patience?: number;
};
export declare function wallet(options?: WalletOptions): Wallet;

export declare class PurserError extends Error {
  readonly code: string;
  readonly status: number;
  readonly requestId: string | undefined;
  readonly retryAfter: number | undefined;
  readonly key: string | undefined;
}
export declare class InsufficientFunds extends PurserError {}
export declare class FundsHeld extends InsufficientFunds {}
export declare class OperationUncertain extends PurserError {}
export declare class ConnectionLost extends PurserError {}

export type Budget = {
  wallet_id: string;
  status: string;
  budget_usd: string;
  used_usd: string;
  held_usd: string;
  delegated_usd: string;
  available_usd: string;
  frozen_at: number | null;
  expires_at: number | null;
  holds: {
    id: string;
    kind: string;
    amount_usd: string;
    state: string;
    resource_id: string | null;
    created_at: number;
  }[];
};
export type Offer = {
  provider: string;
  offer_id: string | null;
  description: string;
  spec: Record<string, unknown>;
  size?: { cpus: number; memory_gib: number; gpus: number };
  unit_prices?: { cpu_hourly_usd: string; memory_gib_hourly_usd: string };
  price_hourly_usd: string;
  min_seconds: number;
  max_seconds: number;
  supports_extension: boolean;
  available: boolean;
};
export type Model = { id: string; [member: string]: unknown };
export type Rent = {
  cpus?: number;
  memoryGib?: number;
  minutes?: number;
  gpu?: string;
  gpus?: number;
  diskGb?: number;
  provider?: 'provider_one' | 'provider_two' | 'provider_three';
  /** Seconds for which it waits for the machine (900). */
  waitSeconds?: number;
  /** The id of a snapshot whose disk it gets. */
  snapshot?: string;
};

export declare class Wallet implements AsyncDisposable {
  readonly id: string | undefined;
  readonly available: Promise<string>;
  budget(): Promise<Budget>;
  offers(): Promise<Offer[]>;
  models(): Promise<Model[]>;
  machines(): Promise<Machine[]>;
  machine(id: string): Promise<Machine>;
  snapshots(): Promise<Record<string, unknown>[]>;
  deleteSnapshot(id: string): Promise<Record<string, unknown>>;
  rent(options?: Rent): Promise<Machine>;
  rent<T>(options: Rent, block: (machine: Machine) => Promise<T> | T): Promise<T>;
  delegate(name: string, options: { usd: string; minutes?: number }): Promise<Wallet>;
  delegate<T>(
    name: string,
    options: { usd: string; minutes?: number },
    block: (wallet: Wallet) => Promise<T> | T,
  ): Promise<T>;
  env(options?: { models?: string[]; maxPriceUsd?: string }): Promise<Record<string, string>>;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export type Result = { exitCode: number; stdout: string; stderr: string; timedOut: boolean; truncated: boolean };
export type Place = { cwd?: string; env?: Record<string, string> };
export type Run = Place & {
  stream?: boolean;
  onStdout?: (text: string) => unknown;
  onStderr?: (text: string) => unknown;
  stdin?: string | Uint8Array;
  /** Seconds after which it is killed (300). */
  timeout?: number;
};

export declare class Machine implements AsyncDisposable {
  readonly id: string;
  readonly status: string;
  readonly expiresAt: number;
  readonly data: Record<string, unknown>;
  refresh(): Promise<Machine>;
  stop(): Promise<void>;
  extend(minutes: number): Promise<Machine>;
  keep(options?: { maxMinutes?: number; stepMinutes?: number }): Promise<Machine>;
  pause(): Promise<Machine>;
  resume(): Promise<Machine>;
  snapshot(): Promise<string>;
  run(command: string, options?: Run): Promise<Result>;
  start(command: string, options?: Place): Promise<Process>;
  port(port: number): Promise<{ url: string; expiresAt: number }>;
  copy(local: string, remote: string): Promise<void>;
  fetch(remote: string, local: string): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export declare class Process {
  readonly id: string;
  readonly data: Record<string, unknown>;
  exitCode(): Promise<number | null>;
  log(offset?: number): Promise<string>;
  kill(): Promise<void>;
}
