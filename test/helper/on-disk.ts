// Imported by tests whose leases are directories of this machine and take uploads by their absolute paths: such a path must not
// lie in /dev, where the temporary files of most tests are (test/helper/run-directory.ts).
const { PURSER_TEST_DISK: onDisk } = process.env;
if (onDisk) process.env.TMPDIR = onDisk;
