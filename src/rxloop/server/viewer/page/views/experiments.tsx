// Experiments whose runs are in the log, and the cases and variants of one experiment.

import { signal } from '@preact/signals';
import { useEffect, useState } from 'preact/hooks';
import { formatAddress } from '../address.ts';
import {
  addExperiments, describeRun, findRange, findWorse, formatScore, listScorers, sortCases,
  type CaseInfo, type ExperimentInfo, type ExperimentSummary, type MeanScore,
} from '../experiment.ts';
import { address, api, go, signIn, toApiError } from '../store.ts';
import { toLine } from '../text.ts';
import { formatAge, formatNumber, plural } from '../time.ts';
import { Header } from '../parts/header.tsx';
import { List } from '../parts/list.tsx';
import { px } from '../parts/px.ts';
import { Sections } from '../parts/sections.tsx';

interface Page {
  experiments: ExperimentSummary[];
  next?: string;
}

export function ExperimentsPage() {
  const [list, setList] = useState<ExperimentSummary[]>([]);
  const [note, setNote] = useState('Reading runs');
  useEffect(() => {
    let isOpen = true;
    const load = async () => {
      await signIn();
      let after: string | undefined;
      do {
        const page: Page = await api.get('experiments', after ? { after } : {});
        if (!isOpen) return;
        setList(before => addExperiments(before, page.experiments));
        after = page.next;
      } while (after);
      setNote('');
    };
    load().catch(error => { if (isOpen) setNote(toApiError(error).message); });
    return () => { isOpen = false; };
  }, []);
  document.title = 'Experiments · rxloop';
  return (
    <div class="page">
      <Header path={<Sections />} />
      <nav class="tabs"><span class="count" role="status">{note || `${formatNumber(list.length)} experiments`}</span></nav>
      <main class="body table experiments">
        {list.length ? (
          <List
            role="grid" label="Experiments" count={list.length} height={36} current={-1} columns={['name', 'variants', 'cases', 'runs', 'failed', 'age']}
            render={(k, top) => <Row key={list[k].name} each={list[k]} number={k} top={top} />}
          />
        ) : note ? null : <div class="empty"><h2>No experiments</h2><p>Experiments with a log appear here: <code>experiment(..., name="capitals", log=log)</code></p></div>}
      </main>
    </div>
  );
}

function Row({ each, number, top }: { each: ExperimentSummary; number: number; top: number }) {
  return (
    <div class="row" role="row" aria-rowindex={number + 1} style={px({ top })}>
      <span role="gridcell"><a href={formatAddress({ page: 'experiment', taskId: each.name })}><bdi>{toLine(each.name)}</bdi></a></span>
      <span role="gridcell" class="quiet"><bdi>{toLine(each.variants.join(', '))}</bdi></span>
      <span role="gridcell">{formatNumber(each.cases)}</span>
      <span role="gridcell">{formatNumber(each.runs)}</span>
      <span role="gridcell">{each.failed ? <span class="offline">✕ {formatNumber(each.failed)}</span> : '–'}</span>
      <span role="gridcell" class="quiet">{formatAge(Date.now() - Date.parse(each.updated))}</span>
    </div>
  );
}

/** Runs that are marked for a comparison, at most two. */
const marked = signal<string[]>([]);

export function ExperimentPage() {
  const name = address.value.taskId;
  const [info, setInfo] = useState<ExperimentInfo | null>(null);
  const [failure, setFailure] = useState('');
  const [scorer, setScorer] = useState('');
  const [isSorted, setSorted] = useState(false);
  useEffect(() => {
    let isOpen = true;
    marked.value = [];
    setInfo(null);
    setFailure('');
    signIn().then(() => api.get<ExperimentInfo>(`experiments/${encodeURIComponent(name)}`)).then(
      found => { if (isOpen) setInfo(found); },
      error => { if (isOpen) setFailure(toApiError(error).message); },
    );
    return () => { isOpen = false; };
  }, [name]);
  document.title = `${name} · rxloop`;
  const scorers = info ? listScorers(info) : [];
  const chosen = scorers.includes(scorer) ? scorer : scorers[0] ?? '';
  return (
    <div class="page">
      <Header path={<><a href="#/x">Experiments</a><i>/</i><h1><bdi>{toLine(name)}</bdi></h1></>} />
      <nav class="tabs">
        <span class="count" role="status">{failure || !info ? failure : `${formatNumber(info.cases.length)} ${plural(info.cases.length, 'case')}, ${formatNumber(info.variants.length)} ${plural(info.variants.length, 'variant')}${info.hasReport ? '' : ', without scores'}`}</span>
        <span class="space" />
        {marked.value.length === 2 && <button class="new" onClick={compare}>Compare</button>}
        {scorers.length > 0 && (
          <label class="choice">Score <select value={chosen} onChange={event => setScorer(event.currentTarget.value)}>{scorers.map(each => <option key={each} value={each}>{each}</option>)}</select></label>
        )}
        <button aria-pressed={isSorted} onClick={() => setSorted(!isSorted)}>By difference</button>
      </nav>
      {info && <main class="body table cases"><Means info={info} scorer={chosen} /><Cases info={info} scorer={chosen} isSorted={isSorted} /></main>}
      {failure && <main class="body"><div class="empty"><h2>No such experiment</h2><p>{failure}</p></div></main>}
    </div>
  );
}

