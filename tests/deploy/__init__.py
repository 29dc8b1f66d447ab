"""What is deployed: distributions, images, manifests, rules and dashboards, each against the real tool where there is one."""
