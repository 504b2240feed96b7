/**
 * The user that the watchdog runs as. No other process inside has it, so no tenant can signal the watchdog, trace it or open its
 * memory: without capabilities even root may do that to its own processes only (kill(2), ptrace(2)).
 */
export const WATCHDOG_USER = 63541;
