// CopilotKit, controlled by JSON lines: the core of its front ends, its runtime in an HTTP server, and the AG-UI client
// that the runtime pins. Commands and results are those of agui_client.mjs.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { createServer } from "node:http";
import { once } from "node:events";
import { randomUUID } from "node:crypto";

const require = createRequire(process.env.CLIENTS + "/");
const { HttpAgent } = require("@ag-ui/client");
const { CopilotKitCore, CopilotKitCoreRuntimeConnectionStatus, ɵInterruptState } = require("@copilotkit/core");
const { CopilotRuntime, InMemoryAgentRunner } = require("@copilotkit/runtime/v2");
const { createCopilotNodeListener } = require("@copilotkit/runtime/v2/node");
const { z } = require("zod");

globalThis.window = globalThis; // the core connects to its runtime only in a browser

let warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = (...words) => warnings.push(words.join(" "));
console.log = () => {};

const runner = new InMemoryAgentRunner();
const parameters = z.object({ city: z.string() });

// A page: a runtime with one agent, and a core that is connected to it.
class Page {
  static async open({ url, headers, threadId }) {
    const runtime = new CopilotRuntime({ agents: { clerk: new HttpAgent({ url, headers }) }, runner });
    const server = createServer(createCopilotNodeListener({ runtime, basePath: "/copilot" }));
    server.listen(0, "127.0.0.1");
    server.unref();
    await once(server, "listening");
    const runtimeUrl = `http://127.0.0.1:${server.address().port}/copilot`;
    return Page.load(runtimeUrl, threadId);
  }

  // A page that is loaded again has neither messages nor interrupts.
  static async load(runtimeUrl, threadId) {
    const page = new Page();
    page.runtimeUrl = runtimeUrl;
    page.core = new CopilotKitCore({ runtimeUrl, runtimeTransport: "rest" });
    const { Connected, Error } = CopilotKitCoreRuntimeConnectionStatus;
    await new Promise((resolve, reject) => {
      const check = (status) => (status === Connected ? resolve() : status === Error && reject("no runtime"));
      page.core.subscribe({ onRuntimeConnectionStatusChanged: ({ status }) => check(status) });
      check(page.core.runtimeConnectionStatus);
    });
    page.agent = page.core.getAgent("clerk");
    page.agent.threadId = threadId;
    page.threadId = threadId;
    page.interrupts = new ɵInterruptState();
    // From docs/agui.md.
    page.agent.subscribe({
      onRunErrorEvent({ event, agent }) {
        if (event.metadata?.rxloop) agent.pendingInterrupts = [];
      },
    });
    page.tools = new Set();
    return page;
  }

  addTools(tools, result) {
    for (const { name, description } of tools ?? []) {
      if (this.tools.has(name)) this.core.removeTool(name);
      this.tools.add(name);
      this.core.addTool({ name, description, parameters, handler: async () => JSON.parse(result) });
    }
  }

  // What useInterrupt of @copilotkit/react-core does with the answers of a user.
  answer(resume) {
    let decision;
    for (const { interruptId, status, payload } of resume)
      decision = status === "resolved" ? this.interrupts.resolve(payload, interruptId) : this.interrupts.cancel(interruptId);
    for (const { toolCallId, content } of decision.toolResults)
      this.agent.addMessage({ id: randomUUID(), role: "tool", toolCallId, content });
    return this.core.runAgent({ agent: this.agent, resume: decision.resume, runId: this.interruptedRun });
  }

  async carryOut({ say, parameters: { tools, resume, result } = {}, connect, abortAfter }) {
    const events = [];
    const errors = [];
    warnings = [];
    const { agent, core, interrupts } = this;
    this.addTools(tools, result);
    const seen = agent.subscribe({
      onEvent: ({ event }) => {
        events.push(event);
        if (events.length === abortAfter) core.stopAgent({ agent });
      },
      onRunStartedEvent: () => interrupts.clear(),
      onRunFinishedEvent: ({ outcome, interrupts: open, input }) => {
        if (outcome !== "interrupt") return;
        interrupts.setStandard(open);
        this.interruptedRun = input.runId;
      },
    });
    const failed = core.subscribe({ onError: ({ error, code }) => void errors.push(`${code}: ${error.message}`) });
    for (const message of say ?? []) agent.addMessage(message);
    const { result: outcome, newMessages } = connect
      ? await core.connectAgent({ agent })
      : await (resume ? this.answer(resume) : core.runAgent({ agent }));
    seen.unsubscribe();
    failed.unsubscribe();
    const { messages, state, pendingInterrupts } = agent;
    const error = errors.filter((each) => !each.startsWith("agent_run_error_event")).join("; ") || null;
    return { events, messages, state, pendingInterrupts, error, warnings, result: outcome, newMessages };
  }
}

const pages = new Map();
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  const { agent: name, reloadOf } = command;
  if (!pages.has(name)) {
    const before = pages.get(reloadOf);
    pages.set(name, await (before ? Page.load(before.runtimeUrl, before.threadId) : Page.open(command)));
  }
  process.stdout.write(JSON.stringify(await pages.get(name).carryOut(command)) + "\n");
}
process.exit(0);
