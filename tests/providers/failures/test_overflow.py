# ruff: noqa: E501, RUF001 - messages as vendors send them.
"""Vendor messages about oversized requests, and similar messages about other limits."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from rxloop import errors
from rxloop.providers.error_responses import error_from_response, from_error_object
from rxloop.providers.failures import Endpoint
from support.vendors.chat_chunks import read_chunks

WHERE = Endpoint("mine:model", "http://vendor/v1/chat/completions", None)

# P11: vendor, status and message.
OVERFLOWS: list[tuple[str, int, str]] = [
    (
        "openai",
        400,
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 204308 tokens.",
    ),
    (
        "openai",
        400,
        "This model's maximum context length is 4096 tokens. However, you requested 4222 tokens (3222 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
    ),
    (
        "openai responses",
        400,
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    (
        "azure",
        400,
        "This model's maximum context length is 8192 tokens, however you requested 9000 tokens (8500 in your prompt; 500 for the completion).",
    ),
    ("anthropic", 400, "prompt is too long: 210000 tokens > 200000 maximum"),
    (
        "anthropic",
        400,
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again",
    ),
    ("anthropic", 413, "Request exceeds the maximum size"),
    ("gemini", 400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    ("gemini", 400, "The input token count exceeds the maximum number of tokens allowed 1048576."),
    (
        "vertex",
        400,
        "Unable to submit request because the input token count is 40000 but model only supports up to 32768.",
    ),
    ("bedrock", 400, "Input is too long for requested model."),
    ("bedrock", 400, "ValidationException: The input is too long"),
    ("bedrock", 400, "Too many input tokens. Max input tokens: 8192, request input token count: 9000"),
    ("bedrock", 400, "Input Tokens Exceeded: Number of input tokens exceeds maximum length."),
    ("bedrock", 400, "ValidationException: Input exceeds the max input token limit"),
    ("bedrock", 424, "ModelStreamErrorException: Input is too long"),
    ("moonshot", 400, "Invalid request: Your request exceeded model token limit: 8192"),
    ("moonshot", 400, "Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)"),
    (
        "tgi",
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
    ),
    ("tgi", 422, "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000"),
    (
        "together",
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32769. Given: 40000 `inputs` tokens and 512 `max_new_tokens`",
    ),
    ("dashscope", 400, "Range of input length should be [1, 129024]"),
    ("dashscope", 400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"),
    (
        "cohere",
        400,
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000. Try using a shorter prompt",
    ),
    (
        "cohere",
        400,
        "too many tokens: size limit exceeded by 11000 tokens. Try using shorter or fewer inputs, or setting prompt_truncation='AUTO'.",
    ),
    ("cohere", 400, "total tokens exceeds the model's max of 4096"),
    (
        "zai",
        400,
        "API 调用参数有误，请检查文档。Request 182387 input tokens exceeds the model's maximum context length 202750",
    ),
    ("zai", 400, "tokens in request more than max tokens allowed"),
    ("zai", 400, "Prompt exceeds max length"),
    ("zai", 400, "Prompt 超长"),
    (
        "vllm",
        400,
        "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens and your prompt contains at least 262145 input tokens, for a total of at least 262145 tokens.",
    ),
    (
        "vllm",
        400,
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller",
    ),
    ("vllm", 400, "Input prompt (5000 tokens) is too long and exceeds limit of 4096"),
    (
        "vllm",
        400,
        "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 32768 tokens and your request has 30000 input tokens (4096 > 32768 - 30000).",
    ),
    ("sglang", 400, "The input (233781 tokens) is longer than the model's context length (202752 tokens)."),
    (
        "sglang",
        400,
        "Requested token count exceeds the model's maximum context length of 98304 tokens. You requested a total of 115623 tokens: 110527 tokens from the input messages and 5096 tokens for the completion.",
    ),
    ("llama.cpp", 400, "the request exceeds the available context size, try increasing it"),
    ("llama.cpp", 500, "input is too large to process. increase the physical batch size"),
    ("ollama", 400, "prompt too long; exceeded max context length by 12 tokens"),
    ("ollama", 500, "the input length exceeds the context length"),
    (
        "lm studio",
        400,
        "Trying to keep the first 6000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.",
    ),
    ("fireworks", 400, "The prompt is too long: 50000, model maximum context length: 32767"),
    (
        "mistral",
        400,
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    ),
    ("groq", 400, "Please reduce the length of the messages or completion."),
    (
        "groq",
        413,
        "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 7205, please reduce your message size and try again.",
    ),
    (
        "cerebras",
        400,
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
    ),
    (
        "deepseek",
        400,
        "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens (66000 in the messages, 4000 in the completion). Please reduce the length of the messages or completion.",
    ),
    ("xai", 400, "This model's maximum prompt length is 131072 but the request contains 200000 tokens."),
    (
        "openrouter",
        400,
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens (39000 of text input, 1000 in the output).",
    ),
    ("poolside", 400, "Input length 131393 exceeds the maximum allowed input length of 131040 tokens."),
    ("any", 400, "Input length (265330) exceeds model's maximum context length (262144)."),
    ("github", 413, "Request body too large for gpt-4o model. Max size: 8000 tokens."),
    ("github", 400, "Request body too large for gpt-4o model. Max size: 8000 tokens."),
    ("minimax", 400, "invalid params, context window exceeds limit (2013)"),
    ("tabby", 400, "Prompt length 9000 is greater than max_seq_len 8192"),
    ("any", 400, "The total number of tokens exceeds the limit of 128000"),
    ("any", 400, "Your request contains 9000 tokens, which exceeds the 8192 token limit"),
    ("any", 400, "the prompt (9000 tokens) exceeds the model's limit of 8192 tokens"),
    ("any", 400, "Input tokens (9000) exceed model limit (8192)"),
    ("any", 400, "Input text is too long"),
    ("any", 400, "messages too long"),
    (
        "groq",
        413,
        "Request too large for model `m` on tokens per minute (TPM): Limit 6,000, Requested 7,205, please reduce your message size.",
    ),
    ("litellm", 400, "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - too long"),
    (
        "litellm",
        500,
        'litellm.APIError: AnthropicException - {"type":"error","error":{"message":"prompt is too long: 9 tokens > 5 maximum"}}',
    ),
    (
        "litellm",
        400,
        "litellm.BadRequestError: Error code: 400 - {'error': {'message': 'no', 'code': 'context_length_exceeded'}}",
    ),
]

OTHERS: list[tuple[str, int, str, type[Exception]]] = [
    (
        "openai",
        400,
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.",
        errors.BadRequest,
    ),
    (
        "openai",
        429,
        "Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.",
        errors.RateLimited,
    ),
    (
        "openai",
        429,
        "Request too large for gpt-4 in organization org-1 on tokens per min (TPM): Limit 10000, Requested 14000. The input or output tokens must be reduced in order to run successfully.",
        errors.RateLimited,
    ),
    (
        "groq",
        413,
        "Rate limit reached for model `m` on tokens per minute (TPM): Limit 6000, Used 5900, Requested 205.",
        errors.RateLimited,
    ),
    (
        "any",
        400,
        "This request would exceed the limit of 30000 input tokens per minute; maximum context length is not reached",
        errors.RateLimited,
    ),
    ("any", 500, "RateLimitError: too many tokens per minute, reduce the length of your prompt", errors.RateLimited),
    ("bedrock", 429, "Too many tokens, please wait before trying again.", errors.RateLimited),
    ("bedrock", 400, "Too many tokens, please wait before trying again.", errors.RateLimited),
    (
        "anthropic",
        429,
        "This request would exceed your organization's rate limit of 40,000 input tokens per minute",
        errors.RateLimited,
    ),
    (
        "anthropic",
        400,
        "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet",
        errors.BadRequest,
    ),
    (
        "anthropic",
        400,
        "input length and `max_tokens` exceed context limit: 10 + 300000 > 200000, decrease input length or `max_tokens`",
        errors.BadRequest,
    ),
    (
        "bedrock",
        400,
        "The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that is lower than 4096.",
        errors.BadRequest,
    ),
    (
        "cohere",
        400,
        "too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model - received 5000.",
        errors.BadRequest,
    ),
    ("dashscope", 400, "Range of max_tokens should be [1, 8192]", errors.BadRequest),
    ("tgi", 422, "Input validation error: `max_new_tokens` must be <= 512. Given: 1000", errors.BadRequest),
    (
        "tgi",
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 20 `inputs` tokens and 5000 `max_new_tokens`",
        errors.BadRequest,
    ),
    (
        "vllm",
        400,
        "'max_tokens' or 'max_completion_tokens' is too large: 40000. This model's maximum context length is 32768 tokens and your request has 100 input tokens (40000 > 32768 - 100).",
        errors.BadRequest,
    ),
    (
        "deepseek",
        400,
        "This model's maximum context length is 65536 tokens. However, you requested 70100 tokens (100 in the messages, 70000 in the completion).",
        errors.BadRequest,
    ),
    (
        "sglang",
        400,
        "Requested token count exceeds the model's maximum context length of 98304 tokens. You requested a total of 115623 tokens: 10527 tokens from the input messages and 105096 tokens for the completion.",
        errors.BadRequest,
    ),
    (
        "gemini",
        400,
        "Unable to submit request because it has a maxOutputTokens value of 99999 but the supported range is from 1 to 8193",
        errors.BadRequest,
    ),
    (
        "openai",
        400,
        "Invalid 'tools[0].function.description': string too long. Expected a string with maximum length 1024, but got 1740.",
        errors.BadRequest,
    ),
    (
        "groq",
        400,
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the `context_window` for this model",
        errors.BadRequest,
    ),
    ("any", 400, "The requested max_tokens 9000 exceeds the context length of 8192", errors.BadRequest),
    ("any", 400, "max_new_tokens (9000) exceeds the model's maximum context length of 8192", errors.BadRequest),
    ("any", 400, "max_tokens should be less than or equal to the context window size: 8192", errors.BadRequest),
    ("any", 400, "Unknown field: context_length", errors.BadRequest),
    ("any", 400, "thinking.budget_tokens must be less than max_tokens", errors.BadRequest),
    ("any", 400, "max_tokens: must be less than the maximum context length", errors.BadRequest),
    (
        "groq",
        413,
        "Rate limit reached for model `m` on tokens per minute (TPM): Limit 6,000, Used 5,900, Requested 205.",
        errors.RateLimited,
    ),
    ("zai", 400, "API 调用参数有误，请检查文档。", errors.BadRequest),
    ("zai", 429, "您的账户已达到速率限制，请您控制请求频率", errors.RateLimited),
    ("any", 400, "messages.0.content.1.image: image is too large", errors.MediaRefused),
    ("any", 401, "rate limit of unauthenticated requests", errors.AuthenticationError),
]


@pytest.mark.parametrize(("vendor", "status", "message"), OVERFLOWS)
def test_overflow_is_recognised_by_its_message(vendor: str, status: int, message: str) -> None:
    bodies: list[Any] = [
        {"error": {"message": message}},
        {"error": message},
        {"object": "error", "message": message, "type": "BadRequestError", "code": status},
        {"detail": message},
        {"error": {"message": "Provider returned error", "code": status, "metadata": {"raw": message}}},
        {
            "error": {
                "code": status,
                "message": "Error",
                "metadata": {"raw": json.dumps({"error": {"message": message}})},
            }
        },
    ]
    for body in bodies:
        found = error_from_response(status, {}, orjson.dumps(body), WHERE)
        assert type(found) is errors.ContextLengthExceeded, body
        assert message[:20] in str(found)
    if status != 413:
        assert type(from_error_object({"message": message}, WHERE)) is errors.ContextLengthExceeded
        with pytest.raises(errors.ContextLengthExceeded):
            read_chunks({"error": {"message": message, "code": status}})


@pytest.mark.parametrize(("vendor", "status", "message", "kind"), OTHERS)
def test_message_about_rates_or_output_is_not_an_overflow(
    vendor: str, status: int, message: str, kind: type[Exception]
) -> None:
    assert type(error_from_response(status, {}, orjson.dumps({"error": {"message": message}}), WHERE)) is kind
    wrapped = {"error": {"message": "Provider returned error", "code": status, "metadata": {"raw": message}}}
    assert type(error_from_response(status, {}, orjson.dumps(wrapped), WHERE)) is kind
    assert not isinstance(from_error_object({"message": message}, WHERE), errors.ContextLengthExceeded)


# P11
@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "no"},
        {"type": "exceed_context_size_error", "message": "no", "n_ctx": 4096},
        {"type": "request_too_large", "message": "no"},
        {"code": "1261", "message": "no"},
        {"code": 1261, "message": "no"},
        {"code": "tokens_limit_reached", "message": "no"},
        {"type": "ContextWindowExceededError", "message": "no"},
        {"message": "no", "metadata": {"raw": '{"error":{"code":"context_length_exceeded","message":"no"}}'}},
        {"message": "no", "metadata": {"raw": {"error": {"code": "context_length_exceeded"}}}},
        {"message": '{\\"error\\": {\\"code\\": \\"context_length_exceeded\\"}}'},
    ],
)
def test_overflow_is_recognised_by_its_code(error: dict[str, Any]) -> None:
    for status in (400, 413, 500):
        found = error_from_response(status, {}, orjson.dumps({"error": error}), WHERE)
        assert type(found) is errors.ContextLengthExceeded
    assert type(from_error_object(error, WHERE)) is errors.ContextLengthExceeded
