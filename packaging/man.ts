import type { Command } from 'commander';

/** Returns the man page, from the commands themselves. `seconds` is the time that it bears. */
export function manPage(program: Command, version: string, seconds: number): string {
  const date = new Date(seconds * 1000).toISOString().slice(0, 10);
  const option = ({ flags, description }: { flags: string; description: string }) => entry(flags, description);
  return `${[
    `.TH PURSER 1 ${date} "purser ${version}"`,
    '.SH NAME',
    'purser \\- bounded spending wallets for software agents',
    '.SH SYNOPSIS',
    '.B purser',
    '.RI [ options ]\n.I command',
    '.SH DESCRIPTION',
    text('The whole description of a command is printed by purser COMMAND --help.'),
    '.SH OPTIONS',
    ...program.options.filter((it) => !it.hidden).map(option),
    '.SH COMMANDS',
    ...leaves(program).map(({ usage, description }) => entry(usage, description)),
    '.SH EXIT STATUS',
    text('0 done, 1 failed, 2 usage, 3 not found, 4 refused or in conflict, 5 unavailable at the moment.'),
    '.SH FILES',
    entry('/etc/purser/purser.yaml', 'The settings of the service.'),
    entry('/var/lib/purser', 'The books, and master.key: keep a copy of it apart from the backups.'),
  ].join('\n')}\n`;
}

type Leaf = { usage: string; description: string };

/** The commands that do something, each with the words that call it and its arguments. */
function leaves(command: Command, words = ''): Leaf[] {
  return command
    .createHelp()
    .visibleCommands(command)
    .flatMap((it): Leaf[] => {
      if (it.name() === 'help') return [];
      const name = `${words}${it.name()}`;
      if (it.commands.length) return leaves(it, `${name} `);
      const args = it.registeredArguments.map((argument) =>
        argument.required ? `<${argument.name()}>` : `[${argument.name()}]`,
      );
      return [{ usage: [name, ...args].join(' '), description: it.description() }];
    });
}

const entry = (term: string, description: string) => `.TP\n.B ${text(term)}\n${text(description)}`;

/** A line in which nothing is a request to troff. */
const text = (it: string) =>
  it
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replace(/^(?=[.'])/, '\\&');
