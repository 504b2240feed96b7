/** Returns the id of the lease that a machine's tag names. */
export const resourceIdOf = (tag: string): string => (/res[-_]\w+$/.exec(tag)?.[0] ?? tag).replace('-', '_');
