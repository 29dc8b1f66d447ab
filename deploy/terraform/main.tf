# An example: the Helm chart with its namespace, its Secret and a managed PostgreSQL's address. `terraform init && terraform apply`.
terraform {
  required_version = ">= 1.6"
  required_providers {
    helm       = { source = "hashicorp/helm", version = "~> 3.0" }
    kubernetes = { source = "hashicorp/kubernetes", version = "~> 2.38" }
    random     = { source = "hashicorp/random", version = "~> 3.7" }
  }
}

provider "kubernetes" {
  config_path = var.kubeconfig
}

provider "helm" {
  kubernetes = { config_path = var.kubeconfig }
}

variable "kubeconfig" {
  type    = string
  default = "~/.kube/config"
}

variable "database_url" {
  description = "postgresql://USER:PASSWORD@HOST/DATABASE?sslmode=verify-full&sslrootcert=FILE; /etc/ssl/certs/ca-certificates.crt is in the image, any other file needs the chart's volumes"
  type        = string
  sensitive   = true
}

variable "redis_url" {
  description = "rediss://:PASSWORD@HOST:6379"
  type        = string
  sensitive   = true
}

variable "database_networks" {
  description = "where PostgreSQL and Redis are, for the NetworkPolicy"
  type        = list(string)
  default     = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
}

variable "database_ports" {
  description = "of the URLs above"
  type        = list(number)
  default     = [5432, 6379]
}

variable "image" {
  type = object({ repository = string, digest = string })
}

variable "host" {
  type = string
}

variable "ingress_networks" {
  description = "where the ingress controller's pods are: their headers say which client asks (listen.trusted_peers)"
  type        = list(string)
}

# The admin listener's certificate, for the names gatehouse-admin, gatehouse-admin.gatehouse.svc and localhost, with its key and the authority
# that signed it, as PEM. Where cert-manager makes it (deploy/kustomize/components/secrets/certificate.yaml), leave this and its secret out.
variable "admin_tls" {
  type      = object({ certificate = string, key = string, authority = string })
  sensitive = true
}

# All secrets are kept in Terraform's state: keep that encrypted and closed. The pepper must never change (docs/store.md).
resource "random_id" "pepper" {
  byte_length = 32
  lifecycle { prevent_destroy = true }
}

resource "random_id" "operator_key" {
  byte_length = 24
}

resource "kubernetes_namespace_v1" "gatehouse" {
  metadata {
    name   = "gatehouse"
    labels = { "pod-security.kubernetes.io/enforce" = "restricted" }
  }
}

resource "kubernetes_secret_v1" "gatehouse" {
  metadata {
    name      = "gatehouse"
    namespace = kubernetes_namespace_v1.gatehouse.metadata[0].name
  }
  data = {
    pepper       = random_id.pepper.hex
    database-url = var.database_url
    redis-url    = var.redis_url
    operator-key = random_id.operator_key.hex
  }
}

resource "kubernetes_secret_v1" "admin_tls" {
  metadata {
    name      = "gatehouse-admin-tls"
    namespace = kubernetes_namespace_v1.gatehouse.metadata[0].name
  }
  type = "kubernetes.io/tls"
  data = {
    "tls.crt" = var.admin_tls.certificate
    "tls.key" = var.admin_tls.key
    "ca.crt"  = var.admin_tls.authority
  }
}

resource "helm_release" "gatehouse" {
  name      = "gatehouse"
  chart     = "${path.module}/../helm/gatehouse"
  namespace = kubernetes_namespace_v1.gatehouse.metadata[0].name
  atomic    = true
  timeout   = 600
  values = [yamlencode({
    image          = var.image
    config         = { listen = { trusted_peers = var.ingress_networks, max_connections_per_peer = 4096 } }
    autoscaling    = { enabled = true, min = 3, max = 12 }
    ingress        = { enabled = true, host = var.host }
    serviceMonitor = { enabled = true }
    # The chart looks for databases in the cluster's namespace of that name. These are elsewhere: give their networks here.
    networkPolicy = { egress = [
      { to = [{ namespaceSelector = { matchLabels = { "kubernetes.io/metadata.name" = "kube-system" } } }], ports = [{ port = 53, protocol = "UDP" }, { port = 53 }] },
      { to = [{ namespaceSelector = { matchLabels = { "kubernetes.io/metadata.name" = "inference" } } }], ports = [{ port = 8000 }] },
      { to = [for network in var.database_networks : { ipBlock = { cidr = network } }], ports = [for port in var.database_ports : { port = port }] },
      { to = [{ namespaceSelector = { matchLabels = { "kubernetes.io/metadata.name" = "monitoring" } } }], ports = [{ port = 4318 }] },
      { ports = [{ port = 443 }, { port = 6514 }] },
    ] }
  })]
  depends_on = [kubernetes_secret_v1.gatehouse, kubernetes_secret_v1.admin_tls]
}

output "operator_key" {
  value     = random_id.operator_key.hex
  sensitive = true
}
