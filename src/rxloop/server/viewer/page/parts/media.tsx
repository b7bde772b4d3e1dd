// Pictures and files of messages.

import { fileName, partsOf, readMedia, type Media, type Part } from '../media.ts';
import { formatSize } from '../time.ts';
import { toLine } from '../text.ts';
import { download } from './download.ts';
import { LongText } from './text.tsx';

/** The content of a message: text, pictures and files. */
export function Content({ content, seq }: { content: unknown; seq: number }) {
  return <>{partsOf(content).map((each, k) => (each.type === 'text' || each.type === undefined ? <LongText key={k} text={each.text ?? ''} /> : <MediaPart key={k} part={each} seq={seq} />))}</>;
}

export function MediaPart({ part, seq }: { part: Part; seq: number }) {
  const media = readMedia(part);
  const label = [media.mediaType, media.size > 0 && formatSize(media.size)].filter(Boolean).join(', ');
  if (media.kind === 'picture') {
    return (
      <figure class="media">
        <img src={`data:${media.mediaType};base64,${media.data}`} alt={toLine(media.name)} />
        <figcaption>{media.name !== 'image' && <><bdi>{toLine(media.name)}</bdi> </>}<span class="quiet">{label}</span> <Download media={media} seq={seq} /></figcaption>
      </figure>
    );
  }
  return (
    <div class="media card" role="group" aria-label={`${media.kind} ${toLine(media.name)}`}>
      <span aria-hidden="true">▤</span>
      <span class="about"><b><bdi>{toLine(media.name)}</bdi></b><small>{media.kind === 'address' ? <>not loaded: <bdi>{toLine(media.data)}</bdi></> : label}</small></span>
      {media.kind === 'file' && <Download media={media} seq={seq} />}
    </div>
  );
}

function Download({ media, seq }: { media: Media; seq: number }) {
  const save = (event: Event) => {
    event.stopPropagation();
    download([Uint8Array.from(atob(media.data), each => each.charCodeAt(0))], fileName(media, seq));
  };
  return <button class="more" aria-label={`Download ${toLine(media.name)}`} onClick={save}>Download</button>;
}
