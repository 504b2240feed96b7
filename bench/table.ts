/** One line of the table: a goal of design section 11 and what was measured. */
export type Line = { letter?: string; what: string; goal: string; measured: string; beside?: string };

const COLUMNS = ['letter', 'what', 'goal', 'measured', 'beside'] as const;

export function printLines(lines: readonly Line[]): void {
  const head: Line = { letter: '', what: 'what', goal: 'goal', measured: 'measured', beside: 'beside it' };
  const all = [head, ...lines];
  const widths = COLUMNS.map((column) => Math.max(...all.map((line) => (line[column] ?? '').length)));
  for (const line of all) {
    const cells = COLUMNS.map((column, i) => (line[column] ?? '').padEnd(widths[i] as number));
    console.log(cells.join('  ').trimEnd());
  }
}

/** Formats a number with three significant digits. */
export function figure(value: number): string {
  const decimals = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString('en-US', { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}
