import type { Created, Machine, Ref } from '../../backend.ts';
import type { Claim } from '../../kit/claim.ts';
import { refused } from '../../kit/created.ts';
import type { ContainerOrder } from './create.ts';
import { textOf } from './engine.ts';
import type { Puller } from './image.ts';

/** A container that waits for its image. `failed` is the reason why it is never made. */
type Coming = {
  image: string;
  wanted: boolean;
  making: Promise<Created | 'no_image'> | undefined;
  failed: string | undefined;
};

/** Makes containers whose image has to be pulled first; `settle` is called with the outcome of each. */
export function createComing(
  images: Puller,
  make: (order: ContainerOrder, claim: Claim) => Promise<Created | 'no_image'>,
  settle: (tag: string, outcome: Created) => void,
) {
  const coming = new Map<Ref, Coming>();

  /** Pulls the image, which may take long. The machine is `provisioning` until then, and is made when the image is there. */
  function awaitImage(image: string, order: ContainerOrder, claim: Claim): Created {
    const it: Coming = { image, wanted: true, making: undefined, failed: undefined };
    coming.set(order.tag, it);
    void arrive(order, claim, it);
    return { kind: 'created', ref: order.tag };
  }

  async function arrive(order: ContainerOrder, claim: Claim, it: Coming): Promise<void> {
    const { image } = it;
    const fault = await images.pull(image).then(() => undefined, textOf);
    if (!it.wanted) return;
    it.making =
      fault === undefined
        ? make(order, claim).catch(unknownOutcome)
        : Promise.resolve(refused(`The image ${image} cannot be pulled`, fault));
    const result = await it.making;
    const outcome = result === 'no_image' ? refused(`The image ${image} was pulled and is not there`) : result;
    if (outcome.kind === 'created') coming.delete(order.tag);
    else it.failed = 'words' in outcome && outcome.words ? `${outcome.reason} (${outcome.words})` : outcome.reason;
    settle(order.tag, outcome);
  }

  return {
    awaitImage,

    /** Returns the machine that waits for its image; an ended one if it is never made. */
    inspect(ref: Ref): Machine | undefined {
      const it = coming.get(ref);
      if (it?.failed !== undefined) return { ref, state: 'ended', note: it.failed };
      return (
        it && {
          ref,
          state: 'provisioning',
          note: `the image ${it.image} is being pulled`,
          waitsFor: 'its image is being pulled',
        }
      );
    },

    /** Gives a container up that waits for its image. Resolves when it is no longer being made. */
    async cancel(ref: Ref): Promise<void> {
      const it = coming.get(ref);
      if (!it) return;
      it.wanted = false;
      await it.making;
      coming.delete(ref);
    },

    async close(): Promise<void> {
      images.stop();
      for (const it of coming.values()) it.wanted = false;
      await Promise.all([...coming.values()].map((it) => it.making));
    },
  };
}

/** Returns the outcome of a create that broke off. */
export const unknownOutcome = (error: unknown): Created => ({ kind: 'unknown', reason: textOf(error) });
