export function doctorCommand(_: unknown): void {}
