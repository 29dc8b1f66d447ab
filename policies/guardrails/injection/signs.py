"""What prompt injections look like: phrases that override instructions, marks of chat templates. Patterns are in RE2's syntax, over folded
text (policies.guardrails.recognition.normal): without accents; a letter beyond ASCII is the byte 0x80.

English is covered broadly; German, French, Spanish, Italian, Portuguese and Dutch by the common ways to say the same; Chinese, Japanese,
Korean and Russian by a few fixed phrases.
"""

from __future__ import annotations

from typing import Final

_GAP: Final = r"[^a-z0-9]{1,6}"
_FILL: Final = (
    rf"(?:{_GAP}(?:all|any|every|each|the|of|your|my|these|those|this|that|and|other|our|everything|what|to"
    rf"|in|from)){{0,5}}"
)
_PAST: Final = (
    "(?:previous|prior|above|earlier|preceding|former|past|foregoing|existing|original|initial|old|system|developer|safety|security)"
)
_RULES: Final = (
    "(?:instructions?|prompts?|rules?|directions?|directives?|guidelines?|messages?|commands?|orders?|context"
    "|constraints?|restrictions?"
    "|policies|policy|polic(?:y|ies)|conversation|text|training|programming|content|safeguards?|filters?)"
)
_DROP: Final = (
    "(?:ignore|disregard|forget|bypass|override|overrule|neglect|discard|skip|drop|cancel|circumvent|overwrite"
    "|do not follow|don.?t follow|stop following)"
)
_SECRET: Final = "(?:system|initial|hidden|original|secret|internal|developer|starting|full|base|pre)"


def _spaced(text: str) -> str:
    """Words with any signs between them."""
    return text.replace(" ", _GAP)


