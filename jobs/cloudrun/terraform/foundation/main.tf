# What the jobs and the service share: the image's repository, the bucket of weights, the account that builds, the hub
# token's place, and whom alerts are sent to. It is all that a build needs.

locals {
  apis = toset(concat(
    [
      "artifactregistry", "cloudbuild", "cloudresourcemanager", "containeranalysis", "iam", "iamcredentials", "logging",
      "monitoring", "run", "secretmanager", "serviceusage", "storage",
    ],
    var.scan ? ["containerscanning"] : [],
  ))
}

resource "google_project_service" "api" {
  for_each = local.apis

  project            = var.project
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false # others may need it
}

# Jobs and the service name an image by its digest, and a rollback names an older one. Each build pushes two images.
resource "google_artifact_registry_repository" "voxbatch" {
  project       = var.project
  location      = var.region
  repository_id = "voxbatch"
  format        = "DOCKER"
  description   = "Images of voxbatch"

  cleanup_policies {
    id     = "keep-five-builds"
    action = "KEEP"
    most_recent_versions {
      keep_count = 10
    }
  }
  cleanup_policies {
    id     = "delete-what-no-tag-names"
    action = "DELETE"
    condition {
      tag_state  = "UNTAGGED"
      older_than = "2592000s" # 30 days
    }
  }

  depends_on = [google_project_service.api]
}

resource "google_storage_bucket" "models" {
  project                     = var.project
  name                        = coalesce(var.bucket_models, "${var.project}-voxbatch-models")
  location                    = upper(var.region)
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  depends_on                  = [google_project_service.api]
}

# The token itself is a version of this secret. Terraform never reads it, because it would be in the state.
resource "google_secret_manager_secret" "token" {
  count = var.hub_token ? 1 : 0

  project   = var.project
  secret_id = "voxbatch-hf-token"
  replication {
    auto {}
  }
  depends_on = [google_project_service.api]
}

resource "google_monitoring_notification_channel" "email" {
  count = var.alert_email != "" ? 1 : 0

  project      = var.project
  type         = "email"
  display_name = "voxbatch"
  labels       = { email_address = var.alert_email }
  depends_on   = [google_project_service.api]
}

# ── the account of builds: it can neither deploy nor read recordings ──────────────────────────────────────────────────

resource "google_service_account" "build" {
  project      = var.project
  account_id   = "voxbatch-build"
  display_name = "voxbatch: builds images"
  depends_on   = [google_project_service.api]
}

resource "google_project_iam_member" "build" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = google_service_account.build.member
}

resource "google_artifact_registry_repository_iam_member" "build" {
  project    = var.project
  location   = var.region
  repository = google_artifact_registry_repository.voxbatch.name
  role       = "roles/artifactregistry.writer"
  member     = google_service_account.build.member
}

resource "google_storage_bucket_iam_member" "build" {
  bucket = google_storage_bucket.models.name
  role   = "roles/storage.objectUser" # the source, and the weights
  member = google_service_account.build.member
}

resource "google_secret_manager_secret_iam_member" "build" {
  count = var.hub_token ? 1 : 0

  project   = var.project
  secret_id = google_secret_manager_secret.token[0].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.build.member
}

output "channel" {
  description = "The notification channel of alert_email; empty without one."
  value       = join("", google_monitoring_notification_channel.email[*].id)
}

output "alert_email" {
  description = "The address that alerts are sent to."
  value       = var.alert_email
}
