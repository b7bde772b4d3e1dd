import type { Family } from '../kinds.ts';

/** The shape of a family, as in the lanes. */
export function Shape({ family, isFailed, letter, isHollow }: { family: Family; isFailed?: boolean; letter?: string; isHollow?: boolean }) {
  return (
    <span class={`shape ${isFailed ? 'failed' : family}${isHollow ? ' hollow' : ''}${letter ? ' lettered' : ''}`} aria-hidden="true">
      {letter}
    </span>
  );
}
