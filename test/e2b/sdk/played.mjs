// Plays scenarios: prints a line of JSON for each, its name and the error if it failed.
import { Sandbox } from 'e2b';

/** Plays each, and then kills all sandboxes: the capacity of a test's engine is small. */
export async function play(scenarios) {
  for (const [name, run] of Object.entries(scenarios)) {
    const error = await run().then(
      () => undefined,
      (it) => `${it.stack}`,
    );
    for (const it of await Sandbox.list().nextItems()) await Sandbox.kill(it.sandboxId);
    process.stdout.write(`${JSON.stringify({ name, error })}\n`);
  }
}
