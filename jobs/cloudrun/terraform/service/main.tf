# `voxbatch serve` as a Cloud Run service: vLLM's own server with the arguments of a profile, on one L4 for each
# instance. Without requests there is no instance, and nothing to pay. The module foundation comes first.

locals {
  # An address in a request makes vLLM fetch it, so the account reads the weights, or the hub token if each start
  # downloads from the hub, and may do nothing else.
  bucket_models = coalesce(var.bucket_models, "${var.project}-voxbatch-models")
  reads_bucket  = startswith(var.model, "gs://${local.bucket_models}/")
  # A caller is the last address that Google's front end writes into X-Forwarded-For. It reaches the container from a
  # link-local address; the addresses that a caller writes itself stay unread.
  limit     = var.rate_limit == "" ? {} : { VOXBATCH_RATE_LIMIT = var.rate_limit, FORWARDED_ALLOW_IPS = "169.254.0.0/16" }
  reads_hub = var.hub_token && can(regex("^[^/:]+/[^/]+$", var.model))
}

resource "google_service_account" "serve" {
  project      = var.project
  account_id   = "voxbatch-serve"
  display_name = "voxbatch: serves a model"
}

resource "google_storage_bucket_iam_member" "weights" {
  count = local.reads_bucket ? 1 : 0

  bucket = local.bucket_models
  role   = "roles/storage.objectViewer"
  member = google_service_account.serve.member
}

resource "google_secret_manager_secret_iam_member" "token" {
  count = local.reads_hub ? 1 : 0

  project   = var.project
  secret_id = "voxbatch-hf-token"
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.serve.member
}

resource "google_cloud_run_v2_service" "serve" {
  project              = var.project
  location             = var.region
  name                 = "voxbatch-serve"
  ingress              = var.ingress
  invoker_iam_disabled = false
  deletion_protection  = false

  template {
    service_account               = google_service_account.serve.email
    gpu_zonal_redundancy_disabled = true    # the cheaper kind, as for the jobs
    timeout                       = "3600s" # the maximum: a WebSocket is one request, from its first to its last word
    session_affinity              = true    # later requests of a client find what it has sent in the instance's caches
    # The same number twice: Cloud Run sends an instance no more requests than vLLM runs at a time. A request beyond it
    # starts another instance, or waits for Cloud Run, and never in vLLM's queue.
    max_instance_request_concurrency = var.concurrency

    scaling {
      min_instance_count = 0
      max_instance_count = var.max_instances
    }
    node_selector {
      accelerator = "nvidia-l4"
    }
    containers {
      image = var.image
      args  = ["serve", "--host", "0.0.0.0", "--profile", var.profile]
      ports {
        name           = "http1" # vLLM's server has no HTTP/2; Cloud Run puts the number into PORT, which serve reads
        container_port = 8080
      }
      env {
        name  = "VOXBATCH_ENGINE_OPTION"
        value = trimspace("${var.engine_options} max_num_seqs=${var.concurrency}")
      }
      dynamic "env" {
        for_each = local.limit
        content {
          name  = env.key
          value = env.value
        }
      }
      dynamic "env" {
        for_each = var.model == "" ? [] : [var.model]
        content {
          name  = "VOXBATCH_MODEL"
          value = env.value
        }
      }
      dynamic "env" {
        for_each = local.reads_hub ? ["voxbatch-hf-token"] : []
        content {
          name = "HF_TOKEN"
          value_source {
            secret_key_ref {
              secret  = env.value
              version = "latest"
            }
          }
        }
      }
      resources {
        limits            = { cpu = "8", memory = "32Gi", "nvidia.com/gpu" = "1" } # weights are fetched into memory
        cpu_idle          = false                                                  # required for a GPU: an instance is billed until it ends
        startup_cpu_boost = true
      }
      # A start fetches the weights, loads them and warms up, in minutes: at most 420 s here. A probe from the beginning
      # lets a fast start serve at once.
      startup_probe {
        initial_delay_seconds = var.start_delay
        period_seconds        = 10
        timeout_seconds       = 10
        failure_threshold     = ceil((420 - var.start_delay) / 10)
        http_get {
          path = "/health"
          port = 8080
        }
      }
      # vLLM answers with an error as soon as its engine is dead. A busy server may be slow to answer.
      liveness_probe {
        period_seconds    = 30
        timeout_seconds   = 20
        failure_threshold = 4
        http_get {
          path = "/health"
          port = 8080
        }
      }
    }
  }

  depends_on = [google_storage_bucket_iam_member.weights, google_secret_manager_secret_iam_member.token]
}

# Exactly these members may call the service: others lose the role.
resource "google_cloud_run_v2_service_iam_binding" "invokers" {
  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.serve.name
  role     = "roles/run.invoker"
  members  = var.invokers
}

output "url" {
  description = "The address of the service."
  value       = google_cloud_run_v2_service.serve.uri
}
