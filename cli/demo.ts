export function demoCommand(_: unknown): void {}
