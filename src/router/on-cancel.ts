import type { RouterConfig } from '../config/router.ts';

/**
 * Returns the seconds for which a stream of an upstream continues after its last client has gone; undefined if it always
 * runs to its end.
 */
export function graceOf(
  { upstreams, on_cancel: standard, cancel_grace_seconds: seconds }: Omit<RouterConfig, 'models' | 'uncertain'>,
  upstream: string,
): number | undefined {
  const own = upstreams.find(({ name }) => name === upstream)?.on_cancel;
  return (own ?? standard) === 'stop' ? seconds : undefined;
}
