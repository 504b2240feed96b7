/** One line of the table: a goal of design section 11 and what was measured. */
export type Line = { letter?: string; what: string; goal: string; measured: string; beside?: string };

const COLUMNS = ['letter', 'what', 'goal', 'measured', 'beside'] as const;

/** Prints the lines as a Markdown table: those of docs/performance.md, with more figures beside them. */
export function printMarkdown(lines: readonly Line[]): void {
  const rows = lines.map(({ what, goal, measured, beside = '' }) => [what, goal, measured, beside]);
  for (const row of [['what', 'goal', 'measured', 'beside it'], ['---', '---', '---', '---'], ...rows])
    console.log(`| ${row.join(' | ')} |`);
}

export function printLines(lines: readonly Line[]): void {
  const head: Line = { letter: '', what: 'what', goal: 'goal', measured: 'measured', beside: 'beside it' };
  const all = [head, ...lines];
  const widths = COLUMNS.map((column) => Math.max(...all.map((line) => (line[column] ?? '').length)));
  for (const line of all) {
    const cells = COLUMNS.map((column, i) => (line[column] ?? '').padEnd(widths[i] as number));
    console.log(cells.join('  ').trimEnd());
  }
}

/** Formats the processor time of a request: of the whole process, and of its main thread. */
export const cpuOf = ({ cpu, mainCpu }: { cpu: number; mainCpu: number }) =>
  `${figure(cpu)} µs CPU (main thread ${figure(mainCpu)})`;

/** Formats a number with three significant digits. */
export function figure(value: number): string {
  const decimals = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString('en-US', { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}
