// Numbers of messages and open calls while a run is followed. The outline contains them for recorded events.

import type { Event } from './protocol.d.ts';

export class HistoryCount {
  messages = 0;
  calls = 0;
  private isAnswering = false;
  /** Messages that are added when all calls of the open message have a result. */
  private waiting = 0;
  /** Messages that are added after the open message and its results. */
  private held = 0;
  private step = '';
  private answered = new Set<number>();

  /** Take the numbers of a recorded event. */
  read(kind: string, isMain: boolean, messages: number, calls: number): this {
    if (isMain && kind === 'llm-call') this.isAnswering = true;
    if (isMain && kind === 'message-added' && messages === this.messages && (this.isAnswering || this.waiting)) this.held++;
    if (messages > this.messages && !calls) [this.waiting, this.held] = [0, 0];
    if (isMain && kind === 'content-complete') {
      this.isAnswering = false;
      this.waiting = calls ? 1 + calls : 0;
      // The calls before this event are not known by their indexes. They have results, or are answered later.
      this.step = '';
      this.answered.clear();
    }
    [this.messages, this.calls] = [messages, calls];
    return this;
  }

  /** Add an event of the stream. */
  add(event: Event): this {
    if (event.parentTaskId || event.branch) return this;
    switch (event.kind) {
      case 'task':
        this.messages += this.waiting + this.held + (event.messages?.length ?? 0);
        [this.waiting, this.held, this.calls, this.isAnswering] = [0, 0, 0, false];
        break;
      case 'status-update':
        if (event.resumed && this.isAnswering) this.release(0);
        break;
      case 'llm-call':
        this.isAnswering = true;
        break;
      case 'message-added':
        if (this.waiting || this.isAnswering) this.held++;
        else this.messages++;
        break;
      case 'content-complete':
        this.answer(event);
        break;
      case 'tool-complete':
        this.complete(event);
    }
    return this;
  }

  private release(messages: number): void {
    this.messages += messages + this.held;
    this.held = 0;
  }

  private answer(event: Event & { kind: 'content-complete' }): void {
    this.isAnswering = false;
    if (event.finishReason === 'canceled') return this.release(0);
    if (event.finishReason === 'interrupted') return this.release(event.content?.trim() ? 1 : 0);
    const calls = event.toolCalls?.length ?? 0;
    if (!calls) {
      const isEmpty = !(event.content || event.files?.length || event.reasoning);
      if (event.leftOut?.length && isEmpty) return;
      return this.release(1);
    }
    [this.calls, this.waiting, this.step] = [calls, 1 + calls, event.step ?? ''];
    this.answered.clear();
  }

  private complete(event: Event & { kind: 'tool-complete' }): void {
    const index = event.index ?? 0;
    // A message that was recorded before the stream has an unknown step.
    if (!this.calls || (this.step && this.step !== (event.step ?? '')) || this.answered.has(index)) return;
    this.answered.add(index);
    this.waiting += event.messages?.length ?? 0;
    this.calls--;
    if (this.calls) return;
    this.release(this.waiting);
    this.waiting = 0;
  }
}
