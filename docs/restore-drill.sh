#!/bin/sh
# A restore drill: takes a backup, or what Litestream has, into a directory of its own and proves that it can be served.
# The installation that it was made of is not touched, and neither are its machines: the drill has no purser.yaml.
#
#   sh restore-drill.sh BACKUP MASTER_KEY       a file of `purser backup`
#   sh restore-drill.sh REPLICA_URL MASTER_KEY  a replica of Litestream, such as file:///srv/replica or s3://bucket/purser
#
# Needs `purser` in the PATH, and `litestream` for a replica. Prints what it found; exit 0 means that a restore would work.
set -eu
unset PURSER_DATA PURSER_CONFIG PURSER_MASTER_KEY PURSER_MASTER_KEY_FILE # Of the installation that is served, perhaps.
source=$1
master_key=$2

drill=$(mktemp -d)
trap 'rm -rf "$drill"' EXIT
mkdir -m 700 "$drill/data"
cp "$master_key" "$drill/data/master.key"

case $source in
*://*)
  litestream restore -o "$drill/replica.db" "$source"
  purser --data "$drill/data" restore --force "$drill/replica.db"
  ;;
*)
  purser --data "$drill/data" restore "$source"
  ;;
esac

purser --data "$drill/data" ledger verify
purser --data "$drill/data" account list
purser --data "$drill/data" wallet list
