"""All resources of the admin API. Made by scripts/generate_client.py."""

from __future__ import annotations

from gatehouse.client.aio.apply import AsyncApplyApi
from gatehouse.client.aio.approvals import AsyncApprovalsApi
from gatehouse.client.aio.audit import AsyncAuditApi
from gatehouse.client.aio.batches import AsyncBatchesApi
from gatehouse.client.aio.bindings import AsyncBindingsApi
from gatehouse.client.aio.caches import AsyncCachesApi
from gatehouse.client.aio.captures import AsyncCapturesApi
from gatehouse.client.aio.client_files import AsyncClientFilesApi
from gatehouse.client.aio.config import AsyncConfigApi
from gatehouse.client.aio.dump import AsyncDumpApi
from gatehouse.client.aio.endpoints import AsyncEndpointsApi
from gatehouse.client.aio.engines import AsyncEnginesApi
from gatehouse.client.aio.events import AsyncEventsApi
from gatehouse.client.aio.groups import AsyncGroupsApi
from gatehouse.client.aio.guardrails import AsyncGuardrailsApi
from gatehouse.client.aio.halts import AsyncHaltsApi
from gatehouse.client.aio.job_schedules import AsyncJobSchedulesApi
from gatehouse.client.aio.jobs import AsyncJobsApi
from gatehouse.client.aio.join_tokens import AsyncJoinTokensApi
from gatehouse.client.aio.keys import AsyncKeysApi
from gatehouse.client.aio.limits import AsyncLimitsApi
from gatehouse.client.aio.log_levels import AsyncLogLevelsApi
from gatehouse.client.aio.machines import AsyncMachinesApi
from gatehouse.client.aio.model_copies import AsyncModelCopiesApi
from gatehouse.client.aio.model_files import AsyncModelFilesApi
from gatehouse.client.aio.model_uploads import AsyncModelUploadsApi
from gatehouse.client.aio.models import AsyncModelsApi
from gatehouse.client.aio.my import AsyncMyApi
from gatehouse.client.aio.policies import AsyncPoliciesApi
from gatehouse.client.aio.prices import AsyncPricesApi
from gatehouse.client.aio.replicas import AsyncReplicasApi
from gatehouse.client.aio.revocations import AsyncRevocationsApi
from gatehouse.client.aio.roles import AsyncRolesApi
from gatehouse.client.aio.rollouts import AsyncRolloutsApi
from gatehouse.client.aio.scaling import AsyncScalingApi
from gatehouse.client.aio.status import AsyncStatusApi
from gatehouse.client.aio.sync import AsyncSyncApi
from gatehouse.client.aio.tenants import AsyncTenantsApi
from gatehouse.client.aio.token_keys import AsyncTokenKeysApi
from gatehouse.client.aio.upgrade import AsyncUpgradeApi
from gatehouse.client.aio.usage import AsyncUsageApi
from gatehouse.client.aio.users import AsyncUsersApi
from gatehouse.client.aio.webhooks import AsyncWebhooksApi
from gatehouse.client.aio.whoami import AsyncWhoamiApi
from gatehouse.client.aio.workers import AsyncWorkersApi
from gatehouse.client.async_connection import AsyncConnection


class AsyncResources:
    """A resource's operations under its name."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.status = AsyncStatusApi(connection)
        self.whoami = AsyncWhoamiApi(connection)
        self.replicas = AsyncReplicasApi(connection)
        self.workers = AsyncWorkersApi(connection)
        self.machines = AsyncMachinesApi(connection)
        self.join_tokens = AsyncJoinTokensApi(connection)
        self.log_levels = AsyncLogLevelsApi(connection)
        self.caches = AsyncCachesApi(connection)
        self.model_copies = AsyncModelCopiesApi(connection)
        self.tenants = AsyncTenantsApi(connection)
        self.users = AsyncUsersApi(connection)
        self.groups = AsyncGroupsApi(connection)
        self.keys = AsyncKeysApi(connection)
        self.my = AsyncMyApi(connection)
        self.roles = AsyncRolesApi(connection)
        self.bindings = AsyncBindingsApi(connection)
        self.models = AsyncModelsApi(connection)
        self.model_files = AsyncModelFilesApi(connection)
        self.model_uploads = AsyncModelUploadsApi(connection)
        self.engines = AsyncEnginesApi(connection)
        self.endpoints = AsyncEndpointsApi(connection)
        self.rollouts = AsyncRolloutsApi(connection)
        self.scaling = AsyncScalingApi(connection)
        self.limits = AsyncLimitsApi(connection)
        self.guardrails = AsyncGuardrailsApi(connection)
        self.token_keys = AsyncTokenKeysApi(connection)
        self.revocations = AsyncRevocationsApi(connection)
        self.prices = AsyncPricesApi(connection)
        self.halts = AsyncHaltsApi(connection)
        self.approvals = AsyncApprovalsApi(connection)
        self.batches = AsyncBatchesApi(connection)
        self.client_files = AsyncClientFilesApi(connection)
        self.jobs = AsyncJobsApi(connection)
        self.job_schedules = AsyncJobSchedulesApi(connection)
        self.policies = AsyncPoliciesApi(connection)
        self.apply = AsyncApplyApi(connection)
        self.dump = AsyncDumpApi(connection)
        self.sync = AsyncSyncApi(connection)
        self.config = AsyncConfigApi(connection)
        self.upgrade = AsyncUpgradeApi(connection)
        self.usage = AsyncUsageApi(connection)
        self.webhooks = AsyncWebhooksApi(connection)
        self.audit = AsyncAuditApi(connection)
        self.captures = AsyncCapturesApi(connection)
        self.events = AsyncEventsApi(connection)
