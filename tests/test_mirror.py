"""Every module of some size has tests of its own at the mirrored place, or this file's one table says which suite covers it.

`gateway/audit/chain.py` is mirrored by `tests/unit/gateway/audit/test_chain.py`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = ("gateway", "engines", "policies", "admin", "gatehouse")
MADE = ("gatehouse/client/api/", "gatehouse/client/aio/", "gatehouse/client/types/")
"""What scripts/generate_client.py writes: tests/unit/gatehouse/client/test_made.py covers all of it."""
LINES = 60
"""Modules with fewer lines need no entry."""

# module: (the suite that covers it, a piece of its text that shows so). Keep it sorted; a module with a mirrored test needs no entry.
COVERED_BY: dict[str, tuple[str, str]] = {
    "admin/api.py": ("tests/e2e/test_admin.py", "method_not_allowed"),
    "admin/app.py": ("tests/e2e/test_login.py", "gatehouse-login"),
    "admin/cli/app.py": ("tests/e2e/test_cli.py", "gateway.app.main"),
    "admin/cli/apply.py": ("tests/e2e/test_cli_fleet.py", '"apply"'),
    "admin/cli/approvals.py": ("tests/e2e/test_approvals.py", '"approvals", "approve"'),
    "admin/cli/archive.py": ("tests/e2e/test_model_files.py", "admin.cli.archive"),
    "admin/cli/audit_html.py": ("tests/e2e/test_audit_search.py", "<!doctype html>"),
    "admin/cli/batches.py": ("tests/e2e/test_batches.py", '"batches", "cancel"'),
    "admin/cli/cache_warming.py": ("tests/e2e/test_caches.py", '"warm"'),
    "admin/cli/chat.py": ("tests/e2e/test_cli.py", '"chat"'),
    "admin/cli/completion.py": ("tests/e2e/test_cli_completion.py", "complete("),
    "admin/cli/config.py": ("tests/e2e/test_config_history.py", '"config", "rollback"'),
    "admin/cli/files.py": ("tests/e2e/test_model_files.py", '"models", "add"'),
    "admin/cli/guardrails.py": ("tests/e2e/test_guardrails_evaluate.py", '"--cases"'),
    "admin/cli/jobs.py": ("tests/e2e/test_jobs.py", '"--watch"'),
    "admin/cli/keys.py": ("tests/unit/admin/cli/test_cli.py", "expiry("),
    "admin/cli/kits.py": ("tests/e2e/test_clients.py", "KITS"),
    "admin/cli/limits.py": ("tests/e2e/test_budgets.py", "limits"),
    "admin/cli/login.py": ("tests/e2e/test_login.py", "login"),
    "admin/cli/machines.py": ("tests/e2e/test_joined_machines.py", '"machines", "list"'),
    "admin/cli/my_keys.py": ("tests/e2e/test_own_keys.py", "my-keys"),
    "admin/cli/oauth.py": ("tests/e2e/test_login.py", "login"),
    "admin/cli/output.py": ("tests/unit/admin/cli/test_cli.py", "Output("),
    "admin/cli/people.py": ("tests/e2e/test_cli.py", "add-member"),
    "admin/cli/policies.py": ("tests/e2e/test_cli.py", '"policies"'),
    "admin/cli/prices.py": ("tests/e2e/test_cost.py", '"prices", "import"'),
    "admin/cli/profile.py": ("tests/unit/admin/cli/test_cli.py", "profile"),
    "admin/cli/roles.py": ("tests/e2e/test_cli_roles.py", '"bindings", "create"'),
    "admin/cli/rollouts.py": ("tests/e2e/test_candidates.py", '"rollouts"'),
    "admin/cli/run.py": ("tests/e2e/test_cli.py", '"run"'),
    "admin/cli/session.py": ("tests/unit/admin/cli/test_cli.py", "resolve("),
    "admin/cli/status.py": ("tests/e2e/test_cli.py", '"status"'),
    "admin/cli/tenants.py": ("tests/e2e/test_cli.py", '"tenants"'),
    "admin/cli/texts.py": ("tests/e2e/test_audit_texts.py", '"audit", "shred"'),
    "admin/cli/tokens.py": ("tests/e2e/test_tokens_admin.py", '"tokens"'),
    "admin/cli/upload.py": ("tests/e2e/test_model_files.py", "upload as sending"),
    "admin/cli/usage.py": ("tests/e2e/test_cost.py", "reconcile"),
    "admin/context.py": ("tests/e2e/test_replicas.py", "/replicas"),
    "admin/explain.py": ("tests/unit/admin/test_values.py", "It must be"),
    "admin/joining.py": ("tests/e2e/test_joined_machines.py", "stale_beat"),
    "admin/journal.py": ("tests/e2e/test_admin.py", '"admin"'),
    "admin/operation.py": ("tests/e2e/test_admin_schema.py", "admin.operation"),
    "admin/ports.py": ("tests/e2e/test_replicas.py", "/replicas"),
    "admin/resources/approvals.py": ("tests/e2e/test_approvals.py", "/approvals"),
    "admin/resources/audit.py": ("tests/e2e/test_admin.py", "/audit"),
    "admin/resources/audit_search.py": ("tests/e2e/test_audit_search.py", "/audit/search"),
    "admin/resources/batches.py": ("tests/e2e/test_batches.py", "/batches/{id}"),
    "admin/resources/bindings.py": ("tests/e2e/test_stored_access.py", "/bindings"),
    "admin/resources/caches.py": ("tests/e2e/test_caches.py", "/caches"),
    "admin/resources/captures.py": ("tests/e2e/test_audit_texts.py", '"/captures"'),
    "admin/resources/client_files.py": ("tests/e2e/test_batches.py", "/client-files/{file}"),
    "admin/resources/data_keys.py": ("tests/e2e/test_audit_texts.py", '"keys", "rotate"'),
    "admin/resources/engines.py": ("tests/e2e/test_admin_fleet.py", "/engines"),
    "admin/resources/events.py": ("tests/unit/admin/test_events.py", "admin.resources.events"),
    "admin/resources/files.py": ("tests/e2e/test_model_files.py", "model-files"),
    "admin/resources/groups.py": ("tests/e2e/test_people.py", "/groups"),
    "admin/resources/guardrails.py": ("tests/e2e/test_guardrails_evaluate.py", "guardrails:evaluate"),
    "admin/resources/halts.py": ("tests/e2e/test_halts.py", "/halts"),
    "admin/resources/holds.py": ("tests/e2e/test_retention.py", "/audit/holds"),
    "admin/resources/jobs.py": ("tests/e2e/test_jobs.py", '"/job-schedules"'),
    "admin/resources/keys.py": ("tests/e2e/test_admin.py", "/keys"),
    "admin/resources/limits.py": ("tests/e2e/test_admin_policies.py", "/limits"),
    "admin/resources/log_levels.py": ("tests/e2e/test_workers.py", "/log-levels"),
    "admin/resources/machines.py": ("tests/e2e/test_joined_machines.py", "/machines/gpu-2/drain"),
    "admin/resources/model_copies.py": ("tests/e2e/test_shared_models.py", "model-copies"),
    "admin/resources/models.py": ("tests/e2e/test_admin_fleet.py", "/models"),
    "admin/resources/my_keys.py": ("tests/e2e/test_own_keys.py", "/my/keys"),
    "admin/resources/policies.py": ("tests/e2e/test_admin_policies.py", "policies:explain"),
    "admin/resources/prices.py": ("tests/e2e/test_alerts.py", "prices"),
    "admin/resources/replays.py": ("tests/e2e/test_policy_replay.py", "policies:diff"),
    "admin/resources/reveals.py": ("tests/e2e/test_audit_texts.py", '"/audit/reveals"'),
    "admin/resources/roles.py": ("tests/e2e/test_stored_access.py", "/roles"),
    "admin/resources/rollouts.py": ("tests/e2e/test_candidates.py", "/rollouts"),
    "admin/resources/status.py": ("tests/e2e/test_admin.py", "/status"),
    "admin/resources/stored_engines.py": ("tests/e2e/test_admin_fleet.py", "api_key"),
    "admin/resources/stored_fleet.py": ("tests/e2e/test_admin_fleet.py", "in_use"),
    "admin/resources/table.py": ("tests/e2e/test_admin_schema.py", "openapi"),
    "admin/resources/tokens.py": ("tests/e2e/test_tokens_admin.py", "/revocations"),
    "admin/resources/upgrade.py": ("tests/e2e/test_upgrade.py", "/upgrade"),
    "admin/resources/users.py": ("tests/e2e/test_people.py", "/users"),
    "admin/resources/webhooks.py": ("tests/e2e/test_alerts.py", '"webhooks"'),
    "admin/resources/workers.py": ("tests/e2e/test_workers.py", "/workers"),
    "engines/chat/bounds.py": ("tests/unit/engines/chat/test_template.py", "takes more than"),
    "engines/chat/chat_handler.py": ("tests/integration/llamacpp/test_serving.py", "chat.completions"),
    "engines/chat/completion_handler.py": ("tests/integration/llamacpp/test_serving.py", ".completions.create"),
    "engines/chat/engine.py": ("tests/integration/llamacpp/test_serving.py", "context_length_exceeded"),
    "engines/chat/events.py": ("tests/unit/engines/llamacpp/test_jobs.py", "Mailbox"),
    "engines/chat/formats/base.py": ("tests/unit/engines/chat/test_output.py", "Dialect"),
    "engines/chat/formats/deepseek.py": ("tests/unit/engines/chat/test_output.py", "deepseek"),
    "engines/chat/formats/gemma.py": ("tests/unit/engines/chat/test_output.py", 'dialect("gemma'),
    "engines/chat/formats/harmony.py": ("tests/unit/engines/chat/test_output.py", "HARMONY"),
    "engines/chat/formats/invoke.py": ("tests/unit/engines/chat/test_output.py", "MINIMAX"),
    "engines/chat/formats/jsontext.py": ("tests/unit/engines/chat/test_output.py", "JSON_ARGS"),
    "engines/chat/formats/markup.py": ("tests/unit/engines/chat/test_output.py", "MINIMAX"),
    "engines/chat/formats/source.py": ("tests/unit/engines/chat/test_output.py", "OutputParser"),
    "engines/chat/generation.py": ("tests/unit/engines/llamacpp/test_batcher.py", "Batcher"),
    "engines/chat/growth.py": ("tests/unit/engines/chat/test_sandbox.py", "ljust"),
    "engines/chat/paths.py": ("tests/integration/llamacpp/test_serving.py", "/tokenize"),
    "engines/chat/responses.py": ("tests/integration/llamacpp/test_serving.py", "finish_reason"),
    "engines/command/app.py": ("tests/e2e/test_command.py", "test_a_server_that_hangs_is_restarted"),
    "engines/convert/families.py": ("tests/unit/engines/convert/test_model.py", "Qwen3ForCausalLM"),
    "engines/convert/folder.py": ("tests/unit/engines/convert/test_model.py", "is a link"),
    "engines/convert/gguf.py": ("tests/unit/engines/convert/test_model.py", "Gguf"),
    "engines/convert/special.py": ("tests/unit/engines/convert/test_vocabulary.py", "chat_template.tool_use"),
    "engines/demo/embed.py": ("tests/integration/test_onnx_demo.py", "engines.demo"),
    "engines/demo/evaluate.py": ("tests/integration/test_demo_model.py", "evaluate"),
    "engines/demo/genai.py": ("tests/integration/test_genai.py", "genai.write"),
    "engines/demo/guard.py": ("tests/integration/test_demo_guards.py", "engines.demo"),
    "engines/demo/names.py": ("tests/integration/test_demo_names.py", "engines.demo"),
    "engines/demo/phrases.py": ("tests/integration/test_demo_names.py", "engines.demo"),
    "engines/demo/prose.py": ("tests/integration/test_demo_names.py", "engines.demo"),
    "engines/demo/rank.py": ("tests/integration/test_onnx_rerank.py", "engines.demo"),
    "engines/facts.py": ("tests/unit/engines/host/catalogue/test_inspection.py", "engines.facts"),
    "engines/genai/app.py": ("tests/integration/test_genai.py", "chat.completions"),
    "engines/genai/constraints.py": ("tests/integration/test_genai.py", "response_format"),
    "engines/genai/native.py": ("tests/integration/test_genai.py", "logit_bias"),
    "engines/host/catalogue/checksums.py": ("tests/unit/engines/host/catalogue/test_quarantine.py", "checksums"),
    "engines/host/catalogue/graves.py": ("tests/unit/gateway/app/shared_models/test_directory.py", "graves"),
    "engines/host/catalogue/inspector.py": ("tests/unit/engines/host/catalogue/test_inspection.py", "inspector"),
    "engines/host/catalogue/install.py": ("tests/unit/engines/host/catalogue/test_library.py", "install"),
    "engines/host/catalogue/moves.py": ("tests/unit/gateway/app/shared_models/test_directory.py", "moves"),
    "engines/host/catalogue/noted.py": ("tests/unit/gateway/app/shared_models/test_directory.py", "test_a_file_that_was_changed_behind"),
    "engines/host/catalogue/shelf.py": ("tests/unit/engines/host/catalogue/test_quarantine.py", "shelf"),
    "engines/host/priority.py": ("tests/unit/engines/host/test_child.py", "priority"),
    "engines/host/process.py": ("tests/unit/engines/host/test_supervisor.py", "real processes"),
    "engines/jobs/bounds.py": ("tests/unit/gateway/app/operator_jobs/test_child.py", "becomes_larger_than_it_may"),
    "engines/jobs/quantize.py": ("tests/e2e/test_jobs.py", "quantize("),
    "engines/jobs/quantize_onnx.py": ("tests/e2e/test_jobs.py", '"quantize-onnx"'),
    "engines/llamacpp/app.py": ("tests/integration/llamacpp/test_serving.py", "chat.completions"),
    "engines/llamacpp/drafting.py": ("tests/integration/llamacpp/test_drafts.py", "Drafter"),
    "engines/llamacpp/engine.py": ("tests/unit/engines/llamacpp/test_batcher.py", "Batcher"),
    "engines/llamacpp/guessing.py": ("tests/integration/llamacpp/test_drafts.py", "guessing"),
    "engines/llamacpp/options.py": ("tests/unit/gateway/config/test_engine_options.py", "LlamaOptions"),
    "engines/llamacpp/reranker.py": ("tests/integration/llamacpp/test_rerank.py", "/v1/rerank"),
    "engines/llamacpp/sampling.py": ("tests/unit/engines/llamacpp/test_batcher.py", "sampling"),
    "engines/llamacpp/sanity.py": ("tests/unit/engines/llamacpp/test_gguf.py", "sanity"),
    "engines/onnx/build_bert.py": ("tests/integration/test_onnx_bert.py", "build_bert"),
    "engines/onnx/classification.py": ("tests/unit/engines/onnx/test_app.py", "classif"),
    "engines/onnx/embeddings.py": ("tests/unit/engines/onnx/test_text.py", "embeddings"),
    "engines/onnx/options.py": ("tests/unit/engines/onnx/test_session.py", "OnnxOptions"),
    "engines/onnx/prompts.py": ("tests/unit/engines/onnx/test_app.py", "prompt_name"),
    "engines/onnx/protobuf.py": ("tests/unit/engines/onnx/test_signature.py", "protobuf"),
    "engines/onnx/stats.py": ("tests/unit/engines/onnx/test_app.py", "stat"),
    "engines/onnx/texttask.py": ("tests/unit/engines/onnx/test_text.py", "texttask"),
    "engines/sidecar/http.py": ("tests/unit/engines/sidecar/test_shell.py", "engines.sidecar"),
    "engines/sidecar/loading.py": ("tests/unit/engines/sidecar/test_shell.py", "load"),
    "engines/sidecar/rerank.py": ("tests/integration/test_onnx_rerank.py", "/v1/rerank"),
    "gatehouse/client/admin.py": ("tests/e2e/test_python_client.py", "gatehouse.client"),
    "gatehouse/client/async_connection.py": ("tests/unit/gatehouse/client/test_connection.py", "gatehouse.client.async_connection"),
    "gatehouse/client/tickets.py": ("tests/e2e/test_tickets.py", "AsyncTickets"),
    "gateway/app/audit/index.py": ("tests/e2e/test_audit_search.py", "indexers("),
    "gateway/app/audit/keeping.py": ("tests/e2e/test_retention.py", "gatehouse_audit_archive_up"),
    "gateway/app/audit/reveals.py": ("tests/e2e/test_audit_texts.py", "self_approval"),
    "gateway/app/audit/text_keeping.py": ("tests/e2e/test_audit_texts.py", "revealed("),
    "gateway/app/batches/book.py": ("tests/e2e/test_batches.py", "batches.create"),
    "gateway/app/batches/results.py": ("tests/e2e/test_batches.py", "results("),
    "gateway/app/batches/work.py": ("tests/e2e/test_batches.py", "after_a_kill"),
    "gateway/app/caches/book.py": ("tests/e2e/test_caches.py", "gatehouse_cache_entries"),
    "gateway/app/caches/tiers.py": ("tests/integration/test_cache_tiers.py", "CacheTiers"),
    "gateway/app/clients/files.py": ("tests/e2e/test_batches.py", "files.create"),
    "gateway/app/clients/kept_answers.py": ("tests/e2e/test_responses_clients.py", "replicas_share_them_they_expire"),
    "gateway/app/clients/work.py": ("tests/e2e/test_batches.py", "batches="),
    "gateway/app/configuration/history.py": ("tests/e2e/test_config_history.py", "rolled_back_to"),
    "gateway/app/configuration/plugin_set.py": ("tests/unit/gateway/app/configuration/test_plugins.py", "configuration.plugins"),
    "gateway/app/data_side.py": ("tests/e2e/test_gateway_tokens.py", "tests.e2e.harness"),
    "gateway/app/engines/fleet.py": ("tests/e2e/test_admin_fleet.py", "/engines"),
    "gateway/app/engines/rollout_book.py": ("tests/e2e/test_candidates.py", "gatehouse_shadow_requests_total"),
    "gateway/app/gateway.py": ("tests/unit/gateway/app/configuration/test_changes.py", "Gateway"),
    "gateway/app/guardrails/moderation.py": ("tests/e2e/test_moderations.py", "v1/moderations"),
    "gateway/app/guardrails/trial.py": ("tests/e2e/test_guardrails_evaluate.py", "longest_hold"),
    "gateway/app/identity/shared_proofs.py": ("tests/integration/test_shared_proofs.py", "SharedProofs"),
    "gateway/app/joined/door.py": ("tests/e2e/test_joined_machines.py", "stale_beat"),
    "gateway/app/joined/identity.py": ("tests/e2e/test_joined_machines.py", "comes_back_without_a_token"),
    "gateway/app/joined/order_side.py": ("tests/e2e/test_placed_engines.py", "ACCEPTS"),
    "gateway/app/joined/report.py": ("tests/e2e/test_joined_machines.py", '["engines"][0]["slots"]'),
    "gateway/app/joined/run.py": ("tests/e2e/test_joined_machines.py", "was removed"),
    "gateway/app/joined/ticket_port.py": ("tests/e2e/test_tickets.py", "ticket_mismatch"),
    "gateway/app/limits/budget_ledger.py": ("tests/e2e/test_reconcile_budgets.py", "not_compared"),
    "gateway/app/limits/budget_log.py": ("tests/unit/gateway/app/limits/test_budget_runs.py", "budget_log"),
    "gateway/app/limits/durable.py": ("tests/contract/store/test_counters.py", "DurableLimits"),
    "gateway/app/limits/redis_ledger.py": ("tests/e2e/test_reconcile_kills.py", "lost"),
    "gateway/app/limits/shared.py": ("tests/e2e/test_shared_limits.py", "limits_redis_lost"),
    "gateway/app/operator_jobs/book.py": ("tests/e2e/test_jobs.py", "dependency_failed"),
    "gateway/app/operator_jobs/run.py": ("tests/e2e/test_jobs.py", "taken_up_again"),
    "gateway/app/operator_jobs/work.py": ("tests/e2e/test_jobs.py", "taken_up_again"),
    "gateway/app/pipelines/calls.py": ("tests/e2e/test_pipelines.py", "The step"),
    "gateway/app/pipelines/steps.py": ("tests/e2e/test_pipelines.py", "pipeline"),
    "gateway/app/replicas/hints.py": ("tests/e2e/test_replicas.py", "gatehouse_hints_sure"),
    "gateway/app/replicas/replicas.py": ("tests/e2e/test_replicas.py", "tests.e2e.replicas"),
    "gateway/app/shared_models/arrival.py": ("tests/unit/gateway/app/shared_models/test_sharing.py", "arrival"),
    "gateway/app/shared_models/bucket.py": ("tests/integration/test_model_store.py", "Bucket"),
    "gateway/app/shared_models/credentials.py": ("tests/e2e/test_shared_models.py", "Credentials("),
    "gateway/app/shared_models/noting.py": ("tests/unit/gateway/app/shared_models/test_directory.py", "Noting"),
    "gateway/app/shared_models/offering.py": ("tests/unit/gateway/app/shared_models/test_sharing.py", "offering"),
    "gateway/app/shared_models/stowing.py": ("tests/integration/test_model_store.py", "stowing"),
    "gateway/app/store/copy_store.py": ("tests/deploy/test_copy_store.py", "copy-store"),
    "gateway/app/telemetry/observing.py": ("tests/e2e/test_traces.py", "changed_telemetry_is_in_force"),
    "gateway/app/telemetry/traffic_gauges.py": ("tests/unit/gateway/app/telemetry/test_gauges.py", "gatehouse_endpoint_up"),
    "gateway/app/upgrade/upgrader.py": ("tests/e2e/test_upgrade.py", "upgrade_check_failed"),
    "gateway/app/workers/child.py": ("tests/e2e/test_workers.py", "killed"),
    "gateway/app/workers/control.py": ("tests/e2e/test_workers.py", "--workers"),
    "gateway/app/workers/messages.py": ("tests/unit/gateway/app/workers/test_codec.py", "messages.MESSAGES"),
    "gateway/app/workers/process.py": ("tests/e2e/test_workers.py", "drains"),
    "gateway/app/workers/telling.py": ("tests/unit/gateway/app/workers/test_settings.py", "Teller("),
    "gateway/app/workers/worker_batches.py": ("tests/e2e/test_batches.py", "--workers"),
    "gateway/audit/chain_walk.py": ("tests/unit/gateway/audit/test_verify.py", "verify_log"),
    "gateway/audit/entries.py": ("tests/unit/gateway/audit/test_index.py", "make.intent"),
    "gateway/audit/exports.py": ("tests/unit/gateway/audit/test_formats.py", "converted("),
    "gateway/audit/indexer.py": ("tests/unit/gateway/audit/test_index.py", "gateway.audit.indexer"),
    "gateway/audit/outcome_figures.py": ("tests/unit/gateway/audit/test_ledger.py", "rows("),
    "gateway/audit/reconcile.py": ("tests/e2e/test_cost.py", "reconcile"),
    "gateway/audit/record.py": ("tests/unit/gateway/audit/test_encode.py", "gateway.audit.record"),
    "gateway/audit/repair.py": ("tests/unit/gateway/audit/test_writer.py", "torn"),
    "gateway/audit/report.py": ("tests/unit/gateway/audit/test_crosscheck.py", "Report"),
    "gateway/audit/sinks/file.py": ("tests/unit/gateway/audit/test_file_sink.py", "sink"),
    "gateway/audit/sinks/http.py": ("tests/unit/gateway/audit/test_http_sink.py", "HttpSink"),
    "gateway/audit/sinks/kafka.py": ("tests/unit/gateway/audit/test_kafka_sink.py", "KafkaSink"),
    "gateway/audit/sinks/syslog.py": ("tests/integration/test_syslog.py", "SyslogSink"),
    "gateway/audit/summary.py": ("tests/unit/gateway/audit/test_index.py", "summary("),
    "gateway/caches/behind.py": ("tests/integration/test_cache_tiers.py", "behind"),
    "gateway/caches/redis.py": ("tests/integration/test_cache_tiers.py", "RedisServer"),
    "gateway/config/convert.py": ("tests/unit/gateway/config/test_load.py", "did you mean"),
    "gateway/core/audit_questions.py": ("tests/unit/gateway/audit/test_index.py", "AuditSearch"),
    "gateway/core/batch_messages.py": ("tests/unit/gateway/app/workers/test_control_batches.py", "LineRan"),
    "gateway/core/batches.py": ("tests/e2e/test_batches.py", "batches.retrieve"),
    "gateway/core/caching.py": ("tests/unit/gateway/caches/test_registry.py", "Answer("),
    "gateway/core/conversations.py": ("tests/unit/gateway/pipeline/test_conversations.py", "owner_of"),
    "gateway/core/errors.py": ("tests/unit/gateway/server/test_app.py", "gateway.core.errors"),
    "gateway/core/joining.py": ("tests/unit/gateway/routing/test_leases.py", "gateway.core.joining"),
    "gateway/core/ledger.py": ("tests/contract/store/test_sessions_and_engines.py", "SessionRow"),
    "gateway/core/modelshare.py": ("tests/unit/gateway/app/shared_models/test_sharing.py", "SharedFile"),
    "gateway/core/placing.py": ("tests/e2e/test_placed_engines.py", "orders_host_of"),
    "gateway/core/ports.py": ("tests/contract/test_limiter.py", "Limiter"),
    "gateway/core/prices.py": ("tests/unit/policies/test_prices.py", "gateway.core.prices"),
    "gateway/core/pseudonyms.py": ("tests/e2e/test_entities.py", '"scope": "session"'),
    "gateway/core/snapshot.py": ("tests/unit/gateway/pipeline/test_attempt.py", "World"),
    "gateway/core/specs/audit.py": ("tests/unit/gateway/audit/test_masters.py", "TransitSpec"),
    "gateway/core/specs/caches.py": ("tests/integration/test_cache_tiers.py", "RedisCacheSpec"),
    "gateway/core/specs/engines.py": ("tests/unit/gateway/config/test_load.py", "engines"),
    "gateway/core/specs/fleet.py": ("tests/unit/gateway/config/test_expand.py", "JoinedSpec"),
    "gateway/core/specs/identity.py": ("tests/unit/gateway/config/test_load.py", "spec"),
    "gateway/core/specs/limits.py": ("tests/unit/gateway/config/test_limit_rules.py", "LimitSpec"),
    "gateway/core/specs/models.py": ("tests/unit/gateway/config/test_load.py", "pool"),
    "gateway/core/specs/mtls.py": ("tests/unit/gateway/identity/test_mtls.py", "MtlsSpec"),
    "gateway/core/specs/pipelines.py": ("tests/unit/gateway/config/test_pipeline_rules.py", "pipeline"),
    "gateway/core/specs/prices.py": ("tests/unit/policies/test_prices.py", "PriceSpec"),
    "gateway/core/specs/sinks.py": ("tests/unit/gateway/audit/test_kafka_sink.py", "KafkaSinkSpec("),
    "gateway/core/storage.py": ("tests/contract/store/test_resources.py", "gateway.core.storage"),
    "gateway/core/tokens.py": ("tests/unit/gateway/identity/test_gateway_tokens.py", "gateway.core.tokens"),
    "gateway/core/tools.py": ("tests/unit/gateway/pipeline/test_tools.py", "gateway.core.tools"),
    "gateway/core/types.py": ("tests/unit/policies/test_rbac.py", "gateway.core.types"),
    "gateway/core/usage_storage.py": ("tests/contract/store/test_sessions_and_engines.py", "usage_of_sessions"),
    "gateway/core/values.py": ("tests/unit/policies/test_rbac.py", "gateway.core.types"),
    "gateway/core/vault.py": ("tests/unit/gateway/audit/test_keyring.py", "DataKeyGiven"),
    "gateway/core/wire.py": ("tests/contract/test_limiter.py", "wire"),
    "gateway/guardrails/http_shapes.py": ("tests/unit/gateway/guardrails/test_http.py", "a place that is not in the text"),
    "gateway/guardrails/model_guardrail.py": ("tests/unit/gateway/guardrails/test_classifier.py", "more than half"),
    "gateway/guardrails/remote.py": ("tests/unit/gateway/guardrails/test_http.py", "import remote"),
    "gateway/identity/directory.py": ("tests/integration/test_ldap.py", "gateway.identity.directory"),
    "gateway/identity/ldap.py": ("tests/integration/test_ldap.py", "gateway.identity.ldap"),
    "gateway/identity/passwords.py": ("tests/unit/gateway/identity/test_local_users.py", "is_remembered_for_a_while"),
    "gateway/identity/token_keys.py": ("tests/unit/gateway/identity/test_gateway_tokens.py", "token_keys"),
    "gateway/limits/account.py": ("tests/unit/gateway/limits/test_leased.py", "gateway.limits.account"),
    "gateway/limits/exceeded.py": ("tests/unit/gateway/limits/test_local.py", "session_exceeded"),
    "gateway/limits/headers.py": ("tests/unit/gateway/limits/test_local.py", "x-ratelimit"),
    "gateway/limits/lease_messages.py": ("tests/fakes/leases.py", "gateway.limits.lease_messages"),
    "gateway/limits/lease_state.py": ("tests/unit/gateway/limits/test_lease_book.py", "replace_control"),
    "gateway/limits/meter.py": ("tests/unit/gateway/limits/test_bucket.py", "meters_of"),
    "gateway/limits/redis/book.py": ("tests/integration/test_redis_book.py", "BucketBook"),
    "gateway/limits/redis/calls.py": ("tests/integration/test_shared_limits.py", "test_many_buckets"),
    "gateway/limits/redis/held.py": ("tests/unit/gateway/limits/redis/test_advance.py", "IN_HAND"),
    "gateway/limits/redis/script.py": ("tests/integration/test_shared_limits.py", "test_a_script_that_redis_forgot"),
    "gateway/limits/redis/took.py": ("tests/integration/test_redis_took.py", "Item"),
    "gateway/limits/registry.py": ("tests/unit/gateway/limits/test_local.py", "BucketRegistry"),
    "gateway/limits/share.py": ("tests/unit/gateway/limits/test_shares.py", "gateway.limits.share "),
    "gateway/limits/stock.py": ("tests/unit/gateway/limits/test_refills.py", "gateway.limits.stock"),
    "gateway/pipeline/phases.py": ("tests/unit/gateway/pipeline/test_exchange.py", "sampled_exchange_are_timed"),
    "gateway/pipeline/pipeline.py": ("tests/unit/gateway/pipeline/test_exchange.py", "World"),
    "gateway/pipeline/racing.py": ("tests/unit/gateway/pipeline/test_hedges.py", "_hedged()"),
    "gateway/pipeline/taps.py": ("tests/unit/gateway/pipeline/test_shadows.py", "Shadowed("),
    "gateway/pipeline/ticketing.py": ("tests/e2e/test_tickets.py", "ticket_unsettled"),
    "gateway/routing/follower.py": ("tests/unit/gateway/routing/test_mirror.py", "whole_state"),
    "gateway/routing/mirror_messages.py": ("tests/unit/gateway/routing/test_mirror.py", "mirror_messages"),
    "gateway/routing/registry.py": ("tests/unit/gateway/routing/test_endpoints_reload.py", "Fleet"),
    "gateway/routing/selectors.py": ("tests/contract/test_selector.py", "selectors"),
    "gateway/routing/slot_market.py": ("tests/unit/gateway/routing/test_slots.py", "over_all_workers"),
    "gateway/server/grpc.py": ("tests/e2e/test_grpc.py", "start_stream"),
    "gateway/server/grpc_calls.py": ("tests/e2e/test_grpc.py", "grpc-retry-pushback-ms"),
    "gateway/server/grpc_reflection.py": ("tests/e2e/test_grpc.py", "descriptor"),
    "gateway/server/listener.py": ("tests/unit/gateway/server/test_accept.py", "listener"),
    "gateway/server/request.py": ("tests/unit/gateway/server/test_reading.py", "gateway.server.request"),
    "gateway/server/responses.py": ("tests/e2e/test_responses_clients.py", "an_answer_is_its_callers_alone"),
    "gateway/server/tickets.py": ("tests/e2e/test_tickets.py", "ticket_not_possible"),
    "gateway/server/tokens.py": ("tests/e2e/test_gateway_tokens.py", "auth/token"),
    "gateway/server/uploads.py": ("tests/e2e/test_transcriptions.py", "slow_senders"),
    "gateway/server/websocket.py": ("tests/e2e/test_sockets.py", "handshakes_that_are_refused"),
    "gateway/server/websocket_socket.py": ("tests/e2e/test_sockets.py", "max_per_principal"),
    "gateway/store/approvals.py": ("tests/contract/store/test_approvals.py", "StoredApprovals"),
    "gateway/store/batches.py": ("tests/e2e/test_batches.py", "batches.list"),
    "gateway/store/bulk.py": ("tests/contract/store/test_resources.py", "removals="),
    "gateway/store/change_rows.py": ("tests/contract/store/test_usage_and_changes.py", "changes"),
    "gateway/store/data_keys.py": ("tests/contract/store/test_data_keys.py", "StoredDataKeys"),
    "gateway/store/delivery_rows.py": ("tests/contract/store/test_deliveries.py", "add_deliveries"),
    "gateway/store/directory_models.py": ("tests/unit/gateway/app/shared_models/test_directory.py", "StoredDirectoryModels"),
    "gateway/store/erasure.py": ("tests/contract/store/test_tenants.py", "test_approvals_and_batches_of_a_user_end_with_them"),
    "gateway/store/files.py": ("tests/e2e/test_batches.py", "files.list"),
    "gateway/store/kept_answers.py": ("tests/contract/store/test_kept_answers.py", "KeptAnswers"),
    "gateway/store/key_rows.py": ("tests/contract/store/test_resources.py", "create_key"),
    "gateway/store/limit_rows.py": ("tests/contract/store/test_counters.py", "change_counters"),
    "gateway/store/migrations/versions/v0001_baseline.py": ("tests/unit/gateway/store/test_migrate.py", "migrate("),
    "gateway/store/migrations/versions/v0012_batches.py": ("tests/e2e/test_batches.py", "batches.create"),
    "gateway/store/model_copies.py": ("tests/unit/gateway/app/shared_models/test_sharing.py", "StoredModelCopies"),
    "gateway/store/model_uses.py": ("tests/unit/gateway/app/shared_models/test_directory.py", "StoredModelUses"),
    "gateway/store/people_rows.py": ("tests/contract/store/test_people.py", "note_logins"),
    "gateway/store/postgres_hints.py": ("tests/integration/test_store_hints.py", "PostgresHints"),
    "gateway/store/redis_hints.py": ("tests/integration/test_redis_hints.py", "RedisHints("),
    "gateway/store/replica_rows.py": ("tests/contract/store/test_replicas.py", "gateway.store.replica_rows"),
    "gateway/store/resources.py": ("tests/contract/store/test_resources.py", "resource"),
    "gateway/store/rows.py": ("tests/contract/store/test_resources.py", "version"),
    "gateway/store/session_and_engine_rows.py": ("tests/contract/store/test_sessions_and_engines.py", "forget_sessions"),
    "gateway/store/store.py": ("tests/contract/store/test_resources.py", "Store"),
    "gateway/store/tables.py": ("tests/contract/store/test_life.py", "tables"),
    "gateway/store/tombstones.py": ("tests/contract/store/test_tenants.py", "caller_deleted"),
    "gateway/store/usage.py": ("tests/contract/store/test_usage_and_changes.py", "add_usage"),
    "gateway/store/usage_rows.py": ("tests/contract/store/test_usage_and_changes.py", "usage"),
    "gateway/transport/redis/sentinel.py": ("tests/integration/test_redis_servers.py", "sentinel"),
    "gateway/wire/anthropic/answers.py": ("tests/unit/gateway/wire/anthropic/test_api.py", "end_turn"),
    "gateway/wire/anthropic/calls.py": ("tests/unit/gateway/wire/anthropic/test_passages.py", "tool_uses"),
    "gateway/wire/anthropic/chat_stream.py": ("tests/unit/gateway/wire/anthropic/test_api.py", "chunk("),
    "gateway/wire/anthropic/replay.py": ("tests/unit/gateway/wire/anthropic/test_api.py", "replayed"),
    "gateway/wire/anthropic/structure.py": ("tests/unit/gateway/wire/anthropic/test_api.py", "is_there_twice"),
    "gateway/wire/anthropic/views.py": ("tests/unit/gateway/wire/anthropic/test_passages.py", "tool_uses"),
    "gateway/wire/chats.py": ("tests/unit/gateway/wire/responses/test_chat.py", "chat_of"),
    "gateway/wire/json_api.py": ("tests/unit/gateway/wire/openai/test_api.py", "parse"),
    "gateway/wire/oip/protobuf.py": ("tests/unit/gateway/wire/oip/test_messages.py", "protobuf"),
    "gateway/wire/oip/tensors.py": ("tests/unit/gateway/wire/oip/test_api.py", "tensor"),
    "gateway/wire/oip/values.py": ("tests/unit/gateway/wire/oip/test_codec.py", "gateway.wire.oip.values"),
    "gateway/wire/openai/generating.py": ("tests/e2e/test_every_api.py", "images_and_speech_pass"),
    "gateway/wire/openai/schemas.py": ("tests/e2e/test_json_schema.py", "response_format"),
    "gateway/wire/openai/tokenizing.py": ("tests/e2e/test_every_api.py", "tokens_of_texts"),
    "gateway/wire/openai/transcribing.py": ("tests/e2e/test_transcriptions.py", "guardrails_read_what_was_said"),
    "gateway/wire/openai/transcribing_views.py": ("tests/e2e/test_transcriptions.py", "verbose_json"),
    "gateway/wire/openai/views.py": ("tests/unit/gateway/wire/openai/test_passages.py", "texts"),
    "gateway/wire/passages.py": ("tests/unit/gateway/wire/anthropic/test_passages.py", "texts"),
    "gateway/wire/responses/answers.py": ("tests/unit/gateway/pipeline/test_responses.py", "around the items"),
    "gateway/wire/responses/calls.py": ("tests/unit/gateway/pipeline/test_responses.py", "local_shell_call"),
    "gateway/wire/responses/chat_stream.py": ("tests/unit/gateway/wire/responses/test_api.py", "chunk("),
    "gateway/wire/responses/events.py": ("tests/unit/gateway/wire/responses/test_stream.py", "passes_unread"),
    "gateway/wire/responses/fields.py": ("tests/unit/gateway/wire/responses/test_api.py", "is_refused_names_its_field"),
    "gateway/wire/responses/passages.py": ("tests/unit/gateway/pipeline/test_responses.py", "name of a key"),
    "gateway/wire/responses/replay.py": ("tests/unit/gateway/pipeline/test_responses.py", "in_the_form_that_it_asks_for"),
    "gateway/wire/responses/structure.py": ("tests/unit/gateway/wire/responses/test_api.py", "is_there_twice"),
    "gateway/wire/responses/views.py": ("tests/unit/gateway/wire/responses/test_api.py", "previous_response_id"),
    "policies/guardrails/injection/decoding.py": ("tests/unit/policies/guardrails/injection/test_guardrail.py", "decoded("),
    "policies/guardrails/injection/signs.py": ("tests/unit/policies/guardrails/injection/test_guardrail.py", "corpus"),
    "policies/guardrails/phrase_stream.py": ("tests/unit/policies/guardrails/test_denylist.py", "MOST_AT_ONCE"),
    "policies/guardrails/pii/card.py": ("tests/unit/policies/guardrails/pii/test_table.py", "4111"),
    "policies/guardrails/pseudonyms/guardrail.py": ("tests/e2e/test_pseudonyms.py", 'scope="session"'),
    "policies/guardrails/recognition/actions.py": ("tests/unit/policies/guardrails/pii/test_guardrail.py", "hash_key"),
    "policies/guardrails/recognition/guardrail.py": ("tests/unit/policies/guardrails/pii/test_guardrail.py", "judged_alike"),
    "policies/guardrails/secrets/context.py": ("tests/unit/policies/guardrails/secrets/test_guardrail.py", "JWT"),
    "policies/guardrails/secrets/providers.py": ("tests/unit/policies/guardrails/secrets/test_guardrail.py", "samples"),
    "policies/guardrails/tool_conditions.py": ("tests/unit/policies/guardrails/test_tool_calls.py", "tool_conditions"),
}
# What made the demo models and runs at no other time: the artefacts are tested (tests/integration/test_demo_model.py, test_onnx_demo.py).
RUN_ONCE = {"engines/demo/export.py", "engines/demo/train.py", "engines/demo/transformer.py"}


def modules() -> list[str]:
    """Those of LINES lines or more, packages' own files aside."""
    found = (path for top in TOP for path in (ROOT / top).rglob("*.py") if path.name != "__init__.py")
    names = (path.relative_to(ROOT).as_posix() for path in found if len(path.read_text(encoding="utf-8").splitlines()) >= LINES)
    return sorted(name for name in names if not name.startswith(MADE))


