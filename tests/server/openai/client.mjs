// Official OpenAI client. Streams responses and answers their questions, with one JSON line per run.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";

const OpenAI = createRequire(process.argv[2] + "/")("openai").default;

/** The input that answers all that a response asks; null if it asks nothing, or what nobody here can answer. */
function answers(response, declines) {
  const approvals = new Set(response.output.filter((item) => item.type === "mcp_approval_request").map((item) => item.id));
  const input = [];
  for (const item of response.output) {
    if (item.type === "mcp_approval_request") {
      input.push({ type: "mcp_approval_response", approval_request_id: item.id, approve: !declines });
    } else if (item.type === "function_call") {
      const output = declines ? '{"error": "no map here"}' : '{"shown": true}';
      input.push({ type: "function_call_output", call_id: item.call_id, output });
    } else if (item.type === "message" && item.id.startsWith("msg_mcpr_")) {
      const text = item.content[0].text;
      if (text.includes("github")) return null;
      const id = item.id.slice("msg_".length);
      if (approvals.has(id.split(":response:")[0])) continue;
      const output = text.startsWith("Which?") ? "a" : '{"city": "Oslo", "nights": 2}';
      input.push({ type: "function_call_output", call_id: id, output });
    }
  }
  return input.length ? input : null;
}

async function run({ base, model, tools, declines, cancels, background }) {
  const client = new OpenAI({ baseURL: base, apiKey: "ann-key", maxRetries: 0 });
  const responses = [];
  let body = { model, tools, background, input: "Go." };
  while (body !== null && responses.length < 8) {
    const numbers = [];
    const stream = client.responses.stream(body);
    stream.on("event", (event) => numbers.push(event.sequence_number));
    let final;
    try {
      final = await stream.finalResponse();
    } catch (error) {
      // Canceled runs reject answers.
      if (error.status === 409 && cancels && responses.length) break;
      throw error;
    }
    responses.push({ id: final.id, status: final.status, text: final.output_text, output: final.output, numbers });
    const input = final.status === "completed" ? answers(final, declines) : null;
    body = input && { model, tools, background, input, previous_response_id: final.id };
  }
  return { responses };
}

for await (const line of createInterface({ input: process.stdin })) {
  const said = await run(JSON.parse(line)).catch((error) => ({ error: String(error && error.stack) }));
  process.stdout.write(JSON.stringify(said) + "\n");
}