const WIDTH = 360;
const EDGE = 8;

/** Means with intervals on one scale. */
function Means({ info, scorer }: { info: ExperimentInfo; scorer: string }) {
  const rows = info.variants.map(each => ({ ...each, score: each.scores.find(score => score.scorer === scorer) }));
  const known = rows.flatMap(each => (each.score ? [each.score] : []));
  if (!known.length) return null;
  const range = findRange(known);
  const toX = (value: number) => EDGE + ((value - range.from) / (range.to - range.from)) * (WIDTH - 2 * EDGE);
  return (
    <section class="means" aria-label="Means">
      <h2>{toLine(scorer)} <span class="quiet">mean and 95 % interval, {known[0].better} is better</span></h2>
      <table>
        <tbody>
          {rows.map(({ name, score, usage }) => (
            <tr key={name}>
              <th scope="row"><bdi>{toLine(name)}</bdi></th>
              <td>{score && <Whisker score={score} toX={toX} />}</td>
              <td class="mono">{score ? formatScore(score.mean) : '–'}</td>
              <td class="mono quiet">{score && `${formatScore(score.low)} to ${formatScore(score.high)}`}</td>
              <td class="quiet">{formatNumber(usage.inputTokens + usage.outputTokens)} tokens</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Whisker({ score, toX }: { score: MeanScore; toX: (value: number) => number }) {
  return (
    <svg class="whisker" width={WIDTH} height={20} viewBox={`0 0 ${WIDTH} 20`} role="img" aria-label={`mean ${formatScore(score.mean)}, from ${formatScore(score.low)} to ${formatScore(score.high)}`}>
      <line class="base" x1={EDGE} x2={WIDTH - EDGE} y1={10} y2={10} />
      <line x1={toX(score.low)} x2={toX(score.high)} y1={10} y2={10} />
      <line x1={toX(score.low)} x2={toX(score.low)} y1={6} y2={14} />
      <line x1={toX(score.high)} x2={toX(score.high)} y1={6} y2={14} />
      <circle cx={toX(score.mean)} cy={10} r={4} />
    </svg>
  );
}

function Cases({ info, scorer, isSorted }: { info: ExperimentInfo; scorer: string; isSorted: boolean }) {
  const names = info.variants.map(each => each.name);
  const better = info.variants.flatMap(each => each.scores).find(each => each.scorer === scorer)?.better ?? 'higher';
  const cases = sortCases(info.cases, scorer, isSorted);
  return (
    <List
      role="grid" label="Cases" count={cases.length} height={36} current={-1} columns={['case', ...names]}
      render={(k, top) => <CaseRow key={cases[k].id} each={cases[k]} names={names} scorer={scorer} better={better} number={k} top={top} />}
    />
  );
}

interface CaseProps {
  each: CaseInfo;
  names: string[];
  scorer: string;
  better: 'higher' | 'lower';
  number: number;
  top: number;
}

function CaseRow({ each, names, scorer, better, number, top }: CaseProps) {
  const worse = findWorse(each, scorer, better);
  return (
    <div class="row" role="row" aria-rowindex={number + 1} style={px({ top })} data-case={each.id}>
      <span role="gridcell"><b>{toLine(each.id)}</b> <bdi class="quiet">{toLine(each.title)}</bdi></span>
      {names.map(name => (
        <span role="gridcell" key={name} class={worse.has(name) ? 'worse' : ''} title={worse.has(name) ? 'worse than the best variant' : undefined}>
          {(each.cells[name] ?? []).map(run => <RunLink key={run.taskId} run={run} scorer={scorer} name={`${each.id}, ${name}, run ${run.repeat}`} />)}
        </span>
      ))}
    </div>
  );
}

function RunLink({ run, scorer, name }: { run: CaseInfo['cells'][string][number]; scorer: string; name: string }) {
  const { text, title } = describeRun(run, scorer);
  const isMarked = marked.value.includes(run.taskId);
  const mark = (event: Event) => {
    event.preventDefault();
    const others = marked.value.filter(each => each !== run.taskId);
    marked.value = isMarked ? others : [...others.slice(-1), run.taskId];
  };
  return (
    <a
      class={`score${isMarked ? ' marked' : ''}${text === '✕' || run.state === 'failed' ? ' bad' : ''}`} href={formatAddress({ page: 'run', taskId: run.taskId })}
      aria-label={`${name}: ${title}${isMarked ? ', marked' : ''}`} title="Shift and click, or Space, marks two runs for a comparison"
      onClick={event => { if (event.shiftKey) mark(event); }} onKeyDown={event => { if (event.key === ' ') mark(event); }}
    >{toLine(text)}</a>
  );
}

function compare(): void {
  const [a, b] = marked.value;
  go({ page: 'diff', taskId: a, other: b });
}
