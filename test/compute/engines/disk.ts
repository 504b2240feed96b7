/**
 * Prints the mounts that a tenant can write: the type of file system, whether it is a directory or a plain file, the path. Devices
 * keep nothing.
 */
export const LIST_WRITABLE = `while read source path type rest; do
  kind=file file=$path
  [ -d "$path" ] && kind=directory file=$path/.tried
  [ -c "$path" ] && continue
  { echo tried >>"$file"; } 2>/dev/null && echo "$type $kind $path"
done </proc/mounts`;
