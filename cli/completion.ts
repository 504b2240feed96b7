import type { Command, Option } from 'commander';
import { example, refuseJson } from './context.ts';
import { print } from './report.ts';

const SHELLS = { bash, zsh, fish };

/** Registers `completion`: scripts that complete the commands and options of this version. */
export function completionCommand(program: Command): void {
  program
    .command('completion')
    .description('print the completion script of a shell')
    .argument('<shell>', 'bash, zsh or fish')
    .addHelpText(
      'after',
      example(
        'purser completion bash > ~/.local/share/bash-completion/completions/purser',
        'purser completion zsh > /usr/local/share/zsh/site-functions/_purser',
        'purser completion fish > ~/.config/fish/completions/purser.fish',
      ),
    )
    .action((shell: string, _, command: Command) => {
      refuseJson(command, 'a script');
      if (!Object.hasOwn(SHELLS, shell)) command.error('error: the shell is bash, zsh or fish');
      print(SHELLS[shell as keyof typeof SHELLS](nodesOf(program)));
    });
}

/** A command, or the program itself, with the words that may follow it. */
type Node = {
  /** The names, joined with spaces; empty for the program itself. */
  path: string;
  /** The kind of the first argument: a file, the name of a shell, or anything else. */
  takes: 'file' | 'shell' | 'other';
  commands: Named[];
  options: CompletedOption[];
};
type Named = { name: string; description: string };
type CompletedOption = Named & {
  short: string | undefined;
  value: 'none' | 'file' | 'directory' | 'other';
  choices: string[];
};

/** The commands, from the program down. The options of the program are accepted after every command. */
function nodesOf(program: Command): Node[] {
  const nodes: Node[] = [];
  const everywhere = program.options.filter((it) => !it.hidden).map(optionOf);
  const walk = (command: Command, path: string) => {
    const own = command === program ? [] : command.options.map(optionOf);
    nodes.push({
      path,
      takes: takenBy(command),
      commands: command.commands.map((it) => ({ name: it.name(), description: it.description() })),
      options: [...own, ...everywhere.filter((it) => it.name !== '--version' || command === program)],
    });
    for (const it of command.commands) walk(it, path ? `${path} ${it.name()}` : it.name());
  };
  walk(program, '');
  return nodes;
}

function takenBy(command: Command): Node['takes'] {
  const name = command.registeredArguments[0]?.name();
  return name === 'file' || name === 'program' ? 'file' : name === 'shell' ? 'shell' : 'other';
}

function optionOf(option: Option): CompletedOption {
  const placeholder = /[<[](.+?)[\]>]/.exec(option.flags)?.[1];
  const value =
    placeholder === undefined
      ? 'none'
      : placeholder === 'dir'
        ? 'directory'
        : placeholder === 'file'
          ? 'file'
          : 'other';
  return {
    name: option.long as string,
    short: option.short,
    description: option.description,
    value,
    choices: option.argChoices ?? [],
  };
}

const valued = (nodes: Node[]) => [
  ...new Set(nodes.flatMap((it) => it.options.filter((option) => option.value !== 'none').map(({ name }) => name))),
];
const single = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;

/** The loop of bash and zsh that finds the path of commands before the cursor. `words` is their array's name. */
const findPath = (nodes: Node[], words: string, from: number, to: string) => `  for ((i = ${from}; i < ${to}; i++)); do
    word="\${${words}[i]}"
    if [[ -n $skip ]]; then skip=; continue; fi
    case "$word" in
      ${valued(nodes).join('|')}) skip=1; continue ;;
      -*) continue ;;
    esac
    case "$at/$word" in
${nodes
  .filter(({ path }) => path)
  .map(({ path }) => {
    const names = path.split(' ');
    return `      ${single(`${names.slice(0, -1).join(' ')}/${names.at(-1)}`)}) at=${single(path)} ;;`;
  })
  .join('\n')}
    esac
  done`;

