// Start of the page: keys, addresses, and the view of the current address.

import { render, type FunctionComponent } from 'preact';
import { formatAddress, type Address } from './address.ts';
import { runCommand } from './commands.ts';
import { makeKeymap } from './keys.ts';
import { address, announcement, api, isFile, go, isHelpOpen, isNotice, lettersOff, needsKey, open, useKey } from './store.ts';
import { Help } from './parts/help.tsx';
import { KeyForm } from './parts/keyform.tsx';
import { DiffPage } from './views/diff.tsx';
import { RecentProblems } from './views/recent.tsx';
import { ExperimentPage, ExperimentsPage } from './views/experiments.tsx';
import { RunPage } from './views/run.tsx';
import { RunsPage } from './views/runs.tsx';

const PAGES: Record<Address['page'], FunctionComponent> = { runs: RunsPage, run: RunPage, problems: RecentProblems, experiments: ExperimentsPage, experiment: ExperimentPage, diff: DiffPage };

function Page() {
  const View = PAGES[address.value.page];
  if (needsKey.value) return <KeyForm onKey={useKey} />;
  return (
    <>
      <View />
      {isHelpOpen.value && <Help />}
      <div class={isNotice.value ? 'notice-line' : 'unseen'} role="status">{announcement.value}</div>
    </>
  );
}

// Relative addresses need a slash at the end of the path.
if (!location.pathname.endsWith('/') && !location.pathname.endsWith('.html')) location.replace(`${location.pathname}/${location.hash}`);

const find = makeKeymap();
addEventListener('keydown', event => {
  const target = event.target as HTMLElement;
  const command = find({
    key: event.key,
    isField: target.matches('input, textarea, select'),
    isControl: target.matches('button, a, summary, article, [role=row]'),
    hasModifier: event.ctrlKey || event.metaKey || event.altKey,
    page: address.value.page,
    lettersOff: lettersOff.value,
  });
  if (!command) return;
  event.preventDefault();
  if (command === 'runs') return go({ page: 'runs' });
  runCommand(command);
});
if (isFile && !location.hash) {
  const taskId = (await api.runs({})).runs[0].taskId;
  history.replaceState(null, '', formatAddress({ page: 'run', taskId }));
}
addEventListener('hashchange', open);
render(<Page />, document.getElementById('page')!);
open();
