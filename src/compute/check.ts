import { inTime } from '../net/deadline.ts';
import type { Backend, CheckFinding } from './backend.ts';

/** The time limit for a backend that does not keep its own. */
const CHECK_MILLISECONDS = 120_000;

/** Checks what a backend depends on, as far as this process can reach it. Never throws. */
export function checkBackend(backend: Backend): Promise<CheckFinding[]> {
  return inTime(backend.doctor.check(), CHECK_MILLISECONDS, 'The check').catch(({ message }: Error) => [
    { name: 'check', ok: false, detail: message },
  ]);
}
