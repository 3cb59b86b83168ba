# The names, and what everything else stands on: APIs, repository, buckets and accounts.
#
# deploy.sh makes the same resources. Jobs, worker pool, workflow, log metrics and alert policies come from the files that
# deploy.sh uses, too. For everything else a test compares the two.

locals {
  image = "${var.region}-docker.pkg.dev/${var.project}/${google_artifact_registry_repository.voxbatch.name}/voxbatch"

  apis = toset([
    "artifactregistry", "cloudbuild", "cloudresourcemanager", "cloudscheduler", "containeranalysis", "containerscanning",
    "eventarc", "eventarcpublishing", "iam", "iamcredentials", "logging", "monitoring", "pubsub", "run", "secretmanager",
    "storage", "workflowexecutions", "workflows",
  ])
  # Services whose own accounts (service agents) are needed before the first use of the service would create them.
  agents = toset(["cloudscheduler", "eventarc", "pubsub", "workflows"])

  buckets = {
    in     = coalesce(var.bucket_in, "${var.project}-voxbatch-in")
    out    = coalesce(var.bucket_out, "${var.project}-voxbatch-out")
    models = coalesce(var.bucket_models, "${var.project}-voxbatch-models")
  }

  accounts = merge(
    {
      build    = "voxbatch: builds images"
      dispatch = "voxbatch: reads uploads and starts runs"
      run      = "voxbatch: transcribes"
      start    = "voxbatch: wakes the dispatcher"
    },
    var.uploads == "worker" ? { listen = "voxbatch: transcribes uploads at once" } : {},
  )
}

resource "google_project_service" "api" {
  for_each = local.apis

  project            = var.project
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false # others may need it
}

resource "google_project_service_identity" "agent" {
  provider = google-beta
  for_each = local.agents

  project    = var.project
  service    = "${each.key}.googleapis.com"
  depends_on = [google_project_service.api]
}

data "google_storage_project_service_account" "agent" {
  project    = var.project
  depends_on = [google_project_service.api]
}

resource "google_artifact_registry_repository" "voxbatch" {
  project       = var.project
  location      = var.region
  repository_id = "voxbatch"
  format        = "DOCKER"
  description   = "Images of voxbatch"
  depends_on    = [google_project_service.api]
}

resource "google_storage_bucket" "bucket" {
  for_each = local.buckets

  project                     = var.project
  name                        = each.value
  location                    = upper(var.region)
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  depends_on                  = [google_project_service.api]
}

resource "google_service_account" "account" {
  for_each = local.accounts

  project      = var.project
  account_id   = "voxbatch-${each.key}"
  display_name = each.value
  depends_on   = [google_project_service.api]
}

# Google needs some minutes until all of it knows a new service agent, its roles, and a new log metric.
resource "time_sleep" "known_everywhere" {
  create_duration = "120s"
  depends_on = [
    google_project_iam_member.grant,
    google_project_service_identity.agent,
    google_logging_metric.metric,
  ]
}
