"""The options that a run has beside Locust's own, and which users take part."""

import logging
from typing import Any

from locust import events, log
from locust.env import Environment

from loadtests.traffic import notation, thresholds
from loadtests.traffic.chat import ChatUser
from loadtests.traffic.embed import EmbedUser
from loadtests.traffic.greedy import GreedyUser
from loadtests.traffic.keys import KeyChurnUser
from loadtests.traffic.leave import LeavingUser
from loadtests.traffic.settings import SETTINGS
from loadtests.traffic.stream import StreamUser
from loadtests.traffic.tensors import TensorUser

logger = logging.getLogger("gatehouse.load")
KINDS: dict[str, Any] = {
    "chat": ChatUser,
    "stream": StreamUser,
    "leave": LeavingUser,
    "embed": EmbedUser,
    "tensors": TensorUser,
    "greedy": GreedyUser,
    "keys": KeyChurnUser,
}


def add_options(parser: Any) -> None:
    group = parser.add_argument_group("Gatehouse")
    group.add_argument("--mix", default="chat=1", help=f"kinds of users with their weights: chat=6,stream=3 (kinds: {', '.join(KINDS)})")
    group.add_argument("--stages", default="", help="DURATION:USERS,... instead of --users and --run-time: 30s:10,10s:200,30s:10")
    group.add_argument("--max-failures", type=float, default=0.0, help="share of failed requests above which the run fails (default 0)")
    group.add_argument("--max-shed", type=float, default=0.0, help="share of requests that may be refused for want of capacity (default 0)")
    group.add_argument("--max-broken", type=float, default=0.0, help="share of streams that may break off with an error event (default 0)")
    group.add_argument("--max-late", type=float, default=0.0, help="share of revoked keys that may be accepted a second later (default 0)")
    group.add_argument("--min-requests", type=int, default=1, help="answered requests below which the run fails (default 1)")
    group.add_argument("--max-p95", type=float, default=0.0, help="p95 of `chat` in milliseconds above which the run fails")
    group.add_argument("--max-ttft-p95", type=float, default=0.0, help="p95 of the time to a stream's first token, in milliseconds")
    group.add_argument("--max-gap-p95", type=float, default=0.0, help="p95 of a stream's longest gap, in milliseconds")


def choose_users(environment: Environment, **_: Any) -> None:
    """Only the kinds of the mix take part, by their weights."""
    options = environment.parsed_options
    if options is None:
        return
    try:
        mix = notation.parse_mix(options.mix, KINDS)
        if options.stages:
            notation.parse_stages(options.stages)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if missing := SETTINGS.missing(mix):  # users who find out by themselves would only be absent from the run
        raise SystemExit(missing)
    for name, weight in mix.items():
        KINDS[name].weight = weight
    environment.user_classes = [KINDS[name] for name in mix]


def judge(environment: Environment, **_: Any) -> None:
    """The exit code is 1 when a threshold was passed, else 0. Locust's own rule (any failure fails the run) would leave no room for it."""
    crashes = 0 if environment.runner is None else sum(one["count"] for one in environment.runner.exceptions.values())
    found = thresholds.violations(environment.parsed_options, environment.stats.entries, crashes + log.unhandled_greenlet_exception)
    for line in found:
        logger.error("threshold: %s", line)
    environment.process_exit_code = 1 if found else 0


def register() -> None:
    """Called once, by the locustfile."""
    events.quitting.add_listener(judge)
    events.init_command_line_parser.add_listener(add_options)
    events.init.add_listener(choose_users)