OVERRIDES: Final[tuple[tuple[str, float], ...]] = (
    (rf"{_DROP}{_FILL}{_GAP}{_PAST}{_FILL}{_GAP}{_RULES}", 0.9),
    (rf"{_DROP}{_FILL}{_GAP}{_RULES}{_FILL}{_GAP}(?:above|before|previous|prior|earlier|you (?:were|have been|got|received))", 0.9),
    (rf"{_DROP}{_GAP}(?:all|every|any)?{_GAP}?(?:of )?(?:your|the){_GAP}{_RULES}", 0.7),
    (
        _spaced(
            "(?:forget|ignore|disregard) (?:everything|anything|all)(?: that)?(?: (?:you|i|we|they|was|were|has|have"
            "|been|said|told|know|learned|above|before|prior))"
        ),
        0.85,
    ),
    (
        _spaced(
            "(?:reveal|print|show|repeat|output|display|leak|expose|tell me|give me|write out|dump|recite|share|return)(?:"
            " me| us)?(?: verbatim| exactly| back)?(?: all| everything| the| your| of| in| full| entire| complete"
            "| exact){0,5}"
        )
        + rf"{_GAP}{_SECRET}?{_GAP}?(?:system{_GAP})(?:prompt|message|instructions?)",
        0.85,
    ),
    (_spaced("(?:what|which) (?:is|are|was|were) (?:your|the) ") + rf"{_SECRET}{_GAP}(?:prompt|instructions?|message|rules)", 0.6),
    (_spaced("repeat (?:everything|all|the words|the text|the content)(?: that is| that was)? (?:above|before this)"), 0.8),
    (
        _spaced(
            "you are (?:now|no longer) (?:a |an |the )?(?:dan|free|unrestricted|unfiltered|uncensored|jailbroken|evil"
            "|bound|restricted|developer|root|god|stan|aim)"
        ),
        0.85,
    ),
    (
        _spaced(
            "(?:do anything now|dan mode|developer mode (?:enabled|on|activated)|jailbreak mode|god mode (?:enabled"
            "|on|activated)|sudo mode|debug mode enabled)"
        ),
        0.85,
    ),
    (
        _spaced(
            "(?:act|behave|respond|answer|pretend|roleplay|role play)(?: as| to be| like| that| if| you| are| an?"
            "| the| ai| assistant| model| chatbot| were| had| have| with){0,8} (?:without|no|free of|ignoring)(?:"
            " any| all| the| your| ethical| moral| content| safety){0,3} (?:restrictions?|limits?|limitations?|filters?"
            "|rules|guidelines|ethics|morals|censorship|policies)"
        ),
        0.85,
    ),
    (_spaced("(?:your|the) (?:new|real|true|actual|only) (?:instructions?|task|goal|objective|purpose|rules?|role) (?:is|are)"), 0.6),
    (
        _spaced(
            "(?:new|updated|important|revised|urgent) (?:system )?(?:instructions?|prompt|directives?)(?: for (?:the"
            " )?(?:ai|assistant|model|llm|you|agent))?"
        )
        + r"\s{0,4}[:\x81]",
        0.55,
    ),
    (
        _spaced(
            "(?:attention|note|message|instructions?|important)(?: to| for)? (?:the )?(?:ai|assistant|model|llm|language"
            " model|chatbot|agent)s?(?: reading| processing| that reads)?"
        )
        + r"\s{0,4}[:,]",
        0.6,
    ),
    (_spaced("(?:do not|don.?t|never) (?:tell|inform|mention|reveal|show|let|alert|notify)(?: this| it)?(?: to)? (?:the )?user"), 0.6),
    (
        _spaced(
            "(?:disable|turn off|deactivate|remove|switch off) (?:all |your |the |any ){0,3}(?:safety|content|ethical"
            "|moral|security) (?:filters?|checks?|guidelines?|measures?|protocols?|restrictions?)"
        ),
        0.85,
    ),
    (
        _spaced(
            "ignorier(?:e|en sie|t)?(?: bitte)?(?: alle| die| deine| ihre| samtliche| bisherigen| vorherigen"
            "| vorigen| obigen| fruheren){1,4} (?:anweisungen|instruktionen|regeln|befehle|vorgaben|nachrichten)"
        ),
        0.9,
    ),
    (
        _spaced(
            "vergiss(?: bitte)?(?: alle?s?| deine| die| bisherigen| vorherigen| fruheren){1,4} (?:anweisungen"
            "|instruktionen|regeln|vorgaben|was)"
        ),
        0.9,
    ),
    (
        _spaced("(?:ignore[zrs]?|oublie[zrs]?)(?: toutes?| tous| les| tes| vos| ces){1,3} (?:instructions|consignes|regles|directives)"),
        0.9,
    ),
    (
        _spaced(
            "(?:ignora|ignore|olvida|olvide)(?: todas?| todos?| las| los| tus| sus| estas){1,3} (?:instrucciones|reglas"
            "|ordenes|indicaciones)"
        ),
        0.9,
    ),
    (_spaced("(?:ignora|dimentica)(?: tutte| tutti| le| i| tue| queste){1,3} (?:istruzioni|regole|indicazioni)"), 0.9),
    (
        _spaced("(?:ignore|esque[c\x80]{1,2}a)(?: todas?| todos?| as| os| suas| estas){1,3} (?:instrucoes|regras|orientacoes)"),
        0.9,
    ),
    (
        _spaced(
            "(?:negeer|vergeet)(?: alle| de| je| uw| jouw| bovenstaande| vorige| eerdere){1,4} (?:instructies|regels"
            "|opdrachten|aanwijzingen)"
        ),
        0.9,
    ),
)
"""(pattern, how sure it is alone)."""
FIXED: Final[tuple[tuple[str, float], ...]] = (
    *(
        (phrase, 0.9)
        for phrase in ("忽略之前的", "忽略以上", "忽略所有", "无视之前的", "無視之前的", "忘记之前的", "忽略先前", "显示你的系统提示")
    ),
    *((phrase, 0.9) for phrase in ("以前の指示を無視", "これまでの指示を無視", "上記の指示を無視", "システムプロンプトを")),
    *((phrase, 0.9) for phrase in ("이전 지시를 무시", "이전의 모든 지시", "시스템 프롬프트를")),
    *(
        (phrase, 0.9)
        for phrase in ("игнорируй предыдущие", "игнорируйте предыдущие", "забудь предыдущие", "забудь все инструкции", "игнорируй все")
    ),
)
MARKERS: Final[tuple[tuple[str, float], ...]] = (
    (
        r"<\|(?:im_start|im_end|im_sep|system|user|assistant|end|endoftext|eot_id|start_header_id|end_header_id"
        r"|begin_of_text|end_of_text|eom_id|python_tag|channel|message|start|return|call)\|>",
        0.9,
    ),
    (
        r"<(?:start_of_turn|end_of_turn|bos|eos)>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\]|<</?SYS>>"
        r"|<\x81(?:User|Assistant|begin\x81of\x81sentence)\x81>",
        0.9,
    ),
    (r"</?(?:system|system_prompt|system-prompt|instructions?|developer|admin)(?:\s[^>]{0,64})?>", 0.55),
    (r"(?:^|\n)[ \t#*>-]{0,8}(?:system|developer|assistant)(?: (?:prompt|message|instructions?|override|note))?[ \t*]{0,3}:", 0.5),
    (r"(?:^|\n)#{2,6} ?(?:new )?(?:instructions?|system(?: prompt| message)?|response|human|assistant)\b", 0.45),
    (r"[\"']role[\"']\s{0,3}:\s{0,3}[\"'](?:system|developer)[\"']", 0.55),
    (
        r"(?:-{3,}|={3,}|#{3,}|\*{3,}) {0,3}(?:end|begin|start)(?: of)?(?: the)? (?:system|user|user input|prompt"
        r"|instructions?|context|document|input|conversation)",
        0.55,
    ),
)
