import { TASK } from './task.ts';

/** An agent that is run: its heading on the page, its program, and what makes it do the task without asking anybody. */
export type Agent = {
  title: string;
  program: string;
  args: readonly string[];
  /**
   * What it does when the outcome of a request is not known: it asks again with the same body (`repeats`), it asks again with
   * another one (`asks anew`), or it obeys `x-should-retry: false` and leaves that to its user (`stops`).
   */
  whenUncertain: 'repeats' | 'asks anew' | 'stops';
  /** What else it needs to use a tool of docs/mcp.md, if that page has settings for it. */
  mcpArgs?: readonly string[];
};

/** The slowest ones begin. */
export const AGENTS: readonly Agent[] = [
  {
    title: 'OpenClaw',
    program: 'openclaw',
    args: ['--session-id', 'task', '--message', TASK],
    whenUncertain: 'asks anew',
  },
  {
    title: 'Claude Code',
    program: 'claude',
    args: ['-p', TASK, '--permission-mode', 'acceptEdits'],
    whenUncertain: 'stops',
    mcpArgs: ['--allowedTools', 'mcp__purser__wallet_budget'],
  },
  {
    title: 'Codex',
    program: 'codex',
    args: ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', TASK],
    whenUncertain: 'repeats',
    // Else it asks its model without the tools of a server that has not named them within ten seconds; here several agents
    // start at once on two cores.
    mcpArgs: ['-c', 'mcp_servers.purser.startup_timeout_sec=120', '-c', 'mcp_servers.purser.required=true'],
  },
  { title: 'opencode', program: 'opencode', args: ['run', TASK], whenUncertain: 'repeats', mcpArgs: [] },
  { title: 'Kilo', program: 'kilo', args: ['run', '--auto', TASK], whenUncertain: 'repeats' },
  { title: 'Qwen Code', program: 'qwen', args: ['-p', TASK, '--yolo'], whenUncertain: 'repeats' },
  { title: 'Continue', program: 'cn', args: ['-p', TASK, '--auto'], whenUncertain: 'repeats' },
  { title: 'Copilot CLI', program: 'copilot', args: ['-p', TASK, '--allow-all-tools'], whenUncertain: 'stops' },
  { title: 'Cline', program: 'cline', args: [TASK], whenUncertain: 'repeats' },
  { title: 'pi', program: 'pi', args: ['-p', TASK], whenUncertain: 'repeats' },
];
