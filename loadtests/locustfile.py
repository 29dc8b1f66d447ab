"""What Locust runs against a gateway: users of every kind, stages of load, and thresholds that fail the run.

    GATEHOUSE_URL=http://127.0.0.1:8080 GATEHOUSE_KEY=gh_... GATEHOUSE_MODEL=demo-chat locust --config loadtests/profiles/smoke.conf

loadtests/profiles/README.md lists the environment, the profiles and the options. Every kind of user is a file of loadtests/traffic.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # Locust puts this file's folder there, not the repository's root

from loadtests.traffic import options
from loadtests.traffic.chat import ChatUser
from loadtests.traffic.embed import EmbedUser
from loadtests.traffic.greedy import GreedyUser
from loadtests.traffic.keys import KeyChurnUser
from loadtests.traffic.leave import LeavingUser
from loadtests.traffic.stages import Stages
from loadtests.traffic.stream import StreamUser
from loadtests.traffic.tensors import TensorUser

options.register()

__all__ = ["ChatUser", "EmbedUser", "GreedyUser", "KeyChurnUser", "LeavingUser", "Stages", "StreamUser", "TensorUser"]
