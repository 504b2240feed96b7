/** Large answers of one owner that are in memory at a time: being read, written, or not yet taken by their client. */
const COUNT_MAX = 4;

/** The room that the answer to one request takes, if it becomes large. */
export type AnswerRoom = {
  /** Takes the room; undefined where it has it. Else resolves when an earlier answer of its owner has left, or this one has. */
  enter(): Promise<void> | undefined;
  /** Gives it back, or no longer waits for it. */
  leave(): void;
};
export type AnswerRooms = (owner: string) => AnswerRoom;

/**
 * Creates the rooms for large answers, so many for each owner. An answer that exists has been paid for and cannot be refused, and a
 * small request may have a large one: so of what an owner is sent beyond that, the rest waits at its model server, first come first
 * served.
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
        if (entering) enter(); // Whoever waits goes on; nothing more is read.
        hasRoom = false;
        owner.taken--;
        const [next] = owner.waiting;
        if (owner.taken < countMax) next?.();
        if (!owner.taken) owners.delete(name);
      },
    };
  };
}