function bash(nodes: Node[]): string {
  const options = new Map(nodes.flatMap((it) => it.options.map((option) => [option.name, option] as const)));
  const values = [...options.values()].filter((it) => it.value !== 'none');
  const named = (value: CompletedOption['value']) =>
    values.filter((it) => it.value === value && !it.choices.length).map((it) => it.name);
  return `# bash completion of purser
_purser() {
  local cur="\${COMP_WORDS[COMP_CWORD]}" before="\${COMP_WORDS[COMP_CWORD-1]}" at= skip= word i
  COMPREPLY=()
${findPath(nodes, 'COMP_WORDS', 1, 'COMP_CWORD')}
  case "$before" in
    ${named('directory').join('|')}) compopt -o filenames; COMPREPLY=($(compgen -d -- "$cur")); return ;;
    ${named('file').join('|')}) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")); return ;;
${values
  .filter((it) => it.choices.length)
  .map((it) => `    ${it.name}) COMPREPLY=($(compgen -W ${single(it.choices.join(' '))} -- "$cur")); return ;;`)
  .join('\n')}
    ${named('other').join('|')}) return ;;
  esac
  case "$at" in
${nodes
  .map(({ path, takes, commands, options }) => {
    const words = [
      ...commands.map((it) => it.name),
      ...(takes === 'shell' ? Object.keys(SHELLS) : []),
      ...options.map((it) => it.name),
      '--help',
    ].join(' ');
    const offered = `COMPREPLY=($(compgen -W ${single(words)} -- "$cur"))`;
    const orFiles = `if [[ $cur != -* ]]; then compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")); else ${offered}; fi`;
    return `    ${single(path)}) ${takes === 'file' ? orFiles : offered} ;;`;
  })
  .join('\n')}
  esac
}
complete -F _purser purser`;
}

function zsh(nodes: Node[]): string {
  const entry = ({ name, description }: Named) => single(`${name.replaceAll(':', '\\:')}:${description}`);
  const options = new Map(nodes.flatMap((it) => it.options.map((option) => [option.name, option] as const)));
  const values = [...options.values()].filter((it) => it.value !== 'none');
  const named = (value: CompletedOption['value']) =>
    values.filter((it) => it.value === value && !it.choices.length).map((it) => it.name);
  return `#compdef purser
_purser() {
  local at= skip= word i
  local -a offered
${findPath(nodes, 'words', 2, 'CURRENT')}
  case "\${words[CURRENT-1]}" in
    ${named('directory').join('|')}) _files -/; return ;;
    ${named('file').join('|')}) _files; return ;;
${values
  .filter((it) => it.choices.length)
  .map((it) => `    ${it.name}) compadd -- ${it.choices.join(' ')}; return ;;`)
  .join('\n')}
    ${named('other').join('|')}) return ;;
  esac
  case "$at" in
${nodes
  .map(({ path, takes, commands, options }) => {
    const shells = takes === 'shell' ? Object.keys(SHELLS).map((name) => ({ name, description: 'a shell' })) : [];
    const words = [...commands, ...shells];
    return `    ${single(path)})
      if [[ "\${words[CURRENT]}" != -* ]]; then
        ${words.length ? `offered=(${words.map(entry).join(' ')}); _describe command offered` : takes === 'file' ? '_files' : ':'}
      else
        offered=(${[...options, { name: '--help', description: 'explain the command' }].map(entry).join(' ')}); _describe option offered
      fi ;;`;
  })
  .join('\n')}
  esac
}
if [[ \${zsh_eval_context[-1]} == loadautofunc ]]; then _purser "$@"; else compdef _purser purser; fi`;
}

function fish(nodes: Node[]): string {
  const lines = nodes.flatMap(({ path, takes, commands, options }) => {
    const here = `complete -c purser -n ${single(`__purser_at ${JSON.stringify(path)}`)}`;
    const shells = takes === 'shell' ? [`${here} -a ${single(Object.keys(SHELLS).join(' '))}`] : [];
    return [
      ...(takes === 'file' ? [`${here} -F`] : []),
      ...shells,
      ...commands.map(({ name, description }) => `${here} -a ${name} -d ${fishText(description)}`),
      ...options.map(({ name, short, description, value, choices }) => {
        const letter = short ? ` -s ${short.slice(1)}` : '';
        const kind =
          value === 'none'
            ? ''
            : value === 'other'
              ? ' -x'
              : value === 'directory'
                ? " -x -a '(__fish_complete_directories)'"
                : ' -r -F';
        const from = choices.length ? ` -a ${single(choices.join(' '))}` : '';
        return `${here}${letter} -l ${name.slice(2)}${kind}${from} -d ${fishText(description)}`;
      }),
    ];
  });
  return `# fish completion of purser
function __purser_at
  set -l at
  set -l skip
  for word in (commandline -opc)[2..-1]
    if test -n "$skip"
      set skip
      continue
    end
    switch $word
      case ${valued(nodes).join(' ')}
        set skip 1
        continue
      case '-*'
        continue
    end
    switch "$at/$word"
${nodes
  .filter(({ path }) => path)
  .map(({ path }) => {
    const names = path.split(' ');
    return `      case ${single(`${names.slice(0, -1).join(' ')}/${names.at(-1)}`)}\n        set at ${single(path)}`;
  })
  .join('\n')}
    end
  end
  test "$at" = "$argv[1]"
end
complete -c purser -f
${lines.join('\n')}`;
}

const fishText = (text: string) => `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`;
