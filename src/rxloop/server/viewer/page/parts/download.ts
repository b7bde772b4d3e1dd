/** Save data as a file, with a type that no browser opens. */
export function download(parts: BlobPart[], name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob(parts, { type: 'application/octet-stream' }));
  link.download = name;
  link.click();
  // The browser reads the data after the click.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
