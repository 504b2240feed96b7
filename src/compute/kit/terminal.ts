/**
 * Runs `$PURSER_COMMAND`, or a login shell, on a terminal of `$PURSER_ROWS` by `$PURSER_COLUMNS` that `script` (util-linux) makes
 * in the machine: Purser has no terminal there. `$PURSER_EXEC` names it.
 */
export const WITH_TERMINAL = `export PURSER_EXEC TERM
script -qfec 'stty sane rows "$PURSER_ROWS" columns "$PURSER_COLUMNS"; tty > "$HOME/.purser-tty-$PURSER_EXEC"
unset PURSER_ROWS PURSER_COLUMNS
if [ -n "$PURSER_COMMAND" ]; then exec /bin/sh -c "$PURSER_COMMAND"; else exec /bin/sh -l; fi' /dev/null
code=$?; rm -f "$HOME/.purser-tty-$PURSER_EXEC"; exit "$code"`;

/** Gives the terminal that `$1` names `$2` rows and `$3` columns. */
export const RESIZE = 'exec stty -F "$(cat "$HOME/.purser-tty-$1")" rows "$2" columns "$3"';
