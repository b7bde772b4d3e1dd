// Thoughts as a commit graph: one row per thought in order, and a column for each line of thought. Later thoughts never
// move earlier ones, because the column of a thought depends on the thoughts before it only.

import type { Outline } from './outline.ts';

export interface Thought {
  /** Index in the outline. */
  index: number;
  seq: number;
  column: number;
  /** Row of the thought that led to this one, or -1. */
  parent: number;
  /** Row of the thought that this one replaces, or -1. */
  replaced: number;
  /** Row of the last thought of the branch that this one merges, or -1. */
  merged: number;
  /** Row of the newest thought that replaces this one, or -1. */
  replacedBy: number;
  /** Rows of the thoughts that follow from this one. */
  children: number[];
}

export interface Edge {
  kind: 'parent' | 'replaced' | 'merged';
  /** Row of the earlier thought. */
  from: number;
  /** Row of the later thought. */
  to: number;
}

/** Columns that fit next to the text. Further lines share the last one. */
export const MAX_COLUMNS = 10;

export class ThoughtGraph {
  rows: Thought[] = [];
  private rowOf = new Map<number, number>();
  private read = 0;
  /** Last row that a thought or an edge occupies in each column. */
  private last: number[] = [];
  /** Row of the newest thought of each column, or -1 after a merge. */
  private tip: number[] = [];
  /** Columns of named branches and nested runs, which are not used by other lines until they are merged. */
  private columns = new Map<string, number>();

  /** Add the new thoughts of an outline, up to the first one whose related thoughts are still unknown. */
  update(outline: Outline): void {
    for (; this.read < outline.size; this.read++) {
      if (outline.kind[this.read] !== 'thought-stream') continue;
      if (outline.unresolved.has(outline.seq[this.read])) return;
      this.add(outline, this.read);
    }
  }

  /** Return the row of a thought by its `seq`, or -1. */
  find(seq: number): number {
    return this.rowOf.get(seq) ?? -1;
  }

  /** Return the row of the last thought with at most this `seq`, or -1. */
  findLast(seq: number): number {
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle].seq <= seq) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** Return the rows of a thought and of all thoughts that led to it. */
  ancestors(row: number): Set<number> {
    const found = new Set<number>();
    const open = [row];
    while (open.length) {
      const next = open.pop()!;
      if (next < 0 || found.has(next)) continue;
      found.add(next);
      open.push(this.rows[next].parent, this.rows[next].merged);
    }
    return found;
  }

  /** Return the edges that are visible between two rows. Edges that look the same there are included once. */
  edges(first: number, last: number): Edge[] {
    const passing = new Set<string>();
    const edges: Edge[] = [];
    const add = (kind: Edge['kind'], from: number, to: number) => {
      if (from < 0 || from > last) return;
      if (from < first && to > last) {
        const key = `${kind} ${edgeColumn(this.rows, { kind, from, to })}`;
        if (passing.has(key)) return;
        passing.add(key);
      }
      edges.push({ kind, from, to });
    };
    for (let row = Math.max(first, 0); row < this.rows.length; row++) {
      const { parent, replaced, merged } = this.rows[row];
      add('parent', parent, row);
      add('merged', merged, row);
      add('replaced', replaced, row);
    }
    return edges;
  }

  private add(outline: Outline, i: number): void {
    const seq = outline.seq[i];
    const row = this.rows.length;
    const earlier = (each: number) => (each > 0 && each < seq ? this.find(each) : -1);
    const [parent, replaced, merged] = [earlier(outline.a[i]), earlier(outline.b[i]), earlier(outline.opens[i])];
    const branch = outline.run[i] || outline.branch[i] ? `${outline.run[i]} ${outline.branch[i]}` : '';
    const column = this.place(row, parent, branch);
    this.last[column] = row;
    this.tip[column] = row;
    this.rows.push({ index: i, seq, column, parent, replaced, merged, replacedBy: -1, children: [] });
    this.rowOf.set(seq, row);
    if (parent >= 0) this.rows[parent].children.push(row);
    if (replaced >= 0) this.rows[replaced].replacedBy = row;
    if (merged >= 0) this.end(this.rows[merged].column, row);
  }

  private place(row: number, parent: number, branch: string): number {
    const known = this.columns.get(branch);
    if (known !== undefined) return known;
    const start = parent < 0 ? row - 1 : parent;
    if (branch) {
      const column = row ? this.free(start, 1) : 0;
      this.columns.set(branch, column);
      return column;
    }
    if (parent < 0) return 0;
    const { column } = this.rows[parent];
    return this.tip[column] === parent && !this.isReserved(column) ? column : this.free(parent, 0);
  }

  /** Return the first column that is empty after a row, from a given column on. */
  private free(start: number, first: number): number {
    for (let column = first; column < MAX_COLUMNS; column++) {
      if ((this.last[column] ?? -1) <= start && !this.isReserved(column)) return column;
    }
    return MAX_COLUMNS - 1;
  }

  private isReserved(column: number): boolean {
    return [...this.columns.values()].includes(column);
  }

  /** A branch was merged, so that other lines can use its column after this row. */
  private end(column: number, row: number): void {
    if (!column) return;
    this.last[column] = Math.max(this.last[column], row);
    this.tip[column] = -1;
    for (const [branch, each] of this.columns) if (each === column) this.columns.delete(branch);
  }
}

/** Column in which an edge goes down. Revisions go down next to it. */
export function edgeColumn(rows: Thought[], edge: Edge): number {
  const [from, to] = [rows[edge.from].column, rows[edge.to].column];
  return edge.kind === 'merged' ? from : edge.kind === 'parent' ? to : Math.max(from, to);
}

/** Describe the place of a thought for readers of the text. Rows are counted from one. */
export function describePlace(thought: Thought): string[] {
  return [
    thought.parent >= 0 && `follows ${thought.parent + 1}`,
    thought.replaced >= 0 && `replaces ${thought.replaced + 1}`,
    thought.merged >= 0 && `merges ${thought.merged + 1}`,
    thought.replacedBy >= 0 && `replaced by ${thought.replacedBy + 1}`,
  ].filter(each => each !== false);
}

/** Paths of the nodes and edges of all thoughts, from left to right: a unit per thought, and a unit per column. */
export function makeMap(rows: readonly Thought[]): { nodes: string; old: string; edges: string } {
  const draw = (isOld: boolean) => rows.map((each, k) => (each.replacedBy >= 0 === isOld ? `M${k} ${each.column}v0` : '')).join('');
  const edges = rows.map((each, k) => (each.parent < 0 ? '' : `M${each.parent} ${rows[each.parent].column}L${k} ${each.column}`)).join('');
  return { nodes: draw(false), old: draw(true), edges };
}