def mirror(module: str) -> Path:
    path = Path(module)
    return Path("tests/unit", path.parent, f"test_{path.name}")


def test_every_module_has_tests_of_its_own_or_a_suite_that_covers_it() -> None:
    missing = [name for name in modules() if not (ROOT / mirror(name)).exists() and name not in COVERED_BY and name not in RUN_ONCE]
    assert not missing, "\n".join(
        f"{name}: write {mirror(name)}, or name the suite that covers it in COVERED_BY of tests/test_mirror.py"
        " (when the module was moved or renamed: do the same with its test, or rename its entry)"
        for name in missing
    )


def test_the_table_names_modules_that_are_there_and_need_it() -> None:
    known = set(modules())
    for name in (*COVERED_BY, *RUN_ONCE):
        assert (ROOT / name).exists(), f"{name} is gone: rename or remove its entry in tests/test_mirror.py"
        assert name in known, f"{name} has fewer than {LINES} lines: remove its entry in tests/test_mirror.py"
        assert not (ROOT / mirror(name)).exists(), f"{name} has {mirror(name)} now: remove its entry in tests/test_mirror.py"
    assert list(COVERED_BY) == sorted(COVERED_BY)


@cache
def imported(file: Path) -> frozenset[Path]:
    """The files of this repository that a file imports, with the conftest.py files that pytest loads for it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    found = {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names}
    found |= {ROOT.joinpath(*name.split("."), "__init__.py") for name in names}
    found |= {parent / "conftest.py" for parent in file.parents if file.name.startswith("test_") and ROOT in parent.parents}
    return frozenset(path for path in found if path.exists())


def reached(suite: Path) -> set[Path]:
    """Every file of this repository that a suite imports, directly or not."""
    seen, left = {suite}, [suite]
    while left:
        new = imported(left.pop()) - seen
        seen |= new
        left += new
    return seen


@pytest.mark.parametrize("name", COVERED_BY)
def test_the_suite_exercises_the_module(name: str) -> None:
    """One that runs in its own process imports it; e2e and integration suites start processes that do. Each shows the named text."""
    suite, sign = COVERED_BY[name]
    path = ROOT / suite
    assert path.exists(), f"{suite} is gone: name the suite that covers {name} now in COVERED_BY of tests/test_mirror.py"
    assert sign and sign in path.read_text(encoding="utf-8"), f"{suite} does not hold {sign!r} any more: does it still cover {name}?"
    started = Path(name).stem in sign or "/versions/" in name  # by a process of its own, by Alembic
    if not started and not suite.startswith(("tests/e2e/", "tests/integration/")):
        assert ROOT / name in reached(path), f"{suite} does not import {name}, directly or not: name the suite that covers it"
