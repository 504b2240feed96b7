/** Maximum number of one owner's large answers in memory at a time: being read, written, or not yet read by their client. */
const COUNT_MAX = 4;

/** The room for the answer to one request, if it becomes large. */
export type AnswerRoom = {
  /**
   * Takes the room. Returns undefined if the answer already has it; otherwise a promise that resolves when an earlier
   * answer of its owner has left, or this one has.
   */
  enter(): Promise<void> | undefined;
  /** Gives the room back, or stops waiting for it. */
  leave(): void;
};
export type AnswerRooms = (owner: string) => AnswerRoom;

/**
 * Creates the rooms for large answers, `countMax` for each owner. An existing answer has been paid for and cannot be refused, and
 * may be large for any request. Further answers of an owner wait at the model server, first come first served.
 */
export function createAnswerRooms(countMax = COUNT_MAX): AnswerRooms {
  const owners = new Map<string, { taken: number; waiting: Set<() => void> }>();
  return (name) => {
    let hasRoom = false;
    let entering: Promise<void> | undefined;
    let enter = () => {};
    return {
      enter() {
        if (hasRoom || entering) return entering;
        const owner = owners.get(name) ?? { taken: 0, waiting: new Set() };
        owners.set(name, owner);
        const { promise, resolve } = Promise.withResolvers<void>();
        enter = () => {
          owner.waiting.delete(enter);
          owner.taken++;
          hasRoom = true;
          entering = undefined;
          resolve();
        };
        if (owner.taken < countMax) {
          enter();
          return undefined;
        }
        owner.waiting.add(enter);
        entering = promise;
        return promise;
      },
      leave() {
        const owner = owners.get(name);
        if (!owner || !(hasRoom || entering)) return;
        if (entering) enter(); // The waiting code continues; nothing more is read.
        hasRoom = false;
        owner.taken--;
        const [next] = owner.waiting;
        if (owner.taken < countMax) next?.();
        if (!owner.taken) owners.delete(name);
      },
    };
  };
}
