"""Chat templates in the manner of three model families, written for these tests, and small tokenizers for them.

Same structure as the real ones, other words: ChatML with reasoning that disappears behind a later user message and
tool results grouped in a user turn; header blocks with a date and tools in the first user message; and markers with
full-width bars, reasoning always dropped, tool results in one block that the answer follows without a marker.
"""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

QWEN = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- '# Tools\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\n</tools>\nAnswer with <tool_call> blocks.<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set seen = namespace(searching=true, query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- set text = message.content %}
    {%- set wrapped = text.startswith('<tool_response>') and text.endswith('</tool_response>') %}
    {%- if seen.searching and message.role == 'user' and not wrapped %}
        {%- set seen.searching = false %}
        {%- set seen.query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > seen.query and (loop.last or reasoning) %}
            {{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}
                {{- '\n' }}
            {%- endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}
                {{- call.function.arguments }}
            {%- else %}
                {{- call.function.arguments | tojson }}
            {%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

LLAMA = r"""
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set rules = messages[0].content | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rules = '' %}
    {%- set rest = messages %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools %}
    {{- 'Environment: ipython\n' }}
{%- endif %}
{{- 'Today: ' + strftime_now('%d %b %Y') + '\n\n' + rules + '<|eot_id|>' }}
{%- set state = namespace(tools_due=tools) %}
{%- for message in rest %}
    {%- if state.tools_due and message.role == 'user' %}
        {{- '<|start_header_id|>user<|end_header_id|>\n\nThese functions can be called:\n\n' }}
        {%- for tool in tools %}
            {{- tool | tojson(indent=4) }}
            {{- '\n\n' }}
        {%- endfor %}
        {{- message.content | trim + '<|eot_id|>' }}
        {%- set state.tools_due = none %}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('one call at a time') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- '}<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
        {%- if message.content is mapping %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

DEEPSEEK = r"""
{%- set state = namespace(rules='', in_results=false) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set state.rules = state.rules + ('\n\n' if state.rules else '') + message.content %}
    {%- endif %}
{%- endfor %}
{{- bos_token + state.rules }}
{%- if tools %}
    {{- '\n\n## Tools' }}
    {%- for tool in tools %}
        {{- '\n' + tool.function.name + ': ' + (tool.function.parameters | tojson) }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'tool' and state.in_results %}
        {{- '<｜tool▁outputs▁end｜>' }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '<｜User｜>' + message.content }}
    {%- elif message.role == 'assistant' %}
        {%- if not state.in_results %}
            {{- '<｜Assistant｜>' }}
        {%- endif %}
        {{- message.content.split('</think>')[-1] }}
        {%- if message.tool_calls %}
            {{- '<｜tool▁calls▁begin｜>' }}
            {%- for call in message.tool_calls %}
                {{- ('' if loop.first else '\n') + '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name }}
                {{- '\n```json\n' + call.function.arguments + '\n```<｜tool▁call▁end｜>' }}
            {%- endfor %}
            {{- '<｜tool▁calls▁end｜>' }}
        {%- endif %}
        {{- '<｜end▁of▁sentence｜>' }}
    {%- elif message.role == 'tool' %}
        {{- '\n' if state.in_results else '<｜tool▁outputs▁begin｜>' }}
        {{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
    {%- endif %}
    {%- set state.in_results = message.role == 'tool' %}
{%- endfor %}
{%- if state.in_results %}
    {{- '<｜tool▁outputs▁end｜>' }}
{%- elif add_generation_prompt %}
    {{- '<｜Assistant｜>' }}
{%- endif %}
"""

FAMILIES = {
    "qwen": (
        QWEN,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"],
        {"eos_token": "<|im_end|>"},
    ),
    "llama": (
        LLAMA,
        ["<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"],
        [],
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    "deepseek": (
        DEEPSEEK,
        ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"],
        [
            *("<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
            *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
            *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        ],
        {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    ),
}  # fmt: skip


def write_family(folder, name):
    """A tokenizer folder of one family."""
    template, special, plain, named = FAMILIES[name]
    return write_tokenizer(folder, template, special, plain, named)


def write_tokenizer(folder, template, special, plain, named):
    tokenizer = Tokenizer(models.BPE())
    # As in these families, line breaks go with what is before them: what an answer begins with changes no ids there.
    pieces = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = 'system user assistant ipython tool hello world "name": "arguments": {"path": "a"} function json\n\n'
    tokenizer.train_from_iterator([text] * 3, trainer)
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in plain])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": template, "model_max_length": 100_000, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
