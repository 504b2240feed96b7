import type { Command, Option } from 'commander';
import { visible } from '../src/base/visible.ts';
import { dataDirectoryOf } from '../src/config/config.ts';
import { files } from '../src/files/data-directory.ts';
import { askSocket } from '../src/operator/ask.ts';
import type { CommandName } from '../src/operator/commands.ts';
import { example, refuseJson } from './context.ts';
import { print } from './report.ts';

/**
 * The scripts ask the program itself for the words that may stand at the cursor, so they always match its version. A word may be the
 * name that a model server gave its model: none is read as shell. `compgen -W` of bash would run a `$(…)` in it, and bash inserts
 * words as they are.
 */
const SHELLS = {
  bash: `# bash completion of purser
_purser() {
  local IFS=$'\\n' cur="\${COMP_WORDS[COMP_CWORD]}" found word
  mapfile -t found < <(command purser candidates -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  COMPREPLY=()
  case "\${found[0]}" in
    :file) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
    :directory) compopt -o filenames; COMPREPLY=($(compgen -d -- "$cur")) ;;
    *) for word in "\${found[@]%%$'\\t'*}"; do
        [[ $word != "$cur"* ]] || COMPREPLY+=("$(printf %q "$word")")
      done ;;
  esac
}
complete -F _purser purser`,
  zsh: `#compdef purser
_purser() {
  local -a found
  found=("\${(@f)$(command purser candidates -- "\${(@)words[2,CURRENT]}" 2>/dev/null)}")
  case "\${found[1]}" in
    :file) _files ;;
    :directory) _files -/ ;;
    ?*) found=("\${(@)found//:/\\\\:}"); found=("\${(@)found/$'\\t'/:}"); _describe candidate found ;;
  esac
}
if [[ \${zsh_eval_context[-1]} == loadautofunc ]]; then _purser "$@"; else compdef _purser purser; fi`,
  fish: `# fish completion of purser
function __purser_candidates
  set -l words (commandline -opc)[2..-1]
  set -l current (commandline -ct)
  set -l found (command purser candidates -- $words "$current" 2>/dev/null)
  switch "$found[1]"
    case :file
      __fish_complete_path "$current"
    case :directory
      __fish_complete_directories "$current"
    case '*'
      printf '%s\\n' $found
  end
end
complete -c purser -f -a '(__purser_candidates)'`,
};

/** Returns the completion script of a shell. */
export const completionOf = (shell: keyof typeof SHELLS): string => SHELLS[shell];

/** Registers `completion`, which prints the script of a shell, and the hidden command that the scripts ask. */
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
      print(completionOf(shell as keyof typeof SHELLS));
    });
  program
    .command('candidates', { hidden: true })
    .argument('[words...]')
    .action(async (words: string[]) => {
      for (const it of await candidates(program, words)) print(it);
    });
}

/** The options whose value is a name of the books, and below, the commands whose first argument is one. */
const NAMED = { '--wallet': 'wallets', '--account': 'accounts', '--model': 'models' } as const;
const NAMED_BELOW: Record<string, (typeof NAMED)[keyof typeof NAMED]> = { wallet: 'wallets', account: 'accounts' };
const NAMES_MILLISECONDS = 2000;

/**
 * Asks the running server for the names of open wallets, accounts or models. None where no server answers: a shell must not wait
 * for a lock. A name that a shell would split, that repeats, or that a command would take for an option or for another's id, becomes
 * its id: agents choose names.
 */
async function namesOf(what: (typeof NAMED)[keyof typeof NAMED], words: readonly string[]): Promise<string[]> {
  const at = words.indexOf('--data');
  const data = at < 0 ? undefined : words[at + 1];
  const { socket } = files(dataDirectoryOf(data === undefined ? {} : { data }));
  const signal = AbortSignal.timeout(NAMES_MILLISECONDS);
  const list = async (name: CommandName, input: object) =>
    ((await askSocket(socket, name, input, signal).catch(() => undefined))?.value ?? {}) as Record<string, Named[]>;
  const {
    wallets,
    accounts,
    data: models,
  } = await (what === 'wallets'
    ? list('wallet.list', { status: 'active', limit: 1000 })
    : list(what === 'accounts' ? 'account.list' : 'models.list', {}));
  const rows = wallets ?? accounts ?? models ?? [];
  const counts = Map.groupBy(rows, (it) => it.name);
  return rows.map(({ id, name = id, status = '' }) => {
    const isWord = /^(?!-|wal_|acct_)[\w.@%+=-]+$/.test(name) && (name === id || counts.get(name)?.length === 1);
    return isWord ? `${name}\t${status || id}` : `${id}\t${visible(name)}`;
  });
}

type Named = { id: string; name?: string; status?: string };

/**
 * Returns the words that may replace the last of `words`, which follow the program's name: with a tab and their description,
 * or `:file` or `:directory` alone.
 */
async function candidates(program: Command, words: readonly string[]): Promise<string[]> {
  const current = words.at(-1) ?? '';
  let command = program;
  let awaiting: Option | undefined;
  for (const word of words.slice(0, -1)) {
    const isValue = awaiting !== undefined;
    awaiting = undefined;
    if (isValue) continue;
    const option = [...command.options, ...program.options].find((it) => it.long === word || it.short === word);
    if (option && placeholderOf(option)) awaiting = option;
    command = command.commands.find((it) => it.name() === word && !isHidden(it)) ?? command;
  }
  if (awaiting) {
    const named = NAMED[awaiting.long as keyof typeof NAMED];
    return named ? namesOf(named, words) : valuesOf(awaiting);
  }
  if (current.startsWith('-')) return optionsOf(command, program);
  const argument = command.registeredArguments[0]?.name();
  if (argument === 'file' || argument === 'program') return [':file'];
  if (argument === 'shell') return Object.keys(SHELLS);
  const named = NAMED_BELOW[command.parent?.name() ?? ''];
  if (argument === 'id' && named && words.at(-2) === command.name()) return namesOf(named, words);
  return command.commands.filter((it) => !isHidden(it)).map((it) => `${it.name()}\t${it.description()}`);
}

const isHidden = (command: Command) => command.name() === 'candidates';

/** Returns the options of a command, and those of the program, which are accepted after every command. */
function optionsOf(command: Command, program: Command): string[] {
  const everywhere = program.options.filter((it) => !it.hidden && (it.long !== '--version' || command === program));
  const options = [...new Set([...command.options, ...everywhere])].filter((it) => !it.hidden);
  return [...options.map((it) => `${it.long}\t${it.description}`), '--help\texplain the command'];
}

/** Returns the name of an option's value, such as `file` of `--key-file <file>`; undefined for one without. */
const placeholderOf = ({ flags }: Option) => /[<[](.+?)[\]>]/.exec(flags)?.[1];

function valuesOf(option: Option): string[] {
  if (option.argChoices) return option.argChoices;
  const placeholder = placeholderOf(option);
  if (placeholder === 'file') return [':file'];
  return placeholder === 'dir' ? [':directory'] : [];
}
