// Links between the pages about all runs.

import { address } from '../store.ts';

const SECTIONS = [['runs', 'Runs', '#/'], ['problems', 'Problems', '#/problems'], ['experiments', 'Experiments', '#/x']] as const;

export function Sections() {
  const { page } = address.value;
  return (
    <>
      {SECTIONS.map(([name, title, link]) => (page === name ? <h1 key={name} aria-current="page">{title}</h1> : <a key={name} href={link}>{title}</a>))}
    </>
  );
}
