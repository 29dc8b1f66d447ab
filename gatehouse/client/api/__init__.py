"""All resources of the admin API. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.api.apply import ApplyApi
from gatehouse.client.api.approvals import ApprovalsApi
from gatehouse.client.api.audit import AuditApi
from gatehouse.client.api.batches import BatchesApi
from gatehouse.client.api.bindings import BindingsApi
from gatehouse.client.api.caches import CachesApi
from gatehouse.client.api.captures import CapturesApi
from gatehouse.client.api.client_files import ClientFilesApi
from gatehouse.client.api.config import ConfigApi
from gatehouse.client.api.dump import DumpApi
from gatehouse.client.api.endpoints import EndpointsApi
from gatehouse.client.api.engines import EnginesApi
from gatehouse.client.api.events import EventsApi
from gatehouse.client.api.groups import GroupsApi
from gatehouse.client.api.guardrails import GuardrailsApi
from gatehouse.client.api.halts import HaltsApi
from gatehouse.client.api.job_schedules import JobSchedulesApi
from gatehouse.client.api.jobs import JobsApi
from gatehouse.client.api.join_tokens import JoinTokensApi
from gatehouse.client.api.keys import KeysApi
from gatehouse.client.api.limits import LimitsApi
from gatehouse.client.api.log_levels import LogLevelsApi
from gatehouse.client.api.machines import MachinesApi
from gatehouse.client.api.model_copies import ModelCopiesApi
from gatehouse.client.api.model_files import ModelFilesApi
from gatehouse.client.api.model_uploads import ModelUploadsApi
from gatehouse.client.api.models import ModelsApi
from gatehouse.client.api.my import MyApi
from gatehouse.client.api.policies import PoliciesApi
from gatehouse.client.api.prices import PricesApi
from gatehouse.client.api.replicas import ReplicasApi
from gatehouse.client.api.revocations import RevocationsApi
from gatehouse.client.api.roles import RolesApi
from gatehouse.client.api.rollouts import RolloutsApi
from gatehouse.client.api.scaling import ScalingApi
from gatehouse.client.api.status import StatusApi
from gatehouse.client.api.sync import SyncApi
from gatehouse.client.api.tenants import TenantsApi
from gatehouse.client.api.token_keys import TokenKeysApi
from gatehouse.client.api.upgrade import UpgradeApi
from gatehouse.client.api.usage import UsageApi
from gatehouse.client.api.users import UsersApi
from gatehouse.client.api.webhooks import WebhooksApi
from gatehouse.client.api.whoami import WhoamiApi
from gatehouse.client.api.workers import WorkersApi
from gatehouse.client.connection import Connection


class Resources:
    """A resource's operations under its name."""

    def __init__(self, connection: Connection) -> None:
        self.status = StatusApi(connection)
        self.whoami = WhoamiApi(connection)
        self.replicas = ReplicasApi(connection)
        self.workers = WorkersApi(connection)
        self.machines = MachinesApi(connection)
        self.join_tokens = JoinTokensApi(connection)
        self.log_levels = LogLevelsApi(connection)
        self.caches = CachesApi(connection)
        self.model_copies = ModelCopiesApi(connection)
        self.tenants = TenantsApi(connection)
        self.users = UsersApi(connection)
        self.groups = GroupsApi(connection)
        self.keys = KeysApi(connection)
        self.my = MyApi(connection)
        self.roles = RolesApi(connection)
        self.bindings = BindingsApi(connection)
        self.models = ModelsApi(connection)
        self.model_files = ModelFilesApi(connection)
        self.model_uploads = ModelUploadsApi(connection)
        self.engines = EnginesApi(connection)
        self.endpoints = EndpointsApi(connection)
        self.rollouts = RolloutsApi(connection)
        self.scaling = ScalingApi(connection)
        self.limits = LimitsApi(connection)
        self.guardrails = GuardrailsApi(connection)
        self.token_keys = TokenKeysApi(connection)
        self.revocations = RevocationsApi(connection)
        self.prices = PricesApi(connection)
        self.halts = HaltsApi(connection)
        self.approvals = ApprovalsApi(connection)
        self.batches = BatchesApi(connection)
        self.client_files = ClientFilesApi(connection)
        self.jobs = JobsApi(connection)
        self.job_schedules = JobSchedulesApi(connection)
        self.policies = PoliciesApi(connection)
        self.apply = ApplyApi(connection)
        self.dump = DumpApi(connection)
        self.sync = SyncApi(connection)
        self.config = ConfigApi(connection)
        self.upgrade = UpgradeApi(connection)
        self.usage = UsageApi(connection)
        self.webhooks = WebhooksApi(connection)
        self.audit = AuditApi(connection)
        self.captures = CapturesApi(connection)
        self.events = EventsApi(connection)
