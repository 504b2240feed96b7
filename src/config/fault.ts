/** Thrown when the configuration cannot be used. Lists every fault, each as `file:line: path: what is wrong`. */
export class ConfigurationFault extends Error {
  readonly faults: readonly string[];
  constructor(faults: readonly string[]) {
    super(`The configuration cannot be used:\n${faults.map((fault) => `  ${fault}`).join('\n')}`);
    this.name = 'ConfigurationFault';
    this.faults = faults;
  }
}
