// Pictures and files in messages. Only data is displayed, and its type is read from the bytes.

export interface Part {
  type?: string;
  text?: string;
  url?: string | null;
  data?: string | null;
  mediaType?: string | null;
  filename?: string | null;
}

export interface Media {
  /** `picture` is data that every browser shows safely, `address` is not loaded. */
  kind: 'picture' | 'file' | 'address';
  name: string;
  mediaType: string;
  /** Bytes in base64, or the address. */
  data: string;
  /** Size in bytes, or 0 for an address. */
  size: number;
}

/** First bytes of the picture formats that are displayed. SVG can contain scripts and is a file. */
const PICTURES: [mediaType: string, start: RegExp][] = [
  ['image/png', /^\x89PNG\r\n\x1a\n/],
  ['image/jpeg', /^\xff\xd8\xff/],
  ['image/gif', /^GIF8[79]a/],
  ['image/webp', /^RIFF[^]{4}WEBP/],
];

/** Return how a part of a message is displayed. `omitted` characters of its data were not loaded. */
export function readMedia(part: Part, omitted = 0): Media {
  const name = part.filename || part.type || 'file';
  const inline = /^data:([^;,]*)[^,]*;base64,(.*)$/s.exec(part.url ?? '');
  const data = part.data ?? inline?.[2];
  if (data === undefined) return { kind: 'address', name, mediaType: part.mediaType ?? '', data: part.url ?? '', size: 0 };
  const mediaType = PICTURES.find(([, start]) => start.test(decodeStart(data)))?.[0];
  const size = Math.floor(((data.replace(/=+$/, '').length + omitted) * 3) / 4);
  return { kind: mediaType ? 'picture' : 'file', name, mediaType: mediaType ?? part.mediaType ?? inline?.[1] ?? '', data, size };
}

/** Return the parts of a message content, which is a string or a list of parts. */
export function partsOf(content: unknown): Part[] {
  if (Array.isArray(content)) return content as Part[];
  return content == null || content === '' ? [] : [{ type: 'text', text: typeof content === 'string' ? content : JSON.stringify(content) }];
}

const ENDINGS: Record<string, string> = {
  'image/png': 'png', 'image/jpeg': 'jpg', 'image/gif': 'gif', 'image/webp': 'webp', 'application/pdf': 'pdf', 'application/json': 'json',
  'text/plain': 'txt', 'text/csv': 'csv',
};

/** Return the name of a downloaded file. Names of models and tools are not used. */
export function fileName(media: Media, seq: number): string {
  return `event-${seq}.${ENDINGS[media.mediaType] ?? 'bin'}`;
}

function decodeStart(data: string): string {
  try {
    return atob(data.slice(0, 24).replace(/=+$/, ''));
  } catch {
    return '';
  }
}
