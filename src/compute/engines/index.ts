/**
 * The backends that purser.yaml may name, by their folders. A settings.ts exports `slots` (the schema for each slot), `notes` (on
 * given settings, for the operator) and `open`, which alone loads the backend's code: commands and idle starts stay quick.
 */
export * as container from './container/settings.ts';
export * as kubernetes from './kubernetes/settings.ts';
export * as lxd from './lxd/settings.ts';
export * as slurm from './slurm/settings.ts';
export * as ssh from './ssh/settings.ts';
export * as vast from './vast/settings.ts';
