import type { ClientName } from '../../src/wire/client-settings.ts';
import { TASK } from './task.ts';

/** An agent that is run: its name, its program, and what makes it do the task without asking anybody. */
export type Agent = {
  title: string;
  /** Its name for `purser wallet env`. */
  client: ClientName;
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
    client: 'openclaw',
    program: 'openclaw',
    args: ['--session-id', 'task', '--message', TASK],
    whenUncertain: 'asks anew',
  },
  {
    title: 'Claude Code',
    client: 'claude',
    program: 'claude',
    args: ['-p', TASK, '--permission-mode', 'acceptEdits'],
    whenUncertain: 'stops',
    mcpArgs: ['--allowedTools', 'mcp__purser__wallet_budget'],
  },
  {
    title: 'Codex',
    client: 'codex',
    program: 'codex',
    args: ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', TASK],
    whenUncertain: 'repeats',
    // Else it asks its model without the tools of a server that has not named them within ten seconds; here several agents
    // start at once on two cores.
    mcpArgs: ['-c', 'mcp_servers.purser.startup_timeout_sec=120', '-c', 'mcp_servers.purser.required=true'],
  },
  {
    title: 'opencode',
    client: 'opencode',
    program: 'opencode',
    args: ['run', TASK],
    whenUncertain: 'repeats',
    mcpArgs: [],
  },
  { title: 'Kilo', client: 'kilo', program: 'kilo', args: ['run', '--auto', TASK], whenUncertain: 'repeats' },
  { title: 'Qwen Code', client: 'qwen', program: 'qwen', args: ['-p', TASK, '--yolo'], whenUncertain: 'repeats' },
  { title: 'Continue', client: 'continue', program: 'cn', args: ['-p', TASK, '--auto'], whenUncertain: 'repeats' },
  {
    title: 'Copilot CLI',
    client: 'copilot',
    program: 'copilot',
    args: ['-p', TASK, '--allow-all-tools'],
    whenUncertain: 'stops',
  },
  { title: 'Cline', client: 'cline', program: 'cline', args: [TASK], whenUncertain: 'repeats' },
  { title: 'pi', client: 'pi', program: 'pi', args: ['-p', TASK], whenUncertain: 'repeats' },
];
