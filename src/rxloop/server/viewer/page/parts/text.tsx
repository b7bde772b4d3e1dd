// Text of models and tools, always shown as text.

import { useState } from 'preact/hooks';
import { toSegments } from '../text.ts';

const SHOWN = 20_000;

/** Text with its line breaks. Control characters are marked codes. */
export function Text({ text }: { text: string }) {
  const segments = toSegments(text);
  return <bdi>{segments.map((each, k) => (each.isCode ? <span class="code" key={k}>{each.text}</span> : each.text))}</bdi>;
}

/** Block of text. A long text is cut until the reader asks for the rest. */
export function Block({ text, isMono }: { text: string; isMono?: boolean }) {
  const [isWhole, setWhole] = useState(false);
  const isCut = !isWhole && text.length > SHOWN;
  return (
    <div class={isMono ? 'block mono' : 'block'} tabIndex={0}>
      <Text text={isCut ? text.slice(0, SHOWN) : text} />
      {isCut && (
        <button class="more" onClick={() => setWhole(true)}>
          Show all {text.length.toLocaleString('en-US')} characters
        </button>
      )}
    </div>
  );
}
