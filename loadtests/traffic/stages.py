"""How many users there are when: `--stages 30s:10,10s:200,30s:10`, or Locust's own --users, --spawn-rate and --run-time."""

from locust import LoadTestShape

from loadtests.traffic.notation import parse_stages


class Stages(LoadTestShape):
    """Follows --stages; without them, Locust's own options."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        options = self.runner.environment.parsed_options
        elapsed = self.get_run_time()
        if options.stages:
            for end, users in parse_stages(options.stages):
                if elapsed < end:
                    return users, float(options.spawn_rate or max(users, 1))
            return None
        if options.run_time and elapsed >= options.run_time:
            return None
        return options.num_users or 1, float(options.spawn_rate or 1)
